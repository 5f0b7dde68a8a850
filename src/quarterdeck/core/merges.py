"""Merging a task's work into its target branches, and rebasing it onto them.

All repositories of the task are computed and tried first, then they land one after another; a refusal in any
changes nothing. Merges of one repository stand in a queue. Rows tell of a merge before git is touched, so
that a start after a crash brings it to its end or undoes it (`recover`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog

from quarterdeck.core import gates, landings, queue, reviews, settings, tasks, worktrees
from quarterdeck.core.context import Core
from quarterdeck.core.landings import Plan
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Conflict, QuarterdeckError
from quarterdeck.domain.records import Merge, Project, Review, Task, Worktree
from quarterdeck.git import landing, merging
from quarterdeck.git import worktrees as checkouts
from quarterdeck.git.conflicts import ConflictFile
from quarterdeck.git.landing import Move, Moved
from quarterdeck.git.merging import Conflicting, Made, MergeStrategy
from quarterdeck.git.spawn import GitError
from quarterdeck.git.worktrees import PREFIX, Refused, to_the_end
from quarterdeck.store import jobs as job_rows
from quarterdeck.store import worktrees as rows
from quarterdeck.store.tx import Tx

_TRIES: Final = 3
_STOP_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.1
_SUBJECT: Final = 200
_MERGEABLE: Final = ("review", "completed")

logger = structlog.get_logger()

# Called when nothing else stands against a merge: end what still works in the task's worktrees.
STOPPING: list[Callable[[Core, Caller, Task], Awaitable[None]]] = []

_queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
_busy: set[str | None] = set()


@dataclass(frozen=True, slots=True)
class Landed:
    """One repository in which a branch has moved."""

    worktree: Worktree
    branch: str
    old: str | None
    new: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A merge or rebase that came to its end."""

    task: Task
    landed: tuple[Landed, ...]
    strategy: MergeStrategy
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Work:
    """What a merge is about, read in one go."""

    task: Task
    project: Project | None
    found: list[Worktree]
    approved: Review | None


async def merge(
    core: Core,
    caller: Caller,
    task_id: str,
    *,
    strategy: MergeStrategy = "squash",
    message: str | None = None,
) -> Outcome:
    """Bring a task's work to its target branches; its worktrees go and the task is completed.

    Whoever asked may go away: it goes on.
    """
    return await _aside(core, _merge(core, caller, task_id, strategy, message))


async def rebase(core: Core, caller: Caller, task_id: str) -> Outcome:
    """Put a task's commits on the tips of its target branches; its worktrees follow."""
    return await _aside(core, _rebase(core, caller, task_id))


