"""One attempt of a job, seen from the worker: start it, keep it alive, follow it, learn how it ended.

The agent runs below a supervisor of its own (`supervisor.py`), which ends it when this process dies or hangs.
"""

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from quarterdeck.domain.errors import Conflict, Invalid, QuarterdeckError, Unavailable
from quarterdeck.domain.ids import now_us
from quarterdeck.run.files import load, publish, read_output
from quarterdeck.run.leftovers import Identity, Process, end_leftovers, outwait
from quarterdeck.run.trees import GIVE_UP_SECONDS, VARIABLE

MIB = 1024 * 1024
START_SECONDS = 30.0
SUPERVISOR = Path(__file__).with_name("supervisor.py")
RECORDS = ("attempt.json", "identity.json", "exit.json")

Stream = Literal["log", "stdout", "stderr"]
# The last is the worker's own word for an attempt without a record: its supervisor was killed.
Reason = Literal["exited", "unstarted", "deadline", "cancelled", "lifeline", "lease", "terminated", "lost"]


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run and within which bounds. `env` is all that the agent sees, but for the attempt's mark.

    `stdin` may be a FIFO that the worker holds open: then the agent reads what is written there.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    lease_seconds: float
    stdin: Path | None = None
    deadline_seconds: float | None = None
    grace_seconds: float = 2.0
    log_cap_bytes: int = 16 * MIB
    stdout_cap_bytes: int = 64 * MIB
    namespace: bool = True


@dataclass(frozen=True, slots=True)
class Kept:
    """How much an output had, and how much of it was kept."""

    bytes: int
    kept: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended. `left` means that something of it could not be killed."""

    reason: Reason
    code: int | None = None
    signal: int | None = None
    error: str | None = None
    started_at: int | None = None
    ended_at: int = 0
    left: bool = False
    outputs: Mapping[str, Kept] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of an output, where they stand in it, and how many right before them were cut."""

    offset: int
    data: bytes
    skipped: int = 0

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Containment:
    """Whether agents can have a PID namespace here, and how or why not."""

    namespace: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of an attempt of an earlier worker.

    `exited`: the agent ended by itself. `stopped`: it was ended, `exit` says why. `lost`: nobody knows.
    `running`: its worker lives; it was left alone.
    """

    folder: Path
    outcome: Literal["exited", "stopped", "lost", "running"]
    exit: Exit | None


class Attempt:
    """A running attempt. Let go of it with `wait` or `close`, on the loop that started it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity: Identity | None = None
        self._loop = asyncio.get_running_loop()
        self._began, self._ended, self._news = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._lifeline: int | None
        self._process, self._lifeline, self._status = _spawn(folder)
        self._loop.add_reader(self._status, self._on_status)
        self._exit = self._loop.create_task(self._finish())

    @classmethod
    async def start(cls, folder: Path, spec: Spec) -> "Attempt":
        """Start the agent; `folder` is made and belongs to this attempt alone."""
        _check(spec)
        attempt = cls(await asyncio.to_thread(_describe, folder, spec))
        try:
            async with asyncio.timeout(START_SECONDS):
                await attempt._began.wait()
        except BaseException as error:
            attempt._let_go()
            if isinstance(error, TimeoutError):
                attempt._process.kill()
                raise Unavailable("The agent's supervisor did not start in time.") from error
            raise
        with _opened(attempt.folder) as records:
            attempt.identity = _identity(records)
            if attempt.identity is None and load(records, "exit.json") is None:
                raise Unavailable("The agent's supervisor did not start.", hint=_last_words(attempt.folder))
        return attempt

    def renew(self) -> None:
        """Renew the lease: call it on each successful heartbeat."""
        self._send(b"r")

    def cancel(self) -> None:
        """Ask for the end: SIGTERM to everything, SIGKILL after the grace."""
        self._send(b"c")

    async def wait(self) -> Exit:
        """How it ended, as soon as nothing of it is left."""
        return await asyncio.shield(self._exit)

    async def close(self) -> Exit:
        """Let go of it as a worker that stops: the agent is ended, for the next worker to take up."""
        self._let_go()
        return await self.wait()

    async def follow(self, offset: int = 0, stream: Stream = "log") -> AsyncIterator[Chunk]:
        """The output from `offset` on, as it comes, until the attempt has ended."""
        while True:
            # Asked before reading: what comes in between is in the file.
            ended, news = self._ended.is_set(), self._news
            chunk = read(self.folder, stream, offset)
            if chunk.data:
                yield chunk
                offset = chunk.end
            elif ended:
                return
            else:
                self._send(b"f")
                await news.wait()

    def _send(self, word: bytes) -> None:
        # Full when the supervisor is stopped, broken when it has ended: `wait` tells.
        if self._lifeline is not None:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._lifeline, word)

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _on_status(self) -> None:
        try:
            said = os.read(self._status, 4096)
        except BlockingIOError:
            return
        if not said:
            self._loop.remove_reader(self._status)
            os.close(self._status)
            self._ended.set()
        self._began.set()
        self._news.set()
        self._news = asyncio.Event()

    async def _finish(self) -> Exit:
        try:
            await self._ended.wait()
            await asyncio.to_thread(self._process.wait)
        except asyncio.CancelledError:
            # The loop is closing on us. The agent ends with the lifeline; somebody must still reap.
            if not self._ended.is_set():
                self._loop.remove_reader(self._status)
                os.close(self._status)
            threading.Thread(target=self._process.wait, daemon=True).start()
            raise
        finally:
            self._let_go()
        return await asyncio.to_thread(_settle, self.folder)


