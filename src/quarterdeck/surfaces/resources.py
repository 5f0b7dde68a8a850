"""Resources of a surface: what can be read, who may, and which event changes what."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.events import Event


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of resource as `resources/templates/list` shows it."""

    uri_template: str
    name: str
    description: str
    media_type: str


@dataclass(frozen=True, slots=True)
class Content:
    """What a resource holds now; text unless it is none."""

    uri: str
    media_type: str
    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """One notification about a resource. `uri` decides who hears it: those who subscribed to it.

    Where a URI means each user's own, `user_id` says whose it is.
    """

    uri: str
    method: str
    params: dict[str, Any]
    user_id: str | None = None


class ResourceError(QuarterdeckError):
    """A resource that cannot be read; `data["code"]` is the documented code."""

    code = "not_found"


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one surface.

    `read` raises ResourceError. `visible` says whether a caller may hear of a URI, also of one whose row does
    not exist yet (then it may). `notices` turns a committed event into what subscribers are told.
    """

    scheme: str
    templates: Sequence[Template]
    read: Callable[[Core, Caller, str], Awaitable[Content]]
    visible: Callable[[Core, Caller, str], Awaitable[bool]]
    notices: Callable[[Core, Event], Awaitable[Sequence[Notice]]]
