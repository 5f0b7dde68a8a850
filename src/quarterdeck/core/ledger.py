"""One ledger: what the store says of tasks, jobs, worktrees and merges, compared with git and the disk.

`check` names every drift and what would end it. `tend` does what cannot lose anything; the core does so at
start and now and then. `repair` does all: work that nobody merged is kept under `refs/quarterdeck/kept/`.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from quarterdeck.core import gates, landings, merges, queue, tasks, worktrees
from quarterdeck.core.context import Core
from quarterdeck.domain import callers
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Job, Merge, Task, Worktree
from quarterdeck.git import worktrees as checkouts
from quarterdeck.git.spawn import GitError
from quarterdeck.git.worktrees import PREFIX, Refused
from quarterdeck.store import ledger as rows
from quarterdeck.store import worktrees as worktree_rows
from quarterdeck.store.tx import Tx

SYSTEM: Final = replace(callers.SYSTEM, tool="doctor")
KEPT: Final = "refs/quarterdeck/kept/"

_LIMIT: Final = 500
_ATTEMPT_AGE: Final = 600.0

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Drift:
    """Something that is not as the store says. `safe` repairs lose nothing and need no word of a person."""

    kind: str
    what: str
    fix: str
    safe: bool = True
    mend: Callable[[], Awaitable[Any]] = field(kw_only=True, compare=False, repr=False)


Check = Callable[[Core], Awaitable[list[Drift]]]
# Other parts add what they can compare: terminals, processes.
CHECKS: list[Check] = []


async def check(core: Core) -> list[Drift]:
    """Every drift there is now."""
    found: list[Drift] = []
    for look in (_merges, _jobs, _worktrees, _folders, _repositories, _attempts, *CHECKS):
        try:
            found += await look(core)
        except (GitError, Refused, OSError) as error:
            logger.warning("ledger.not_compared", error=str(error))
    return found


async def repair(core: Core, *, only_safe: bool = False) -> list[Drift]:
    """Mend what drifted; what was mended. The rest is there at the next `check`, and in the log."""
    mended = []
    for drift in await check(core):
        if only_safe and not drift.safe:
            continue
        try:
            await drift.mend()
        except (QuarterdeckError, GitError, Refused, OSError) as error:
            logger.warning("ledger.not_mended", drift=drift.kind, what=drift.what, error=str(error))
        else:
            logger.info("ledger.mended", drift=drift.kind, what=drift.what, fix=drift.fix)
            mended.append(drift)
    return mended


async def tend(core: Core) -> list[Drift]:
    """What the core does by itself: the safe repairs."""
    return await repair(core, only_safe=True)


async def _merges(core: Core) -> list[Drift]:
    return [
        Drift(
            "merge_unfinished",
            f"a merge of task {group[0].task_id} into {group[0].target} did not come to its end",
            "it is brought to its end, or undone",
            mend=partial(_recovered, core, group),
        )
        for group in await landings.unfinished(core)
        if not merges.is_busy(group[0].task_id)
    ]


async def _recovered(core: Core, group: list[Merge]) -> None:
    await merges.recover(core, group)


async def _jobs(core: Core) -> list[Drift]:
    def body(tx: Tx) -> tuple[list[Job], list[Task]]:
        return rows.jobs_of_finished_tasks(tx, _LIMIT), rows.tasks_without_job(tx, _LIMIT)

    strays, stuck = await core.db.read(SYSTEM, body)
    found = [
        Drift(
            "job_of_finished_task",
            f"job {job.id} goes on although task {job.task_id} is over",
            "the job is cancelled",
            mend=partial(core.db.tx, SYSTEM, queue.cancel, job, "its task is over"),
        )
        for job in strays
    ]
    found += [
        Drift(
            "job_missing",
            f"task {task.id} is in progress, but its job is gone",
            "the task goes back to pending",
            mend=partial(core.db.tx, SYSTEM, _put_back, task.id),
        )
        for task in stuck
    ]
    return found


def _put_back(tx: Tx, task_id: str) -> None:
    task = tasks.held(tx, task_id)
    if any(each.id == task_id for each in rows.tasks_without_job(tx, _LIMIT)):
        tasks.write(tx, task, {}, status="pending", actor="engine", reason="its job is gone")


async def _worktrees(core: Core) -> list[Drift]:
    """Rows against folders, branches and the state of their tasks."""
    found = []
    for worktree, status in await core.db.read(SYSTEM, worktree_rows.at, core.place):
        if merges.is_busy(worktree.task_id) or worktrees.making(str(worktree.task_id)).locked():
            continue
        there = await _is_there(worktree)
        if status is None:
            found.append(_unwanted(core, worktree, "worktree_of_deleted_task", "its task was deleted"))
        elif status in ("completed", "cancelled"):
            found.append(await _finished(core, worktree, status, there))
        elif not there:
            found.append(_missing(core, worktree))
    return found


async def _is_there(worktree: Worktree) -> bool:
    repo = Path(worktree.repo_path)
    return await asyncio.to_thread(repo.is_dir) and await checkouts.exists(repo, Path(worktree.path))


def _unwanted(core: Core, worktree: Worktree, kind: str, why: str) -> Drift:
    return Drift(
        kind,
        f"the worktree {worktree.path} is still there, though {why}",
        "the worktree and its branch are removed",
        mend=partial(worktrees.drop, core, SYSTEM, worktree),
    )


async def _finished(core: Core, worktree: Worktree, status: str, there: bool) -> Drift:
    """A worktree whose task is over: without work of its own it goes, else only when a person says so."""
    if not there or not await _has_work(worktree):
        return _unwanted(core, worktree, "worktree_of_finished_task", f"its task is {status}")
    return Drift(
        "worktree_not_merged",
        f"the worktree {worktree.path} holds work that was not merged, and its task is {status}",
        f"its work is kept as {KEPT}{worktree.task_id}, worktree and branch are removed",
        safe=False,
        mend=partial(_kept, core, worktree),
    )


async def _has_work(worktree: Worktree) -> bool:
    """Whether a worktree holds something that its target lacks."""
    repo, path = Path(worktree.repo_path), Path(worktree.path)
    tip = await checkouts.resolve(repo, f"refs/heads/{worktree.branch}")
    target = await checkouts.resolve(repo, f"refs/heads/{worktree.target}")
    merged = (
        tip is None
        or tip == worktree.base_commit
        or (target is not None and await checkouts.is_ancestor(repo, tip, target))
    )
    return not merged or bool(await checkouts.changed_files(repo, path))


async def _kept(core: Core, worktree: Worktree) -> None:
    """Commit what is there, keep it under a ref of its own, and remove the worktree."""
    repo = Path(worktree.repo_path)
    settled = await checkouts.settle(repo, Path(worktree.path), worktree.branch, "Kept by doctor")
    await checkouts.text(repo, "update-ref", f"{KEPT}{worktree.task_id}", settled.head)
    await worktrees.drop(core, SYSTEM, worktree)


def _missing(core: Core, worktree: Worktree) -> Drift:
    return Drift(
        "worktree_missing",
        f"the worktree {worktree.path} is gone, and task {worktree.task_id} goes on",
        "it is made again from its branch, or forgotten where the branch is gone as well",
        mend=partial(_made_again, core, worktree),
    )


async def _made_again(core: Core, worktree: Worktree) -> None:
    repo = Path(worktree.repo_path)
    async with worktrees.making(str(worktree.task_id)):
        await _made_or_forgotten(core, worktree, repo)


async def _made_or_forgotten(core: Core, worktree: Worktree, repo: Path) -> None:
    if await asyncio.to_thread(repo.is_dir) and await checkouts.resolve(
        repo, f"refs/heads/{worktree.branch}"
    ):
        await checkouts.add(repo, Path(worktree.path), worktree.branch, worktree.base_commit)
    else:
        await worktrees.drop(core, SYSTEM, worktree, keep_branch=True)


async def _folders(core: Core) -> list[Drift]:
    """Folders for worktrees and gates that nobody knows."""
    # Looked at before the rows are read: a row is always older than its folder.
    there = await asyncio.to_thread(_subfolders, worktrees.root(core))
    rows_of = {Path(each.path) for each, _ in await core.db.read(SYSTEM, worktree_rows.at, core.place)}
    known = rows_of | {path.parent for path in rows_of}
    found = []
    for path in there:
        if path not in known:
            empty = not await asyncio.to_thread(_holds_files, path)
            found.append(
                Drift(
                    "folder_unknown",
                    f"{path} belongs to no task",
                    "it is removed" if empty else f"it is moved to {core.data_dir / 'kept'}",
                    safe=empty,
                    mend=partial(asyncio.to_thread, _removed if empty else _moved_away, path, core.data_dir),
                )
            )
    for path in await asyncio.to_thread(_children, gates.root(core)):
        if path.name not in gates.RUNNING:
            found.append(
                Drift(
                    "gate_left",
                    f"{path} was left by a gate",
                    "it is removed",
                    mend=partial(asyncio.to_thread, _removed, path, core.data_dir),
                )
            )
    return found


def _subfolders(root: Path) -> list[Path]:
    return [inner for outer in _children(root) for inner in _children(outer) or [outer]]


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return []


def _holds_files(folder: Path) -> bool:
    return any(name != ".git" for _, _, names in os.walk(folder) for name in names)


def _removed(path: Path, data_dir: Path) -> None:
    checkouts.delete_folder(path)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _moved_away(path: Path, data_dir: Path) -> None:
    kept = data_dir / "kept"
    kept.mkdir(exist_ok=True)
    path.rename(kept / f"{path.parent.name}-{path.name}-{new_id()}")
    with contextlib.suppress(OSError):
        path.parent.rmdir()


async def _repositories(core: Core) -> list[Drift]:
    """Records and branches in repositories that no row stands for."""

    looked: list[tuple[Path, list[checkouts.Listed], list[str]]] = []
    for repo in map(Path, await core.db.read(SYSTEM, worktree_rows.repo_paths)):
        with contextlib.suppress(GitError):  # a repository that is gone is the project's to mend
            if await asyncio.to_thread(repo.is_dir):
                looked.append((repo, await checkouts.listing(repo), list(await checkouts.branches(repo))))
    known = await core.db.read(SYSTEM, rows.known_branches)
    return [drift for each in looked for drift in _of_repository(core, known, *each)]


def _of_repository(
    core: Core,
    known: set[tuple[str, str]],
    repo: Path,
    listed: list[checkouts.Listed],
    branches: list[str],
) -> list[Drift]:
    own = (worktrees.root(core), gates.root(core))
    found = [
        Drift(
            "record_stale",
            f"{repo} has a record of the worktree {each.path}, which is gone",
            "the record is removed",
            mend=partial(checkouts.forget, repo, each.path),
        )
        for each in listed
        if each.missing
        and any(each.path.is_relative_to(folder) for folder in own)
        and (str(repo), each.branch) not in known
    ]
    checked_out = {each.branch for each in listed if not each.missing}
    for branch in branches:
        task_id = branch.removeprefix(PREFIX)
        if (str(repo), branch) in known or branch in checked_out:
            continue
        found.append(
            Drift(
                "branch_unknown",
                f"the branch {branch} of {repo} belongs to no task that is known here",
                f"it is kept as {KEPT}{task_id} and removed from the branches",
                safe=False,
                mend=partial(_branch_kept, repo, branch),
            )
        )
    return found


async def _branch_kept(repo: Path, branch: str) -> None:
    tip = await checkouts.tip(repo, branch)
    await checkouts.text(repo, "update-ref", f"{KEPT}{branch.removeprefix(PREFIX)}", tip)
    await checkouts.delete_ref(repo, f"refs/heads/{branch}")


async def _attempts(core: Core) -> list[Drift]:
    """Scratch folders of attempts at jobs that are over."""
    folders = dict(await asyncio.to_thread(lambda: list(_old_attempts(core.data_dir / "attempts"))))
    if not folders:
        return []
    live = await core.db.read(SYSTEM, rows.live_jobs, sorted(set(folders.values())))
    return [
        Drift(
            "attempt_left",
            f"{path} was left by an attempt at job {job}, which is over",
            "it is removed",
            mend=partial(asyncio.to_thread, shutil.rmtree, path),
        )
        for path, job in folders.items()
        if job not in live
    ]


def _old_attempts(root: Path) -> Iterator[tuple[Path, str]]:
    """The folders in which nothing has happened for a while, and their jobs."""
    for path in _children(root)[:_LIMIT]:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ATTEMPT_AGE:
                yield path, path.name.rpartition("-")[0]