def _spawn(folder: Path) -> tuple[subprocess.Popen[bytes], int, int]:
    """The supervisor, the lifeline to write to and the status to read from."""
    supervisor_end, lifeline = os.pipe()
    status, status_end = os.pipe()
    for file in (lifeline, status):
        os.set_blocking(file, False)
    try:
        with (folder / "supervisor.err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", SUPERVISOR, folder],
                stdin=supervisor_end,
                stdout=status_end,
                stderr=errors,
                cwd="/",
                env=_loader_environment(),
                start_new_session=True,
            )
    except BaseException as error:
        os.close(lifeline)
        os.close(status)
        if isinstance(error, OSError):
            raise Unavailable(f"The agent's supervisor cannot be started: {error.strerror}") from error
        raise
    finally:
        os.close(supervisor_end)
        os.close(status_end)
    return process, lifeline, status


def _loader_environment() -> dict[str, str]:
    """What this interpreter may need to start at all; nothing else of our environment goes further."""
    name = "LD_LIBRARY_PATH"
    return {name: os.environ[name]} if name in os.environ else {}


def _check(spec: Spec) -> None:
    """Refuse what could only fail later, in a place where nobody sees why."""
    if not spec.argv or not spec.argv[0]:
        raise Invalid("There is no program to run.", field="argv")
    for name, text in [("argv", each) for each in spec.argv] + [
        ("env", "".join(i)) for i in spec.env.items()
    ]:
        try:
            usable = b"\0" not in os.fsencode(text)
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise Invalid(f"{name} has a character that no program can be given.", field=name)
    if any(not name or "=" in name or name == VARIABLE for name in spec.env):
        raise Invalid(f"A variable's name is empty, holds '=' or is {VARIABLE}.", field="env")
    seconds = (spec.lease_seconds, spec.deadline_seconds, spec.grace_seconds)
    if any(each is not None and not 0 < each < float("inf") for each in seconds):
        raise Invalid("A number of seconds is not positive.", field="seconds")
    if min(spec.log_cap_bytes, spec.stdout_cap_bytes) < 4096:
        raise Invalid("A cap is below 4096 bytes.", field="cap_bytes")


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield file
    finally:
        os.close(file)


def _describe(folder: Path, spec: Spec) -> Path:
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any((folder / name).exists() for name in RECORDS):
        raise Conflict(f"{folder.name} holds another attempt.")
    description = {
        **asdict(spec),
        "argv": list(spec.argv),
        "env": dict(spec.env),
        "cwd": str(spec.cwd),
        "stdin": str(spec.stdin) if spec.stdin else None,
        "secret": secrets.token_hex(16),
        "worker": astuple(Process.own()),
    }
    with _opened(folder) as records:
        publish(records, "attempt.json", description)
    return folder


def _last_words(folder: Path) -> str | None:
    lines = (folder / "supervisor.err").read_text(errors="replace").splitlines()
    return lines[-1] if lines else None


