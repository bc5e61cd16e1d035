"""What happens next: the gateway is the one door, the worker runs turns, and both know the store but no vendor."""
