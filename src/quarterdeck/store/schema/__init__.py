"""Tables and indexes, one definition for SQLite and PostgreSQL. Private to this package."""

from quarterdeck.store.schema.access import events, mcp_sessions, settings, subscriptions, tokens
from quarterdeck.store.schema.base import metadata
from quarterdeck.store.schema.jobs import agents, artifacts, deliveries, jobs, merges, workers, worktrees
from quarterdeck.store.schema.plans import (
    batch_items,
    briefs,
    checkpoints,
    model_usage,
    phases,
    plan_state,
    plans,
    proposals,
    session_artifacts,
    session_log,
    sessions,
)
from quarterdeck.store.schema.tasks import (
    decision_tags,
    decisions,
    embeddings,
    open_projects,
    patterns,
    projects,
    repos,
    reviews,
    scratchpads,
    tasks,
    transitions,
)

HEAD = "0003"

__all__ = [
    "HEAD",
    "agents",
    "artifacts",
    "batch_items",
    "briefs",
    "checkpoints",
    "decision_tags",
    "decisions",
    "deliveries",
    "embeddings",
    "events",
    "jobs",
    "mcp_sessions",
    "merges",
    "metadata",
    "model_usage",
    "open_projects",
    "patterns",
    "phases",
    "plan_state",
    "plans",
    "projects",
    "proposals",
    "repos",
    "reviews",
    "scratchpads",
    "session_artifacts",
    "session_log",
    "sessions",
    "settings",
    "subscriptions",
    "tasks",
    "tokens",
    "transitions",
    "workers",
    "worktrees",
]
