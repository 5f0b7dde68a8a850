"""Worktrees of tasks with the repositories they come from, and merges on their way."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Select, delete, insert, select, update

from quarterdeck.domain.records import Merge, Project, Repo, Worktree, as_dict
from quarterdeck.store.schema import merges, projects, repos, tasks, worktrees
from quarterdeck.store.tasks import seen
from quarterdeck.store.tx import Shape, Tx, record, within

# The steps of a merge that has not come to its end.
OPEN_STEPS: Final = ("planned", "landing", "landed")


@cache
def _project(shape: Shape) -> Select[Any]:
    of_task = select(tasks.c.project_id).where(tasks.c.id.in_(seen(shape)))
    return select(projects).where(projects.c.id.in_(of_task))


def home_of(tx: Tx, task_id: str) -> tuple[Project, list[Repo]] | None:
    """The project of the caller's task with its repositories."""
    row = tx.one(_project(tx.shape), task_id=task_id)
    if row is None:
        return None
    project: Project = record(Project, row)
    statement = select(repos).where(repos.c.project_id == project.id).order_by(repos.c.created_at, repos.c.id)
    return project, [record(Repo, each) for each in tx.all(statement)]


def repo_paths(tx: Tx) -> list[str]:
    """The paths of all repositories of all projects."""
    return [row.path for row in tx.all(select(repos.c.path).distinct().order_by(repos.c.path))]


def add(tx: Tx, worktree: Worktree) -> None:
    tx.write(insert(worktrees), as_dict(worktree))


@cache
def _of_task(shape: Shape) -> Select[Any]:
    return (
        select(worktrees)
        .where(worktrees.c.task_id.in_(seen(shape)))
        .order_by(worktrees.c.created_at, worktrees.c.id)
    )


def of_task(tx: Tx, task_id: str) -> list[Worktree]:
    """The worktrees of the caller's task."""
    return [record(Worktree, row) for row in tx.all(_of_task(tx.shape), task_id=task_id)]


def live(tx: Tx) -> list[Worktree]:
    """The worktrees of the caller's tasks that are neither completed nor cancelled, oldest first."""
    statement = (
        select(worktrees)
        .join(tasks, tasks.c.id == worktrees.c.task_id)
        .where(tasks.c.status.not_in(("completed", "cancelled")), *within(tasks, tx.shape, anchored=True))
        .order_by(worktrees.c.created_at, worktrees.c.id)
    )
    return [record(Worktree, row) for row in tx.all(statement)]


def at(tx: Tx, place: str) -> list[tuple[Worktree, str | None]]:
    """Every worktree of a place with its task's status; None when the task is gone."""
    statement = (
        select(worktrees, tasks.c.status)
        .outerjoin(tasks, tasks.c.id == worktrees.c.task_id)
        .where(worktrees.c.place == place)
        .order_by(worktrees.c.created_at, worktrees.c.id)
    )
    return [(Worktree(*list(row)[:-1]), row[-1]) for row in tx.all(statement)]


def change(tx: Tx, worktree: Worktree, values: Mapping[str, Any]) -> None:
    """Set columns of a worktree that was read in the caller's scope."""
    tx.write(update(worktrees).where(worktrees.c.id == worktree.id), values)


def remove(tx: Tx, worktree: Worktree) -> None:
    tx.write(delete(worktrees).where(worktrees.c.id == worktree.id), {})


def add_merges(tx: Tx, rows: Sequence[Merge]) -> None:
    tx.write(insert(merges), [as_dict(row) for row in rows])


def change_merge(tx: Tx, merge: Merge, step: str) -> Merge:
    """Set the step of a merge."""
    values = {"step": step, "updated_at": tx.now}
    tx.write(update(merges).where(merges.c.id == merge.id), values)
    return Merge(**{**as_dict(merge), **values})


def open_merges(tx: Tx, place: str) -> list[Merge]:
    """The merges of a place that have not come to their end, oldest first."""
    statement = (
        select(merges)
        .where(merges.c.place == place, merges.c.step.in_(OPEN_STEPS))
        .order_by(merges.c.created_at, merges.c.id)
    )
    return [record(Merge, row) for row in tx.all(statement)]


@cache
def _merges_of(shape: Shape) -> Select[Any]:
    return select(merges).where(merges.c.task_id.in_(seen(shape))).order_by(merges.c.created_at, merges.c.id)


def merges_of(tx: Tx, task_id: str) -> list[Merge]:
    """The merges of the caller's task, oldest first."""
    return [record(Merge, row) for row in tx.all(_merges_of(tx.shape), task_id=task_id)]
