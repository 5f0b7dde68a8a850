"""Opening the core and closing it again."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from quarterdeck.config import Settings
from quarterdeck.core.context import Core
from quarterdeck.core.memory_index import MemoryIndex
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.events import Bus
from quarterdeck.store.db import default_url, open_database


@contextlib.asynccontextmanager
async def opened(settings: Settings, data_dir: Path) -> AsyncIterator[Core]:
    """A core on the configured database; at the end everything it acknowledged is on disk."""
    bus = Bus()
    db = open_database(_url(settings, data_dir), bus)
    core = Core(db, bus, settings, settings.registry(), MemoryIndex(db, bus, settings.search))
    core.caches.append(core.memory.clear_cache)
    try:
        await db.start()
        core.memory.start()
        yield core
    finally:
        bus.close()
        await core.memory.close()
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
    await core.db.read(SYSTEM, lambda tx: None)
