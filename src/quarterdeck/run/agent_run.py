"""One attempt of a job as its runner sees it: the job, a scratch folder, and the agent to run."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from quarterdeck.core import queue
from quarterdeck.core.context import Core
from quarterdeck.core.queue import SYSTEM, Claimed, Ending, File
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import Conflict, QuarterdeckError, Unavailable
from quarterdeck.domain.records import Job
from quarterdeck.run.adapters import programs
from quarterdeck.run.adapters.base import Adapter, Assignment, Launch, Outcome, Reader, Step
from quarterdeck.run.adapters.registry import adapter_of
from quarterdeck.run.adapters.streams import short, without_pieces
from quarterdeck.run.adapters.variables import secrets
from quarterdeck.run.attempts import Attempt, Exit, Spec, read, transcript
from quarterdeck.run.pipes import Mouth, Splitter, given, lines

_STDERR_BYTES = 64 * 1024
_PROGRESS_SECONDS = 0.25
_PENDING = 8

Why = Literal["cancelled", "lost", "stopping", "timeout"]


class Failed(Exception):
    """Raised by a runner: the job has FAILED. `reason` is its code, `files` what it leaves all the same."""

    def __init__(
        self,
        reason: str,
        summary: str,
        files: Sequence[File] = (),
        result: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(summary)
        self.reason = reason
        self.summary = summary
        self.files = files
        self.result = result or {}


class Lost(Exception):
    """The attempt came to nothing through no fault of the job: its process was taken from under it."""


@dataclass(slots=True)
class Seen:
    """What an attempt's agents have done so far."""

    tool_call_count: int = 0
    message_count: int = 0
    tool_calls: dict[str, int] = field(default_factory=dict)
    session_id: str | None = None
    last_message: str = ""
    last_tool: str | None = None

    def add(self, step: Step) -> None:
        if step.kind == "tool":
            self.tool_call_count += 1
            name = self.last_tool = step.tool or "unknown"
            self.tool_calls[name] = self.tool_calls.get(name, 0) + 1
        if step.kind in ("text", "tool", "tool_result"):
            self.message_count += 1
        if step.kind == "text":
            self.last_message = short(step.text)
        elif step.kind == "session":
            self.session_id = str(step.data.get("session_id") or step.text) or None


