"""Who is told of what: committed events become notices once, and every open stream picks its own."""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import structlog

from quarterdeck.core import subscriptions
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import RateLimited, Unavailable
from quarterdeck.events import Event
from quarterdeck.surfaces.resources import Notice, Resources

KEEP_ALIVE_SECONDS = 15.0
MOST_STREAMS = 100
_REMEMBERED = 2048
_PAUSE_SECONDS = 1.0

logger = structlog.get_logger()

Worked = tuple[tuple[Resources, Notice], ...]


class Subscriptions:
    """One for the whole core, whatever the surface or the era of a client."""

    def __init__(self, core: Core, resources: Sequence[Resources]) -> None:
        self._core = core
        self._resources = resources
        self._worked: OrderedDict[int, asyncio.Task[Worked]] = OrderedDict()
        self._open: Counter[str | None] = Counter()

    @property
    def streams(self) -> int:
        """How many have a place now."""
        return self._open.total()

    @contextlib.contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """One of the streams that a user may have open at a time, for the time of the block."""
        user = caller.user_id
        if self._open[user] >= MOST_STREAMS:
            raise RateLimited(
                f"a user has at most {MOST_STREAMS} streams open", hint="close one that is not read any more"
            )
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]

    async def told(self, caller: Caller, event: Event, since: Mapping[str, int]) -> list[tuple[int, Notice]]:
        """What an event of the caller's user says to who subscribed, each with the number that it carries.

        Only the last carries the event's own number: who is cut off before it is told all of them again.
        """
        while since:
            try:
                found = [
                    notice
                    for resources, notice in await self._notices(event)
                    if event.seq > since.get(notice.uri, event.seq)
                    and notice.user_id in (None, caller.user_id)
                    and await self._visible(resources, caller, notice.uri)
                ]
            except Unavailable:  # the event is not lost for that
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                before = [(event.seq - 1, notice) for notice in found[:-1]]
                return before + [(event.seq, notice) for notice in found[-1:]]
        return []

    async def _visible(self, resources: Resources, caller: Caller, uri: str) -> bool:
        try:
            return await resources.visible(self._core, caller, uri)
        except Unavailable:
            raise
        except Exception:
            logger.exception("notices.broke", uri=uri)
            return False

    async def _notices(self, event: Event) -> Worked:
        """The notices of an event; the streams that hear of it at the same time share the work."""
        task = self._worked.get(event.seq)
        if task is None:
            task = self._worked[event.seq] = self._core.spawn(self._work_out(event))
            while len(self._worked) > _REMEMBERED:
                self._worked.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except Unavailable:
            self._worked.pop(event.seq, None)
            raise

    async def _work_out(self, event: Event) -> Worked:
        found: list[tuple[Resources, Notice]] = []
        for resources in self._resources:
            try:
                found += [(resources, notice) for notice in await resources.notices(self._core, event)]
            except Unavailable:
                raise
            except Exception:
                logger.exception("notices.broke", kind=event.kind, seq=event.seq)
        return tuple(found)


def serving(resources: Sequence[Resources], uri: str) -> Resources | None:
    """Those of the resources that a URI belongs to: by what their templates begin with."""
    if len(uri) > subscriptions.LONGEST_URI or not (uri.isascii() and uri.isprintable()):
        return None
    for each in resources:
        if any(uri.startswith(template.uri_template.partition("{")[0]) for template in each.templates):
            return each
    return None
