"""The ledger over REST: look, and mend."""

import asyncio
import contextlib
from typing import Any

from starlette.types import Receive, Scope, Send

from quarterdeck.core import ledger
from quarterdeck.core.context import Core
from quarterdeck.core.ledger import Drift
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Denied, QuarterdeckError
from quarterdeck.server.http import answer, refuse

PATH = "/api/doctor"
_TEND_SECONDS = 300.0


async def serve(core: Core, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
    """`GET /api/doctor` shows what drifted, `POST /api/doctor` mends it and shows what is left."""
    method = scope["method"]
    if method not in ("GET", "POST"):
        await answer(send, 405, {"detail": f"{method} is not served here"}, [(b"allow", b"GET, POST")])
        return
    try:
        if caller.bound or not caller.may("maintainer"):
            raise Denied("the ledger is for maintainers")
        report: dict[str, Any] = {}
        if method == "POST":
            # It goes on when whoever asked goes away.
            mended = await asyncio.shield(core.spawn(ledger.repair(core)))
            report["mended"] = [shown(drift) for drift in mended]
        left = await ledger.check(core)
        report |= {"ok": not left, "drift": [shown(drift) for drift in left]}
        await answer(send, 200, report | {"warnings": core.settings.doubts()})
    except QuarterdeckError as error:
        await refuse(send, error)


def shown(drift: Drift) -> dict[str, Any]:
    return {"kind": drift.kind, "what": drift.what, "fix": drift.fix, "automatic": drift.safe}


async def tend(core: Core) -> None:
    """At start and every few minutes, mend what can be mended without asking."""
    while True:
        with contextlib.suppress(QuarterdeckError):
            await ledger.tend(core)
        await asyncio.sleep(_TEND_SECONDS)
