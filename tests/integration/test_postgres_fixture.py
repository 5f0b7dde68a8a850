"""The PostgreSQL that other tests stand on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from sqlalchemy import create_engine, text

from tests.postgres import Postgres, copy_programs

ROOT = Path(__file__).parents[2]

STARTS_A_SERVER_AND_HANGS = """
import time
from tests.postgres import Postgres
with Postgres() as server:
    print(server.pid, server.directory, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(durable=True) as own:
        yield own


def ask(url: str, question: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(question.encode()).fetchall()


def fill(url: str, value: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table kept (value integer)")
        connection.execute("insert into kept values (%s)", (value,))


def is_gone(pid: int, within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_server_starts_and_answers(postgres: Postgres) -> None:
    url = postgres.create_database()
    assert url.startswith("postgresql://quarterdeck@127.0.0.1:")
    [(version,)] = ask(url, "select version()")
    assert str(version).startswith("PostgreSQL 18")
    postgres.drop_database(url)


def test_databases_belong_to_an_ordinary_role(postgres: Postgres) -> None:
    url = postgres.create_database()
    assert ask(url, "select rolsuper, rolcreatedb from pg_roles where rolname = current_user") == [
        (False, False)
    ]
    with pytest.raises(psycopg.OperationalError, match="pg_hba"):
        psycopg.connect(url.replace("quarterdeck@", "postgres@"))
    postgres.drop_database(url)


def test_unicode_letters_have_case(postgres: Postgres) -> None:
    url = postgres.create_database()
    assert ask(url, "select lower('ÀÉÎ') = 'àéî', 'Ünïcode' ilike 'üNÏ%'") == [(True, True)]
    postgres.drop_database(url)


def test_fsync_is_off_unless_durable(postgres: Postgres, server: Postgres) -> None:
    for own, expected in ((postgres, "off"), (server, "on")):
        url = own.create_database()
        assert ask(url, "show fsync") == [(expected,)]
        own.drop_database(url)


def test_database_made_from_a_template_has_its_rows(server: Postgres) -> None:
    template = server.create_database()
    fill(template, 7)
    copy = server.create_database(template)
    assert copy != template
    assert ask(copy, "select value from kept") == [(7,)]


@pytest.mark.parametrize("immediate", [False, True])
def test_data_outlives_a_restart(server: Postgres, immediate: bool) -> None:
    url = server.create_database()
    fill(url, 42)
    before = server.pid
    server.restart(immediate=immediate)
    assert server.pid not in (None, before)
    assert ask(url, "select value from kept") == [(42,)]


def test_dropped_database_is_gone_even_while_in_use(server: Postgres) -> None:
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as held:
        server.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            held.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_stopped_server_is_gone_until_started(server: Postgres) -> None:
    url = server.create_database()
    pid = server.pid
    assert pid is not None
    server.stop()
    try:
        assert server.pid is None
        assert not psutil.pid_exists(pid)
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(url)
    finally:
        server.start()
    assert ask(url, "select 1") == [(1,)]


def test_server_outlives_the_thread_that_restarted_it(server: Postgres) -> None:
    thread = threading.Thread(target=server.restart)
    thread.start()
    thread.join()
    pid = server.pid
    assert pid is not None
    assert not is_gone(pid, within=0.5)


def test_closed_server_leaves_nothing() -> None:
    with Postgres() as own:
        pid, directory = own.pid, own.directory
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert not directory.exists()


def test_server_dies_with_a_killed_test_run() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SERVER_AND_HANGS], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with run:
        assert run.stdout is not None
        pid, directory = run.stdout.readline().split()
        try:
            run.send_signal(signal.SIGKILL)
            assert is_gone(int(pid))
        finally:
            run.kill()
            shutil.rmtree(directory)


def test_copied_programs_run(tmp_path: Path) -> None:
    programs = copy_programs(tmp_path)
    for program in ("initdb", "postgres"):
        said = subprocess.run([programs / program, "--version"], capture_output=True, text=True, check=True)
        assert said.stdout.startswith(f"{program} (PostgreSQL) 18")


def test_each_kind_of_database_is_reachable_and_empty(database_url: str) -> None:
    engine = create_engine(database_url)
    try:
        with engine.begin() as connection:
            connection.execute(text("create table fresh (value integer)"))
            assert connection.execute(text("select count(*) from fresh")).scalar_one() == 0
    finally:
        engine.dispose()


def test_next_database_does_not_see_the_last_one(database_url: str) -> None:
    test_each_kind_of_database_is_reachable_and_empty(database_url)
