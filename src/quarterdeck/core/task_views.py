"""One task with all that was said and done about it, in measured amounts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quarterdeck.core import board, tasks, worktrees
from quarterdeck.core.context import Core
from quarterdeck.core.queue import LOG
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Conflict, Invalid
from quarterdeck.domain.ids import iso
from quarterdeck.domain.jobs import CLAIMABLE, LIVE, Waiting
from quarterdeck.domain.records import Job, Review, Task
from quarterdeck.store import admission, artifacts, reviews, scratchpads
from quarterdeck.store import jobs as job_rows
from quarterdeck.store.tx import Tx

_RUNS: Final = 20
# A worker that was not heard of for a lease is gone, and for so long at least.
_PATIENCE_SECONDS: Final = 60.0
_REVIEWS: Final = 20
_BYTES_A_CHARACTER: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """How many characters a text, an entry of the log and the whole log may have, and how many entries."""

    text: int
    entry: int
    entries: int
    log: int


SUMMARY: Final = Limits(8_000, 2_500, 3, 7_500)
FULL: Final = Limits(32_000, 10_000, 10, 24_000)


@dataclass(frozen=True, slots=True)
class Run:
    """The end of the log of one job of a task; `run` counts from 1."""

    run: int
    job: Job
    content: str
    cut: bool


@dataclass(frozen=True, slots=True)
class Runtime:
    """What is going on with a task right now."""

    is_running: bool
    is_reviewing: bool
    is_blocked: bool
    blocked_reason: str | None
    blocked_at: str | None
    is_pending: bool
    pending_reason: str | None
    pending_at: str | None
    blocked_by_task_ids: list[str] = field(default_factory=list)
    overlap_hints: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Detail:
    """A task with what was asked for; None where it was not."""

    task: Task
    runtime: Runtime
    scratchpad: str | None
    logs: list[Run] | None
    reviews: list[Review] | None


@dataclass(frozen=True, slots=True)
class RepoState:
    """A repository of a task's project and, where there is one, the task's own checkout of it."""

    repo_id: str | None
    name: str
    path: str
    worktree_path: str | None = None
    target_branch: str | None = None
    has_changes: bool | None = None
    files: int | None = None
    insertions: int | None = None
    deletions: int | None = None


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a task is worked on: its surroundings, worktrees, reviews and who touches the same files."""

    around: board.Surroundings
    repos: list[RepoState]
    branch: str | None
    path: str | None
    working_dir: str | None
    reviews: list[Review]
    runtime: Runtime
    overlaps: list[worktrees.Overlap]


async def detail(
    core: Core, caller: Caller, task_id: str, limits: Limits, *, notes: bool, logs: bool, review: bool
) -> Detail:
    """A task with its notes, the logs of its runs (newest first) and its reviews, where asked for."""

    def body(tx: Tx) -> Detail:
        task = tasks.seen(tx, task_id)
        return Detail(
            task,
            runtime_of(tx, core, task),
            scratchpads.get(tx, task_id) if notes else None,
            _logs(tx, task_id, limits) if logs else None,
            reviews.of_task(tx, task_id, _REVIEWS) if review else None,
        )

    return await core.db.read(caller, body)


def _logs(tx: Tx, task_id: str, limits: Limits) -> list[Run]:
    found: list[Run] = []
    room = limits.log
    its_jobs, count = job_rows.of_task(tx, task_id, _RUNS)
    for back, job in enumerate(its_jobs):
        if len(found) == limits.entries or room <= 0:
            break
        most = min(limits.entry, room)
        tail = artifacts.tail(tx, job.id, LOG, most * _BYTES_A_CHARACTER)
        if tail is None:
            continue
        raw, size = tail
        text = raw.decode("utf-8", "ignore")
        found.append(Run(count - back, job, text[-most:], cut=size > len(raw) or len(text) > most))
        room -= len(found[-1].content)
    return found


def waiting_for(tx: Tx, core: Core, job: Job) -> Waiting | None:
    """What a job that is to be claimed waits for; None when it is next, or does not wait."""
    if job.state not in CLAIMABLE:
        return None
    patience = max(core.settings.worker.lease_seconds, _PATIENCE_SECONDS)
    return admission.waiting_for(tx, job, int(patience * 1_000_000))


def runtime_of(tx: Tx, core: Core, task: Task) -> Runtime:
    """What is going on with a task, told the same wherever it is asked."""
    its_jobs, _ = job_rows.of_task(tx, task.id, _RUNS)
    live = [job for job in its_jobs if job.state in LIVE]
    running = any(job.state == "RUNNING" for job in live)
    waiting = next((job for job in live if job.state in CLAIMABLE), None)
    reason = waiting and waiting_for(tx, core, waiting)
    blocked = tasks.blocked(tx, task)
    return Runtime(
        is_running=running and task.status != "review",
        is_reviewing=running and task.status == "review",
        is_blocked=task.status == "blocked",
        blocked_reason=blocked.reason if blocked else None,
        blocked_at=iso(blocked.created_at) if blocked else None,
        is_pending=waiting is not None,
        pending_reason=(reason.words if reason else "it is next") if waiting else None,
        pending_at=iso(waiting.updated_at) if waiting else None,
    )


async def workplace(core: Core, caller: Caller, task_id: str) -> Workplace:
    """A task with the state of its worktrees. A worktree that cannot be read is shown without its diff."""
    around = await board.surroundings(core, caller, task_id)
    made = {each.repo_path: each for each in await worktrees.of(core, caller, task_id)}
    states = {repo.path: RepoState(repo.id, repo.name, repo.path) for repo in around.repos}
    diffs = await _diffs(core, caller, task_id) if made else {}
    for path, tree in made.items():
        known, diff = states.get(path), diffs.get(path)
        states[path] = RepoState(
            known.repo_id if known else tree.repo_id,
            known.name if known else Path(path).name,
            path,
            tree.path,
            tree.target,
            diff.diff.count > 0 if diff else None,
            diff.diff.count if diff else None,
            diff.diff.insertions if diff else None,
            diff.diff.deletions if diff else None,
        )

    def body(tx: Tx) -> tuple[list[Review], Runtime]:
        return reviews.of_task(tx, task_id, _REVIEWS), runtime_of(tx, core, around.task)

    its_reviews, runtime = await core.db.read(caller, body)
    paths = [tree.path for tree in made.values()]
    folder = str(Path(paths[0]).parent) if paths else None
    return Workplace(
        around,
        list(states.values()),
        next((tree.branch for tree in made.values()), None),
        folder,
        paths[0] if len(paths) == 1 else folder,
        its_reviews,
        runtime,
        await _overlaps(core, caller, task_id) if made else [],
    )


async def _diffs(core: Core, caller: Caller, task_id: str) -> dict[str, worktrees.RepoDiff]:
    try:
        found = await worktrees.diff(core, caller, task_id, max_patch=0)
    except (Conflict, Invalid):
        return {}
    return {each.worktree.repo_path: each for each in found.repos}


async def _overlaps(core: Core, caller: Caller, task_id: str) -> list[worktrees.Overlap]:
    try:
        return await worktrees.overlaps(core, caller, task_id)
    except (Conflict, Invalid):
        return []
