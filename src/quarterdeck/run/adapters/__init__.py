"""One interface to every kind of coding agent; one module a kind."""