def _identity(records: int) -> Identity | None:
    record = load(records, "identity.json")
    if record is None:
        return None
    return Identity(
        agent=Process(record["pid"], record["start_time"], record["boot_id"]),
        supervisor=Process(*record["supervisor"]),
        worker=Process(*record["worker"]),
        secret=record["secret"],
        started_at=record["started_at"],
        namespace=record["namespace"],
        refused=record["refused"],
    )


def _exit(record: dict[str, Any]) -> Exit:
    return Exit(**{**record, "outputs": {name: Kept(**kept) for name, kept in record["outputs"].items()}})


def _settle(folder: Path) -> Exit:
    """The exit of an attempt whose worker let go of it. One without a record gets it here, as lost."""
    with _opened(folder) as records:
        identity = _identity(records)
        if identity and load(records, "exit.json") is None:
            outwait(identity.supervisor, GIVE_UP_SECONDS * 2)
        found = load(records, "exit.json")
        if found is None:
            left = identity is not None and not end_leftovers(identity)
            started_at = identity.started_at if identity else None
            found = asdict(Exit("lost", left=left, started_at=started_at, ended_at=now_us()))
            # On a full disk the next start finds it lost again.
            with suppress(OSError):
                publish(records, "exit.json", found)
                (folder / "attempt.json").unlink(missing_ok=True)
        return _exit(found)


def _recover(folder: Path) -> Recovered:
    with _opened(folder) as records:
        identity, description = _identity(records), load(records, "attempt.json")
        if load(records, "exit.json") is not None:
            running = False
        elif identity:
            running = identity.worker.alive() and identity.supervisor.alive()
        else:
            running = description is not None and Process(*description["worker"]).alive()
    if running:
        return Recovered(folder, "running", None)
    ended = _settle(folder)
    if ended.reason == "exited":
        return Recovered(folder, "exited", ended)
    return Recovered(folder, "lost" if ended.reason == "lost" else "stopped", ended)


def _begun(root: Path) -> list[Path]:
    """The folders that hold an attempt; one without a record has not begun to."""
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return [each for each in folders if any((each / name).exists() for name in RECORDS)]


async def recover(root: Path) -> list[Recovered]:
    """Settle every attempt below `root` whose worker is gone, and say what became of it."""
    begun = await asyncio.to_thread(_begun, root)
    return await asyncio.gather(*(asyncio.to_thread(_recover, each) for each in begun))


def clean(folder: Path) -> None:
    """Remove an attempt that has ended, its output too."""
    if folder.is_dir():
        with _opened(folder) as records:
            identity = _identity(records)
            if load(records, "exit.json") is None and identity and identity.supervisor.alive():
                raise Conflict(f"{folder.name} is still running.")
        shutil.rmtree(folder)


def read(folder: Path, stream: Stream = "log", offset: int = 0, limit: int = 4 * 65536) -> Chunk:
    """Some of an attempt's output from `offset` on, at most `limit` bytes; empty while there is no more."""
    begin, data = read_output(str(folder), stream, offset, limit)
    return Chunk(begin, data, begin - offset)


def transcript(folder: Path, stream: Stream = "log") -> bytes:
    """All that was kept of an output, with a line of ours where bytes were cut."""
    text = bytearray()
    chunk = read(folder, stream)
    while chunk.data:
        if chunk.skipped:
            text += b"\n[... %d bytes cut ...]\n" % chunk.skipped
        text += chunk.data
        chunk = read(folder, stream, chunk.end)
    return bytes(text)


async def probe() -> Containment:
    """Run one to learn whether agents can have a PID namespace with a /proc of its own here."""
    check = "import os; raise SystemExit(os.readlink('/proc/self') != str(os.getpid()))"
    with TemporaryDirectory(prefix="quarterdeck-") as root:
        argv = [sys.executable, "-I", "-S", "-c", check]
        spec = Spec(argv, Path(root), _loader_environment(), lease_seconds=START_SECONDS)
        try:
            attempt = await Attempt.start(Path(root, "probe"), spec)
            ended = await attempt.wait()
        except QuarterdeckError as error:
            return Containment(False, error.message)
    identity = attempt.identity
    if identity is None or ended.code != 0:
        return Containment(False, ended.error or "a process in a namespace did not end well")
    if identity.namespace is None:
        return Containment(False, identity.refused or "not asked for")
    way = "directly" if identity.namespace == "pid" else "through a user namespace"
    return Containment(True, f"PID namespace, {way}")
