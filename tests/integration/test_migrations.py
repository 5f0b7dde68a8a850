"""From an empty database to the current schema, by several at once, cut off in the middle, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from quarterdeck.domain.errors import Invalid
from quarterdeck.events import Bus
from quarterdeck.store.db import open_database
from quarterdeck.store.migrate import alembic_config
from quarterdeck.store.schema import HEAD, metadata
from tests.postgres import Postgres
from tests.store import ANN, add, ask, opened

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without a table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'quarterdeck.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    engine = create_engine(empty_url.replace("postgresql:", "postgresql+psycopg:"))
    yield engine
    engine.dispose()


def start(url: str) -> None:
    async def run() -> None:
        async with opened(url) as db:
            await db.tx(ANN, add)

    asyncio.run(run())


def is_ours(_object: Any, name: str | None, kind: str, *_: object) -> bool:
    # Full text is made by hand: neither database has it in common with the other.
    return not (kind == "table" and str(name).startswith("memory_text"))


def test_the_migrations_lead_to_exactly_the_schema(empty_url: str, engine: Engine) -> None:
    start(empty_url)
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True, "include_object": is_ours}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == HEAD
    assert {"memory_text", *metadata.tables} <= set(inspect(engine).get_table_names())


def test_the_schema_names_the_last_migration(engine: Engine) -> None:
    with engine.connect() as connection:
        scripts = ScriptDirectory.from_config(alembic_config(connection))
        assert scripts.get_heads() == [HEAD]


STARTS_ON_A_SIGN = """
import asyncio, sys
import alembic.command
from quarterdeck.store import postgres, sqlite
from tests.store import opened

async def start(url):
    async with opened(url):
        pass

for url in sys.argv[1:]:
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(start(url))
"""


def test_two_processes_that_migrate_at_once_do_not_disturb_each_other(empty_url: str) -> None:
    urls = [empty_url, *(f"{empty_url}-{number}" for number in range(9) if empty_url.startswith("sqlite"))]
    command = [sys.executable, "-c", STARTS_ON_A_SIGN, *urls]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    said = [""] * 2
    for _ in urls:
        for number, process in enumerate(processes):
            assert process.stdout is not None
            said[number] += process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its exit code tells
                process.stdin.write("now\n")
                process.stdin.flush()
    said = [before + process.communicate()[0] for before, process in zip(said, processes, strict=True)]
    assert [process.returncode for process in processes] == [0] * 2, said
    for url in urls:
        assert ask(url, "select version_num from alembic_version") == [(HEAD,)]


def test_a_database_of_a_newer_version_is_refused_and_left_alone(empty_url: str, engine: Engine) -> None:
    start(empty_url)
    with engine.begin() as connection:
        connection.execute(text("update alembic_version set version_num = '9999'"))

    async def run() -> None:
        db = open_database(empty_url, Bus())
        with pytest.raises(Invalid, match="newer Quarterdeck") as refused:
            await db.start()
        assert refused.value.hint is not None
        assert "update" in refused.value.hint
        await db.close()

    asyncio.run(run())
    assert ask(empty_url, "select version_num from alembic_version") == [("9999",)]
    assert ask(empty_url, "select count(*) from tasks") == [(1,)]


def test_a_migration_that_fails_in_the_middle_leaves_the_old_state(empty_url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("create table events (in_the_way integer)"))
    with pytest.raises(DBAPIError, match="already exists"):
        start(empty_url)
    assert inspect(engine).get_table_names() == ["events"]
    with engine.begin() as connection:
        connection.execute(text("drop table events"))
    start(empty_url)
    assert ask(empty_url, "select count(*) from events") == [(1,)]


DIES_WHILE_IT_MIGRATES = """
import os, signal, sys
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine
from tests.integration.test_migrations import start

@event.listens_for(Engine, "before_cursor_execute")
def die(conn, cursor, statement, *_):
    if "CREATE TABLE tokens" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

start(sys.argv[1])
"""


def test_a_migration_that_is_killed_in_the_middle_leaves_the_old_state(
    empty_url: str, engine: Engine
) -> None:
    command = [sys.executable, "-c", DIES_WHILE_IT_MIGRATES, empty_url]
    died = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    assert died.returncode == -9, died.stderr
    assert inspect(engine).get_table_names() == []
    start(empty_url)
    assert ask(empty_url, "select count(*) from tasks") == [(1,)]


KNOWS_NOTHING_OF_ALEMBIC = """
import sys
from tests.store import ANN, add, opened
import asyncio

async def main():
    async with opened(sys.argv[1]) as db:
        await db.tx(ANN, add)

asyncio.run(main())
assert "alembic" not in sys.modules
"""


def test_a_current_database_starts_without_alembic(empty_url: str) -> None:
    start(empty_url)
    command = [sys.executable, "-c", KNOWS_NOTHING_OF_ALEMBIC, empty_url]
    subprocess.run(command, cwd=ROOT, check=True)
