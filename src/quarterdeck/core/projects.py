"""Projects: some repositories that are worked on together, and which project a user has open."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from quarterdeck.core import worktrees
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Invalid, NotFound
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Project, Repo
from quarterdeck.store import projects as rows
from quarterdeck.store.tx import Tx

LISTED = 100


async def create(
    core: Core,
    caller: Caller,
    *,
    name: str,
    description: str | None = None,
    repo_paths: Sequence[str] = (),
    acceptance_command: str | None = None,
    gate_command: str | None = None,
) -> tuple[Project, list[Repo]]:
    """A project with its repositories, each of which must be a git repository on this host."""
    paths = await _checked(core, repo_paths)

    def body(tx: Tx) -> tuple[Project, list[Repo]]:
        project = Project(
            id=new_id(),
            user_id=caller.user_id,
            name=name,
            description=description or "",
            created_at=tx.now,
            updated_at=tx.now,
            acceptance_command=acceptance_command,
            gate_command=gate_command,
        )
        repos = _repos(tx, project, paths)
        rows.add(tx, project, repos)
        tx.emit("project.created", project.id, name=name[:200], repos=len(repos))
        return project, repos

    return await core.db.tx(caller, body)


async def update(
    core: Core, caller: Caller, project_id: str, changes: Mapping[str, str], repo_paths: Sequence[str] = ()
) -> tuple[Project, list[Repo]]:
    """Change columns of a project and add repositories to it; a command that is empty is taken away."""
    paths = await _checked(core, repo_paths)
    given: dict[str, str | None] = dict(changes)
    for command in ("acceptance_command", "gate_command"):
        if command in given:
            given[command] = given[command] or None

    def body(tx: Tx) -> tuple[Project, list[Repo]]:
        project, repos = seen(tx, project_id), rows.repos_of(tx, project_id)
        more = _repos(tx, project, paths, repos)
        rows.change(tx, project_id, {**given, "updated_at": tx.now})
        rows.add_repos(tx, more)
        tx.emit("project.updated", project_id, changed=sorted(given), repos=len(more))
        return seen(tx, project_id), [*repos, *more]

    return await core.db.tx(caller, body)


async def _checked(core: Core, given: Sequence[str]) -> list[Path]:
    paths = [await checked_path(core, path, f"repo_paths[{n}]") for n, path in enumerate(given)]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise Invalid(f"{path} is given twice", field=f"repo_paths[{number}]")
    return paths


def _repos(tx: Tx, project: Project, paths: Sequence[Path], before: Sequence[Repo] = ()) -> list[Repo]:
    """New repositories, each named after its folder; a second one of a name gets a number."""
    names = [repo.name for repo in before]
    made = []
    for position, path in enumerate(paths):
        if any(repo.path == str(path) for repo in before):
            raise Invalid(f"{path} belongs to the project already", field=f"repo_paths[{position}]")
        stem = path.name or "repo"
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}-{number}", number + 1
        names.append(name)
        made.append(Repo(new_id(), project.user_id, project.id, name, str(path), tx.now + position))
    return made


async def checked_path(core: Core, given: str, field: str) -> Path:
    """The real path of a repository on this host, or Invalid that says what is wrong with it."""
    path = Path(given)
    if not path.is_absolute():
        raise Invalid(f"{given[:200]} is not an absolute path", field=field)
    if (problem := await worktrees.problem_of(core, path)) is not None:
        raise Invalid(f"{given[:200]} {problem}", field=field, hint="a git repository on the core's host")
    return await asyncio.to_thread(path.resolve)


async def listing(core: Core, caller: Caller, limit: int) -> tuple[list[Project], str | None]:
    """The caller's projects, newest first, and the id of the open one; `limit` is clamped to 1–100."""

    def body(tx: Tx) -> tuple[list[Project], str | None]:
        return rows.newest(tx, min(max(limit, 1), LISTED)), rows.opened(tx)

    return await core.db.read(caller, body)


async def repos(core: Core, caller: Caller, project_id: str) -> list[Repo]:
    def body(tx: Tx) -> list[Repo]:
        seen(tx, project_id)
        return rows.repos_of(tx, project_id)

    return await core.db.read(caller, body)


async def open_(core: Core, caller: Caller, project_id: str) -> Project:
    """Make a project the one that new tasks of the caller's user go to."""
    if caller.user_id is None:
        raise Invalid("the admin has no open project", field="project_id", hint="use a user's own token")

    def body(tx: Tx) -> Project:
        project = seen(tx, project_id)
        rows.open_(tx, project)
        tx.emit("project.opened", project_id)
        return project

    return await core.db.tx(caller, body)


def seen(tx: Tx, project_id: str) -> Project:
    """The caller's project, or NotFound."""
    project = rows.get(tx, project_id)
    if project is None:
        raise NotFound(
            f"project {project_id} not found", field="project_id", hint="projects_list shows your projects"
        )
    return project
