"""Work sessions: statuses, entry types, and what the next agent is told."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from quarterdeck.domain.errors import Conflict
from quarterdeck.domain.records import Artifact, LogEntry, Session

EntryType = Literal["info", "warning", "error", "success", "checkpoint", "decision", "progress"]
ENTRY_TYPES: Final[tuple[EntryType, ...]] = get_args(EntryType)
SessionStatus = Literal["active", "paused", "handed_off", "completed", "failed"]
EndStatus = Literal["completed", "failed", "handed_off", "paused"]
ArtifactAction = Literal["created", "modified", "deleted", "reviewed"]
AGENT_TYPES: Final = ("opus", "sonnet", "haiku")

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_session_id() -> str:
    return "ses_" + "".join(secrets.choice(_ALPHABET) for _ in range(16))


def writable(session: Session) -> Session:
    """The session, if it takes entries; an ended or paused one does not."""
    if session.status == "active":
        return session
    if session.status == "paused":
        raise Conflict(f"session {session.id} is paused", field="session_id", hint="session_resume it first")
    raise Conflict(
        f"session {session.id} has ended ({session.status})",
        field="session_id",
        hint="session_continue opens a new one from it",
    )


@dataclass(frozen=True, slots=True)
class Replay:
    """What a session leaves to whoever goes on with it."""

    session: Session
    counts: Mapping[str, int]
    last_checkpoint: LogEntry | None
    recent: Sequence[LogEntry]
    decisions: Sequence[LogEntry]
    errors: Sequence[LogEntry]
    artifacts: Sequence[Artifact]

    @property
    def progress_summary(self) -> dict[str, Any]:
        return {
            "status": self.session.status,
            "summary": self.session.summary,
            "total_entries": sum(self.counts.values()),
            "entries_by_type": dict(self.counts),
            "completed_steps": [entry.message for entry in self.recent],
        }
