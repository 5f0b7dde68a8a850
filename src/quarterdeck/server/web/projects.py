"""Projects: their repositories and commands, and which one is open."""

from quarterdeck.core import projects
from quarterdeck.server.web.routing import Answer, Request, go, route
from quarterdeck.server.web.show import page
from quarterdeck.surfaces.schema import Args, Label, Text, parse


@route("GET", "/projects")
async def all_projects(request: Request) -> Answer:
    found, opened = await projects.listing(request.core, request.caller, 100)
    shown = [(one, await projects.repos(request.core, request.caller, one.id)) for one in found]
    return page(request, "projects.html", projects=shown, opened=opened)


class ProjectForm(Args):
    name: Label
    description: Text = ""
    acceptance_command: Text | None = None
    gate_command: Text | None = None


@route("POST", "/projects", "maintainer")
async def create_project(request: Request) -> Answer:
    given = {name: value for name in ProjectForm.model_fields if (value := request.given(name))}
    form = parse(ProjectForm, {"name": "", **given}, "correct the form and send it again")
    project, _ = await projects.create(
        request.core, request.caller, repo_paths=_paths(request), **form.model_dump()
    )
    if request.given("open"):
        await projects.open_(request.core, request.caller, project.id)
    return go(request, "/projects")


@route("POST", "/projects/{id}", "maintainer")
async def update_project(request: Request) -> Answer:
    """What the form holds is what the project becomes; its repositories are added to."""
    given = {name: request.given(name) for name in ProjectForm.model_fields}
    form = parse(ProjectForm, given, "correct the form and send it again")
    await projects.update(
        request.core, request.caller, request.params["id"], form.model_dump(), _paths(request)
    )
    return go(request, "/projects")


def _paths(request: Request) -> list[str]:
    return [line.strip() for line in request.given("repos").splitlines() if line.strip()][:20]


@route("POST", "/projects/{id}/open", "maintainer")
async def open_project(request: Request) -> Answer:
    await projects.open_(request.core, request.caller, request.params["id"])
    return go(request, "/projects")
