"""Tables and indexes, one definition for SQLite and PostgreSQL. Private to this package."""

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

HEAD = "0002"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Json(TypeDecorator[Any]):
    """Any JSON value as text, so that it comes back exactly: key order, null and numbers as they were."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


_ID = String(36)
_USER = String(200)

projects = Table(
    "projects",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("name", Text, nullable=False),
    Column("description", Text, nullable=False, default=""),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("title", Text, nullable=False),
    Column("description", Text),
    Column("status", String(16), nullable=False),
    Column("priority", String(8), nullable=False),
    Column("source_channel", Text),
    Column("assigned_agent", Text),
    Column("parent_task_id", _ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
    Column("project_id", _ID, ForeignKey("projects.id", ondelete="SET NULL"), index=True),
    Column("metadata", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("completed_at", BigInteger),
    Column("plan_id", _ID, ForeignKey("plans.id", ondelete="SET NULL"), index=True),
    Column("phase_id", _ID, ForeignKey("phases.id", ondelete="SET NULL")),
    Column("position", Integer),
    Column("notes", Text),
    Index(None, "phase_id", "position"),
    Index(None, "user_id", "created_at", "id"),
    Index(None, "user_id", "status", "created_at", "id"),
    Index(None, "created_at", "id"),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("task_id", _ID, ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
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
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("task_id", _ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
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
    Column("decision_id", _ID, ForeignKey("decisions.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "decision_id"),
)

patterns = Table(
    "patterns",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
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
    Column("row_id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("model", String(64), nullable=False),
    Column("vector", LargeBinary, nullable=False),
    Index(None, "model", "kind"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER, nullable=False),
    Column("name", Text, nullable=False),
    Column("profile", String(16), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("project_id", _ID, ForeignKey("projects.id", ondelete="CASCADE")),
    Column("task_id", _ID, ForeignKey("tasks.id", ondelete="CASCADE")),
    Column("local", Boolean, nullable=False, default=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("revoked_at", BigInteger),
    Index(None, "user_id", "created_at"),
)

mcp_sessions = Table(
    "mcp_sessions",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("surface", String(32), nullable=False),
    Column("initialize", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_seen_at", BigInteger, nullable=False, index=True),
)

plans = Table(
    "plans",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("project_id", _ID, ForeignKey("projects.id", ondelete="SET NULL")),
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
    Column("id", _ID, primary_key=True),
    Column("plan_id", _ID, ForeignKey("plans.id", ondelete="CASCADE"), nullable=False),
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
    Column("id", _ID, primary_key=True),
    Column("phase_id", _ID, ForeignKey("phases.id", ondelete="CASCADE"), nullable=False),
    Column("note", Text, nullable=False),
    Column("context", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "phase_id", "created_at"),
)

plan_state = Table(
    "plan_state",
    metadata,
    Column("plan_id", _ID, ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("value", Json, nullable=False),
    Column("category", String(200), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("kind", String(16), nullable=False),
    Column("agent", Text, nullable=False),
    Column("project_id", _ID, ForeignKey("projects.id", ondelete="SET NULL")),
    Column("plan_id", _ID, ForeignKey("plans.id", ondelete="SET NULL"), index=True),
    Column("task_id", _ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
    Column("parent_id", _ID, ForeignKey("sessions.id", ondelete="SET NULL"), index=True),
    Column("status", String(16), nullable=False),
    Column("context", Json, nullable=False),
    Column("summary", Text),
    Column("handoff", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("active_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Index(None, "user_id", "created_at", "id"),
    Index(None, "kind", "status", "active_at"),
)

session_log = Table(
    "session_log",
    metadata,
    Column("n", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("session_id", _ID, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
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
    Column("session_id", _ID, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("path", Text, nullable=False),
    Column("action", String(16), nullable=False),
    Column("metadata", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "session_id", "n"),
)

briefs = Table(
    "briefs",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("plan_id", _ID, ForeignKey("plans.id", ondelete="SET NULL"), index=True),
    Column("task_id", _ID, ForeignKey("tasks.id", ondelete="SET NULL")),
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
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("provider", String(16), nullable=False),
    Column("model", Text, nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("brief_id", _ID, ForeignKey("briefs.id", ondelete="SET NULL"), index=True),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost_usd", Float),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "user_id", "created_at"),
)

# The queue. A job is claimed by one worker at a time; every write of a worker names its attempt.
jobs = Table(
    "jobs",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("user_id", _USER),
    Column("kind", String(16), nullable=False),
    Column("task_id", _ID, ForeignKey("tasks.id", ondelete="SET NULL"), index=True),
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
    Index(None, "state", "priority", "created_at", "id"),
    Index(None, "user_id", "kind", "created_at", "id"),
    Index(None, "user_id", "kind", "idempotency_key"),
)

# The articles of a batch, each with its own progress, so that a resumed batch goes on where it stopped.
batch_items = Table(
    "batch_items",
    metadata,
    Column("job_id", _ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("slug", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("content", Text),
    Column("problems", Json, nullable=False),
    Column("error", Text),
    Column("updated_at", BigInteger, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("user_id", _USER),
    Column("actor", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("entity_id", Text),
    Column("task_id", _ID),
    Column("ok", Boolean, nullable=False),
    Column("data", Json, nullable=False),
    Column("hash", String(64), nullable=False),
    Index(None, "user_id", "seq"),
)
