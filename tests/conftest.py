"""Fixtures that every tier shares."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine

from quarterdeck.store.migrate import migrate
from tests import starter
from tests.postgres import Postgres

# A shell makes what it starts in the background deaf to Ctrl-C, and all that this starts would be too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail the run when a process that some test started is still there at its end."""
    yield
    starter.stop()
    _, left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=5)
    described = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            described.append(f"{process.pid} {process.name()}")
            process.kill()
    assert not described, f"processes left behind: {', '.join(described)}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL for the whole run. A test that stops its server starts one of its own instead."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """The URL of a migrated database that `database_url` copies: a copy is made in a tenth of the time."""
    url = postgres.create_database()
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        migrate(engine)
    finally:
        engine.dispose()
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh database; the test runs once on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'quarterdeck.db'}"
        return
    # Asked for here and not as an argument, so that runs on SQLite alone start no server.
    server: Postgres = request.getfixturevalue("postgres")
    url = server.create_database(request.getfixturevalue("postgres_template"))
    yield url
    server.drop_database(url)
