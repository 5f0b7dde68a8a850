"""The template library: what ships with Quarterdeck, and what the owner keeps in the data directory."""

import asyncio
import difflib
import os
import re
import stat
import time
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from quarterdeck.core import plans
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Invalid, NotFound
from quarterdeck.domain.templates import MAX_BYTES, Rendered, Template, Variable, parse, render

Origin = Literal["built-in", "user"]

_SUFFIX: Final = ".yaml"
_TITLE: Final = 500
_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
# A clock tick in which a file may change twice without its times telling.
_SETTLED_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the listing. A file that cannot be used says why in `error`, and nothing else."""

    slug: str
    origin: Origin
    name: str = ""
    description: str = ""
    category: str = ""
    phases_count: int = 0
    variables: tuple[Variable, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Held:
    """A template that was read, or why it could not be, and what its file was then."""

    listed: Listed
    template: Template | None
    raw: bytes = b""
    stamp: tuple[object, ...] = ()
    settled: bool = False


class Library:
    """The templates by slug. A file of the user comes before the built-in template of the same slug."""

    def __init__(self, user_dir: Path) -> None:
        self._user_dir = user_dir
        self._held: dict[str, _Held] = {}

    def listing(self, category: str | None = None) -> list[Listed]:
        """Every template, or those of a category (in any case), by slug; broken files only without one."""
        found = [held.listed for _, held in sorted(self._all().items())]
        if category is None:
            return found
        return [one for one in found if not one.error and one.category.lower() == category.strip().lower()]

    def get(self, slug: str) -> Template:
        """The template as its file is now. `NotFound` if there is none, `Invalid` if its file is broken."""
        known = self._all()
        held = known.get(slug)
        if held is None:
            near = difflib.get_close_matches(slug[:64].lower(), known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(sorted(known)[:20])}"
            raise NotFound(f"there is no template {slug[:64]!r}", field="slug", hint=hint)
        if held.template is None:
            hint = f"correct {slug}{_SUFFIX} in the templates folder of the data directory"
            raise Invalid(held.listed.error or "the template is broken", field="slug", hint=hint)
        return held.template

    def _all(self) -> dict[str, _Held]:
        self._held = {name: self._current(name, path) for name, path in _files(self._user_dir).items()}
        return _built_in() | self._held

    def _current(self, name: str, path: Path) -> _Held:
        """The user's template; its file is read again only when it may have changed."""
        before = self._held.get(name)
        try:
            now = path.stat()
            stamp = (path, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            if before and before.settled and before.stamp == stamp:
                return before
            settled = time.time_ns() - max(now.st_mtime_ns, now.st_ctime_ns) > _SETTLED_NS
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            problem = f"template {name}: the file cannot be read: {error.strerror}"
            return _Held(Listed(name, "user", error=problem), None)
        if before and before.stamp and before.raw == raw:
            return _Held(before.listed, before.template, raw, stamp, settled)
        listed, template = _read(name, "user", raw)
        return _Held(listed, template, raw, stamp, settled)


def _files(folder: Path) -> dict[str, Path]:
    """The user's files by their names without the suffix; what leads out of the folder is left out."""
    try:
        home = folder.resolve(strict=True)
        names = sorted(path.name for path in home.iterdir())
    except (OSError, RuntimeError):
        return {}
    found = {}
    for name in names:
        if name.startswith(".") or not name.endswith(_SUFFIX):
            continue
        try:
            path = (home / name).resolve(strict=True)
            regular = stat.S_ISREG(path.stat().st_mode)
        # A loop of links is a RuntimeError before Python 3.13.
        except (OSError, RuntimeError):
            continue
        if regular and path.is_relative_to(home):
            # A name in another encoding must not break the answer that lists it.
            found[os.fsencode(name.removesuffix(_SUFFIX)).decode(errors="replace")] = path
    return found


def _read(slug: str, origin: Origin, raw: bytes) -> tuple[Listed, Template | None]:
    try:
        template = parse(_checked(slug), _decoded(slug, raw))
    except Invalid as error:
        return Listed(slug, origin, error=error.message), None
    return (
        Listed(
            slug=slug,
            origin=origin,
            name=template.name,
            description=template.description,
            category=template.category,
            phases_count=len(template.phases),
            variables=template.variables,
        ),
        template,
    )


def _checked(slug: str) -> str:
    if not _SLUG.fullmatch(slug):
        raise Invalid(f"template {slug}: the file's name must be lower-case letters, digits and hyphens")
    return slug


def _decoded(slug: str, raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        raise Invalid(f"template {slug}: the file is larger than {MAX_BYTES // 1024} KB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"template {slug}: byte {error.start} of the file is not UTF-8") from None


@cache
def _built_in() -> dict[str, _Held]:
    folder = resources.files("quarterdeck") / "templates"
    files = [file for file in folder.iterdir() if file.name.endswith(_SUFFIX)]
    slugs = {file.name.removesuffix(_SUFFIX): file.read_bytes() for file in files}
    return {slug: _Held(*_read(slug, "built-in", raw)) for slug, raw in slugs.items()}


async def listing(core: Core, category: str | None = None) -> list[Listed]:
    return await asyncio.to_thread(core.templates.listing, category)


async def rendered(core: Core, slug: str, variables: dict[str, Any]) -> Rendered:
    """A template with its blanks filled, without making anything of it."""
    return render(await asyncio.to_thread(core.templates.get, slug), variables)


async def create_plan(
    core: Core,
    caller: Caller,
    template_slug: str,
    variables: dict[str, Any],
    *,
    title: str | None = None,
    slug: str | None = None,
    activate: bool = False,
) -> plans.PlanView:
    """A plan from a template, which it remembers as it was."""
    template = await asyncio.to_thread(core.templates.get, template_slug)
    filled = render(template, variables)
    if len(title or filled.title) > _TITLE:
        raise Invalid(
            f"the title would be longer than {_TITLE} characters", field="title", hint="give a title"
        )
    return await plans.create(
        core,
        caller,
        title=title or filled.title,
        slug=slug,
        description=filled.description or None,
        context=filled.context,
        phases=[
            plans.NewPhase(
                phase.name,
                phase.description or None,
                [plans.NewTask(task.title, task.description or None) for task in phase.tasks],
            )
            for phase in filled.phases
        ],
        status="active" if activate else "draft",
        template={"slug": template.slug, "variables": filled.variables, "source": template.source},
    )
