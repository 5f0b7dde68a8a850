"""What the tests of attempts share: agents of all kinds, and ways to see what is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from quarterdeck.run.attempts import Attempt, Spec

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 5.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

# Everything that agents are known to leave behind, each with argv[1] in its command line; argv[2] ends it.
UNRULY = """
import os, signal, subprocess, sys
ear, mouth = os.pipe()
def fork(body):
    if os.fork() == 0:
        body()
        os._exit(0)
def rest():
    signal.pause()
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(mouth, b"deaf")
    while True:
        signal.pause()
def daemon():
    os.setsid()
    fork(lambda: os.execvp("sleep", ["sleep", sys.argv[1]]))
fork(daemon)
os.wait()
fork(deaf)
os.read(ear, 4)
for _ in range(50):
    fork(rest)
nameless = subprocess.Popen(["sleep", sys.argv[1]], env={}, start_new_session=True)
print("ready", flush=True)
if sys.argv[2:]:
    sys.exit(int(sys.argv[2]))
signal.pause()
"""
UNRULY_PROCESSES = 54


T = TypeVar("T")


def run(body: Callable[[], Coroutine[Any, Any, T]], loop: str = "asyncio") -> T:
    """Run a test's body on a loop of this kind, for a minute at most."""

    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await body()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(bounded())


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def spec(argv: Sequence[str], cwd: Path, **more: Any) -> Spec:
    given = {"env": {"PATH": os.environ["PATH"]}, "lease_seconds": 30.0, **more}
    return Spec(argv, cwd, **given)


def token() -> str:
    """A number of seconds to sleep that no other process sleeps."""
    return f"300.{random.SystemRandom().randrange(10**12):012d}"


def carriers(mark: str) -> list[int]:
    """The processes with this in their command line. A zombie has none."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                line = Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(int(entry.name))
    return found


def until(condition: Callable[[], object], seconds: float = LIMIT_SECONDS) -> float:
    """How long until this holds; fails when that is too long."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not come about in time"
        time.sleep(0.01)
    return time.monotonic() - began


async def said(attempt: Attempt, words: bytes) -> None:
    """Return as soon as the agent has said this."""
    text = b""
    async for chunk in attempt.follow():
        text += chunk.data
        if words in text:
            return
    raise AssertionError(f"it ended without saying {words!r}: {text!r}")


class Worker:
    """A worker with one attempt in a process of its own."""

    def __init__(self, folder: Path, argv: Sequence[str], **more: Any) -> None:
        self.folder = folder
        description = folder.with_suffix(".spec")
        fields = {"argv": list(argv), "cwd": str(folder.parent), "env": {"PATH": os.environ["PATH"]}}
        description.write_text(json.dumps({**fields, "lease_seconds": 30.0, **more}))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.attempt_worker", folder, description],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )

    def __enter__(self) -> Worker:
        assert self.line() == "started\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def record(self, name: str) -> dict[str, Any] | None:
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def supervisor(self) -> int:
        identity = self.record("identity")
        assert identity is not None
        return int(identity["supervisor"][0])

    def says(self, words: bytes) -> None:
        until(lambda: words in (self.folder / "log").read_bytes(), 20)
