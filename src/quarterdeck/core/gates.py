"""A project's own command, run on a tree of files: its exit code decides, its output is told."""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import STDOUT, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TIMEOUT_SECONDS: Final = 900.0
TAIL: Final = 4_000

_CHUNK: Final = 1 << 16
_GRACE_SECONDS: Final = 2.0
# Standard input is a pipe from the core: when the core is killed it breaks, and all of the session ends.
_SCRIPT: Final = """exec 3<&0 0</dev/null
(cat <&3; kill -KILL 0) >/dev/null 2>&1 &
exec 3<&-
/bin/sh -c "$1"
"""
_PASSED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "SHELL")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a command ended; `code` is None when it took too long. `output` is its last part."""

    code: int | None
    output: str

    @property
    def passed(self) -> bool:
        return self.code == 0


async def run(command: str, folder: Path, *, seconds: float = TIMEOUT_SECONDS) -> Verdict:
    """Run a shell command in a folder, in a session and an environment of its own; nothing of it is left."""
    kept = {name: os.environ[name] for name in _PASSED if name in os.environ}
    # A pipe of our own: asyncio would wait for one of its own until whatever was left behind closes it.
    ours, theirs = os.pipe()
    lifeline, ours_alone = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _SCRIPT, "sh", command),
            cwd=folder,
            env={**kept, "CI": "true", "GIT_TERMINAL_PROMPT": "0"},
            stdin=lifeline,
            stdout=theirs,
            stderr=STDOUT,
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        os.close(ours_alone)
        raise
    finally:
        os.close(theirs)
        os.close(lifeline)
    said = bytearray()
    reading = asyncio.ensure_future(_read(ours, said))
    try:
        async with asyncio.timeout(seconds):
            code: int | None = await process.wait()
    except TimeoutError:
        code = None
    finally:
        await _end(process, reading)
        os.close(ours_alone)
    return Verdict(code, said.decode("utf-8", "replace").replace("\0", ""))


async def _read(pipe: int, into: bytearray) -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb", buffering=0))
    try:
        while chunk := await reader.read(_CHUNK):
            into += chunk
            del into[:-TAIL]
    finally:
        transport.close()


async def _end(process: Process, reading: "asyncio.Future[None]") -> None:
    """End the command and all that it started in its session, kindly at first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await asyncio.gather(process.wait(), asyncio.shield(reading))
                return
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
