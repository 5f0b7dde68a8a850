"""Runs a project's own command, acceptance or gate, contained as an agent is: nothing of it is left."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Final

from quarterdeck.config import Settings
from quarterdeck.core.context import Core
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.checks import Verdict
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.domain.ids import new_id
from quarterdeck.run.adapters.variables import environment
from quarterdeck.run.attempts import Attempt, Exit, Spec, recover, transcript

TAIL: Final = 4_000
_CAP: Final = 1 << 16
# The deadline ends a command that takes too long; the lease is never renewed.
_SLACK_SECONDS: Final = 60.0
_NOBODY: Final = Agent(id="check", name="check")
_VARIABLES: Final = {"CI": "true", "GIT_TERMINAL_PROMPT": "0"}

_running: set[str] = set()


async def check(core: Core, command: str, cwd: Path, seconds: float, *, home: Path | None = None) -> Verdict:
    """Run a shell command in a folder, with a clean environment and no token.

    `home` is that of the user who runs the core unless another is given.
    """
    folder = _root(core) / new_id()
    _running.add(folder.name)
    try:
        ended = await _ended(folder, _spec(core.settings, command, cwd, seconds, home or Path.home()))
        said = await asyncio.to_thread(transcript, folder)
    except QuarterdeckError as error:
        return Verdict(None, "could not be started", error.message)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        _running.discard(folder.name)
    tail = said[-TAIL:].decode("utf-8", "replace").replace("\0", "")
    if ended.reason == "unstarted":
        return Verdict(None, "could not be started", f"{tail}{ended.error}")
    return Verdict(ended.code if ended.reason == "exited" else None, _how(ended, seconds), tail)


async def sweep(core: Core) -> None:
    """End what commands of an earlier process of this data directory left, and remove their records."""
    running = {each.folder.name for each in await recover(_root(core)) if each.outcome == "running"}
    for folder in await asyncio.to_thread(lambda: list(_root(core).glob("*"))):
        if folder.name not in running | _running:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _root(core: Core) -> Path:
    return core.data_dir / "checks"


def _spec(settings: Settings, command: str, cwd: Path, seconds: float, home: Path) -> Spec:
    return Spec(
        argv=["/bin/sh", "-c", command],
        cwd=cwd,
        env=environment(_NOBODY, settings, home) | _VARIABLES,
        lease_seconds=seconds + _SLACK_SECONDS,
        deadline_seconds=seconds,
        grace_seconds=settings.worker.grace_seconds,
        log_cap_bytes=_CAP,
        stdout_cap_bytes=_CAP,
    )


async def _ended(folder: Path, spec: Spec) -> Exit:
    """Start it and wait for its end; whoever is cancelled here waits until nothing of it is left."""
    starting = asyncio.ensure_future(Attempt.start(folder, spec))
    try:
        return await (await asyncio.shield(starting)).wait()
    except BaseException:
        with contextlib.suppress(QuarterdeckError):
            attempt = await starting
            attempt.cancel()
            await attempt.wait()
        raise


def _how(ended: Exit, seconds: float) -> str:
    if ended.reason == "deadline":
        return f"took longer than {seconds:g} seconds"
    if ended.reason != "exited":
        return "was ended"
    if ended.signal is not None:
        return f"was ended by signal {ended.signal}"
    return f"ended with exit code {ended.code}"
