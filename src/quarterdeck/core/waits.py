"""Waiting for tasks and jobs: woken by events, never by looking again and again."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from quarterdeck.core import settings, tasks
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Denied, Invalid, NotFound
from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import Job, Task
from quarterdeck.domain.states import column_of
from quarterdeck.events import Event, Listener
from quarterdeck.store import jobs as job_rows
from quarterdeck.store import tasks as task_rows
from quarterdeck.store.tx import Tx

Code = Literal[
    "TASK_CHANGED",
    "ALREADY_AT_STATUS",
    "CHANGED_SINCE_CURSOR",
    "WAIT_TIMEOUT",
    "WAIT_INTERRUPTED",
    "TASK_DELETED",
]
MOST: Final = 100
# Clients give up on a call that is silent for long; many wait for a minute.
BEAT_SECONDS: Final = 15.0
_NEVER = frozenset[str]()

Beat = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to wait for: `states` of the tasks (none means any other column), and the end of the jobs."""

    task_ids: Sequence[str] = ()
    job_ids: Sequence[str] = ()
    states: frozenset[str] = _NEVER
    cursor: int | None = None
    all_of_them: bool = False


@dataclass(slots=True)
class Watch:
    """One task or job that is waited for, and what has become of it. `code` is set when it is reached."""

    row_id: str
    first: Task | Job
    latest: Task | Job | None
    code: Code | None = None
    status: str | None = None
    changed_at: int | None = None
    # The newest change that was judged: a later wait from here loses nothing.
    cursor: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a wait ended. `decisive` is the watch that ended it, or the first one when none did."""

    code: Code
    decisive: Watch
    watches: list[Watch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a wait may take; `capped` when it was asked to take longer."""

    seconds: float
    capped: bool


async def limit(core: Core, given: Any) -> Limit:
    """The time that a wait gets; Invalid for what is no positive number."""
    most = float(await settings.get(core, "general.tasks_wait_max_timeout_seconds"))
    if given is None:
        wanted = float(await settings.get(core, "general.tasks_wait_default_timeout_seconds"))
        return Limit(min(wanted, most), capped=False)
    try:
        wanted = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        wanted = math.nan
    if not wanted > 0:
        raise Invalid(
            "timeout_seconds must be a number above 0",
            field="timeout_seconds",
            hint=f"at most {most:g} seconds are waited",
            changed=False,
            timed_out=False,
        )
    return Limit(min(wanted, most), capped=wanted > most)


def read_cursor(given: str | None) -> int | None:
    """An ISO timestamp as it is stored; without a zone it is UTC."""
    if given is None:
        return None
    try:
        when = datetime.fromisoformat(given.strip())
    except ValueError:
        raise Invalid(
            "from_updated_at must be an ISO timestamp",
            field="from_updated_at",
            hint="use updated_at of a task as it was given",
        ) from None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    whole = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds


async def wait(
    core: Core,
    caller: Caller,
    wanted: Wanted,
    seconds: float,
    beat: Beat | None = None,
    every: float = BEAT_SECONDS,
) -> Outcome:
    """Wait until one of them, or all, are where they are wanted. `beat` is told the time now and then."""
    topics = [*(f"task:{each}" for each in wanted.task_ids), *(f"job:{each}" for each in wanted.job_ids)]
    if caller.token_id is not None:
        topics.append(f"token:{caller.token_id}")
    with core.bus.listen(*topics) as listener:
        watches = await core.db.read(caller, _begin, wanted)
        for watch in watches.values():
            _look(watch, wanted)
        core.waiting += 1
        try:
            ended = await _until_reached(core, caller, wanted, watches, listener, seconds, beat, every)
        finally:
            core.waiting -= 1
    fresh = await core.db.read(caller, _rows, list(watches))
    for watch in watches.values():
        watch.latest = fresh.get(watch.row_id)
    reached = [watch for watch in watches.values() if watch.code is not None]
    if ended is None:
        decisive = max(reached, key=lambda watch: watch.changed_at or 0) if wanted.all_of_them else reached[0]
        return Outcome(decisive.code or "TASK_CHANGED", decisive, list(watches.values()))
    return Outcome(ended, next(iter(watches.values())), list(watches.values()))


