"""The in-memory caches: emptied as a whole, never needed for a correct answer."""

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.store.tx import Tx


async def reset(core: Core, caller: Caller) -> int:
    """Empty every cache of this process; how many entries there were."""
    cleared = sum(clear() for clear in core.caches)

    def body(tx: Tx) -> int:
        tx.emit("cache.reset", None, cleared=cleared)
        return cleared

    return await core.db.tx(caller, body)
