"""`quarterdeck worker`: one more host that runs the relay jobs of a core."""

import asyncio
import contextlib
import signal
from pathlib import Path

from rich.console import Console

from quarterdeck.config import Settings
from quarterdeck.core import life
from quarterdeck.core.context import Core
from quarterdeck.domain.errors import Invalid
from quarterdeck.run import mirror
from quarterdeck.run.runners import RUNNERS
from quarterdeck.run.worker import Runner, Worker
from quarterdeck.server.up import owned

# The other kinds need what lies in the core's own data directory.
KINDS = ("relay",)
_TIDY_SECONDS = 3600.0


def serve(settings: Settings, data_dir: Path, mcp_url: str | None) -> None:
    """Run jobs until SIGTERM or Ctrl-C; what runs then goes back to the queue."""
    url = settings.database.url.get_secret_value() if settings.database.url else ""
    if not url or url.startswith("sqlite"):
        raise Invalid(
            "a worker needs the PostgreSQL database of its core",
            field="database",
            hint="an embedded database belongs to one core: give --database postgresql://… to both",
        )
    if mcp_url is not None and not mcp_url.startswith(("http://", "https://")):
        raise Invalid("the core's address must begin with http:// or https://", field="mcp_url")
    with owned(data_dir):
        asyncio.run(_work(settings, data_dir, mcp_url))


async def _work(settings: Settings, data_dir: Path, mcp_url: str | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runners: dict[str, Runner] = {kind: RUNNERS[kind] for kind in KINDS if kind in RUNNERS}
    async with life.opened(settings, data_dir, mcp_url, serving=False) as core:
        worker = Worker(core, runners)
        worker.start()
        tidying = asyncio.create_task(_tidy(core), name="mirrors")
        Console(stderr=True).print(f"worker {worker.id} is up, data in {data_dir}", markup=False)
        try:
            await stop.wait()
        finally:
            tidying.cancel()
            await worker.close()


async def _tidy(core: Core) -> None:
    """Now and then, remove the mirrors that no job here has used for long: the core sees only its own."""
    while True:
        with contextlib.suppress(OSError):
            for drift in await mirror.unused(core):
                await drift.mend()
        await asyncio.sleep(_TIDY_SECONDS)
