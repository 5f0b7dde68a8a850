"""The board's projects: listing, making and opening them."""

from typing import Annotated

from pydantic import Field

from quarterdeck.core import projects
from quarterdeck.domain.errors import Invalid
from quarterdeck.surfaces.board import envelope
from quarterdeck.surfaces.schema import Args, Id, Label, Row, Text
from quarterdeck.surfaces.table import Call, tool

Path = Annotated[str, Field(min_length=1, max_length=4096)]
Command = Annotated[str, Field(min_length=1, max_length=2000)]
Changed = Annotated[str, Field(max_length=2000)]


class ProjectsList(Args):
    limit: int = 10


@tool("read", "viewer")
async def projects_list(call: Call, a: ProjectsList) -> Row:
    """Projects, newest first; active is the open one. limit 1-100."""
    found, opened = await projects.listing(call.core, call.caller, a.limit)
    rows = [
        {
            "project_id": project.id,
            "name": project.name,
            "description": project.description,
            "active": project.id == opened,
        }
        for project in found
    ]
    return {"success": True, "projects": rows, "count": len(rows)}


class ReposList(Args):
    project_id: Id


@tool("read", "viewer", binds=("project_id",))
async def repos_list(call: Call, a: ReposList) -> Row:
    """The repositories of a project."""
    found = await projects.repos(call.core, call.caller, a.project_id)
    rows = [
        {"repo_id": repo.id, "name": repo.name, "display_name": repo.name, "path": repo.path}
        for repo in found
    ]
    return {"success": True, "repos": rows, "count": len(rows)}


class ProjectsCreate(Args):
    name: Label
    description: Text | None = None
    repo_paths: Annotated[list[Path], Field(default_factory=list, max_length=20)]
    acceptance_command: Command | None = None
    gate_command: Command | None = None


@tool("write", "maintainer")
async def projects_create(call: Call, a: ProjectsCreate) -> Row:
    """Create a project of git repositories. Commands: acceptance after AUTO, gate before a merge."""
    project, repos = await projects.create(call.core, call.caller, **a.model_dump())
    return envelope(
        True,
        f"project {project.name} created",
        "CREATED",
        hint="projects_open makes it the one that new tasks go to",
        project_id=project.id,
        name=project.name,
        description=project.description,
        repo_count=len(repos),
    )


class ProjectsUpdate(Args):
    project_id: Id
    name: Label | None = None
    description: Text | None = None
    repo_paths: Annotated[list[Path], Field(default_factory=list, max_length=20)]
    acceptance_command: Changed | None = None
    gate_command: Changed | None = None


@tool("write", "maintainer", binds=("project_id",))
async def projects_update(call: Call, a: ProjectsUpdate) -> Row:
    """Change a project; repo_paths are added, an empty command is taken away."""
    changes = a.model_dump(exclude={"project_id", "repo_paths"}, exclude_none=True)
    if not changes and not a.repo_paths:
        raise Invalid("nothing to change was given", hint="give at least one field beside project_id")
    project, repos = await projects.update(call.core, call.caller, a.project_id, changes, a.repo_paths)
    return envelope(
        True,
        f"project {project.name} updated",
        "UPDATED",
        project_id=project.id,
        name=project.name,
        description=project.description,
        acceptance_command=project.acceptance_command,
        gate_command=project.gate_command,
        repo_count=len(repos),
    )


class ProjectsOpen(Args):
    project_id: Id


@tool("write", "maintainer", binds=("project_id",))
async def projects_open(call: Call, a: ProjectsOpen) -> Row:
    """Open a project: new tasks go to it."""
    project = await projects.open_(call.core, call.caller, a.project_id)
    return envelope(
        True, f"project {project.name} is open", "OPENED", project_id=project.id, name=project.name
    )


TOOLS = (projects_list, repos_list, projects_create, projects_update, projects_open)
