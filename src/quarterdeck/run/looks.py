"""A first look at an agent's work by another agent: it reads and remarks, and decides nothing."""

import asyncio
from pathlib import Path
from typing import Any, Final

from quarterdeck.core import registry, reviews, settings, worktrees
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.run.adapters.base import Assignment
from quarterdeck.run.adapters.registry import model_of
from quarterdeck.run.agent_run import Failed, JobRun

_PATCH: Final = 60_000
_TEXT: Final = 20_000
_SECONDS: Final = 900.0
_ASK: Final = (
    "You review a change that another agent made. Change nothing. Say in a few sentences whether it does "
    "what was asked, what is wrong or missing, and where, by file and line. If nothing is, say so."
)


async def first_look(
    run: JobRun, caller: Caller, task_id: str, title: str, cwd: Path
) -> dict[str, Any] | None:
    """What the reviewing agent says, kept as a remark on the task; None where none is to look.

    Whatever goes wrong here is told in the result and changes nothing about the work itself.
    """
    core = run.core
    agent = registry.named(core, core.settings.defaults.review_agent or "")
    if agent is None or not await settings.get(core, "general.auto_review"):
        return None
    await run.note(step="review", text=f"{agent.id} takes a first look")
    home = core.data_dir / "homes" / f"review-{task_id}"
    await asyncio.to_thread(home.mkdir, mode=0o700, parents=True, exist_ok=True)
    try:
        diff = await worktrees.diff(core, caller, task_id, max_patch=_PATCH, committed=True)
        patch = "\n".join(each.diff.patch for each in diff.repos)
        outcome = await run.run_agent(
            Assignment(
                prompt=f"{_ASK}\n\nThe task: {title}\n\nThe change:\n\n{patch}",
                cwd=cwd,
                home=home,
                mode="read",
                model=model_of(agent),
                job_id=run.job.id,
                task_id=task_id,
            ),
            agent=agent,
            timeout_s=_SECONDS,
        )
        said = outcome.final_text.strip()[:_TEXT]
        if not outcome.ok or not said:
            return {"agent": agent.id, "error": outcome.error or "it said nothing"}
        await reviews.remark(core, caller, task_id, said, agent.id)
        return {"agent": agent.id, "text": said[:2000]}
    except (Failed, QuarterdeckError) as error:
        return {"agent": agent.id, "error": str(error)}
