"""Projects, their repositories, and which project a user has open."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from quarterdeck.domain.records import Project, Repo, as_dict
from quarterdeck.store.schema import open_projects, projects, repos
from quarterdeck.store.tx import Shape, Tx, record, within


def _upsert(fresh: Any) -> Any:
    changed = {"project_id": fresh.excluded["project_id"]}
    return fresh.on_conflict_do_update(index_elements=["user_id"], set_=changed)


_OPEN = {
    "sqlite": _upsert(sqlite.insert(open_projects)),
    "postgresql": _upsert(postgresql.insert(open_projects)),
}


def add(tx: Tx, project: Project, its_repos: Sequence[Repo]) -> None:
    tx.write(insert(projects), as_dict(project))
    add_repos(tx, its_repos)


def add_repos(tx: Tx, more: Sequence[Repo]) -> None:
    """Repositories of a project that was read in the caller's scope."""
    if more:
        tx.write(insert(repos), [as_dict(repo) for repo in more])


def change(tx: Tx, project_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of the caller's project."""
    tx.write(update(projects).where(projects.c.id == project_id, *within(projects, tx.shape)), values)


@cache
def _get(shape: Shape) -> Select[Any]:
    return select(projects).where(projects.c.id == bindparam("project_id"), *within(projects, shape))


def get(tx: Tx, project_id: str) -> Project | None:
    """The caller's project of that id."""
    row = tx.one(_get(tx.shape), project_id=project_id)
    return None if row is None else record(Project, row)


def newest(tx: Tx, count: int) -> list[Project]:
    """The caller's projects, newest first."""
    statement = (
        select(projects)
        .where(*within(projects, tx.shape))
        .order_by(projects.c.created_at.desc(), projects.c.id.desc())
        .limit(count)
    )
    return [record(Project, row) for row in tx.all(statement)]


def repos_of(tx: Tx, project_id: str) -> list[Repo]:
    """The repositories of the caller's project, in the order they were given."""
    mine = select(projects.c.id).where(projects.c.id == project_id, *within(projects, tx.shape))
    statement = select(repos).where(repos.c.project_id.in_(mine)).order_by(repos.c.created_at, repos.c.id)
    return [record(Repo, row) for row in tx.all(statement)]


def open_(tx: Tx, project: Project) -> None:
    """Make a project, which was read in the caller's scope, the one that its user has open."""
    tx.write(_OPEN[tx.dialect], {"user_id": tx.caller.user_id, "project_id": project.id})


def opened(tx: Tx) -> str | None:
    """The project that the caller's user has open, if the caller may see it."""
    statement = (
        select(open_projects.c.project_id)
        .join(projects, projects.c.id == open_projects.c.project_id)
        .where(open_projects.c.user_id == tx.caller.user_id, *within(projects, tx.shape))
    )
    row = tx.one(statement)
    return None if row is None else str(row.project_id)
