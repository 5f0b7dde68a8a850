"""The rows the core works with, as plain values."""

from dataclasses import dataclass
from typing import Any

from quarterdeck.domain.callers import Profile


@dataclass(frozen=True, slots=True)
class Task:
    """One task: the same row on every surface."""

    id: str
    user_id: str | None
    title: str
    description: str | None
    status: str
    priority: str
    source_channel: str | None
    assigned_agent: str | None
    parent_task_id: str | None
    project_id: str | None
    metadata: dict[str, Any]
    created_at: int
    updated_at: int
    completed_at: int | None


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a task's state: who, why and when."""

    id: str
    task_id: str
    from_status: str | None
    to_status: str
    reason: str | None
    actor: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, in which situation, and how it turned out."""

    id: str
    user_id: str | None
    task_id: str | None
    context: str
    decision: str
    outcome: str | None
    confidence: float | None
    tags: list[str]
    created_at: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A reusable answer to a recurring situation, with its record of use."""

    id: str
    user_id: str | None
    name: str
    description: str | None
    trigger_conditions: dict[str, Any]
    actions: dict[str, Any]
    success_rate: float
    usage_count: int
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token without its secret, which only its hash survives."""

    id: str
    user_id: str
    name: str
    profile: Profile
    project_id: str | None
    task_id: str | None
    local: bool
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None


@dataclass(frozen=True, slots=True)
class McpSession:
    """An older client's session, kept so that any core can adopt it."""

    id: str
    user_id: str | None
    surface: str
    initialize: dict[str, Any]
    created_at: int
    last_seen_at: int


def as_dict(record: Any) -> dict[str, Any]:
    """The columns of a record by name. What they hold is shared, not copied."""
    return {name: getattr(record, name) for name in record.__slots__}
