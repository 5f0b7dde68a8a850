"""Settings: what is in force, and changing it."""

from typing import Any

from quarterdeck.core import settings
from quarterdeck.domain.errors import Invalid
from quarterdeck.server.web.routing import Answer, Request, go, route
from quarterdeck.server.web.show import page


@route("GET", "/settings")
async def all_settings(request: Request) -> Answer:
    current = await settings.current(request.core)
    return page(
        request, "settings.html", current=current, configured=settings.configured(request.core.settings)
    )


@route("POST", "/settings", "maintainer")
async def change_settings(request: Request) -> Answer:
    """Change those whose value in the form differs from the one in force."""
    current = await settings.current(request.core)
    changes = {}
    for key, value in current.items():
        if key in request.form and (fresh := _read(key, request.given(key), value)) != value:
            changes[key] = fresh
    if changes:
        await settings.update(request.core, request.caller, changes)
    return go(request, "/settings")


def _read(key: str, given: str, current: Any) -> Any:
    """A field's text as a value of the setting's own kind."""
    if isinstance(current, bool):
        return given == "yes"
    if isinstance(current, int):
        if not given.isdecimal() or len(given) > 9:
            raise Invalid(f"{key} must be a whole number", field=key)
        return int(given)
    return given or None
