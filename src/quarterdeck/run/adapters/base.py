"""What an adapter is: from an assignment to a command line, and from its output to one record of the run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.features import Feature

Mode = Literal["edit", "read"]
# A `delta` is a piece of the answer as it comes; only who asks to hear it live gets any.
StepKind = Literal["session", "text", "delta", "tool", "tool_result", "notice", "error"]
# The flags that a program's help names; None when nobody asked, then all are taken to be there.
Flags = frozenset[str] | None

_SESSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
# What the agent calls our MCP server, and the variable that holds its token.
MCP_NAME: Final = "quarterdeck"
TOKEN_VARIABLE: Final = "QUARTERDECK_TOKEN"  # noqa: S105 - a name


@dataclass(frozen=True, slots=True)
class Conversation:
    """Which of the agent's own sessions a run belongs to. `new` may name the id that it is to get."""

    how: Literal["new", "resume", "continue", "fork"] = "new"
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an agent is asked to do, in words that every adapter understands.

    `home` belongs to a session lineage and outlives the run, so that a later one can resume. In the mode
    `read` the agent must not change files. `sandboxed` says that it runs in a sandbox of ours which sees to
    that: an agent's own sandbox would not start inside it. `live` says that somebody hears the answer while
    it is said: its pieces are told as steps of their own.
    """

    prompt: str
    cwd: Path
    home: Path
    mode: Mode = "edit"
    sandboxed: bool = False
    model: str | None = None
    conversation: Conversation = Conversation()
    mcp_url: str | None = None
    token: str | None = field(default=None, repr=False)
    job_id: str | None = None
    task_id: str | None = None
    effort: Literal["low", "medium", "high"] | None = None
    max_budget_usd: float | None = None
    json_schema: Mapping[str, Any] | None = None
    subagent: str | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start it. `env` is all that the agent sees. `folders` hold the program: a sandbox binds them.

    An `interactive` agent's stdin stays open: `stdin` is written first, then what the reader has to say as it
    comes, and once the reader has finished it is closed. Not every agent ends with it: after the grace it is
    to be stopped, and the record of the run is as good.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes = b""
    interactive: bool = False
    folders: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened in a run, as people and events are told of it."""

    kind: StepKind
    text: str = ""
    tool: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one run alone. What was read from a cache is not counted as input once more."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, as far as the agent's own words and exit code tell. Whether the work is done is for
    git and the checks to say. Cost and usage are this run's alone; None is unknown, not nothing."""

    ok: bool
    stop_reason: str
    session_id: str | None = None
    final_text: str = ""
    structured: Any = None
    usage: Usage | None = None
    cost_usd: float | None = None
    session_cost_usd: float | None = None
    turns: int | None = None
    denials: Sequence[str] = ()
    mcp_status: str | None = None
    error: str | None = None


class Reader(Protocol):
    """Follows one run. Gets stdout line by line, and the end once."""

    def feed(self, line: bytes) -> list[Step]:
        """What a line of stdout tells; a line that cannot be read is a notice, never an exception."""

    def outgoing(self) -> bytes:
        """What an interactive agent has to be told now; empty for all others."""

    @property
    def finished(self) -> bool:
        """Whether an interactive agent has nothing more to do, so that its stdin can be closed."""

    def finish(self, code: int | None, stderr: str) -> Outcome:
        """The record of the run, once the process has ended; `code` None when it did not exit by itself."""


class Adapter(Protocol):
    """One kind of agent."""

    name: str
    features: frozenset[Feature]
    # The program when the configuration names none, and the questions whose answers list its flags.
    program: str | None
    helps: Sequence[Sequence[str]]

    def launch(
        self, program: Sequence[str], env: Mapping[str, str], assignment: Assignment, flags: Flags = None
    ) -> Launch:
        """The command line for a program that was found, with the environment of its agent.

        Writes what the agent needs into `assignment.home`. Raises Invalid for what it cannot honour.
        """

    def reader(self, assignment: Assignment) -> Reader: ...


def wanted(assignment: Assignment) -> set[Feature]:
    """The features that an assignment cannot do without."""
    asked: dict[Feature, object] = {
        "effort": assignment.effort,
        "budget": assignment.max_budget_usd,
        "schema": assignment.json_schema,
        "subagent": assignment.subagent,
        "model": assignment.model,
        "mcp": assignment.mcp_url,
    }
    found: set[Feature] = {feature for feature, value in asked.items() if value is not None}
    match assignment.conversation:
        case Conversation("new", None):
            pass
        case Conversation("new"):
            found.add("new_id")
        case Conversation("resume" | "continue" | "fork" as how):
            found.add(how)
    return found


def check(adapter: str, features: frozenset[Feature], assignment: Assignment) -> None:
    """Refuse what an adapter cannot do, by name, before anything is started."""
    missing = sorted(wanted(assignment) - features)
    if missing:
        raise Invalid(
            f"The adapter {adapter} cannot do this: {', '.join(missing)}.",
            field=missing[0],
            hint=f"it can: {', '.join(sorted(features))}",
        )
    how, session = assignment.conversation.how, assignment.conversation.id
    if how in ("resume", "fork") and not session:
        raise Invalid(f"To {how}, the session's id is needed.", field="session_id")
    if session is not None and not _SESSION.fullmatch(session):
        raise Invalid("This is no session's id.", field="session_id")


def need(adapter: str, flags: Flags, flag: str, feature: str) -> None:
    """Refuse what the installed version does not know."""
    if flags is not None and flag not in flags:
        raise Invalid(
            f"The installed {adapter} has no {flag}, which {feature} needs.",
            field=feature,
            hint="install a newer version of it",
        )
