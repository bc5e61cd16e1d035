"""LLM providers, one module each, behind `engine.protocols.Model`."""