async def _aside(core: Core, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Work that belongs to the core and not to the call; a refusal is the caller's alone to hear."""

    async def kept() -> Outcome | QuarterdeckError:
        try:
            return await work
        except QuarterdeckError as error:
            return error

    result = await asyncio.shield(core.spawn(kept()))
    if isinstance(result, QuarterdeckError):
        raise result
    return result


async def _merge(
    core: Core, caller: Caller, task_id: str, strategy: MergeStrategy, message: str | None
) -> Outcome:
    async with _at_rest(core, caller, task_id, "MERGE_FAILED", _MERGEABLE) as work:
        if await settings.get(core, "general.require_review_approval"):
            await _require_approval(work)
        notes = await _settled(core, work)
        plans = await _landed(core, caller, work, strategy, message or _message(work.task, strategy))
        commits = {str(plan.move.repo): plan.move.new for plan in plans}
        task, more = await _complete(core, caller, task_id, work.found, commits, strategy)
    if await settings.get(core, "general.push_after_merge"):
        for plan in plans:
            problem = await checkouts.push(plan.move.repo, plan.move.branch)
            more += [problem] if problem else []
    return Outcome(task, _moved(plans), strategy, (*notes, *more))


async def _rebase(core: Core, caller: Caller, task_id: str) -> Outcome:
    async with _at_rest(core, caller, task_id, "REBASE_FAILED", ("review",)) as work:
        notes = await _settled(core, work)
        plans = [
            Plan(each, made, Move(Path(each.repo_path), each.branch, made.head, made.commit, "rebased"))
            for each, made in await _computed(core, work, "rebase", "", "REBASE")
            if made.commit != made.head
        ]
        await _tried(plans)
        await landings.carry_out(core, caller, work.task, plans, "rebase")
        task = await core.db.tx(caller, _rebased, core.place, task_id, plans)
    return Outcome(task, _moved(plans), "rebase", tuple(notes))


def _moved(plans: Sequence[Plan]) -> tuple[Landed, ...]:
    return tuple(Landed(plan.worktree, plan.move.branch, plan.move.old, plan.move.new) for plan in plans)


@contextlib.asynccontextmanager
async def _at_rest(
    core: Core, caller: Caller, task_id: str, code: str, states: tuple[str, ...]
) -> AsyncIterator[_Work]:
    """A task to be merged with nobody at work on it, and its repositories to ourselves."""
    work = await core.db.tx(caller, _work, task_id, states)
    if not work.found:
        end_it = "there is nothing to merge; tasks_move can end the task"
        raise _failed(code, f"task {task_id} has no worktree", end_it)
    await worktrees.here(core, work.found)
    try:
        for each in work.found:
            await worktrees.present(Path(each.repo_path))
        async with _queued(core, work):
            await _recovered(core, work)
            await _stopped(core, caller, work.task)
            # Whoever was before us in the queue may have changed all of it.
            yield await core.db.tx(caller, _work, task_id, states)
    except Conflict as conflict:
        if "code" in conflict.data:
            raise
        raise _failed(code, conflict.message, conflict.hint) from conflict
    except Refused as refused:
        hint = "commit, stash or move these files, then try again" if refused.files else None
        raise _failed(code, refused.message, hint, refused.files) from refused
    except (GitError, OSError) as error:
        raise _failed(code, f"git could not do it: {error}", None) from error


def is_busy(task_id: str | None) -> bool:
    """Whether a task is being merged or rebased by this process."""
    return task_id in _busy


@contextlib.asynccontextmanager
async def _queued(core: Core, work: _Work) -> AsyncIterator[None]:
    """The place at the head of the queues of a task's repositories, always taken in the same order.

    Without queues two merges of a repository may be computed at once; the one that lands later begins anew.
    """
    if work.task.id in _busy:
        raise Conflict(f"task {work.task.id} is being merged", code="ACTION_NOT_ALLOWED")
    _busy.add(work.task.id)
    try:
        async with contextlib.AsyncExitStack() as held:
            if await settings.get(core, "general.serialize_merges"):
                for path in sorted({each.repo_path for each in work.found}):
                    await held.enter_async_context(_queues.setdefault(path, asyncio.Lock()))
                    await held.enter_async_context(landing.queued(Path(path)))
            yield
    finally:
        _busy.discard(work.task.id)


def _work(tx: Tx, task_id: str, states: tuple[str, ...]) -> _Work:
    task = tasks.held(tx, task_id)
    if task.status not in states:
        reviews.in_review(tx, task_id)
    home = rows.home_of(tx, task_id)
    return _Work(task, home[0] if home else None, rows.of_task(tx, task_id), reviews.approval(tx, task_id))


async def _stopped(core: Core, caller: Caller, task: Task) -> None:
    """End the task's AUTO jobs, and wait until their processes are gone."""

    def body(tx: Tx) -> list[str]:
        tasks.held(tx, task.id)
        live = job_rows.live_of_task(tx, task.id, ["auto"])
        return [job.id for job in live if queue.cancel(tx, job, "stopped for review") is not None]

    stopped = await core.db.tx(caller, body)
    for _ in range(int(_STOP_SECONDS / _STEP_SECONDS)):
        if not await asyncio.to_thread(_attempts, core, stopped):
            return
        await asyncio.sleep(_STEP_SECONDS)
    raise Conflict(f"the agent of task {task.id} does not end", hint="try again in a moment")


def _attempts(core: Core, jobs: Sequence[str]) -> bool:
    """Whether some attempt at these jobs still has its folder."""
    return any(next((core.data_dir / "attempts").glob(f"{job}-*"), None) for job in jobs)


async def _require_approval(work: _Work) -> None:
    if work.approved is None:
        problem, hint = "is not approved", "look at its diff, then approve it"
    elif work.approved.data.get("trees") != await reviews.trees_of(work.found):
        problem, hint = "has changed since it was approved", "look at its diff again, then approve it"
    else:
        return
    # No next tool: who follows it without looking would approve unseen.
    raise Conflict(f"task {work.task.id} {problem}", hint=hint, code="ACTION_NOT_ALLOWED")


async def _settled(core: Core, work: _Work) -> list[str]:
    """Commit what the worktrees hold; refuse what cannot be committed on the task's branch."""
    message = f"Work in progress on {work.task.title[:_SUBJECT]}"
    summary = await worktrees.settle(core, work.found, message)
    for note in summary.notes:
        if "not on its branch" in note:
            raise Refused(note)
    return list(summary.notes)


async def _landed(
    core: Core, caller: Caller, work: _Work, strategy: MergeStrategy, message: str
) -> list[Plan]:
    """Compute, check and land; again when a target moved on meanwhile, or somebody still wrote."""
    alone = False
    for _ in range(_TRIES + 1):
        computed = await _computed(core, work, strategy, message, "MERGE")
        plans = [
            Plan(each, made, Move(Path(each.repo_path), each.target, made.onto.old, made.commit))
            for each, made in computed
            if not made.empty
        ]
        if not plans:
            raise _failed(
                "MERGE_FAILED",
                f"task {work.task.id} has no changes that its target lacks",
                "reject it, or end it with tasks_move",
            )
        await _gated(core, caller, work, computed)
        with contextlib.suppress(Moved):
            await _tried(plans)
            if alone or await _unchanged_alone(core, caller, work):
                await core.db.read(caller, _check_mergeable, work.task.id)
                await landings.carry_out(core, caller, work.task, plans, strategy)
                return plans
            alone = True
    raise Refused(f"the target of task {work.task.id} moves on all the time")


async def _unchanged_alone(core: Core, caller: Caller, work: _Work) -> bool:
    """End what else works in the worktrees, now that nothing else stands against the merge.

    Whether they are as they were: what was written meanwhile has to be looked at as well.
    """
    before = await _tips(work)
    for stop in STOPPING:
        await stop(core, caller, work.task)
    await _settled(core, work)
    after = await _tips(work)
    if before != after and await settings.get(core, "general.require_review_approval"):
        await _require_approval(work)
    return before == after


async def _tips(work: _Work) -> list[str]:
    return [await checkouts.tip(Path(each.repo_path), each.branch) for each in work.found]


async def _computed(
    core: Core, work: _Work, strategy: MergeStrategy, message: str, noun: str
) -> list[tuple[Worktree, Made]]:
    """The commits for all repositories; nothing that anybody looks at is changed."""
    follow = bool(await settings.get(core, "general.auto_sync_base_branch"))
    found = []
    for each in work.found:
        repo = Path(each.repo_path)
        head = await checkouts.tip(repo, each.branch)
        onto = await merging.onto_of(repo, each.target, head, each.base_commit, follow=follow)
        try:
            found.append((each, await merging.merged(repo, onto, head, strategy, message)))
        except Conflicting as conflict:
            raise _conflict(work.task, each, conflict, noun) from conflict
    return found


async def _gated(core: Core, caller: Caller, work: _Work, computed: Sequence[tuple[Worktree, Made]]) -> None:
    """Run the project's gate on what the targets would become."""
    command = work.project.gate_command if work.project else None
    if not command:
        return
    still = partial(core.db.read, caller, _check_mergeable, work.task.id)
    verdict = await gates.judged(core, work.task.id, command, computed, still)
    if not verdict.passed:
        raise _failed(
            "MERGE_FAILED",
            f"the gate of the project {verdict.how}",
            "see gate_output; nothing was merged",
            gate_output=verdict.output,
        )


def _check_mergeable(tx: Tx, task_id: str) -> None:
    """Refuse to go on with a task that somebody moved or deleted meanwhile."""
    task = tasks.seen(tx, task_id)
    if task.status not in _MERGEABLE:
        raise Conflict(
            f"task {task_id} was moved to {task.status} while it was being merged",
            hint="nothing was merged",
            code="ACTION_NOT_ALLOWED",
        )


async def _tried(plans: Sequence[Plan]) -> None:
    """Refuse now what would be refused later, so that nothing has landed then."""
    for plan in plans:
        await landing.check(plan.move)


async def recover(core: Core, group: Sequence[Merge], *, ours: str | None = None) -> bool:
    """Bring a merge that a crash cut short to its end, or undo it; whether it landed.

    One that is under way is left alone, unless it is `ours` to begin anew.
    """
    task_id = group[0].task_id
    if task_id in _busy and task_id != ours:
        return False
    if not await to_the_end(landings.recover, core, group):
        return False
    if task_id is None or group[0].target.startswith(PREFIX):
        await core.db.tx(SYSTEM, landings.stepped, group, "done")
        return True
    found = await core.db.read(SYSTEM, rows.of_task, task_id)
    commits = {row.repo_path: row.new_commit for row in group}
    await to_the_end(_complete, core, SYSTEM, task_id, found, commits, group[0].strategy)
    return True


async def _recovered(core: Core, work: _Work) -> None:
    """First of all what a crash left in the same repositories."""
    paths = {each.repo_path for each in work.found}
    for group in await landings.unfinished(core):
        if any(row.repo_path in paths for row in group):
            await recover(core, group, ours=work.task.id)


async def _complete(
    core: Core,
    caller: Caller,
    task_id: str,
    found: Sequence[Worktree],
    commits: dict[str, str],
    strategy: str,
) -> tuple[Task, list[str]]:
    """Worktrees and branches go, then the task is completed."""
    notes = []
    for each in found:
        try:
            await worktrees.drop(core, caller, each)
        except QuarterdeckError as error:  # the ledger tries again
            notes.append(error.message)
    return await core.db.tx(caller, _completed, core.place, task_id, commits, strategy), notes


def _completed(tx: Tx, place: str, task_id: str, commits: dict[str, str], strategy: str) -> Task:
    task = tasks.held(tx, task_id)
    landings.stepped(tx, [row for row in rows.open_merges(tx, place) if row.task_id == task_id], "done")
    reviews.add(tx, task, "merged", "", commits=commits, strategy=strategy)
    if task.status != "completed":
        task = tasks.write(tx, task, {}, status="completed", actor="engine", reason="merged")
    tx.emit(
        "task.merged",
        task.id,
        task_id=task.id,
        user_id=task.user_id,
        commits=sorted(commits.values()),
        strategy=strategy,
    )
    return task


def _rebased(tx: Tx, place: str, task_id: str, plans: Sequence[Plan]) -> Task:
    task = tasks.held(tx, task_id)
    for plan in plans:
        rows.change(tx, plan.worktree, {"base_commit": plan.made.onto.tip})
    landings.stepped(tx, [row for row in rows.open_merges(tx, place) if row.task_id == task_id], "done")
    reviews.add(tx, task, "rebased", "", commits={plan.worktree.id: plan.move.new for plan in plans})
    return task


def _message(task: Task, strategy: MergeStrategy) -> str:
    """The words of the commit, by which its task is found again."""
    title = " ".join(task.title.split())[:_SUBJECT]
    subject = f"Merge: {title}" if strategy == "merge" else title
    return f"{subject}\n\nQuarterdeck-Task: {task.id}"


def _conflict(task: Task, worktree: Worktree, conflict: Conflicting, noun: str) -> Conflict:
    names = [file.path for file in conflict.files]
    where = Path(worktree.repo_path).name
    following = {"action": "rebase"}
    if noun == "REBASE":
        asked = (
            f"The branch and {worktree.target} of {where} changed the same lines: {', '.join(names[:10])}. "
            f"Rebase the branch onto {worktree.target} and resolve the conflicts so that both changes hold."
        )
        following = {"action": "reject", "feedback": asked}
    return Conflict(
        f"{worktree.target} of {where} and the task changed the same lines: {', '.join(names[:10])}",
        hint="nothing was changed; reject it, so that its agent rebases the branch and resolves the conflict",
        code=f"{noun}_CONFLICT",
        conflict_files=names,
        more_files=conflict.more,
        conflicts=[_shown(file) for file in conflict.files],
        commit=conflict.commit,
        repo=where,
        target=worktree.target,
        next_tool="review",
        next_arguments={"task_id": task.id, **following},
    )


def _shown(file: ConflictFile) -> dict[str, Any]:
    hunks = [
        {"line": hunk.line, "ours": list(hunk.ours), "theirs": list(hunk.theirs), "cut": hunk.cut}
        for hunk in file.hunks
    ]
    return {"path": file.path, "why": file.why, "hunks": hunks, "cut": file.cut}


def _failed(code: str, message: str, hint: str | None, files: Sequence[str] = (), **data: Any) -> Conflict:
    if files:
        data["files"] = list(files)
    return Conflict(message, hint=hint, code=code, **data)
