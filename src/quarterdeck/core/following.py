"""Following the event log: every event of a user in order, each once, for as long as the token is good."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import replace

from quarterdeck.core import tokens
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Unavailable
from quarterdeck.events import ALL, Event, Listener
from quarterdeck.store import log
from quarterdeck.store import tasks as task_rows

_PAGE = 500
_PAUSE_SECONDS = 1.0


class Follower:
    """Reads the log after a number, then hears what is committed. One that falls behind reads the log again.

    It gives the events of the caller's user; `within` says which of them a bound caller may see.
    """

    def __init__(
        self,
        core: Core,
        caller: Caller,
        listener: Listener,
        kinds: Collection[str] | None,
        task_id: str | None,
    ) -> None:
        self._core = core
        self._caller = caller
        self._owner = replace(caller, project_id=None, task_id=None)
        self._listener = listener
        self._kinds = kinds
        self._task_id = task_id
        self._behind = False
        self._checked = float("-inf")
        self.seq = 0
        self.revoked = False

    async def start(self, after: int | None) -> None:
        """Begin after an event, by default the newest; a number beyond it is taken for the newest."""
        tip, _ = await self._core.db.read(SYSTEM, log.tip)
        self.seq = tip if after is None else min(after, tip)
        self._behind = self.seq < tip

    async def next(self, patience: float) -> list[Event] | None:
        """The next events; empty after `patience` seconds without one, None at the end.

        The end is the end of the core, or of the caller's token: then `revoked` is set.
        """
        try:
            events = await self._next(patience)
        except Unavailable:  # nothing was taken: it is read again
            await asyncio.sleep(min(patience, _PAUSE_SECONDS))
            return []
        if events is not None and not self.revoked:
            self.revoked = not await self._stands()
        return None if self.revoked else events

    async def _next(self, patience: float) -> list[Event] | None:
        until = asyncio.get_running_loop().time() + patience
        while not (self._listener.closed or self.revoked):
            if self._behind:
                found = await self._core.db.read(
                    self._owner, log.mine, self.seq, _PAGE, kinds=self._kinds, task_id=self._task_id
                )
                if found:
                    self.seq = found[-1].seq
                    return found
                self._behind = False  # whatever is later is with the listener
            try:
                async with asyncio.timeout_at(until):
                    heard = await self._listener.wait()
            except TimeoutError:
                return []
            self._behind = self._listener.lagged
            if news := self._news(heard):
                return news
        return None

    async def _stands(self) -> bool:
        """Whether the token is good. Of a revocation one hears; it may also expire, or go with its task."""
        now = time.monotonic()
        if now - self._checked > _PAUSE_SECONDS or tokens.expired(self._caller):
            self._checked = now
            return await tokens.stands(self._core, self._caller)
        return True

    def _news(self, heard: list[Event]) -> list[Event]:
        """The events of the caller's user among those that are new, up to the end of its token."""
        news = []
        for event in heard:
            if event.seq <= self.seq:
                continue
            self.seq = event.seq
            if event.kind == "token.revoked" and event.entity_id == self._caller.token_id:
                self.revoked = True
                break
            if (
                (self._caller.everyone or event.user_id == self._caller.user_id)
                and (self._kinds is None or event.kind in self._kinds)
                and self._task_id in (None, event.task_id)
            ):
                news.append(event)
        return news


@contextlib.contextmanager
def following(
    core: Core, caller: Caller, kinds: Collection[str] | None = None, task_id: str | None = None
) -> Iterator[Follower]:
    """A follower for the time of the block, still to be started. Without `kinds`: of every kind."""
    with core.bus.listen(ALL) as listener:
        yield Follower(core, caller, listener, kinds, task_id)


async def within(core: Core, caller: Caller, event: Event) -> bool:
    """Whether an event of the caller's user lies within the caller's binding."""
    if caller.task_id is not None and caller.task_id not in (event.task_id, event.entity_id):
        return False
    if caller.project_id is None:
        return True
    task_id = event.task_id
    return task_id is not None and await core.db.read(caller, task_rows.get, task_id) is not None
