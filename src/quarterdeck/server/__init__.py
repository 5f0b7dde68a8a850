"""The ASGI application: gate, MCP endpoints, tokens over REST, health and metrics."""
