"""What the readers of JSON lines share. Nothing that an agent prints may raise."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from quarterdeck.run.adapters.base import Assignment, Outcome, Step

SHOWN: Final = 4_000
KEPT: Final = 200_000
_HIDDEN: Final = "[token]"
# As Claude Code prints them.
_PIECES: Final = re.compile(rb'^\{"type":"stream_event".*\n?', re.MULTILINE)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class JsonReader:
    """Reads one JSON object a line and gives it to `event`; any other line is a notice."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self._secret = assignment.token
        self.noise: list[str] = []

    def event(self, message: dict[str, Any]) -> Iterable[Step]:
        """What a message tells."""
        return ()

    def feed(self, line: bytes) -> list[Step]:
        text = self.hide(line.decode("utf-8", "replace").strip())
        if not text:
            return []
        try:
            message = json.loads(text)
            if isinstance(message, dict):
                return list(self.event(message))
        except (ValueError, RecursionError):
            pass
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            return [Step("notice", f"not understood ({type(error).__name__}): {short(text, 300)}")]
        self.noise = [*self.noise[-19:], short(text, 500)]
        return [Step("notice", short(text))]

    def hide(self, text: str) -> str:
        """A text without the job's token: what an agent says of it must not reach logs and events."""
        return text.replace(self._secret, _HIDDEN) if self._secret else text

    def outgoing(self) -> bytes:
        return b""

    @property
    def finished(self) -> bool:
        return False

    def words(self, stderr: str) -> str:
        """The last that was said beside the protocol, for an error that has no better text."""
        plain = _COLOURS.sub("", self.hide(stderr))
        lines = [line for line in plain.strip().splitlines() if line.strip()]
        return short("\n".join(lines[-10:] or self.noise[-10:]), 2_000)


class Voice:
    """The answer as it comes, for who hears it live: a blank line stands between two messages."""

    def __init__(self, live: bool) -> None:
        self._live = live
        self._gap = ""
        self._spoke = False

    def say(self, piece: str) -> list[Step]:
        if not self._live or not piece:
            return []
        said, self._gap, self._spoke = self._gap + piece, "", True
        return [Step("delta", said)]

    def pause(self, gap: str = "\n\n") -> None:
        """What comes next is a message of its own."""
        if self._spoke:
            self._gap = gap


def without_pieces(log: bytes) -> bytes:
    """A log as it would be had nobody listened: the messages whose pieces these are stand in it whole."""
    return _PIECES.sub(b"", log)


def short(text: str, limit: int = SHOWN) -> str:
    """The beginning of a text, with a mark where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def kept(text: str) -> str:
    """A text as the history of a run keeps it."""
    return short(text, KEPT)


def texts(content: Any) -> str:
    """The text of a content: a string, one block, or a list of blocks."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return texts(content.get("text") or content.get("content") or "")
    if isinstance(content, list):
        return "\n".join(filter(None, map(texts, content)))
    return ""


def whole(value: Any) -> int:
    """A count as an agent reports it; nothing where it reports none."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def unfinished(code: int | None, reader: JsonReader, stderr: str, session_id: str | None = None) -> Outcome:
    """The record of a run that ended without saying how."""
    reason = "stopped" if code is None else "no_result"
    said = reader.words(stderr)
    error = "It was stopped." if code is None else f"It ended with exit code {code} and no result."
    return Outcome(False, reason, session_id, error=f"{error} {said}".strip())


def own_home(home: Path) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)


# Where each program keeps the login of its user, below the home.
LOGINS: Final[Mapping[str, tuple[str, ...]]] = {
    "claude": (".claude/.credentials.json",),
    "codex": (".codex/auth.json",),
    "gemini": (".gemini/oauth_creds.json", ".gemini/google_accounts.json"),
    "opencode": (".local/share/opencode/auth.json",),
}


def link_login(home: Path, program: str) -> list[Path]:
    """Let the agent use the login of the user who runs the core; gives back what a sandbox has to bind.

    A link and not a copy: a login that is renewed in one place stays good in all.
    """
    return [path for relative in LOGINS[program] for path in _linked(home, relative)]


def _linked(home: Path, relative: str) -> list[Path]:
    source, target = Path.home() / relative, home / relative
    if not source.is_file() or source == target:
        return []
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not target.exists() and not target.is_symlink():
        target.symlink_to(source)
    return [source] if target.is_symlink() else []
