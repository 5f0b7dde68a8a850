"""Plans: how far they are, and new ones from a template."""

from typing import Any, get_args

from quarterdeck.core import plans, proposals, sessions, templates
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.plans import PlanStatus, progress
from quarterdeck.server.web.routing import Answer, Request, go, route
from quarterdeck.server.web.show import page
from quarterdeck.surfaces.schema import Args, Title, parse

_STATUSES: tuple[PlanStatus, ...] = get_args(PlanStatus)


@route("GET", "/plans")
async def all_plans(request: Request) -> Answer:
    status = request.asked("status")
    if status is not None and status not in _STATUSES:
        raise Invalid(f"there is no status {status[:40]!r}", field="status")
    found = await plans.listing(request.core, request.caller, status=status, limit=100)
    waiting = await proposals.listing(request.core, request.caller, "received", 100) if not status else []
    return page(request, "plans.html", plans=found, proposals=waiting, status=status, statuses=_STATUSES)


@route("GET", "/plans/{slug}")
async def one_plan(request: Request) -> Answer:
    slug = request.params["slug"]
    view = await plans.get(request.core, request.caller, slug)
    its_sessions = await sessions.listing(request.core, request.caller, plan_slug=slug, limit=50)
    state = await plans.list_state(request.core, request.caller, slug, None)
    return page(
        request,
        "plan.html",
        view=view,
        plan=view.plan,
        sessions=its_sessions,
        state=state,
        progress=progress,
        statuses=_STATUSES,
    )


@route("POST", "/plans/{slug}/status", "planner")
async def set_plan_status(request: Request) -> Answer:
    status = request.given("status")
    if status not in _STATUSES:
        raise Invalid(f"there is no status {status[:40]!r}", field="status")
    await plans.set_status(request.core, request.caller, request.params["slug"], status)
    return go(request, f"/plans/{request.params['slug']}")


@route("POST", "/plans/{slug}/toggle", "pair_worker")
async def toggle_task(request: Request) -> Answer:
    """Tick a task of a phase, or untick it."""
    await plans.update_task(
        request.core,
        request.caller,
        request.params["slug"],
        request.given("phase"),
        request.given("task"),
        toggle=True,
    )
    return go(request, f"/plans/{request.params['slug']}")


@route("POST", "/plans/{slug}/checkpoint", "pair_worker")
async def add_checkpoint(request: Request) -> Answer:
    note = request.given("note")[:10_000]
    if not note:
        raise Invalid("a checkpoint needs a note", field="note")
    await plans.add_checkpoint(
        request.core, request.caller, request.params["slug"], request.given("phase"), note, None
    )
    return go(request, f"/plans/{request.params['slug']}")


@route("GET", "/templates")
async def all_templates(request: Request) -> Answer:
    return page(request, "templates.html", templates=await templates.listing(request.core))


@route("GET", "/templates/{slug}")
async def one_template(request: Request) -> Answer:
    """A template with its blanks as a form; with values in the query, the plan they would make."""
    return await _template_page(request, {}, None, None)


async def _template_page(
    request: Request, values: dict[str, str], preview: Any, problem: str | None
) -> Answer:
    slug = request.params["slug"]
    listed = next((one for one in await templates.listing(request.core) if one.slug == slug), None)
    if listed is None or listed.error is not None:
        raise Invalid(listed.error if listed and listed.error else f"there is no template {slug!r}")
    return page(request, "template.html", template=listed, values=values, preview=preview, problem=problem)


class NewPlan(Args):
    title: Title | None = None


@route("POST", "/templates/{slug}", "planner")
async def plan_from_template(request: Request) -> Answer:
    """Make the plan, or show it first."""
    given = {name.removeprefix("v."): values[-1] for name, values in request.form.items() if name[:2] == "v."}
    variables: dict[str, Any] = {name: value for name, value in given.items() if value != ""}
    title = parse(NewPlan, {"title": request.given("title") or None}).title
    if request.given("preview"):
        rendered = await templates.rendered(request.core, request.params["slug"], variables)
        return await _template_page(request, given, rendered, None)
    view = await templates.create_plan(
        request.core,
        request.caller,
        request.params["slug"],
        variables,
        title=title,
        activate=bool(request.given("activate")),
    )
    return go(request, f"/plans/{view.plan.slug}")
