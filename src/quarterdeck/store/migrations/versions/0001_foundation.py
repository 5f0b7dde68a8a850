"""Tasks, memory, tokens, sessions and the event log."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _tasks()
    _memory()
    _access()


def _tasks() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(200)),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(200)),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("priority", sa.String(8), nullable=False),
        sa.Column("source_channel", sa.Text),
        sa.Column("assigned_agent", sa.Text),
        sa.Column("parent_task_id", sa.String(36), sa.ForeignKey("tasks.id", ondelete="SET NULL")),
        sa.Column("project_id", sa.String(36), sa.ForeignKey("projects.id", ondelete="SET NULL")),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("completed_at", sa.BigInteger),
    )
    for columns in (
        ("parent_task_id",),
        ("project_id",),
        ("user_id", "created_at", "id"),
        ("user_id", "status", "created_at", "id"),
        ("created_at", "id"),
    ):
        op.create_index(f"ix_tasks_{'_'.join(columns)}", "tasks", list(columns))
    op.create_table(
        "transitions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("task_id", sa.String(36), sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("from_status", sa.String(16)),
        sa.Column("to_status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("actor", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_transitions_task_id_created_at", "transitions", ["task_id", "created_at"])


def _memory() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(200)),
        sa.Column("task_id", sa.String(36), sa.ForeignKey("tasks.id", ondelete="SET NULL")),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("confidence", sa.Float),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_decisions_task_id", "decisions", ["task_id"])
    op.create_index("ix_decisions_user_id_created_at_id", "decisions", ["user_id", "created_at", "id"])
    op.create_table(
        "decision_tags",
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column(
            "decision_id", sa.String(36), sa.ForeignKey("decisions.id", ondelete="CASCADE"), primary_key=True
        ),
    )
    op.create_index("ix_decision_tags_decision_id", "decision_tags", ["decision_id"])
    op.create_table(
        "patterns",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(200)),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("trigger_conditions", sa.Text, nullable=False),
        sa.Column("actions", sa.Text, nullable=False),
        sa.Column("success_rate", sa.Float, nullable=False),
        sa.Column("usage_count", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_patterns_user_id_created_at_id", "patterns", ["user_id", "created_at", "id"])
    op.create_table(
        "embeddings",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("row_id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(200)),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("vector", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_embeddings_model_kind", "embeddings", ["model", "kind"])
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE memory_text USING fts5("
            "kind UNINDEXED, row_id UNINDEXED, user_id UNINDEXED, body, tokenize='unicode61')"
        )
    else:
        op.execute(
            "CREATE TABLE memory_text (kind VARCHAR(16), row_id VARCHAR(36), user_id VARCHAR(200), "
            "body TSVECTOR NOT NULL, PRIMARY KEY (kind, row_id))"
        )
        op.execute("CREATE INDEX ix_memory_text_body ON memory_text USING gin (body)")


def _access() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(200), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("profile", sa.String(16), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("project_id", sa.String(36), sa.ForeignKey("projects.id", ondelete="CASCADE")),
        sa.Column("task_id", sa.String(36), sa.ForeignKey("tasks.id", ondelete="CASCADE")),
        sa.Column("local", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("last_used_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_index("ix_tokens_user_id_created_at", "tokens", ["user_id", "created_at"])
    op.create_table(
        "mcp_sessions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("user_id", sa.String(200)),
        sa.Column("surface", sa.String(32), nullable=False),
        sa.Column("initialize", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("last_seen_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_mcp_sessions_last_seen_at", "mcp_sessions", ["last_seen_at"])
    op.create_table(
        "events",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False
        ),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("user_id", sa.String(200)),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("entity_id", sa.Text),
        sa.Column("task_id", sa.String(36)),
        sa.Column("ok", sa.Boolean, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_index("ix_events_user_id_seq", "events", ["user_id", "seq"])
