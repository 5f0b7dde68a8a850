"""Loads every module of pages, and the door, which stands before all of them."""

import hmac
import importlib
from typing import Final

from quarterdeck.server.web.routing import HTML, Answer, Request
from quarterdeck.server.web.show import render

OPEN: Final = ("/signin", "/signout")
MODULES: Final = (
    "board",
    "task",
    "plans",
    "proposals",
    "jobs",
    "memory",
    "insight",
    "sessions",
    "projects",
    "audit",
    "tokens",
    "settings",
    "live",
)


def load() -> None:
    for name in MODULES:
        importlib.import_module(f"quarterdeck.server.web.{name}")


def marked(request: Request, sent: str | None) -> bool:
    """Whether a form carries the mark of its session, in a header or in a field."""
    given = sent or request.given("csrf")
    return hmac.compare_digest(given.encode(), request.csrf.encode())


def door(problem: str | None, after: str, status: int) -> Answer:
    return Answer(render("signin.html", problem=problem, after=after), status, HTML)
