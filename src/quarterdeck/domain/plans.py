"""Plans and phases: their statuses, slugs and progress."""

import re
import secrets
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.records import Task

PlanStatus = Literal["draft", "active", "paused", "completed", "archived"]
PhaseStatus = Literal["pending", "in_progress", "completed", "blocked", "skipped"]
PlanTaskStatus = Literal["pending", "in_progress", "completed", "blocked", "skipped"]
PHASE_STATUSES: Final[tuple[PhaseStatus, ...]] = get_args(PhaseStatus)

_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"

# A plan's words for a task's state; every other state is shown as pending beside the state itself.
STATE_OF: Final[dict[str, str]] = {
    "pending": "pending",
    "in_progress": "in_progress",
    "completed": "completed",
    "blocked": "blocked",
    "skipped": "cancelled",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a plan is done; a cancelled task does not count."""

    total: int
    completed: int

    @property
    def percentage(self) -> int:
        return round(100 * self.completed / self.total) if self.total else 0


def progress(tasks: Iterable[Task]) -> Progress:
    live = [task.status for task in tasks if task.status != "cancelled"]
    return Progress(len(live), live.count("completed"))


def shown_status(state: str) -> str:
    """A plan's word for a task's state."""
    return "completed" if state == "completed" else "pending"


def new_slug(title: str) -> str:
    """A slug from a title, with a suffix that keeps it from meeting another."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    stem = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].rstrip("-") or "plan"
    return f"{stem}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"


def checked_slug(slug: str) -> str:
    if not _SLUG.fullmatch(slug):
        raise Invalid(
            "slug must be lower-case letters, digits and hyphens",
            field="slug",
            hint="at most 100 characters; leave it out to have one made from the title",
        )
    return slug


def phase_after(status: str, states: Sequence[str]) -> str:
    """What a phase's status becomes when one of its tasks changed."""
    live = [state for state in states if state != "cancelled"]
    if live and all(state == "completed" for state in live):
        return "completed"
    if status == "completed" or (status == "pending" and any(state != "pending" for state in live)):
        return "in_progress"
    return status


def plan_after(status: str, phases: Sequence[str]) -> str:
    """What a plan's status becomes when one of its phases changed."""
    if status == "archived" or not phases:
        return status
    if all(phase in ("completed", "skipped") for phase in phases):
        return "completed"
    return "active" if status == "completed" else status
