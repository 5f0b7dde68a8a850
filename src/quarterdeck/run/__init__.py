"""Running agents: each attempt of a job is contained, followed and always ended."""