async def _until_reached(
    core: Core,
    caller: Caller,
    wanted: Wanted,
    watches: Mapping[str, Watch],
    listener: Listener,
    seconds: float,
    beat: Beat | None,
    every: float,
) -> Code | None:
    """None when what is wanted was reached, else why the wait ended."""
    clock = asyncio.get_running_loop().time
    began = clock()
    if beat is not None and not _reached(wanted, watches):
        await beat(0.0)
    while not _reached(wanted, watches):
        left = began + seconds - clock()
        if left <= 0:
            return "WAIT_TIMEOUT"
        try:
            async with asyncio.timeout(left if beat is None else min(left, every)):
                events = await listener.wait()
        except TimeoutError:
            if beat is not None:
                await beat(clock() - began)
            continue
        for event in events:
            if event.kind == "token.revoked" and event.entity_id == caller.token_id:
                raise Denied("the token was revoked")
            _hear(watches, event, wanted)
        if listener.lagged:
            await _catch_up(core, caller, watches, wanted)
        if listener.closed and not _reached(wanted, watches):
            return "WAIT_INTERRUPTED"
    return None


def _reached(wanted: Wanted, watches: Mapping[str, Watch]) -> bool:
    codes = [watch.code is not None for watch in watches.values()]
    return all(codes) if wanted.all_of_them else any(codes)


def _begin(tx: Tx, wanted: Wanted) -> dict[str, Watch]:
    """A watch on each, as it is now, or NotFound."""
    field = "task_id" if len(wanted.task_ids) == 1 else "task_ids"
    found: dict[str, Task | Job] = {each: tasks.seen(tx, each, field) for each in wanted.task_ids}
    for each in wanted.job_ids:
        job = job_rows.get(tx, each)
        if job is None:
            raise NotFound(f"job {each} not found", field="job_ids")
        found[each] = job
    return {each: Watch(each, row, row) for each, row in found.items()}


def _rows(tx: Tx, both: Sequence[str]) -> dict[str, Task | Job]:
    found: dict[str, Task | Job] = {}
    for each in both:
        row = task_rows.get(tx, each) or job_rows.get(tx, each)
        if row is not None:
            found[each] = row
    return found


def _look(watch: Watch, wanted: Wanted) -> None:
    """Whether it is where it is wanted before anything happens."""
    row = watch.first
    watch.cursor = row.updated_at
    if isinstance(row, Job):
        if row.state not in LIVE:
            watch.code, watch.changed_at = "ALREADY_AT_STATUS", row.updated_at
        return
    watch.status = row.status
    since = wanted.cursor is not None and row.updated_at > wanted.cursor
    if row.status in wanted.states:
        watch.code = "CHANGED_SINCE_CURSOR" if since else "ALREADY_AT_STATUS"
    elif since and not wanted.states:
        watch.code = "CHANGED_SINCE_CURSOR"
    if watch.code is not None:
        watch.changed_at = row.updated_at


def _hear(watches: Mapping[str, Watch], event: Event, wanted: Wanted) -> None:
    watch = watches.get(str(event.entity_id))
    if watch is None or watch.code is not None:
        return
    if event.kind == "task.deleted":
        watch.code, watch.status, watch.changed_at = "TASK_DELETED", None, event.at
    elif event.kind == "job.finished":
        watch.code, watch.changed_at = "TASK_CHANGED", event.at
    elif event.kind == "task.updated" and event.data["updated_at"] > watch.first.updated_at:
        _moved(watch, event.data["after"], event.data["updated_at"], wanted)


def _moved(watch: Watch, status: str, at: int, wanted: Wanted) -> None:
    """The task is in this state, or was for a moment: what is wanted is judged at each step."""
    before = watch.status or status
    watch.status, watch.cursor = status, at
    if status in wanted.states if wanted.states else column_of(status) != column_of(before):
        watch.code, watch.changed_at = "TASK_CHANGED", at


async def _catch_up(core: Core, caller: Caller, watches: Mapping[str, Watch], wanted: Wanted) -> None:
    """So much happened that events were dropped: look at the rows instead."""
    fresh = await core.db.read(caller, _rows, list(watches))
    for watch in watches.values():
        row = fresh.get(watch.row_id)
        if watch.code is not None:
            continue
        if row is None:
            watch.code, watch.status = "TASK_DELETED", None
        elif isinstance(row, Task):
            _moved(watch, row.status, row.updated_at, wanted)
        elif row.state not in LIVE:
            watch.code, watch.changed_at = "TASK_CHANGED", row.updated_at
