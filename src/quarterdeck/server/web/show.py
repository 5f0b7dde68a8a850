"""From a template and values to a page."""

import json
import time
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from quarterdeck import __version__
from quarterdeck.domain.ids import iso, now_us
from quarterdeck.domain.records import Job
from quarterdeck.domain.states import COLUMN_OF, COLUMNS, PRIORITIES
from quarterdeck.server.web import text
from quarterdeck.server.web.routing import HTML, Answer, Request

if TYPE_CHECKING:
    from jinja2 import Environment

NAV: Final = (
    ("/", "Board"),
    ("/plans", "Plans"),
    ("/jobs", "Jobs"),
    ("/agents", "Agents"),
    ("/memory", "Memory"),
    ("/insight", "Insight"),
    ("/sessions", "Sessions"),
    ("/projects", "Projects"),
    ("/audit", "Audit"),
    ("/tokens", "Tokens"),
    ("/settings", "Settings"),
)
COLUMN_NAMES: Final = {
    "BACKLOG": "Backlog",
    "IN_PROGRESS": "In progress",
    "REVIEW": "Review",
    "DONE": "Done",
}


def page(request: Request, name: str, /, *, answer_status: int = 200, **values: Any) -> Answer:
    """A whole page for somebody who is signed in."""
    shared = {
        "request": request,
        "me": request.caller,
        "csrf": request.csrf,
        "nav": NAV,
        "here": _section(request.path),
    }
    return Answer(render(name, **shared, **values), answer_status, HTML)


def about(job: Job) -> str:
    """What a job without a task is about, in a line."""
    task = job.spec.get("task")
    words = task.get("title") if isinstance(task, dict) else None
    for name in ("prompt", "title", "content_type"):
        words = words or job.spec.get(name)
    return " ".join(str(words or job.kind).split())[:120]


def _section(path: str) -> str:
    first = "/" + path.lstrip("/").partition("/")[0]
    return {"/tasks": "/", "/templates": "/plans", "/proposals": "/plans"}.get(first, first)


def render(name: str, /, **values: Any) -> bytes:
    return _environment().get_template(name).render(**values).encode(errors="replace")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = resources.files("quarterdeck.server.web") / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=lambda value: text.seen(value) if type(value) is str else value,
    )
    environment.filters |= {
        "linked": text.linked,
        "terminal": text.terminal,
        "when": when,
        "ago": ago,
        "lasting": lasting,
        "money": money,
        "number": number,
        "json": lambda value: json.dumps(value, ensure_ascii=False, indent=2, default=str),
        "words": lambda value: str(value).replace("_", " "),
        "column": lambda status: COLUMN_OF[status],
        "iso": iso,
        "about": about,
        # In a form: the very characters, since they come back.
        "exact": escape,
    }
    environment.globals |= {
        "version": __version__,
        "now_us": now_us,
        "COLUMNS": COLUMNS,
        "COLUMN_NAMES": COLUMN_NAMES,
        "PRIORITIES": PRIORITIES[::-1],
    }
    return environment


_STEPS: Final = ((60, "s"), (3600, "min"), (86_400, "h"), (86_400 * 60, "d"), (86_400 * 730, "mo"))


def ago(us: int | None) -> str:
    """How long ago a time was, in one word."""
    if us is None:
        return "never"
    seconds = max(0, int(time.time() - us / 1_000_000))
    if seconds < 5:
        return "now"
    size, unit = 1, "s"
    for limit, name in _STEPS:
        unit = name
        if seconds < limit:
            break
        size = limit if name != "d" else 86_400 * 30
    return f"{seconds // size} {unit} ago"


def when(us: int | None) -> Markup:
    """A time as people say it, with the exact one beside it; a script keeps it true."""
    if us is None:
        return Markup('<span class="muted">never</span>')
    exact = iso(us) or ""
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        exact, exact[:19].replace("T", " "), ago(us)
    )


def lasting(us: int | None) -> str:
    """A span of microseconds in its two largest units."""
    if us is None:
        return "–"
    seconds = us / 1_000_000
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, lesser, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // lesser
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def money(usd: float | None) -> str:
    if usd is None:
        return "–"
    return f"${usd:,.2f}" if usd >= 0.01 or usd == 0 else f"${usd:.4f}"


def number(value: float | None) -> str:
    if value is None:
        return "–"
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if abs(value) >= size:
            divisor = 1000 if unit == "k" else size
            return f"{value / divisor:.1f}".removesuffix(".0") + unit
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
