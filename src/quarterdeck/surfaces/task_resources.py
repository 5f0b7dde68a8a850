"""`mcp://tasks/{id}`: a task as a resource, for whoever wants to be told of its changes."""

from collections.abc import Sequence

from quarterdeck.core import tasks
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import NotFound
from quarterdeck.domain.ids import iso
from quarterdeck.events import Event
from quarterdeck.surfaces.orchestrator import task_row
from quarterdeck.surfaces.resources import Content, Notice, ResourceError, Resources, Template
from quarterdeck.surfaces.table import encode

_PREFIX = "mcp://tasks/"


async def _read(core: Core, caller: Caller, uri: str) -> Content:
    try:
        found = await tasks.get(core, caller, uri.removeprefix(_PREFIX))
    except NotFound as error:
        raise ResourceError(error.message, hint=error.hint, code="RESOURCE_NOT_FOUND") from error
    row = {**task_row(found.task), "valid_actions": found.valid_actions}
    return Content(uri, "application/json", encode(row))


async def _visible(core: Core, caller: Caller, uri: str) -> bool:
    return await tasks.may_hear(core, caller, uri.removeprefix(_PREFIX))


async def _notices(core: Core, event: Event) -> Sequence[Notice]:
    if event.noun != "task" or event.entity_id is None or not event.ok:
        return ()
    uri = _PREFIX + event.entity_id
    return (Notice(uri, "notifications/resources/updated", {"uri": uri, "updatedAt": iso(event.at)}),)


TASKS = Resources(
    scheme=_PREFIX,
    templates=(
        Template(f"{_PREFIX}{{id}}", "task", "A task and the actions valid next", "application/json"),
    ),
    read=_read,
    visible=_visible,
    notices=_notices,
)
