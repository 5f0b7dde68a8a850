"""Thin MCP dialects over the core: each parses, calls one core function and words the answer."""
