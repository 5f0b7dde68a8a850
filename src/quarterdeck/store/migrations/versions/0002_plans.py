"""Plans, phases, state, work sessions, content and the job queue."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _plans()
    _sessions()
    _content()


def _id() -> sa.Column[str]:
    return sa.Column("id", sa.String(36), primary_key=True)


def _ref(
    name: str, table: str, rule: str, *, nullable: bool = True, primary_key: bool = False
) -> sa.Column[str]:
    reference = sa.ForeignKey(f"{table}.id", ondelete=rule)
    return sa.Column(
        name, sa.String(36), reference, nullable=nullable and not primary_key, primary_key=primary_key
    )


def _time(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _index(table: str, *columns: str, unique: bool = False) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns), unique=unique)


def _plans() -> None:
    op.create_table(
        "plans",
        _id(),
        sa.Column("user_id", sa.String(200)),
        _ref("project_id", "projects", "SET NULL"),
        sa.Column("slug", sa.String(200), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("template", sa.Text, nullable=False),
        sa.Column("archive_reason", sa.Text),
        _time("created_at"),
        _time("updated_at"),
        _time("completed_at", nullable=True),
    )
    _index("plans", "user_id", "slug", unique=True)
    _index("plans", "user_id", "created_at", "id")
    _index("plans", "slug")
    op.create_table(
        "phases",
        _id(),
        _ref("plan_id", "plans", "CASCADE", nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        _time("updated_at"),
    )
    _index("phases", "plan_id", "position", unique=True)
    op.create_table(
        "checkpoints",
        _id(),
        _ref("phase_id", "phases", "CASCADE", nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        _time("created_at"),
    )
    _index("checkpoints", "phase_id", "created_at")
    op.create_table(
        "plan_state",
        _ref("plan_id", "plans", "CASCADE", primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("category", sa.String(200), nullable=False),
        _time("created_at"),
        _time("updated_at"),
    )
    with op.batch_alter_table("tasks") as tasks:
        tasks.add_column(sa.Column("plan_id", sa.String(36)))
        tasks.add_column(sa.Column("phase_id", sa.String(36)))
        tasks.add_column(sa.Column("position", sa.Integer))
        tasks.add_column(sa.Column("notes", sa.Text))
        tasks.create_foreign_key("fk_tasks_plan_id", "plans", ["plan_id"], ["id"], ondelete="SET NULL")
        tasks.create_foreign_key("fk_tasks_phase_id", "phases", ["phase_id"], ["id"], ondelete="SET NULL")
    _index("tasks", "plan_id")
    _index("tasks", "phase_id", "position")


def _sessions() -> None:
    op.create_table(
        "sessions",
        _id(),
        sa.Column("user_id", sa.String(200)),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        _ref("project_id", "projects", "SET NULL"),
        _ref("plan_id", "plans", "SET NULL"),
        _ref("task_id", "tasks", "SET NULL"),
        _ref("parent_id", "sessions", "SET NULL"),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("summary", sa.Text),
        sa.Column("handoff", sa.Text, nullable=False),
        _time("created_at"),
        _time("active_at"),
        _time("ended_at", nullable=True),
    )
    for columns in (
        ("plan_id",),
        ("task_id",),
        ("parent_id",),
        ("user_id", "created_at", "id"),
        ("kind", "status", "active_at"),
    ):
        _index("sessions", *columns)
    op.create_table(
        "session_log",
        sa.Column("n", _BIG, primary_key=True),
        _ref("session_id", "sessions", "CASCADE", nullable=False),
        sa.Column("type", sa.String(16), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        _time("created_at"),
    )
    _index("session_log", "session_id", "type", "n")
    op.create_table(
        "session_artifacts",
        sa.Column("n", _BIG, primary_key=True),
        _ref("session_id", "sessions", "CASCADE", nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        _time("created_at"),
    )
    _index("session_artifacts", "session_id", "n")


def _content() -> None:
    op.create_table(
        "briefs",
        _id(),
        sa.Column("user_id", sa.String(200)),
        _ref("plan_id", "plans", "SET NULL"),
        _ref("task_id", "tasks", "SET NULL"),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("content_type", sa.String(32), nullable=False),
        sa.Column("service", sa.Text),
        sa.Column("keywords", sa.Text, nullable=False),
        sa.Column("target_word_count", sa.Integer, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("difficulty", sa.String(16)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("draft_output", sa.Text),
        sa.Column("refined_output", sa.Text),
        sa.Column("final_content", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.Column("generation_log", sa.Text, nullable=False),
        _time("created_at"),
        _time("updated_at"),
    )
    _index("briefs", "plan_id")
    _index("briefs", "user_id", "status", "created_at")
    _index("briefs", "user_id", "created_at", "id")
    op.create_table(
        "model_usage",
        _id(),
        sa.Column("user_id", sa.String(200)),
        sa.Column("provider", sa.String(16), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        _ref("brief_id", "briefs", "SET NULL"),
        sa.Column("input_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("cost_usd", sa.Float),
        _time("created_at"),
    )
    _index("model_usage", "brief_id")
    _index("model_usage", "user_id", "created_at")
    op.create_table(
        "jobs",
        _id(),
        sa.Column("user_id", sa.String(200)),
        sa.Column("kind", sa.String(16), nullable=False),
        _ref("task_id", "tasks", "SET NULL"),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_version", sa.Integer, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("worker", sa.Text),
        _time("lease_until", nullable=True),
        sa.Column("summary", sa.Text),
        sa.Column("reason_code", sa.String(32)),
        sa.Column("result", sa.Text, nullable=False),
        _time("created_at"),
        _time("updated_at"),
        _time("started_at", nullable=True),
        _time("finished_at", nullable=True),
    )
    _index("jobs", "task_id")
    _index("jobs", "state", "priority", "created_at", "id")
    _index("jobs", "user_id", "kind", "created_at", "id")
    _index("jobs", "user_id", "kind", "idempotency_key")
    op.create_table(
        "batch_items",
        _ref("job_id", "jobs", "CASCADE", primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("slug", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("content", sa.Text),
        sa.Column("problems", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        _time("updated_at"),
    )
