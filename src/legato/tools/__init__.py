"""Toolsets: built in, and (later) MCP servers, behind `engine.protocols.Toolset`."""
