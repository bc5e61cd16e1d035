"""What the engine counts. Exposed at `/metrics`; names begin with `legato_`."""

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()
ADMITTED = Counter("legato_turns_admitted", "Turns admitted", registry=REGISTRY)
ENDED = Counter("legato_turns_ended", "Turns ended, by outcome", ["status"], registry=REGISTRY)
RUNNING = Gauge("legato_turns_running", "Turns running in this process", registry=REGISTRY)
TAKEN_OVER = Counter("legato_turns_taken_over", "Turns taken over after another process left them", registry=REGISTRY)
CHANNEL_UP = Gauge("legato_channel_up", "Whether a channel is connected", ["channel"], registry=REGISTRY)
DELIVERED = Counter("legato_deliveries", "Answers sent, by outcome", ["channel", "status"], registry=REGISTRY)
ABANDONED = Counter("legato_turns_abandoned", "Turns this process could not go on with", registry=REGISTRY)
