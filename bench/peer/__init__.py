"""Legato beside Hermes Agent, on one machine, in one run: `make bench-peer`."""
