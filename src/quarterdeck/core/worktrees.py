"""Worktrees of tasks: made when work begins, settled when it pauses, gone when it is merged or given up."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast
from weakref import WeakValueDictionary

import structlog

from quarterdeck.core import settings, tasks
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Conflict, Invalid
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Project, Repo, Task, Worktree
from quarterdeck.git import diffs, worktrees
from quarterdeck.git.diffs import Diff
from quarterdeck.git.spawn import GitError, readable
from quarterdeck.git.worktrees import Refused, Strategy, to_the_end
from quarterdeck.store import tasks as task_rows
from quarterdeck.store import workers
from quarterdeck.store import worktrees as rows
from quarterdeck.store.tx import Tx

_OVERLAPS: Final = 20
_SHOWN_FILES: Final = 50
_MESSAGE: Final = 10_000

logger = structlog.get_logger()

_making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
_touched: dict[tuple[str, str], frozenset[str]] = {}


@dataclass(frozen=True, slots=True)
class Summary:
    """What the branches of a task hold: commits since they began, and how much those changed."""

    commits: int
    files: int
    insertions: int
    deletions: int
    changed: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepoDiff:
    """The diff of one worktree against where its branch left the target."""

    worktree: Worktree
    diff: Diff


@dataclass(frozen=True, slots=True)
class TaskDiff:
    """What a task changed in all its repositories, with work that is not committed yet."""

    repos: tuple[RepoDiff, ...]

    @property
    def files(self) -> int:
        return sum(each.diff.count for each in self.repos)

    @property
    def insertions(self) -> int:
        return sum(each.diff.insertions for each in self.repos)

    @property
    def deletions(self) -> int:
        return sum(each.diff.deletions for each in self.repos)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Another live task that touches the same files."""

    task: Task
    files: tuple[str, ...]
    count: int


def root(core: Core) -> Path:
    """Where all worktrees of this data directory are."""
    return core.data_dir / "worktrees"


def making(task_id: str) -> asyncio.Lock:
    """Held while worktrees of a task are made."""
    return _making.setdefault(task_id, asyncio.Lock())


def branch_of(task_id: str) -> str:
    return f"{worktrees.PREFIX}{task_id}"


async def problem_of(core: Core, path: Path) -> str | None:
    """Why a folder cannot be a repository of a project; None when it can."""
    return await worktrees.problem_of(path, root(core))


async def of(core: Core, caller: Caller, task_id: str) -> list[Worktree]:
    """The worktrees that a task has."""

    def body(tx: Tx) -> list[Worktree]:
        tasks.seen(tx, task_id)
        return rows.of_task(tx, task_id)

    return await core.db.read(caller, body)


async def ensure(core: Core, caller: Caller, task_id: str) -> list[Worktree]:
    """The worktrees of a task, one for each repository of its project; missing ones are made."""
    async with making(task_id):

        def body(tx: Tx) -> tuple[Task, tuple[Project, list[Repo]] | None, list[Worktree]]:
            return tasks.seen(tx, task_id), rows.home_of(tx, task_id), rows.of_task(tx, task_id)

        task, home, known = await core.db.read(caller, body)
        if home is None or not home[1]:
            raise Conflict(
                f"task {task_id} has no repository to work in",
                field="task_id",
                hint="give its project a repository, or give the task a project that has one",
            )
        await here(core, known)
        by_repo = {each.repo_id: each for each in known}
        names = _names(home[1])
        for repo in home[1]:
            path = root(core) / task_id / names[repo.id]
            await to_the_end(_made, core, caller, task, repo, by_repo.get(repo.id), path)
    return await of(core, caller, task_id)


def workplace(checkouts: Sequence[Path]) -> Path:
    """Where agents and a project's commands run: in the checkout, or in the folder around several."""
    return checkouts[0] if len(checkouts) == 1 else checkouts[0].parent


async def here(core: Core, known: Iterable[Worktree]) -> None:
    """Refuse worktrees that lie in another data directory."""
    for each in known:
        if each.place != core.place:
            host = await core.db.read(SYSTEM, workers.host_of, each.place)
            raise Conflict(
                f"the worktree {each.path} belongs to another core",
                hint=f"ask the core on {host}" if host else "ask the core that has it, once it runs",
                code="ACTION_NOT_ALLOWED",
            )


