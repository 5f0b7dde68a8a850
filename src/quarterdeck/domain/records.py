"""The rows the core works with, as plain values."""

from dataclasses import dataclass, field
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
    plan_id: str | None = None
    phase_id: str | None = None
    position: int | None = None
    notes: str | None = None
    task_type: str = "PAIR"
    acceptance_criteria: list[str] = field(default_factory=list)
    agent_backend: str | None = None
    terminal_backend: str | None = None
    base_branch: str | None = None
    created_by: str | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """Some repositories that are worked on together, and the commands that judge the work."""

    id: str
    user_id: str | None
    name: str
    description: str
    created_at: int
    updated_at: int
    acceptance_command: str | None = None
    gate_command: str | None = None


@dataclass(frozen=True, slots=True)
class Repo:
    """A git repository of a project: a folder on the core's host."""

    id: str
    user_id: str | None
    project_id: str
    name: str
    path: str
    created_at: int


@dataclass(frozen=True, slots=True)
class Review:
    """One word on a task's result: requested, approved, rejected, rebased or merged."""

    id: str
    task_id: str
    kind: str
    actor: str
    text: str
    data: dict[str, Any]
    created_at: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan that somebody proposed, until a person accepts or dismisses it."""

    id: str
    user_id: str | None
    project_id: str | None
    tasks: list[dict[str, Any]]
    todos: list[dict[str, Any]]
    status: str
    plan_id: str | None
    created_by: str
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class Worktree:
    """A task's own checkout of one repository, on a branch of its own."""

    id: str
    user_id: str | None
    task_id: str | None
    repo_id: str | None
    repo_path: str
    path: str
    branch: str
    target: str
    base_commit: str
    place: str
    created_at: int


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge on its way, or how it ended: `step` says which."""

    id: str
    user_id: str | None
    task_id: str | None
    repo_path: str
    target: str
    strategy: str
    old_commit: str
    new_commit: str
    step: str
    actor: str
    place: str
    created_at: int
    updated_at: int


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
    job_id: str | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class McpSession:
    """An older client's session, kept so that any core can adopt it."""

    id: str
    user_id: str | None
    surface: str
    initialize: dict[str, Any]
    created_at: int
    last_seen_at: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A piece of work in phases. Its tasks are tasks like any other."""

    id: str
    user_id: str | None
    project_id: str | None
    slug: str
    title: str
    description: str | None
    status: str
    context: dict[str, Any]
    template: dict[str, Any] | None
    archive_reason: str | None
    created_at: int
    updated_at: int
    completed_at: int | None


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of a plan; `position` counts from 1."""

    id: str
    plan_id: str
    position: int
    name: str
    description: str | None
    status: str
    reason: str | None
    updated_at: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A note on a phase, with whatever context makes it useful later."""

    id: str
    phase_id: str
    note: str
    context: dict[str, Any] | None
    created_at: int


@dataclass(frozen=True, slots=True)
class StateValue:
    """One value of a plan's shared state."""

    plan_id: str
    key: str
    value: Any
    category: str
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody at work: a logged work session, a PAIR session or a conversation with the resident agent."""

    id: str
    user_id: str | None
    kind: str
    agent: str
    project_id: str | None
    plan_id: str | None
    task_id: str | None
    parent_id: str | None
    status: str
    context: dict[str, Any]
    summary: str | None
    handoff: dict[str, Any] | None
    created_at: int
    active_at: int
    ended_at: int | None
    agent_session_id: str | None = None


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of a session's log."""

    session_id: str
    type: str
    message: str
    data: dict[str, Any] | None
    created_at: int


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a session touched."""

    session_id: str
    path: str
    action: str
    metadata: dict[str, Any] | None
    created_at: int


@dataclass(frozen=True, slots=True)
class Brief:
    """What is to be written, and what was written for it so far."""

    id: str
    user_id: str | None
    plan_id: str | None
    task_id: str | None
    title: str
    content_type: str
    service: str | None
    keywords: list[str]
    target_word_count: int
    description: str | None
    difficulty: str | None
    status: str
    draft_output: str | None
    refined_output: str | None
    final_content: str | None
    error_message: str | None
    generation_log: list[dict[str, Any]]
    created_at: int
    updated_at: int

    @property
    def best_content(self) -> str | None:
        return self.final_content or self.refined_output or self.draft_output


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """One answered call to a model provider; a cost of None is unknown, not nothing."""

    id: str
    user_id: str | None
    provider: str
    model: str
    purpose: str
    brief_id: str | None
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    created_at: int


@dataclass(frozen=True, slots=True)
class Job:
    """Durable work. `worker` and `attempt` together say who may write to it while it runs."""

    id: str
    user_id: str | None
    kind: str
    task_id: str | None
    spec: dict[str, Any]
    state: str
    state_version: int
    priority: int
    attempt: int
    idempotency_key: str | None
    worker: str | None
    lease_until: int | None
    summary: str | None
    reason_code: str | None
    result: dict[str, Any] | None
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    agent: str | None = None
    project_id: str | None = None
    session_id: str | None = None
    expires_at: int | None = None
    timeout_s: int | None = None
    place: str | None = None
    cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class JobArtifact:
    """A file that a job left, whole, with its digest."""

    job_id: str
    name: str
    media_type: str
    content: bytes
    sha256: str
    size: int
    created_at: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as it told of itself; `seen_at` is its last heartbeat."""

    id: str
    place: str
    host: str
    pid: int
    kinds: list[str]
    concurrency: int
    started_at: int
    seen_at: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook's message until it has arrived or was given up."""

    id: str
    job_id: str
    url: str
    body: dict[str, Any]
    state: str
    tries: int
    next_at: int
    error: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One article or brief of a content job."""

    job_id: str
    position: int
    slug: str
    title: str
    status: str
    content: str | None
    problems: list[str]
    error: str | None
    updated_at: int


def as_dict(record: Any) -> dict[str, Any]:
    """The columns of a record by name. What they hold is shared, not copied."""
    return {name: getattr(record, name) for name in record.__slots__}
