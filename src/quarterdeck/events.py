"""The event that every write leaves, and the bus that wakes whoever waits for one."""

import asyncio
import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

GENESIS = "0" * 64
ALL = "*"
_BACKLOG = 1024
# What can happen; docs/store.md tells when each of them does.
KINDS: Final = frozenset(
    {
        "brief.created",
        "brief.generating",
        "cache.reset",
        "call.refused",
        "decision.logged",
        "decision.outcome",
        "job.finished",
        "job.progress",
        "job.queued",
        "job.stale",
        "job.started",
        "mcp_session.closed",
        "mcp_session.subscribed",
        "mcp_session.unsubscribed",
        "memory.embedded",
        "merge.planned",
        "pattern.stored",
        "pattern.used",
        "phase.checkpoint",
        "phase.updated",
        "plan.created",
        "plan.updated",
        "project.created",
        "project.opened",
        "project.updated",
        "proposal.decided",
        "proposal.received",
        "review.added",
        "session.artifact",
        "session.ended",
        "session.handed_off",
        "session.logged",
        "session.resumed",
        "session.started",
        "settings.updated",
        "state.set",
        "task.created",
        "task.deleted",
        "task.merged",
        "task.noted",
        "task.updated",
        "token.minted",
        "token.revoked",
        "usage.recorded",
        "webhook.failed",
        "webhook.sent",
        "worktree.created",
        "worktree.removed",
    }
)

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the log. `seq` has no gaps; `hash` chains each row to the one before it."""

    seq: int
    at: int
    user_id: str | None
    actor: str
    tool: str
    kind: str
    entity_id: str | None
    task_id: str | None
    ok: bool
    data: dict[str, Any]
    hash: str

    @property
    def noun(self) -> str:
        return self.kind.partition(".")[0]

    def topics(self) -> tuple[str, ...]:
        """Where it is heard: everywhere, by kind, by row, and by the task it belongs to."""
        own = f"{self.noun}:{self.entity_id}"
        about = f"task:{self.task_id}"
        return (ALL, self.kind, own) if self.task_id is None or about == own else (ALL, self.kind, own, about)


@dataclass(slots=True)
class Draft:
    """An event before its transaction gives it a number."""

    at: int
    user_id: str | None
    actor: str
    tool: str
    kind: str
    entity_id: str | None
    task_id: str | None = None
    ok: bool = True
    data: dict[str, Any] = field(default_factory=dict)

    def seal(self, seq: int, previous: str) -> Event:
        """Number it and chain it."""
        body = (
            self.at,
            self.user_id,
            self.actor,
            self.tool,
            self.kind,
            self.entity_id,
            self.task_id,
            self.ok,
        )
        digest = chain(previous, seq, body, self.data)
        return Event(seq, *body, data=self.data, hash=digest)


def chain(previous: str, seq: int, body: Sequence[Any], data: dict[str, Any]) -> str:
    """The hash of one row: changing any field of any earlier row changes it.

    Raises TypeError or ValueError for what could not be stored either: no JSON, or no Unicode text.
    """
    row = [previous, seq, *body, data]
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Listener:
    """What one waiter has not read yet. A reader that falls behind is told so and reads the log instead."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._overflowed = False
        self.lagged = False
        self.closed = False

    def offer(self, event: Event) -> None:
        if self._overflowed or (self._events and self._events[-1].seq == event.seq):
            return
        if len(self._events) >= _BACKLOG:
            self._events.clear()
            self._overflowed = True
        else:
            self._events.append(event)
        self._wake.set()

    def close(self) -> None:
        self.closed = True
        self._wake.set()

    async def wait(self) -> list[Event]:
        """The events since the last call; waits for one. Empty when the bus closed or the reader lagged.

        `lagged` holds until the next call: what came before this one is in the log only.
        """
        await self._wake.wait()
        if not self.closed:
            self._wake.clear()
        self.lagged, self._overflowed = self._overflowed, False
        events = list(self._events)
        self._events.clear()
        return events

    async def within(self, seconds: float) -> list[Event]:
        """As `wait`, but empty also when nothing came in that time."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait()
        except TimeoutError:
            return []


class Bus:
    """Delivers committed events, in order, on the event loop. Fed by the store alone, after COMMIT."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}
        self._handlers: dict[str, list[Callable[[Event], None]]] = {}
        self._closed = False

    def on(self, topic: str, handler: Callable[[Event], None]) -> None:
        """Call `handler` for each event on `topic`, for the life of the process."""
        self._handlers.setdefault(topic, []).append(handler)

    @contextlib.contextmanager
    def listen(self, *topics: str) -> Iterator[Listener]:
        """A listener for the time of the block. Register, then check the state, then wait."""
        listener = Listener()
        if self._closed:
            listener.close()
        distinct = set(topics)
        for topic in distinct:
            self._listeners.setdefault(topic, set()).add(listener)
        try:
            yield listener
        finally:
            for topic in distinct:
                waiting = self._listeners[topic]
                waiting.discard(listener)
                if not waiting:
                    del self._listeners[topic]

    def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            for topic in event.topics():
                for handler in self._handlers.get(topic, ()):
                    try:
                        handler(event)
                    except Exception as error:  # the others, and the caller of the write, go on
                        logger.error("bus.handler_failed", kind=event.kind, error=repr(error))
                for listener in self._listeners.get(topic, ()):
                    listener.offer(event)

    def close(self) -> None:
        """Wake every waiter for the last time; who comes later does not wait at all."""
        self._closed = True
        for waiting in list(self._listeners.values()):
            for listener in list(waiting):
                listener.close()