async def present(repo: Path) -> None:
    """Refuse a repository that was moved or deleted."""
    if not await asyncio.to_thread(repo.is_dir):
        raise Conflict(f"the repository {repo} is gone", hint="put it back where it was")


def _names(repos: Sequence[Repo]) -> dict[str, str]:
    """A folder for each repository: its name, with a part of its id where two share one."""
    names: dict[str, str] = {}
    for repo in repos:
        name = Path(repo.name).name.strip(".") or "repo"
        names[repo.id] = name if name not in names.values() else f"{name}-{repo.id[-8:]}"
    return names


async def _made(
    core: Core, caller: Caller, task: Task, repo: Repo, known: Worktree | None, path: Path
) -> None:
    """One worktree. Its row comes first, so that no folder is ever without one."""
    source = Path(repo.path)
    try:
        if known is not None:
            if not await worktrees.is_whole(source, Path(known.path)):
                await worktrees.add(source, Path(known.path), known.branch, known.base_commit)
            return
        fresh = await _planned(core, task, repo, path)
        await core.db.tx(caller, _added, fresh)
        try:
            await worktrees.add(source, path, fresh.branch, fresh.base_commit)
        except BaseException:
            await core.db.tx(caller, rows.remove, fresh)
            raise
    except Refused as refused:
        raise Invalid(refused.message, field="base_branch" if task.base_branch else "task_id") from refused
    except (GitError, OSError) as error:
        await present(source)
        raise Conflict(f"no worktree of {repo.name} can be made: {error}") from error


async def _planned(core: Core, task: Task, repo: Repo, path: Path) -> Worktree:
    source, branch = Path(repo.path), branch_of(task.id)
    await present(source)
    strategy = cast(Strategy, await settings.get(core, "general.worktree_base_ref_strategy"))
    default = str(await settings.get(core, "general.default_base_branch"))
    base = await worktrees.base_of(source, task.base_branch, default, strategy)
    if base.note is not None:
        logger.warning("worktree.not_fetched", repo=repo.path, error=base.note)
    tip = await worktrees.resolve(source, f"refs/heads/{branch}")
    begun = None if tip is None else await diffs.merge_base(source, tip, base.commit)
    return Worktree(
        id=new_id(),
        user_id=task.user_id,
        task_id=task.id,
        repo_id=repo.id,
        repo_path=repo.path,
        path=str(path),
        branch=branch,
        target=base.target,
        base_commit=begun or base.commit,
        place=core.place,
        created_at=0,
    )


def _added(tx: Tx, worktree: Worktree) -> None:
    """Write down a worktree, unless another core was faster: a task has its worktrees in one place."""
    tasks.held(tx, str(worktree.task_id))
    if any(each.place != worktree.place for each in rows.of_task(tx, str(worktree.task_id))):
        raise Conflict(
            f"another core makes the worktree of task {worktree.task_id}",
            hint="ask that one",
            code="ACTION_NOT_ALLOWED",
        )
    rows.add(tx, replace(worktree, created_at=tx.now))
    tx.emit(
        "worktree.created",
        worktree.id,
        task_id=worktree.task_id,
        user_id=worktree.user_id,
        branch=worktree.branch,
        base=worktree.base_commit,
        target=worktree.target,
    )


async def settle(core: Core, found: Sequence[Worktree], message: str) -> Summary:
    """Commit what the worktrees hold on their branches, untracked files too, and sum up the branches."""
    await here(core, found)
    commits = files = insertions = deletions = 0
    notes: list[str] = []
    try:
        for each in found:
            repo = Path(each.repo_path)
            await present(repo)
            settled = await worktrees.settle(repo, Path(each.path), each.branch, message[:_MESSAGE])
            notes += [settled.note] if settled.note else []
            begun = await _begun(each)
            commits += int(await worktrees.text(repo, "rev-list", "--count", f"{begun}..{settled.head}"))
            stats = await diffs.stats(repo, begun, settled.head)
            files += len(stats)
            insertions += sum(stat.insertions for stat in stats)
            deletions += sum(stat.deletions for stat in stats)
    except Refused as refused:
        raise Conflict(refused.message, hint="quarterdeck doctor --fix") from refused
    except (GitError, OSError) as error:
        raise Conflict(f"the leftovers cannot be committed: {error}") from error
    return Summary(commits, files, insertions, deletions, files > 0, tuple(notes))


