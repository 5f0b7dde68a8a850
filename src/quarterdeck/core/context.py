"""What every core function works with."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from quarterdeck import paths
from quarterdeck.config import Settings
from quarterdeck.core.speech import Speech
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.checks import Verdict
from quarterdeck.events import Bus
from quarterdeck.store.db import Database

if TYPE_CHECKING:
    from quarterdeck.core.memory_index import MemoryIndex
    from quarterdeck.core.models import Providers
    from quarterdeck.core.settings import Tuning
    from quarterdeck.core.templates import Library
    from quarterdeck.core.terminals import Terminal

T = TypeVar("T")

logger = structlog.get_logger()


@dataclass(slots=True)
class Core:
    """The parts, put together once at start. `url` is the core's own address, where it has one."""

    db: Database
    bus: Bus
    settings: Settings
    agents: dict[str, Agent]
    memory: "MemoryIndex"
    providers: "Providers"
    templates: "Library"
    data_dir: Path
    tuning: "Tuning"
    url: str | None = None
    # Whether nobody but this host reaches it.
    loopback: bool = False
    background: set[asyncio.Task[Any]] = field(default_factory=set)
    caches: list[Callable[[], int]] = field(default_factory=list)
    waiting: int = 0
    speech: Speech = field(default_factory=Speech)
    # What only `run` can do; the server lends it to the core.
    terminal: "Terminal | None" = None
    find_program: Callable[[Agent], Awaitable[object]] | None = None
    check: Callable[[str, Path, float], Awaitable[Verdict]] | None = None
    _place: str | None = None

    @property
    def place(self) -> str:
        """The name of this data directory, for work that needs what lies in it."""
        if self._place is None:
            self._place = paths.place(self.data_dir)
        return self._place

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Let work go on beside the call that asked for it; a failure is logged, and shutdown waits."""
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self.background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("background.failed", error=str(error), kind=type(error).__name__)

    async def settle(self) -> None:
        """Wait for everything that was let go on."""
        while self.background:
            await asyncio.wait(self.background)
