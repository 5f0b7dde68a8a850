"""Opening the core and closing it again."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from quarterdeck.config import Settings
from quarterdeck.core import board, queue, registry  # noqa: F401 what follows a task's state is the board's
from quarterdeck.core import settings as tuned
from quarterdeck.core.content_runner import ContentRunner
from quarterdeck.core.context import Core
from quarterdeck.core.memory_index import MemoryIndex
from quarterdeck.core.models import Providers
from quarterdeck.core.settings import Tuning
from quarterdeck.core.templates import Library
from quarterdeck.core.webhooks import Webhooks
from quarterdeck.domain.breaker import Breaker
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.events import Bus
from quarterdeck.store import log
from quarterdeck.store.db import default_url, open_database
from quarterdeck.store.guard import Guarded

logger = structlog.get_logger()


@contextlib.asynccontextmanager
async def opened(
    settings: Settings, data_dir: Path, url: str | None = None, *, serving: bool = True
) -> AsyncIterator[Core]:
    """A core on the configured database; at the end everything it acknowledged is on disk.

    One that is not `serving` lends itself to a worker: it searches nothing, writes no content and leaves
    the limits of agents to the core.
    """
    bus = Bus()
    db = Guarded(open_database(_url(settings, data_dir), bus), Breaker(*settings.breaker.limits))
    core = Core(
        db=db,
        bus=bus,
        settings=settings,
        agents=settings.registry(),
        memory=MemoryIndex(db, bus, settings.search),
        providers=Providers(settings.content, settings.breaker),
        templates=Library(data_dir / "templates"),
        data_dir=data_dir,
        tuning=Tuning(db, bus),
        url=url,
    )
    core.caches.append(core.memory.clear_cache)
    runner, webhooks = ContentRunner(core), Webhooks(core)
    try:
        await db.start()
        if serving:
            for doubt in settings.doubts():
                logger.warning("config.doubt", problem=doubt)
            usual = await tuned.get(core, "general.max_concurrent_agents")
            await db.tx(queue.SYSTEM, queue.set_limits, registry.limits(core, usual))
            core.memory.start()
            runner.start()
            webhooks.start()
        yield core
    finally:
        bus.close()
        await core.memory.close()
        await runner.close()
        await webhooks.close()
        await core.providers.close()
        await core.settle()
        await db.close()


def _url(settings: Settings, data_dir: Path) -> str:
    if settings.database.url:
        return settings.database.url.get_secret_value()
    url = default_url(data_dir)
    # SQLite gives its other files the same mode; the directory may be open to others.
    Path(url.removeprefix("sqlite:///")).touch(mode=0o600)
    return url


async def check(core: Core) -> None:
    """Raise Unavailable when the database does not answer."""
    await core.db.read(SYSTEM, log.tip)
