"""What happened, for people who look back: the audit with its filters, and the steps of a job."""

from collections.abc import Mapping
from dataclasses import dataclass

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.events import Event
from quarterdeck.store import log
from quarterdeck.store import trail as rows

FILTERS = ("kind", "actor", "tool", "task", "entity", "ok")
_STEPS = 500


@dataclass(frozen=True, slots=True)
class Page:
    """Some events, newest first; `before` begins the next page."""

    events: list[Event]
    before: int | None


async def page(
    core: Core, caller: Caller, filters: Mapping[str, str], *, before: int | None = None, count: int = 100
) -> Page:
    """The caller's events that pass the filters."""
    found = await core.db.read(caller, rows.newest, filters, before, count + 1)
    shown = found[:count]
    return Page(shown, shown[-1].seq if len(found) > count else None)


async def tip(core: Core, caller: Caller) -> int:
    """The number of the newest event: who reads it first and the state after it misses nothing later."""
    return (await core.db.read(caller, log.tip))[0]


async def since(core: Core, caller: Caller, seq: int, count: int) -> list[Event]:
    """The caller's events after a number, oldest first."""
    return await core.db.read(caller, log.mine, seq, count)


async def steps(core: Core, caller: Caller, job_id: str) -> list[Event]:
    """What a job told of itself while it ran, oldest first; the newest 500."""
    return await core.db.read(caller, rows.steps_of, job_id, _STEPS)
