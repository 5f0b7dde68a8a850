"""Who may come in, and the log of what was done."""

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from quarterdeck.store.schema.base import ID, USER, Json, metadata

tokens = Table(
    "tokens",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER, nullable=False),
    Column("name", Text, nullable=False),
    Column("profile", String(16), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("project_id", ID, ForeignKey("projects.id", ondelete="CASCADE")),
    Column("task_id", ID, ForeignKey("tasks.id", ondelete="CASCADE")),
    Column("local", Boolean, nullable=False, default=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), index=True),
    Column("attempt", Integer),
    Index(None, "user_id", "created_at"),
)

mcp_sessions = Table(
    "mcp_sessions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("user_id", USER),
    Column("surface", String(32), nullable=False),
    Column("initialize", Json, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_seen_at", BigInteger, nullable=False, index=True),
)

# What an older client's session wants to hear of, so that another core can go on telling it; `seq` is the
# event up to which it has been told.
subscriptions = Table(
    "subscriptions",
    metadata,
    Column("session_id", ID, ForeignKey("mcp_sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("uri", String(500), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# Settings that `settings_update` changed; they beat the configuration file.
settings = Table(
    "settings",
    metadata,
    Column("key", String(100), primary_key=True),
    Column("value", Json, nullable=False),
    Column("updated_by", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("user_id", USER),
    Column("actor", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("entity_id", Text),
    Column("task_id", ID),
    Column("ok", Boolean, nullable=False),
    Column("data", Json, nullable=False),
    Column("hash", String(64), nullable=False),
    Index(None, "user_id", "seq"),
    Index(None, "entity_id", "seq"),
    Index(None, "user_id", "task_id", "seq"),
)
