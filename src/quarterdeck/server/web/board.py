"""The board: four columns, filters, cards that move, and the form of a task."""

from typing import Final

from quarterdeck.core import cards, tasks
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.states import COLUMNS, Column, Priority
from quarterdeck.server.web.routing import Answer, Request, as_json, go, route
from quarterdeck.server.web.show import page
from quarterdeck.surfaces.schema import Args, Label, Text, Title, parse

_PAGE: Final = 100
_ASKED: Final = 200


def _filters(request: Request) -> dict[str, str]:
    given = {name: request.asked(name) for name in cards.FILTERS}
    return {name: value[:500] for name, value in given.items() if value is not None}


@route("GET", "/")
async def board(request: Request) -> Answer:
    filters = _filters(request)
    views = await cards.columns(request.core, request.caller, filters, count=_PAGE)
    if request.fragment:
        return page(request, "board_columns.html", columns=views, filters=filters)
    choices = await cards.choices(request.core, request.caller)
    return page(request, "board.html", columns=views, filters=filters, choices=choices)


@route("GET", "/board/cards")
async def some_cards(request: Request) -> Answer:
    """The cards of some tasks as they are now: what a page puts in the place of older ones."""
    ids = [one for one in (request.asked("ids") or "").split(",") if one][:_ASKED]
    found, counts = await cards.some(request.core, request.caller, ids, _filters(request))
    return page(request, "board_cards.html", cards=found, counts=counts)


@route("GET", "/board/more/{column}")
async def more_cards(request: Request) -> Answer:
    column = _column(request.params["column"])
    after = request.asked("after") or "0"
    if not after.isdecimal() or len(after) > 7:
        raise Invalid("after must be a number", field="after")
    found = await cards.more(
        request.core, request.caller, column, _filters(request), after=int(after), count=_PAGE
    )
    return page(request, "board_cards.html", cards=found, counts={})


def _column(name: str) -> Column:
    if name not in COLUMNS:
        raise Invalid(f"there is no column {name[:40]}", field="column", hint=f"one of {', '.join(COLUMNS)}")
    return name


@route("POST", "/tasks/{id}/move", "operator")
async def move(request: Request) -> Answer:
    column = _column(request.given("column"))
    task = await cards.move(request.core, request.caller, request.params["id"], column)
    if request.wants_json:
        return as_json({"id": task.id, "status": task.status, "column": column})
    return go(request, f"/tasks/{task.id}")


class TaskForm(Args):
    """What the form of a task holds."""

    title: Title
    description: Text = ""
    priority: Priority = "medium"
    assigned_agent: Label | None = None


def _form(request: Request) -> TaskForm:
    given = {name: request.given(name) for name in TaskForm.model_fields}
    kept = {name: value for name, value in given.items() if value or name in ("title", "description")}
    return parse(TaskForm, kept, "correct the form and send it again")


@route("GET", "/tasks/new", "operator")
async def new_task(request: Request) -> Answer:
    choices = await cards.choices(request.core, request.caller)
    return page(request, "task_form.html", task=None, choices=choices, filters=_filters(request))


@route("POST", "/tasks/new", "operator")
async def create_task(request: Request) -> Answer:
    form = _form(request)
    task = await tasks.create(
        request.core,
        request.caller,
        title=form.title,
        description=form.description or None,
        priority=form.priority,
        source_channel="web",
        assigned_agent=form.assigned_agent,
    )
    return as_json({"id": task.id}) if request.wants_json else go(request, f"/tasks/{task.id}")


@route("GET", "/tasks/{id}/edit", "operator")
async def edit_task(request: Request) -> Answer:
    history = await tasks.get(request.core, request.caller, request.params["id"])
    choices = await cards.choices(request.core, request.caller)
    return page(request, "task_form.html", task=history.task, choices=choices, filters={})


@route("POST", "/tasks/{id}/edit", "operator")
async def change_task(request: Request) -> Answer:
    form = _form(request)
    changes = tasks.Changes(
        title=form.title,
        description=form.description,
        priority=form.priority,
        assigned_agent=form.assigned_agent,
    )
    task = await tasks.update(request.core, request.caller, request.params["id"], changes)
    return as_json({"id": task.id}) if request.wants_json else go(request, f"/tasks/{task.id}")
