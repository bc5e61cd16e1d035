"""Messaging platforms, each one thin file: translate what comes in, send what goes out, and nothing else."""
