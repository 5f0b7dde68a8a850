"""Tasks with what was decided and learnt about them, and the projects and repositories they are for."""

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, LargeBinary, String, Table, Text

from quarterdeck.store.schema.base import ID, USER, Json, metadata

projects = Table(
    "projects",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("name", Text, nullable=False),
    Column("description", Text, nullable=False, default=""),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("acceptance_command", Text),
    Column("gate_command", Text),
    Index(None, "user_id", "created_at", "id"),
)

repos = Table(
    "repos",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("project_id", ID, ForeignKey("projects.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "project_id", "path", unique=True),
)

# The project that a user opened last: where a task goes that names none.
open_projects = Table(
    "open_projects",
    metadata,
    Column("user_id", USER, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id", ondelete="CASCADE"), nullable=False),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("title", Text, nullable=False),
    Column("description", Text),
    Column("status", String(16), nullable=False),
    Column("priority", String(8), nullable=False),
    Column("source_channel", Text),
    Column("assigned_agent", Text),
    Column("parent_task_id", ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
    Column("project_id", ID, ForeignKey("projects.id", ondelete="SET NULL"), index=True),
    Column("metadata", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("completed_at", BigInteger),
    Column("plan_id", ID, ForeignKey("plans.id", ondelete="SET NULL"), index=True),
    Column("phase_id", ID, ForeignKey("phases.id", ondelete="SET NULL")),
    Column("position", Integer),
    Column("notes", Text),
    Column("task_type", String(8), nullable=False, server_default="PAIR"),
    Column("acceptance_criteria", Json, nullable=False, server_default="[]"),
    Column("agent_backend", Text),
    Column("terminal_backend", String(16)),
    Column("base_branch", Text),
    Column("created_by", Text),
    Index(None, "phase_id", "position"),
    Index(None, "user_id", "created_at", "id"),
    Index(None, "user_id", "status", "created_at", "id"),
    Index(None, "project_id", "status", "user_id", "created_at", "id"),
    Index(None, "created_at", "id"),
)

# Apart from the task, since it is long and seldom read.
scratchpads = Table(
    "scratchpads",
    metadata,
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("content", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

# What was said of a task's result: asked for, approved, rejected with remarks, rebased, merged.
reviews = Table(
    "reviews",
    metadata,
    Column("id", ID, primary_key=True),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("actor", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("data", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "task_id", "created_at", "id"),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("from_status", String(16)),
    Column("to_status", String(16), nullable=False),
    Column("reason", Text),
    Column("actor", Text),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "task_id", "created_at"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
    Column("context", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("outcome", Text),
    Column("confidence", Float),
    Column("tags", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "user_id", "created_at", "id"),
)

decision_tags = Table(
    "decision_tags",
    metadata,
    Column("tag", Text, primary_key=True),
    Column("decision_id", ID, ForeignKey("decisions.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "decision_id"),
)

patterns = Table(
    "patterns",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("trigger_conditions", Json, nullable=False),
    Column("actions", Json, nullable=False),
    Column("success_rate", Float, nullable=False),
    Column("usage_count", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index(None, "user_id", "created_at", "id"),
)

# One row a decision or pattern once it is embedded; `model` says which vectors can be compared.
embeddings = Table(
    "embeddings",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("row_id", ID, primary_key=True),
    Column("user_id", USER),
    Column("model", String(64), nullable=False),
    Column("vector", LargeBinary, nullable=False),
    Index(None, "model", "kind"),
)
