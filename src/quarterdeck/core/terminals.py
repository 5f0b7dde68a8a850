"""What PAIR sessions need of terminals, of editors and of the agents' programs. `run.terminal` has it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from quarterdeck.domain.agents import Agent
from quarterdeck.domain.records import Task

TMUX: Final = "tmux"
EDITORS: Final = ("vscode", "cursor")


@dataclass(frozen=True, slots=True)
class State:
    """A terminal session as it is: whether its agent runs, else its exit code and last words."""

    alive: bool
    exit_code: int | None = None
    tail: str = ""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a terminal or editor is to be opened with."""

    name: str
    backend: str
    task: Task
    agent: Agent | None
    cwd: Path
    home: Path
    prompt: str
    mcp_url: str
    token: str = field(repr=False)
    # The agent's own session: to be resumed, or to be made under this id where the agent takes one.
    agent_session_id: str | None = None
    resume: bool = False
    repos: tuple[Path, ...] = ()


class Terminal(Protocol):
    """What is needed of tmux, of editors and of the agents' programs; `run.terminal` has it."""

    async def open(self, opening: Opening) -> str | None:
        """Write the files and start the session; the agent's own session id where it is known.

        Raises Unavailable.
        """

    async def state(self, name: str) -> State | None:
        """The terminal session of that name; None when there is none."""

    async def names(self) -> list[str]:
        """The terminal sessions of this data directory."""

    async def end(self, name: str) -> None:
        """End a terminal session and all that runs in it. What is gone already does not matter."""

    async def clear(self, cwd: Path, home: Path) -> None:
        """Take back the files that hold a session's token."""

    async def agent_session(self, agent: Agent, home: Path, cwd: Path, session_id: str | None) -> str | None:
        """The agent's own session in a home that can be resumed: the one given, or the last it made."""

    def attach(self, name: str) -> list[str]:
        """The words that attach to a session."""


def prompt_path(cwd: Path) -> Path:
    return cwd / ".quarterdeck" / "prompt.md"
