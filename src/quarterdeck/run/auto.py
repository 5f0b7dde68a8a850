"""Runs the agent of an AUTO task in the task's own checkouts, and judges by what git and checks say."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quarterdeck.core import auto, brief, lineage, pair, worktrees
from quarterdeck.core.queue import LOG, Ending, File
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.domain.records import Session, Worktree
from quarterdeck.git.worktrees import resolve
from quarterdeck.run import interactive
from quarterdeck.run.adapters.base import Assignment, Conversation, Outcome
from quarterdeck.run.adapters.registry import adapter_of, model_of
from quarterdeck.run.agent_run import Failed, JobRun
from quarterdeck.run.checks import check
from quarterdeck.run.looks import first_look

_PATCH: Final = 2_000_000
_FILES: Final = 200
_TAIL: Final = 4_000
_TEXT: Final = 2_000


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a run takes place, and as whom."""

    caller: Caller
    task_id: str
    title: str
    checkouts: list[Worktree]
    cwd: Path
    home: Path
    session: Session


async def run_auto(run: JobRun) -> Ending:
    """One attempt. Each step can be done again: what an earlier attempt had reached is found and kept."""
    caller, task_id = auto.owner(run.job), str(run.job.task_id)
    async with auto.alone(task_id):
        if (refusal := await auto.refusal(run.core, caller, run.job)) is not None:
            return Ending("CANCELED", refusal)
        agent = run.agent()
        await pair.take_over(run.core, caller, task_id, f"{agent.id} goes on as {run.job.id}")
        ground, compiled = await _prepare(run, caller, task_id)
        command = compiled[1]
        result: dict[str, Any] = {"agent": agent.id, "brief": _brief_row(compiled[0])}
        try:
            outcome = await _work(run, agent, ground, compiled[0], result)
        except Failed as failed:
            # What it did until then is not lost: the next run, or a person, finds it on the branch.
            summary = await _settled(run, ground, result)
            return await _failed(run, ground, result, failed.reason, f"{failed.summary} {summary}".strip())
        return await _judge(run, ground, outcome, command, result)


def _brief_row(compiled: brief.Brief) -> dict[str, Any]:
    return {"tokens": compiled.tokens, "cut": list(compiled.cut)}


async def _prepare(
    run: JobRun, caller: Caller, task_id: str
) -> tuple[Ground, tuple[brief.Brief, str | None]]:
    """The checkouts, the home and the prompt."""
    core = run.core
    checkouts = await worktrees.ensure(core, caller, task_id)
    material = await brief.gather(core, caller, task_id, pair.places(checkouts))
    if material is None:
        raise Failed("INTERNAL_ERROR", "The task is gone.")
    session = await lineage.begin(core, caller, run.job, await _heads(checkouts))
    ground = Ground(
        caller=caller,
        task_id=task_id,
        title=material.task.title,
        checkouts=checkouts,
        cwd=worktrees.workplace([Path(each.path) for each in checkouts]),
        home=pair.home_of(core, task_id),
        session=session,
    )
    await asyncio.to_thread(ground.home.mkdir, mode=0o700, parents=True, exist_ok=True)
    return ground, (brief.compile_brief(material), material.acceptance_command)


async def _heads(checkouts: Sequence[Worktree]) -> dict[str, str]:
    """The commit of each branch."""
    found = {}
    for each in checkouts:
        found[each.path] = (
            await resolve(Path(each.repo_path), f"refs/heads/{each.branch}") or each.base_commit
        )
    return found


async def _work(
    run: JobRun, agent: Agent, ground: Ground, compiled: brief.Brief, result: dict[str, Any]
) -> Outcome:
    conversation = await _conversation(run, agent, ground)
    result |= {"conversation": conversation.how, "agent_session_id": conversation.id}
    session = await lineage.keep(run.core, ground.caller, ground.session, conversation.id)
    prompt = compiled.text
    if conversation.how == "resume":
        prompt = f"You go on with this task; here is what is known about it now.\n\n{prompt}"
    outcome = await run.run_agent(
        Assignment(
            prompt=prompt,
            cwd=ground.cwd,
            home=ground.home,
            mode="edit",
            model=model_of(agent, await auto.model_for(run.core, agent, run.job.spec.get("model"))),
            conversation=conversation,
            mcp_url=run.mcp_url or None,
            token=run.token,
            job_id=run.job.id,
            task_id=ground.task_id,
        )
    )
    await lineage.keep(run.core, ground.caller, session, outcome.session_id)
    result["agent_session_id"] = outcome.session_id or conversation.id
    result["final_text"] = outcome.final_text[-_TEXT:]
    return outcome


