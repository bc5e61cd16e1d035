"""Messaging, on real processes and real sockets."""
