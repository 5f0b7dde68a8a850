"""The audit: every mutating call leaves its own event; a refused one leaves this."""

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import QuarterdeckError, RateLimited, Unavailable
from quarterdeck.store.tx import Tx

_WAITING = 1000


def refused(core: Core, caller: Caller, error: QuarterdeckError) -> None:
    """Write down a refusal beside the answer; a flood of them is not worth a flood of writes."""
    if isinstance(error, RateLimited | Unavailable) or len(core.background) > _WAITING:
        return
    core.spawn(core.db.tx(caller, _refused, error.code, error.field))


def _refused(tx: Tx, code: str, field: str | None) -> None:
    tx.emit("call.refused", None, task_id=tx.caller.task_id, ok=False, code=code, field=field)
