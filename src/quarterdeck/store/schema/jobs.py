"""The queue, who works on it, and what the work leaves: artifacts, worktrees, merges, deliveries."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from quarterdeck.store.schema.base import ID, USER, Json, metadata

# A job is claimed by one worker at a time; every write of a worker names its attempt.
jobs = Table(
    "jobs",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("kind", String(16), nullable=False),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
    Column("spec", Json, nullable=False),
    Column("state", String(16), nullable=False),
    Column("state_version", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("idempotency_key", Text),
    Column("worker", Text),
    Column("lease_until", BigInteger),
    Column("summary", Text),
    Column("reason_code", String(32)),
    Column("result", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("agent", Text),
    Column("project_id", ID, ForeignKey("projects.id", ondelete="SET NULL")),
    Column("session_id", ID, ForeignKey("sessions.id", ondelete="SET NULL")),
    Column("expires_at", BigInteger),
    Column("timeout_s", Integer),
    Column("place", Text),
    Column("cost_usd", Float),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Index(None, "state", "priority", "created_at", "id"),
    Index(None, "user_id", "kind", "created_at", "id"),
    Index(None, "user_id", "kind", "idempotency_key"),
)

# What a job leaves, written in the transaction that ends it.
artifacts = Table(
    "artifacts",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("media_type", String(100), nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# How many jobs an agent takes at once, over all workers; the core writes it, workers lock the row to claim.
agents = Table(
    "agents",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("max_concurrent", Integer, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("place", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("kinds", Json, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)

# A task's own checkout of one repository. It outlives its jobs, until merge, delete or repair.
worktrees = Table(
    "worktrees",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="SET NULL")),
    Column("repo_id", ID, ForeignKey("repos.id", ondelete="SET NULL")),
    Column("repo_path", Text, nullable=False),
    Column("path", Text, nullable=False, unique=True),
    Column("branch", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("base_commit", String(64), nullable=False),
    Column("place", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "task_id", "repo_id", unique=True),
)

# A merge on its way: written before git is touched, so that a start after a crash can end or undo it.
merges = Table(
    "merges",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
    Column("repo_path", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("strategy", String(16), nullable=False),
    Column("old_commit", String(64), nullable=False),
    Column("new_commit", String(64), nullable=False),
    Column("step", String(16), nullable=False),
    Column("actor", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index(None, "step"),
)

# A webhook's message until it has arrived or was given up.
deliveries = Table(
    "deliveries",
    metadata,
    Column("id", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("url", Text, nullable=False),
    Column("body", Json, nullable=False),
    Column("state", String(16), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("error", Text),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "state", "next_at"),
)
