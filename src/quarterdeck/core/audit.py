"""The audit: every mutating call leaves its own event; a refused one leaves this."""

from dataclasses import dataclass, replace
from typing import Final

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Invalid, QuarterdeckError, RateLimited, Unavailable
from quarterdeck.events import GENESIS, Event, chain
from quarterdeck.store import log
from quarterdeck.store.tx import Tx

Wanted = log.Wanted

LISTED: Final = 200
_WAITING = 1000
_CHECKED: Final = 1000
_NAMED: Final = 100


def refused(core: Core, caller: Caller, error: QuarterdeckError, target: str | None = None) -> None:
    """Write down a refusal beside the answer; a flood of them is not worth a flood of writes.

    `target` is the row that the call named, as the caller wrote it: it may be nobody's.
    """
    if isinstance(error, RateLimited | Unavailable) or len(core.background) > _WAITING:
        return
    named = None if target is None else target[:_NAMED].replace("\0", "").encode(errors="replace").decode()
    core.spawn(core.db.tx(caller, _refused, error.code, error.field, named))


def _refused(tx: Tx, code: str, field: str | None, target: str | None) -> None:
    data = {"code": code, "field": field} | ({} if target is None else {"target": target})
    tx.emit("call.refused", None, task_id=tx.caller.task_id, ok=False, **data)


@dataclass(frozen=True, slots=True)
class Tail:
    """Some events, newest first, and where the older ones begin."""

    events: list[Event]
    next_cursor: str | None


async def tail(core: Core, caller: Caller, wanted: Wanted, *, cursor: str | None, limit: int) -> Tail:
    """The events of the caller's user, or everybody's for the admin; `limit` is clamped to 1–200."""
    if cursor is not None:
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
            raise Invalid(
                "the cursor is none of ours", field="cursor", hint="use next_cursor as it was given"
            )
        wanted = replace(wanted, before=int(cursor))
    count = min(max(limit, 1), LISTED)
    found = await core.db.read(caller, log.tail, wanted, count + 1)
    shown = found[:count]
    return Tail(shown, str(shown[-1].seq) if len(found) > count else None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far the chain of hashes holds: `broken` is the first event that does not fit, None when all do."""

    checked: int
    tip: str
    broken: int | None


async def verify(core: Core) -> Verdict:
    """Walk the whole log and compute every hash anew."""
    seq, previous = 0, GENESIS
    while page := await core.db.read(SYSTEM, log.after, seq, _CHECKED):
        for event in page:
            body = (
                event.at,
                event.user_id,
                event.actor,
                event.tool,
                event.kind,
                event.entity_id,
                event.task_id,
                event.ok,
            )
            if event.seq != seq + 1 or event.hash != chain(previous, event.seq, body, event.data):
                return Verdict(seq, previous, seq + 1)
            seq, previous = event.seq, event.hash
    return Verdict(seq, previous, None)
