"""Opening the core and closing it again."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from quarterdeck.config import Settings
from quarterdeck.core.content_runner import ContentRunner
from quarterdeck.core.context import Core
from quarterdeck.core.memory_index import MemoryIndex
from quarterdeck.core.models import Providers
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.events import Bus
from quarterdeck.store.db import default_url, open_database


@contextlib.asynccontextmanager
async def opened(settings: Settings, data_dir: Path) -> AsyncIterator[Core]:
    """A core on the configured database; at the end everything it acknowledged is on disk."""
    url = settings.database.url.get_secret_value() if settings.database.url else default_url(data_dir)
    bus = Bus()
    db = open_database(url, bus)
    core = Core(
        db,
        bus,
        settings,
        settings.registry(),
        MemoryIndex(db, bus, settings.search),
        Providers(settings.content, settings.breaker),
        data_dir,
    )
    core.caches.append(core.memory.clear_cache)
    runner = ContentRunner(core)
    try:
        await db.start()
        core.memory.start()
        runner.start()
        yield core
    finally:
        bus.close()
        await core.memory.close()
        await runner.close()
        await core.providers.close()
        await core.settle()
        await db.close()


async def check(core: Core) -> None:
    """Raise Unavailable when the database does not answer."""
    await core.db.read(SYSTEM, lambda tx: None)
