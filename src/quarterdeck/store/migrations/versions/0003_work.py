"""Projects and repositories, the board's fields of a task, and everything about running jobs."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_ID = sa.String(36)
_USER = sa.String(200)


def upgrade() -> None:
    _projects()
    _tasks()
    _jobs()
    _access()
    _work()


def _ref(name: str, table: str, rule: str, *, nullable: bool = True, primary: bool = False) -> sa.Column[str]:
    reference = sa.ForeignKey(f"{table}.id", ondelete=rule, name=None)
    return sa.Column(name, _ID, reference, nullable=nullable and not primary, primary_key=primary)


def _time(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _text(name: str, *, nullable: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _index(table: str, *columns: str, unique: bool = False) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns), unique=unique)


def _add(table: str, *columns: sa.Column[Any]) -> None:
    with op.batch_alter_table(table) as batch:
        for column in columns:
            batch.add_column(column)


def _link(table: str, name: str, other: str, rule: str) -> None:
    """A new column that refers to another table; SQLite copies the table for it."""
    with op.batch_alter_table(table) as batch:
        batch.add_column(sa.Column(name, _ID))
        batch.create_foreign_key(f"fk_{table}_{name}", other, [name], ["id"], ondelete=rule)


def _projects() -> None:
    _add("projects", _text("acceptance_command"), _text("gate_command"))
    _index("projects", "user_id", "created_at", "id")
    op.create_table(
        "repos",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("user_id", _USER),
        _ref("project_id", "projects", "CASCADE", nullable=False),
        _text("name", nullable=False),
        _text("path", nullable=False),
        _time("created_at"),
    )
    _index("repos", "project_id", "path", unique=True)
    op.create_table(
        "open_projects",
        sa.Column("user_id", _USER, primary_key=True),
        _ref("project_id", "projects", "CASCADE", nullable=False),
    )


def _tasks() -> None:
    _add(
        "tasks",
        sa.Column("task_type", sa.String(8), nullable=False, server_default="PAIR"),
        sa.Column("acceptance_criteria", sa.Text, nullable=False, server_default="[]"),
        _text("agent_backend"),
        sa.Column("terminal_backend", sa.String(16)),
        _text("base_branch"),
        _text("created_by"),
    )
    _index("tasks", "project_id", "status", "user_id", "created_at", "id")
    op.create_table(
        "scratchpads",
        _ref("task_id", "tasks", "CASCADE", primary=True),
        _text("content", nullable=False),
        _time("updated_at"),
    )
    op.create_table(
        "reviews",
        sa.Column("id", _ID, primary_key=True),
        _ref("task_id", "tasks", "CASCADE", nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        _text("actor", nullable=False),
        _text("text", nullable=False),
        _text("data", nullable=False),
        _time("created_at"),
    )
    _index("reviews", "task_id", "created_at", "id")
    op.create_table(
        "proposals",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("user_id", _USER),
        _ref("project_id", "projects", "SET NULL"),
        _text("tasks", nullable=False),
        _text("todos", nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        _ref("plan_id", "plans", "SET NULL"),
        _text("created_by", nullable=False),
        _time("created_at"),
        _time("updated_at"),
    )
    _index("proposals", "user_id", "created_at", "id")


def _jobs() -> None:
    _add("sessions", _text("agent_session_id"))
    _add("jobs", _text("agent"))
    _link("jobs", "project_id", "projects", "SET NULL")
    _link("jobs", "session_id", "sessions", "SET NULL")
    _add(
        "jobs",
        _time("expires_at", nullable=True),
        sa.Column("timeout_s", sa.Integer),
        _text("place"),
        sa.Column("cost_usd", sa.Float),
        sa.Column("input_tokens", sa.Integer),
        sa.Column("output_tokens", sa.Integer),
    )
    op.create_table(
        "artifacts",
        _ref("job_id", "jobs", "CASCADE", primary=True),
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("media_type", sa.String(100), nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        _time("created_at"),
    )
    op.create_table(
        "agents",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("max_concurrent", sa.Integer, nullable=False),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(200), primary_key=True),
        _text("place", nullable=False),
        _text("host", nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        _text("kinds", nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        _time("started_at"),
        _time("seen_at"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", _ID, primary_key=True),
        _ref("job_id", "jobs", "CASCADE", nullable=False),
        _text("url", nullable=False),
        _text("body", nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        _time("next_at"),
        _text("error"),
        _time("created_at"),
    )
    _index("deliveries", "job_id")
    _index("deliveries", "state", "next_at")


def _access() -> None:
    _link("tokens", "job_id", "jobs", "CASCADE")
    _add("tokens", sa.Column("attempt", sa.Integer))
    _index("tokens", "job_id")
    op.create_table(
        "subscriptions",
        _ref("session_id", "mcp_sessions", "CASCADE", primary=True),
        sa.Column("uri", sa.String(500), primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        _time("created_at"),
    )
    op.create_table(
        "settings",
        sa.Column("key", sa.String(100), primary_key=True),
        _text("value", nullable=False),
        _text("updated_by", nullable=False),
        _time("updated_at"),
    )
    _index("events", "entity_id", "seq")
    _index("events", "user_id", "task_id", "seq")


def _work() -> None:
    op.create_table(
        "worktrees",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("user_id", _USER),
        _ref("task_id", "tasks", "SET NULL"),
        _ref("repo_id", "repos", "SET NULL"),
        _text("repo_path", nullable=False),
        sa.Column("path", sa.Text, nullable=False, unique=True),
        _text("branch", nullable=False),
        _text("target", nullable=False),
        sa.Column("base_commit", sa.String(64), nullable=False),
        _text("place", nullable=False),
        _time("created_at"),
    )
    _index("worktrees", "task_id", "repo_id", unique=True)
    op.create_table(
        "merges",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("user_id", _USER),
        _ref("task_id", "tasks", "SET NULL"),
        _text("repo_path", nullable=False),
        _text("target", nullable=False),
        sa.Column("strategy", sa.String(16), nullable=False),
        sa.Column("old_commit", sa.String(64), nullable=False),
        sa.Column("new_commit", sa.String(64), nullable=False),
        sa.Column("step", sa.String(16), nullable=False),
        _text("actor", nullable=False),
        _text("place", nullable=False),
        _time("created_at"),
        _time("updated_at"),
    )
    _index("merges", "task_id")
    _index("merges", "step")
