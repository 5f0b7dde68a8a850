"""Plans with their phases, sessions of all kinds, and content."""

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, String, Table, Text

from quarterdeck.store.schema.base import ID, USER, Json, metadata

plans = Table(
    "plans",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("project_id", ID, ForeignKey("projects.id", ondelete="SET NULL")),
    Column("slug", String(200), nullable=False),
    Column("title", Text, nullable=False),
    Column("description", Text),
    Column("status", String(16), nullable=False),
    Column("context", Json, nullable=False),
    Column("template", Json, nullable=False),
    Column("archive_reason", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("completed_at", BigInteger),
    Index(None, "user_id", "slug", unique=True),
    Index(None, "user_id", "created_at", "id"),
    Index(None, "slug"),
)

phases = Table(
    "phases",
    metadata,
    Column("id", ID, primary_key=True),
    Column("plan_id", ID, ForeignKey("plans.id", ondelete="CASCADE"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("status", String(16), nullable=False),
    Column("reason", Text),
    Column("updated_at", BigInteger, nullable=False),
    Index(None, "plan_id", "position", unique=True),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", ID, primary_key=True),
    Column("phase_id", ID, ForeignKey("phases.id", ondelete="CASCADE"), nullable=False),
    Column("note", Text, nullable=False),
    Column("context", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "phase_id", "created_at"),
)

plan_state = Table(
    "plan_state",
    metadata,
    Column("plan_id", ID, ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("value", Json, nullable=False),
    Column("category", String(200), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("kind", String(16), nullable=False),
    Column("agent", Text, nullable=False),
    Column("project_id", ID, ForeignKey("projects.id", ondelete="SET NULL")),
    Column("plan_id", ID, ForeignKey("plans.id", ondelete="SET NULL"), index=True),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
    Column("parent_id", ID, ForeignKey("sessions.id", ondelete="SET NULL"), index=True),
    Column("status", String(16), nullable=False),
    Column("context", Json, nullable=False),
    Column("summary", Text),
    Column("handoff", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("active_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("agent_session_id", Text),
    Index(None, "user_id", "created_at", "id"),
    Index(None, "kind", "status", "active_at"),
)

session_log = Table(
    "session_log",
    metadata,
    Column("n", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("session_id", ID, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("type", String(16), nullable=False),
    Column("message", Text, nullable=False),
    Column("data", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "session_id", "type", "n"),
)

session_artifacts = Table(
    "session_artifacts",
    metadata,
    Column("n", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("session_id", ID, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("path", Text, nullable=False),
    Column("action", String(16), nullable=False),
    Column("metadata", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "session_id", "n"),
)

briefs = Table(
    "briefs",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("plan_id", ID, ForeignKey("plans.id", ondelete="SET NULL"), index=True),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="SET NULL")),
    Column("title", Text, nullable=False),
    Column("content_type", String(32), nullable=False),
    Column("service", Text),
    Column("keywords", Json, nullable=False),
    Column("target_word_count", Integer, nullable=False),
    Column("description", Text),
    Column("difficulty", String(16)),
    Column("status", String(16), nullable=False),
    Column("draft_output", Text),
    Column("refined_output", Text),
    Column("final_content", Text),
    Column("error_message", Text),
    Column("generation_log", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index(None, "user_id", "status", "created_at"),
    Index(None, "user_id", "created_at", "id"),
)

# One row for each answered call to a model provider; a batch article is paid for once, by its key.
model_usage = Table(
    "model_usage",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("provider", String(16), nullable=False),
    Column("model", Text, nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("brief_id", ID, ForeignKey("briefs.id", ondelete="SET NULL"), index=True),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost_usd", Float),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "user_id", "created_at"),
)

# A plan that was proposed; `plan_id` is set when a person accepted it.
proposals = Table(
    "proposals",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("project_id", ID, ForeignKey("projects.id", ondelete="SET NULL")),
    Column("tasks", Json, nullable=False),
    Column("todos", Json, nullable=False),
    Column("status", String(16), nullable=False),
    Column("plan_id", ID, ForeignKey("plans.id", ondelete="SET NULL")),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index(None, "user_id", "created_at", "id"),
)

# The articles of a batch, each with its own progress, so that a resumed batch goes on where it stopped.
batch_items = Table(
    "batch_items",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("slug", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("content", Text),
    Column("problems", Json, nullable=False),
    Column("error", Text),
    Column("updated_at", BigInteger, nullable=False),
)
