"""The board: four columns, filters, cards that move, and the form of a task."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from quarterdeck.core import board, cards, radar, tasks
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.records import Task
from quarterdeck.domain.states import COLUMNS, Column, Priority
from quarterdeck.server.web.routing import Answer, Request, as_json, go, route
from quarterdeck.server.web.show import page
from quarterdeck.surfaces.board_tasks import Branch
from quarterdeck.surfaces.schema import Args, Id, Label, Some, Text, Title, parse

_PAGE: Final = 100
_ASKED: Final = 200


def _filters(request: Request) -> dict[str, str]:
    given = {name: request.asked(name) for name in cards.FILTERS}
    return {name: value[:500] for name, value in given.items() if value is not None}


@route("GET", "/")
async def show_board(request: Request) -> Answer:
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


@route("GET", "/board/conflicts")
async def conflicting(request: Request) -> Answer:
    """The tasks in review that would not merge cleanly: their cards get a mark."""
    return as_json({"ids": await radar.conflicts(request.core, request.caller)})


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
    task = await board.update(request.core, request.caller, request.params["id"], {}, column)
    if request.wants_json:
        return as_json({"id": task.id, "status": task.status, "column": column})
    return go(request, f"/tasks/{task.id}")


class TaskForm(Args):
    """What the form of a task holds."""

    title: Title
    description: Text = ""
    priority: Priority = "medium"
    task_type: Literal["AUTO", "PAIR"] = "PAIR"
    agent_backend: Label | None = None
    project_id: Id | None = None
    base_branch: Branch | None = None
    acceptance_criteria: Annotated[list[Some], Field(default_factory=list, max_length=100)]


def _form(request: Request) -> TaskForm:
    given: dict[str, Any] = {
        name: value for name in TaskForm.model_fields if (value := request.given(name)) != ""
    }
    lines = request.given("acceptance_criteria").splitlines()
    given["acceptance_criteria"] = [line.strip() for line in lines if line.strip()]
    return parse(TaskForm, {"title": "", **given}, "correct the form and send it again")


def _saved(request: Request, task: Task) -> Answer:
    """A script that keeps its page needs the id, one that goes on the address."""
    where = f"/tasks/{task.id}"
    return as_json({"id": task.id, "location": where}) if request.wants_json else go(request, where)


async def _sheet(request: Request, task: Task | None) -> Answer:
    choices = await cards.choices(request.core, request.caller)
    return page(request, "task_form.html", task=task, choices=choices, filters=_filters(request))


@route("GET", "/tasks/new", "operator")
async def new_task(request: Request) -> Answer:
    return await _sheet(request, None)


@route("POST", "/tasks/new", "operator")
async def create_task(request: Request) -> Answer:
    form = _form(request)
    task = await board.create(
        request.core,
        request.caller,
        board.NewTask(**{**form.model_dump(), "description": form.description or None}),
    )
    return _saved(request, task)


@route("GET", "/tasks/{id}/edit", "operator")
async def edit_task(request: Request) -> Answer:
    history = await tasks.get(request.core, request.caller, request.params["id"])
    return await _sheet(request, history.task)


@route("POST", "/tasks/{id}/edit", "operator")
async def change_task(request: Request) -> Answer:
    values = _form(request).model_dump()
    task = await board.update(request.core, request.caller, request.params["id"], values)
    return _saved(request, task)


@route("POST", "/tasks/{id}/delete", "maintainer")
async def delete_task(request: Request) -> Answer:
    await board.delete(request.core, request.caller, request.params["id"])
    return go(request, "/")
