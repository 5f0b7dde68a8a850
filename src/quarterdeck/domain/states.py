"""The task state machine: eight states, nine actions, and the board's four columns as a view of them."""

from typing import Final, Literal, cast, get_args

from quarterdeck.domain.errors import IllegalTransition

Status = Literal[
    "pending", "approved", "in_progress", "blocked", "review", "completed", "failed", "cancelled"
]
Action = Literal["approve", "start", "block", "unblock", "submit", "reject", "complete", "fail", "cancel"]
Column = Literal["BACKLOG", "IN_PROGRESS", "REVIEW", "DONE"]
Priority = Literal["low", "medium", "high", "urgent"]

STATUSES: Final[tuple[Status, ...]] = get_args(Status)
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
COLUMNS: Final[tuple[Column, ...]] = get_args(Column)
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)

# The order of the rows is the order in which `valid_actions` lists them.
_TRANSITIONS: Final[dict[Action, tuple[frozenset[Status], Status]]] = {
    "approve": (frozenset({"pending"}), "approved"),
    "start": (frozenset({"approved"}), "in_progress"),
    "block": (frozenset({"in_progress"}), "blocked"),
    "unblock": (frozenset({"blocked"}), "in_progress"),
    "submit": (frozenset({"in_progress"}), "review"),
    "reject": (frozenset({"review"}), "in_progress"),
    "complete": (frozenset({"review"}), "completed"),
    "fail": (frozenset({"in_progress"}), "failed"),
    "cancel": (
        frozenset({"pending", "approved", "in_progress", "blocked", "review", "failed"}),
        "cancelled",
    ),
}

COLUMN_OF: Final[dict[Status, Column]] = {
    "pending": "BACKLOG",
    "approved": "BACKLOG",
    "failed": "BACKLOG",
    "in_progress": "IN_PROGRESS",
    "blocked": "IN_PROGRESS",
    "review": "REVIEW",
    "completed": "DONE",
    "cancelled": "DONE",
}

STATUS_OF_COLUMN: Final[dict[Column, Status]] = {
    "BACKLOG": "pending",
    "IN_PROGRESS": "in_progress",
    "REVIEW": "review",
    "DONE": "completed",
}


def column_of(status: str) -> Column:
    """The board's column for a state."""
    return COLUMN_OF[cast(Status, status)]


def status_of(column: str) -> Status:
    """The state that a move to a column sets."""
    return STATUS_OF_COLUMN[cast(Column, column)]


def valid_actions(status: str) -> list[str]:
    """The actions that are legal from `status`; none when it is final."""
    return [action for action, (sources, _) in _TRANSITIONS.items() if status in sources]


def apply(status: str, action: str) -> Status:
    """The status that `action` leads to; else `IllegalTransition`, which lists the legal actions."""
    for name, (sources, target) in _TRANSITIONS.items():
        if name == action and status in sources:
            return target
    raise _illegal(status, f"Cannot apply '{action}' to a task that is {status}", field="action")


def action_for(status: str, target: str) -> Action:
    """The one action that takes `status` to `target`; else `IllegalTransition`, as in `apply`."""
    for action, (sources, leads_to) in _TRANSITIONS.items():
        if leads_to == target and status in sources:
            return action
    raise _illegal(status, f"Cannot set a task that is {status} to '{target}'", field="status")


def _illegal(status: str, refusal: str, *, field: str) -> IllegalTransition:
    legal = valid_actions(status)
    ways = ", ".join(f"{action} (to {apply(status, action)})" for action in legal)
    return IllegalTransition(
        f"{refusal}. Legal actions from {status}: {', '.join(legal) or 'none'}",
        hint=f"Use one of: {ways}" if legal else f"{status} is final; create a new task for further work",
        field=field,
        status=status,
        valid_actions=legal,
    )