async def _conversation(run: JobRun, agent: Agent, ground: Ground) -> Conversation:
    """The agent's own session to go on with: of an earlier attempt, else of its last work on the task."""
    adapter = adapter_of(agent)
    features = adapter.features if adapter else frozenset()
    own = ground.session.agent_session_id
    if "resume" in features:
        earlier = ground.session if own else await lineage.before(run.core, ground.caller, ground.session)
        if earlier is not None and (known := await _known(run, agent, ground, earlier)) is not None:
            return Conversation("resume", known)
    return Conversation("new", (own or str(uuid.uuid4())) if "new_id" in features else None)


async def _known(run: JobRun, agent: Agent, ground: Ground, session: Session) -> str | None:
    return await interactive.known_session(
        agent, run.core.settings, ground.home, ground.cwd, session.agent_session_id
    )


async def _settled(run: JobRun, ground: Ground, result: dict[str, Any]) -> str:
    """Commit what is left, and write down what the branches hold. What is worth telling about it."""
    message = f"{ground.title}\n\nTask: {ground.task_id}\nJob: {run.job.id}\n"
    summary = await worktrees.settle(run.core, ground.checkouts, message)
    heads = await _heads(ground.checkouts)
    begun: dict[str, str] = ground.session.context.get("heads") or {}
    result |= {
        "commits": summary.commits,
        "files": summary.files,
        "insertions": summary.insertions,
        "deletions": summary.deletions,
        "changed": summary.changed and heads != begun,
        "heads": heads,
    }
    return " ".join(summary.notes)


async def _judge(
    run: JobRun, ground: Ground, outcome: Outcome, command: str | None, result: dict[str, Any]
) -> Ending:
    notes = await _settled(run, ground, result)
    if not outcome.ok:
        said = outcome.error or f"The agent ended as {outcome.stop_reason}."
        return await _failed(run, ground, result, "EXECUTOR_ERROR", said)
    if not result["changed"]:
        said = " ".join(outcome.final_text.split())[-500:]
        why = f"The agent ended without changing anything. {notes}".strip()
        return await _failed(run, ground, result, auto.NO_CHANGES, f"{why} It said: {said}" if said else why)
    if command:
        await run.note(step="acceptance", text=f"acceptance: {command}")
        seconds = run.core.settings.worker.acceptance_seconds
        verdict = await check(run.core, command, ground.cwd, seconds, home=ground.home)
        result["acceptance"] = {
            "command": command,
            "passed": verdict.passed,
            "exit_code": verdict.code,
            "output_tail": verdict.output,
        }
        if not verdict.passed:
            result["log_tail"] = verdict.output
            said = f"The acceptance command {verdict.how}: {command[:500]}"
            return await _failed(run, ground, result, auto.ACCEPTANCE_FAILED, said)
    look = await first_look(run, ground.caller, ground.task_id, ground.title, ground.cwd)
    if look is not None:
        result["first_look"] = look
    summary = f"{auto.facts_of(result)}. {notes}".strip()
    return Ending("SUCCEEDED", summary, result=result, files=await _files(run, ground, result))


async def _failed(run: JobRun, ground: Ground, result: dict[str, Any], reason: str, summary: str) -> Ending:
    if "log_tail" not in result:
        result["log_tail"] = (await run.log())[-_TAIL:].decode("utf-8", "replace")
    files = await _files(run, ground, result)
    return Ending("FAILED", summary, reason=reason, result=result, files=files)


async def _files(run: JobRun, ground: Ground, result: dict[str, Any]) -> list[File]:
    """The transcript, the patch and what the check said; the names of changed files go into the result."""
    files = [File(LOG, "text/plain", log)] if (log := await run.log()) else []
    if said := result.get("acceptance", {}).get("output_tail"):
        files.append(File("acceptance.txt", "text/plain", said.encode()))
    try:
        diff = await worktrees.diff(run.core, ground.caller, ground.task_id, max_patch=_PATCH, committed=True)
    except QuarterdeckError as error:
        result["diff_error"] = error.message
        return files
    patch = "".join(each.diff.patch for each in diff.repos)
    result["changed_files"] = [file.path for each in diff.repos for file in each.diff.files][:_FILES]
    result["patch_cut"] = any(each.diff.cut for each in diff.repos)
    if patch:
        files.append(File("diff.patch", "text/x-diff", patch.encode()))
    return files