class JobRun:
    """One attempt of one job. `folder` is its scratch space, removed at the end; `token` is the job's own."""

    def __init__(
        self, core: Core, claimed: Claimed, folder: Path, recorded: Mapping[str, Exit] | None = None
    ) -> None:
        self.core = core
        self.job: Job = claimed.job
        self.token = claimed.token
        self.folder = folder
        self.seen = Seen()
        self.outcomes: list[Outcome] = []
        # Why it is to end before its time; whether its end is being written down.
        self.why: Why | None = None
        self.ending = False
        self._began = time.monotonic()
        self._recorded = recorded or {}
        self._runs: list[Path] = []
        self._attempt: Attempt | None = None
        self._work: asyncio.Task[Ending] | None = None
        self._secrets = {claimed.token}
        self._on_step: Callable[[Step], None] | None = None
        # Files to keep beside the log when the job is ended from outside.
        self.left: Sequence[File] = ()
        self._progress = Progress(self._tell)

    @property
    def mcp_url(self) -> str:
        """Where the agent finds the core; empty when this worker was not told."""
        url = (self.core.url or "").rstrip("/")
        return url if not url or url.endswith("/mcp") else f"{url}/mcp"

    @property
    def winding_up(self) -> bool:
        """Whether its agent has ended and only the rest is left to do."""
        return self.ending or (bool(self._runs) and self._attempt is None)

    def agent(self) -> Agent:
        """The agent of the job; Failed when it cannot run here."""
        agent = self.core.agents.get(self.job.agent or "")
        if agent is None:
            raise Failed("EXECUTOR_ERROR", f"There is no agent {self.job.agent}.")
        self._adapter(agent)
        return agent

    @staticmethod
    def _adapter(agent: Agent) -> Adapter:
        adapter = adapter_of(agent)
        if adapter is None:
            raise Failed("EXECUTOR_ERROR", f"The agent {agent.id} cannot be run here.")
        return adapter

    async def run_agent(
        self,
        assignment: Assignment,
        *,
        wrap: Callable[[Launch], Launch] | None = None,
        timeout_s: float | None = None,
        on_step: Callable[[Step], None] | None = None,
        agent: Agent | None = None,
    ) -> Outcome:
        """Run the job's agent, or another, once, below a supervisor; how it ended by its own account.

        Its steps are told as they come. After the loss of a worker, an agent that had ended by itself is not
        run again: what it left is read instead. Failed with TIMEOUT at the deadline.
        """
        agent = agent or self.agent()
        reader = self._adapter(agent).reader(assignment)
        self._on_step = on_step
        folder = self.folder / (f"agent-{len(self._runs) + 1}" if self._runs else "agent")
        ended = self._recorded.get(folder.name)
        if ended is None:
            launch = await self._launch(agent, assignment, wrap)
            self._runs.append(folder)
            ended = await self._supervise(folder, launch, assignment.cwd, reader, timeout_s)
        else:
            self._runs.append(folder)
            self._hide(programs.environment(agent, self.core.settings, assignment.home))
            await asyncio.to_thread(self._replay, folder, reader)
        await self._progress.flush()
        return self._judged(folder, ended, reader)

    async def note(self, **data: Any) -> None:
        """Tell of a step of the job's own."""
        try:
            await self.core.db.tx(SYSTEM, queue.progress, self.job, **data)
        except Conflict as error:
            raise Lost from error

    async def log(self) -> bytes:
        """The transcript of the agents so far, without secrets, capped."""
        cap = self.core.settings.worker.log_cap_bytes
        text = await asyncio.to_thread(lambda: b"".join(map(transcript, self._existing())))
        if self.job.spec.get("live"):
            text = without_pieces(text)
        for secret in map(str.encode, self._secrets):
            # As long as what it hides: who followed the log goes on where the kept one has the same.
            text = text.replace(secret, b"[secret]".ljust(len(secret), b"*"))
        if len(text) <= cap:
            return text
        return text[: cap // 2] + b"\n[... %d bytes cut ...]\n" % (len(text) - cap) + text[-cap // 2 :]

    def secrets(self) -> dict[str, str]:
        """What must not be shown, and the word that stands for each; readers have one for the token."""
        return {secret: "[token]" if secret == self.token else "[secret]" for secret in self._secrets}

    def masked(self, text: str) -> str:
        """The text without the job's token and the keys of its agent."""
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text

    def _existing(self) -> list[Path]:
        return [folder for folder in self._runs if folder.is_dir()]

    # The worker's side.

    def begin(self, work: Awaitable[Ending]) -> "asyncio.Task[Ending]":
        """Let the runner go, unless the end came first."""
        self._work = asyncio.ensure_future(work)
        if self.why is not None:
            self._work.cancel()
        return self._work

    def end(self, why: Why) -> None:
        """End it before its time. Only the first reason counts, and none once the end is being written."""
        if self.why is None and not self.ending:
            self.why = why
            if self._work is not None:
                self._work.cancel()

    def renew(self) -> None:
        """The lease was renewed: so is the agent's."""
        if self._attempt is not None:
            self._attempt.renew()

    async def close(self) -> None:
        """Nothing more is told, and the scratch folder goes."""
        self._progress.close()
        await asyncio.to_thread(remove, self.folder)

    # The agent.

    async def _launch(
        self, agent: Agent, assignment: Assignment, wrap: Callable[[Launch], Launch] | None
    ) -> Launch:
        try:
            found = await programs.find(agent, self.core.settings)
            env = programs.environment(agent, self.core.settings, assignment.home)
            launch = self._adapter(agent).launch(found.argv, env, assignment, found.flags)
        except QuarterdeckError as error:
            hint = f" {error.hint[0].upper()}{error.hint[1:]}." if error.hint else ""
            raise Failed("EXECUTOR_ERROR", f"{error.message}{hint}") from error
        launch = replace(launch, folders=(*launch.folders, *found.folders))
        self._hide(launch.env)
        return launch if wrap is None else wrap(launch)

    def _hide(self, env: Mapping[str, str]) -> None:
        """Keep what looks like a secret in the agent's environment out of its log and its steps."""
        self._secrets |= secrets(env)

    async def _supervise(
        self, folder: Path, launch: Launch, cwd: Path, reader: Reader, timeout_s: float | None
    ) -> Exit:
        stdin = await asyncio.to_thread(given, folder.with_suffix(".in"), launch)
        spec = self._spec(launch, cwd, stdin, timeout_s)
        mouth = Mouth(stdin, launch.stdin) if launch.interactive and stdin else None
        stop: asyncio.TimerHandle | None = None
        try:
            self._attempt = attempt = await self._start(folder, spec)
            async for line in lines(attempt):
                self._feed(reader, line)
                if mouth is not None and not mouth.shutting:
                    mouth.say(reader.outgoing())
                    if reader.finished:
                        mouth.shut()
                        # Not every agent ends when nobody speaks to it any more.
                        stop = asyncio.get_running_loop().call_later(spec.grace_seconds, attempt.cancel)
            return await attempt.wait()
        finally:
            if stop is not None:
                stop.cancel()
            if mouth is not None:
                mouth.close()
            # However we leave, nothing of the agent stays.
            if self._attempt is not None:
                self._attempt.cancel()
                await self._attempt.wait()
                self._attempt = None

    def _spec(self, launch: Launch, cwd: Path, stdin: Path | None, timeout_s: float | None) -> Spec:
        settings = self.core.settings.worker
        left = [] if timeout_s is None else [timeout_s]
        if self.job.timeout_s is not None:
            left.append(self.job.timeout_s - (time.monotonic() - self._began))
        return Spec(
            argv=launch.argv,
            cwd=cwd,
            env=launch.env,
            # A heartbeat that comes late must not find its agent running beside the next attempt.
            lease_seconds=max(
                settings.lease_seconds - settings.heartbeat_seconds, settings.lease_seconds / 2
            ),
            stdin=stdin,
            deadline_seconds=max(min(left), 0.001) if left else None,
            grace_seconds=settings.grace_seconds,
            log_cap_bytes=settings.log_cap_bytes,
        )

    @staticmethod
    async def _start(folder: Path, spec: Spec) -> Attempt:
        """Start it to the end: an order to stop that comes meanwhile finds a process to stop."""
        starting = asyncio.ensure_future(Attempt.start(folder, spec))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(QuarterdeckError):
                await (await starting).close()
            raise
        except Unavailable as error:
            raise Failed("EXECUTOR_ERROR", error.message) from error

    def _replay(self, folder: Path, reader: Reader) -> None:
        """Read what an agent had said before its worker was lost."""
        splitter, offset = Splitter(), 0
        while (chunk := read(folder, "stdout", offset)).data:
            offset = chunk.end
            for line in splitter.add(chunk):
                self._feed(reader, line, tell=False)
        for line in splitter.rest():
            self._feed(reader, line, tell=False)

    def _feed(self, reader: Reader, line: bytes, *, tell: bool = True) -> None:
        for said in reader.feed(line):
            is_piece = said.kind == "delta"
            if is_piece and not tell:
                continue  # who would have heard it is gone
            step = replace(said, text=self.masked(said.text))
            self.seen.add(step)
            if self._on_step is not None:
                self._on_step(step)
            if tell and not is_piece:
                self._progress.add(step)

    def _judged(self, folder: Path, ended: Exit, reader: Reader) -> Outcome:
        if ended.reason == "unstarted":
            raise Failed("EXECUTOR_ERROR", f"The agent could not be started: {ended.error}")
        if ended.reason == "deadline":
            raise Failed("TIMEOUT", f"The agent did not end within {self._limit()}.")
        if ended.reason != "exited" and not (ended.reason == "cancelled" and reader.finished):
            raise Lost(ended.reason)
        code = ended.code if ended.signal is None or ended.reason == "cancelled" else 128 + ended.signal
        stderr = transcript(folder, "stderr")[-_STDERR_BYTES:].decode(errors="replace")
        outcome = reader.finish(code, stderr)
        outcome = replace(outcome, error=outcome.error and self.masked(outcome.error))
        self.outcomes.append(outcome)
        return outcome

    def _limit(self) -> str:
        return "its time" if self.job.timeout_s is None else f"{self.job.timeout_s} seconds"

    async def _tell(self, steps: Sequence[Step]) -> None:
        seen = {
            "tool_calls": self.seen.tool_call_count,
            "messages": self.seen.message_count,
            "agent_session": self.seen.session_id,
            "last_tool": self.seen.last_tool,
            "last_message": self.seen.last_message,
        }
        told = [{"step": step.kind, "text": short(step.text), "tool": step.tool, **seen} for step in steps]
        with suppress(QuarterdeckError):
            await self.core.db.tx(SYSTEM, queue.steps, self.job, told)


class Progress:
    """Tells of steps as they come, but not more often than a few times a second: then of the latest few.
    Of many steps of a kind in a row, as the lines that a program prints, the last stands for all."""

    def __init__(self, tell: Callable[[Sequence[Step]], Awaitable[None]]) -> None:
        self._tell = tell
        self._pending: list[Step] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, step: Step) -> None:
        if self._pending and self._pending[-1].kind == step.kind != "tool":
            self._pending.pop()
        self._pending = [*self._pending, step][-_PENDING:]
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while steps := self._pending:
            self._pending = []
            await self._tell(steps)
            await asyncio.sleep(_PROGRESS_SECONDS)
        self._task = None

    async def flush(self) -> None:
        """Tell of the last ones now."""
        self.close()
        if steps := self._pending:
            self._pending = []
            await self._tell(steps)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None


def remove(folder: Path) -> None:
    """Remove a folder and all in it, also what an agent made read-only."""

    def force(action: Any, path: str, error: Any) -> None:
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            if Path(path).is_dir() and not Path(path).is_symlink():
                Path(path).chmod(0o700)
                shutil.rmtree(path, ignore_errors=True)
            else:
                Path(path).unlink()

    shutil.rmtree(folder, onerror=force)
