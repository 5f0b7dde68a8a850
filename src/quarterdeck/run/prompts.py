"""Carries out a prompt: the user's agent in a folder of its own, its words kept as they come."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from quarterdeck.core import auto, prompts
from quarterdeck.core.context import Core
from quarterdeck.core.queue import Ending, File
from quarterdeck.domain.records import Job
from quarterdeck.git.spawn import GitError, git
from quarterdeck.run.adapters.base import Assignment, Conversation, Outcome, Step
from quarterdeck.run.adapters.registry import model_of
from quarterdeck.run.agent_run import Failed, JobRun, Lost
from quarterdeck.run.schemas import misfit
from quarterdeck.run.veil import Veil

_IN_ROW = 100_000
_HISTORY = 4_000_000
_TAIL = 2_000
STOPPED = "The core stopped while the agent was at work."


class Messages:
    """The history of one run, in the words that chat clients know."""

    def __init__(self, prompt: str) -> None:
        self.rows: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        self.session_id: str | None = None
        self._room = _HISTORY
        self._tools: dict[str, str | None] = {}

    def add(self, step: Step) -> None:
        text, number = step.text[: self._room], str(step.data.get("id") or "")
        match step.kind:
            case "text":
                self._keep({"role": "assistant", "content": text})
            case "tool":
                self._tools[number] = step.tool
                call = {"id": number, "name": step.tool, "arguments": _given(text)}
                self._keep({"role": "assistant", "content": None, "tool_calls": [call]})
            case "tool_result":
                name = step.tool or self._tools.get(number)
                self._keep({"role": "tool", "tool_call_id": number, "name": name, "content": text})
            case "session":
                self.session_id = str(step.data.get("session_id") or step.text) or self.session_id

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._room = max(0, self._room - len(json.dumps(row)))

    @property
    def last_words(self) -> str:
        """The newest text of the agent's own."""
        spoken = (row["content"] for row in reversed(self.rows) if row["role"] == "assistant")
        return next(filter(None, spoken), "")

    def files(self, text: str, log: bytes) -> tuple[File, ...]:
        return (
            File(prompts.MESSAGES, "application/json", json.dumps(self.rows).encode()),
            File(prompts.RESULT, "text/plain", text.encode(errors="replace")),
            File("logs.txt", "text/plain", log),
        )


def _given(text: str) -> Any:
    """What a tool was given: its arguments, or the words that stand for them."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


async def carry_out(run: JobRun) -> Ending:
    """One prompt from its start to its ending. It is never run a second time."""
    messages = Messages(run.job.spec["message"])
    if run.job.attempt > 1:
        raise Failed("INTERNAL_ERROR", STOPPED, await _said(run, messages))
    run.seen.message_count = len(messages.rows)
    told = (await prompts.session_of(run.core, run.job)).agent_session_id
    learning: list[asyncio.Task[None]] = []
    say, veil = partial(run.core.speech.say, run.job.user_id, run.job.id), Veil(run.secrets)

    def on_step(step: Step) -> None:
        nonlocal told
        if step.kind == "delta":
            say(veil.add(step.text))
            return
        if step.kind == "tool":
            say(veil.rest())
        messages.add(step)
        if messages.session_id not in (None, told):
            told = messages.session_id
            learning.append(run.core.spawn(prompts.learnt(run.core, run.job, str(told))))

    try:
        outcome = await run.run_agent(await _assignment(run), on_step=on_step)
    except asyncio.CancelledError:
        files = await _said(run, messages)
        if run.why == "stopping":
            return Ending("FAILED", STOPPED, "INTERNAL_ERROR", {"seen": _seen(run)}, files)
        run.left = files
        raise
    except Lost:
        if run.why is not None:
            raise
        files = await _said(run, messages)
        raise Failed("INTERNAL_ERROR", STOPPED, files, {"seen": _seen(run)}) from None
    except Failed as failed:
        files = await _said(run, messages)
        raise Failed(failed.reason, failed.summary, files, {"seen": _seen(run)}) from None
    say(veil.rest())
    await asyncio.gather(*learning, return_exceptions=True)
    return await _ending(run, messages, outcome)


def _seen(run: JobRun) -> dict[str, Any]:
    """The counts of the run, by the names of the events that told of them."""
    return {
        "messages": run.seen.message_count,
        "tool_calls": run.seen.tool_call_count,
        "last_tool": run.seen.last_tool,
        "last_message": run.seen.last_message[:_TAIL],
    }


async def _assignment(run: JobRun) -> Assignment:
    core, job, spec = run.core, run.job, run.job.spec
    owner = hashlib.sha256((job.user_id or "").encode()).hexdigest()[:16]
    mine = core.data_dir / "agents" / owner
    session = await prompts.session_of(core, job)
    resumed = await prompts.parent_of(core, session) if spec["how"] == "fork" else session
    conversation = Conversation(spec["how"], (resumed or session).agent_session_id)
    return Assignment(
        prompt=spec["message"],
        cwd=await _folder(core, job, mine),
        home=await asyncio.to_thread(_made, mine / "home"),
        model=await _model(run),
        conversation=conversation,
        mcp_url=run.mcp_url,
        token=run.token,
        job_id=job.id,
        effort=spec["effort"],
        max_budget_usd=spec["max_budget_usd"],
        json_schema=spec["json_schema"],
        subagent=spec["subagent"],
        live=spec.get("live", False),
    )


async def _model(run: JobRun) -> str | None:
    """The model that was asked for, else the agent's usual one; a sub-agent has one of its own."""
    asked: str | None = run.job.spec["model"]
    if asked is not None or run.job.spec["subagent"] is not None:
        return asked
    agent = run.agent()
    return model_of(agent, await auto.model_for(run.core, agent))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