async def remove(core: Core, caller: Caller, task_id: str) -> None:
    """Remove a task's worktrees with all that is in them, and their branches."""
    found = await of(core, caller, task_id)
    await here(core, found)
    for each in found:
        await to_the_end(drop, core, caller, each)


async def drop(core: Core, caller: Caller, worktree: Worktree, *, keep_branch: bool = False) -> None:
    """Remove one worktree, its branch and its row, in this order: what is left can be found by its row."""
    branch = None if keep_branch else worktree.branch
    try:
        await worktrees.remove(Path(worktree.repo_path), Path(worktree.path), branch)
    except (GitError, OSError) as error:
        raise Conflict(f"the worktree {worktree.path} cannot be removed: {error}") from error

    def body(tx: Tx) -> None:
        rows.remove(tx, worktree)
        tx.emit("worktree.removed", worktree.id, task_id=worktree.task_id, user_id=worktree.user_id)

    await core.db.tx(caller, body)


async def diff(
    core: Core, caller: Caller, task_id: str, *, max_patch: int = diffs.MAX_PATCH, committed: bool = False
) -> TaskDiff:
    """What a task changed since its branches left their targets; what is not committed counts as well."""
    found = await of(core, caller, task_id)
    await here(core, found)
    try:
        return TaskDiff(tuple([await _diff(each, max_patch, committed) for each in found]))
    except Refused as refused:
        raise Conflict(refused.message, hint="quarterdeck doctor --fix") from refused
    except (GitError, OSError) as error:
        raise Conflict(f"no diff of task {task_id} can be made: {error}") from error


async def _diff(worktree: Worktree, max_patch: int, committed: bool) -> RepoDiff:
    repo, path = Path(worktree.repo_path), Path(worktree.path)
    head = (
        await worktrees.tip(repo, worktree.branch)
        if committed
        else await worktrees.snapshot(repo, path, worktree.branch)
    )
    return RepoDiff(worktree, await diffs.diff(repo, await _begun(worktree), head, max_patch=max_patch))


async def _begun(worktree: Worktree) -> str:
    """Where the branch left its target: the newest commit of the target that it has."""
    repo, tip = Path(worktree.repo_path), f"refs/heads/{worktree.branch}"
    target = await worktrees.resolve(repo, f"refs/heads/{worktree.target}")
    base = worktree.base_commit
    if target is None or not await worktrees.is_ancestor(repo, base, target):
        return base
    return await diffs.merge_base(repo, target, tip) or base


async def overlaps(core: Core, caller: Caller, task_id: str) -> list[Overlap]:
    """Other live tasks that touch files which this one touches: they may end in conflict."""

    def body(tx: Tx) -> tuple[list[Worktree], list[Worktree]]:
        tasks.seen(tx, task_id)
        return rows.of_task(tx, task_id), rows.live(tx)

    own, live = await core.db.read(caller, body)
    mine = {each.repo_path: await _files(each) for each in own if each.place == core.place}
    shared: dict[str, set[str]] = {}
    for each in live:
        if each.task_id in (None, task_id) or each.place != core.place or not mine.get(each.repo_path):
            continue
        if both := mine[each.repo_path] & await _files(each):
            shared.setdefault(str(each.task_id), set()).update(both)

    def named(tx: Tx) -> list[Overlap]:
        found = ((task_rows.get(tx, other), files) for other, files in shared.items())
        return [
            Overlap(task, tuple(map(readable, sorted(files)[:_SHOWN_FILES])), len(files))
            for task, files in found
            if task is not None
        ]

    ranked = sorted(await core.db.read(caller, named), key=lambda each: -each.count)
    return ranked[:_OVERLAPS]


async def _files(worktree: Worktree) -> frozenset[str]:
    """The files that a worktree touches. Diffs of commits are kept, as those never change."""
    repo, path = Path(worktree.repo_path), Path(worktree.path)
    found: frozenset[str] = frozenset()
    with contextlib.suppress(Refused, GitError, OSError):
        key = (await _begun(worktree), await worktrees.tip(repo, worktree.branch))
        if key not in _touched:
            if len(_touched) >= 1000:
                _touched.pop(next(iter(_touched)))
            _touched[key] = await diffs.touched(repo, *key)
        found = _touched[key]
        found |= frozenset(await worktrees.changed_files(repo, path))
    return found
