"""Legato: a self-hosted gateway for AI agents in which a conversation never loses its thread."""

__version__ = "0.1.0"
