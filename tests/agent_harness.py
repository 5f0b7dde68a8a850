"""Runs one assignment with a real agent program, as the worker does, and gives back the record of the run."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import claude_agent_sdk

from quarterdeck.config import Settings
from quarterdeck.domain.agents import Agent
from quarterdeck.run.adapters import programs
from quarterdeck.run.adapters.base import Assignment, Launch, Outcome, Reader, Step
from quarterdeck.run.adapters.registry import adapter_of
from quarterdeck.run.attempts import Attempt, Spec, transcript

LIMIT_SECONDS = 120.0
GRACE_SECONDS = 1.0
CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"


@dataclass(frozen=True)
class Run:
    """A run that has ended: its record, what was told on the way, and what it was started with."""

    outcome: Outcome
    steps: list[Step]
    launch: Launch
    stdout: str
    stderr: str
    code: int | None

    def tools(self) -> list[str | None]:
        return [step.tool for step in self.steps if step.kind == "tool"]


@dataclass
class Bench:
    """One agent with a folder to work in and a home; each run is one attempt."""

    agent: Agent
    root: Path
    settings: Settings = field(default_factory=Settings)
    runs: int = 0

    def __post_init__(self) -> None:
        self.cwd.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q", self.cwd], check=True)

    @property
    def cwd(self) -> Path:
        return self.root / "tree"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def run(self, prompt: str, **wanted: Any) -> Run:
        """Start it, follow it to its end. `wanted` are fields of the assignment."""
        return asyncio.run(self._run(Assignment(prompt, self.cwd, self.home, **wanted)))

    async def _run(self, assignment: Assignment) -> Run:
        adapter = adapter_of(self.agent)
        assert adapter is not None
        found = await programs.find(self.agent, self.settings)
        env = programs.environment(self.agent, self.settings, self.home)
        launch = adapter.launch(found.argv, env, assignment, found.flags)
        self.runs += 1
        return await follow(
            self.root / f"attempt-{self.runs}", assignment, launch, adapter.reader(assignment)
        )


async def follow(folder: Path, assignment: Assignment, launch: Launch, reader: Reader) -> Run:
    """One attempt, from its launch to its record."""
    folder.mkdir()
    stdin, writer = folder / "stdin", None
    if launch.interactive:
        os.mkfifo(stdin, 0o600)
        # Both ways, so that opening waits for nobody.
        writer = os.open(stdin, os.O_RDWR | os.O_NONBLOCK)
    else:
        stdin.write_bytes(launch.stdin)
    spec = Spec(launch.argv, assignment.cwd, launch.env, LIMIT_SECONDS, stdin, deadline_seconds=LIMIT_SECONDS)
    attempt = await Attempt.start(folder / "agent", spec)
    steps: list[Step] = []
    rest = b""
    try:
        _write(writer, launch.stdin + reader.outgoing() if launch.interactive else b"")
        async for chunk in attempt.follow(stream="stdout"):
            *lines, rest = (rest + chunk.data).split(b"\n")
            for line in lines:
                steps += reader.feed(line)
                _write(writer, reader.outgoing())
            if reader.finished and writer is not None:
                os.close(writer)
                writer = None
                # Not every agent ends when nobody speaks to it any more.
                asyncio.get_running_loop().call_later(GRACE_SECONDS, attempt.cancel)
        if rest:
            steps += reader.feed(rest)
        ended = await attempt.wait()
    finally:
        if writer is not None:
            os.close(writer)
        await attempt.close()
    out, errors = (
        transcript(attempt.folder, stream).decode(errors="replace") for stream in ("stdout", "stderr")
    )
    code = ended.code if ended.reason == "exited" else None
    return Run(reader.finish(code, errors), steps, launch, out, errors, code)


def _write(file: int | None, data: bytes) -> None:
    while file is not None and data:
        with suppress(BlockingIOError):
            data = data[os.write(file, data) :]


def claude(env: Mapping[str, str], command: Sequence[str] = (str(CLAUDE),)) -> Agent:
    """The real Claude Code of the test extra."""
    return Agent("claude-code", "Claude Code", adapter="claude", command=tuple(command), env=dict(env))


def with_env(agent: Agent, **env: str) -> Agent:
    return replace(agent, env={**agent.env, **env})
