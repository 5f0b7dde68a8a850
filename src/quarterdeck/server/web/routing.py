"""A page is a function with a path and a least profile; this is the table of them."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller, Profile
from quarterdeck.server.http import Headers

if TYPE_CHECKING:
    from quarterdeck.server.web.signin import Doorman

HTML: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page gives back: a body, or a stream of parts."""

    body: bytes = b""
    status: int = 200
    media_type: str = HTML
    headers: Headers = field(default_factory=list)
    stream: AsyncIterator[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request of somebody who is signed in."""

    core: Core
    caller: Caller
    path: str
    csrf: str
    doorman: "Doorman"
    cookie: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, list[str]]
    fragment: bool
    seq: int
    last_event: str | None
    wants_json: bool

    def given(self, name: str) -> str:
        """The last value of a form's field without white space around it; empty when there is none."""
        return (self.form.get(name) or [""])[-1].strip()

    def asked(self, name: str) -> str | None:
        """A value of the query; None when it is absent or empty."""
        return self.query.get(name, "").strip() or None

    def may(self, least: Profile) -> bool:
        return self.caller.may(least)


Handler = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    pattern: re.Pattern[str]
    least: Profile
    handler: Handler


ROUTES: Final[list[Route]] = []


def route(method: str, path: str, least: Profile = "viewer") -> Callable[[Handler], Handler]:
    """Serve a path; `{name}` in it is one segment, which the page finds in `params`."""
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]{1,200})", path))

    def add(handler: Handler) -> Handler:
        ROUTES.append(Route(method, path, pattern, least, handler))
        return handler

    return add


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | set[str]:
    """The route of a request with its params, or the methods that its path would take."""
    methods = set()
    for one in ROUTES:
        if (found := one.pattern.fullmatch(path)) is not None:
            if one.method == method:
                return one, found.groupdict()
            methods.add(one.method)
    return methods


def go(request: Request, location: str, **query: str) -> Answer:
    """After a change, look there: as a redirect, or as JSON for a script that asked."""
    where = location + ("?" + urlencode(query) if query else "")
    if request.wants_json:
        return as_json({"location": where})
    return Answer(status=303, headers=[(b"location", where.encode())])


def as_json(body: Any, status: int = 200) -> Answer:
    return Answer(json.dumps(body).encode(), status, "application/json")