async def _folder(core: Core, job: Job, mine: Path) -> Path:
    """Where the agent works: the user's own folder, or worktrees of the project's repositories."""
    if job.project_id is None:
        return await asyncio.to_thread(_made, mine / "work")
    root = await asyncio.to_thread(_made, mine / "projects" / job.project_id)
    repos = await prompts.repos_of(core, job)
    for repo in repos:
        path = root / repo.name
        if not await asyncio.to_thread((path / ".git").exists):
            try:
                # Detached: the branch stays free for the person's own checkout.
                await git(["worktree", "add", "--force", "--detach", str(path), "HEAD"], Path(repo.path))
            except GitError as error:
                raise Failed("EXECUTOR_ERROR", f"no worktree of {repo.name}: {error.said}") from error
    return root / repos[0].name if len(repos) == 1 else root


async def _said(run: JobRun, messages: Messages) -> Sequence[File]:
    log = await run.log()
    return messages.files(messages.last_words or log[-_TAIL:].decode(errors="replace"), log)


async def _ending(run: JobRun, messages: Messages, outcome: Outcome) -> Ending:
    text, problem = run.masked(outcome.final_text), await _problem(run.job, outcome)
    if problem is not None:
        text = text or messages.last_words
    usage, said = outcome.usage, len(messages.rows) - 1
    result: dict[str, Any] = {
        "text": text[:_IN_ROW],
        "text_cut": len(text) > _IN_ROW,
        "session_cost_usd": outcome.session_cost_usd,
        "stop_reason": outcome.stop_reason,
        "denials": list(outcome.denials)[:50],
        "mcp_status": outcome.mcp_status,
        "seen": _seen(run),
        "token_usage": None
        if usage is None
        else {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
        },
    }
    if outcome.structured is not None:
        result["structured_output"] = outcome.structured
    return Ending(
        "SUCCEEDED" if problem is None else "FAILED",
        problem or f"answered in {said} message{'' if said == 1 else 's'}",
        None if problem is None else "EXECUTOR_ERROR",
        result,
        messages.files(text, await run.log()),
        outcome.cost_usd,
        usage.input_tokens if usage else None,
        usage.output_tokens if usage else None,
    )


async def _problem(job: Job, outcome: Outcome) -> str | None:
    """Why a run did not end well: what the agent said of its end, or an answer against its schema."""
    if not outcome.ok:
        return outcome.error or f"the agent ended with {outcome.stop_reason}"
    schema = job.spec["json_schema"]
    if schema is None:
        return None
    if outcome.structured is None:
        return "the agent gave no structured output, though json_schema asks for it"
    return await misfit(schema, outcome.structured)
