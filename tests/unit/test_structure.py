"""The shape of the code base: file sizes, the direction of imports, words that must not occur."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "quarterdeck"
LONGEST_FILE = 500
CODE = {".css", ".html", ".js", ".py", ".sh", ".sql"}

# A part of the package is a folder or a module right below it; "__init__" is the package itself.
LEAVES = {"__init__", "config", "events", "paths"}
ANY_PART = {"bridge", "cli", "core", "domain", "git", "run", "server", "surfaces"} | LEAVES
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"bridge", "cli"} | LEAVES,
    "bridge": {"paths", "wire"},
    "cli": ANY_PART,
    "config": {"domain"} | LEAVES,
    "core": {"core", "domain", "git", "store"} | LEAVES,
    "domain": {"domain"},
    "events": {"domain"} | LEAVES,
    "paths": {"domain"} | LEAVES,
    "git": {"domain", "git"} | LEAVES,
    "run": {"core", "domain", "git", "run"} | LEAVES,
    "server": {"core", "domain", "run", "server", "surfaces"} | LEAVES,
    "store": {"domain", "store"} | LEAVES,
    "surfaces": {"core", "domain", "surfaces"} | LEAVES,
    "wire": set(),
}
ONLY_IN: dict[str, set[str]] = {
    "mcp": {"server", "surfaces"},
    "mcp_types": {"server", "surfaces"},
    "sqlalchemy": {"store"},
}
STDLIB_ONLY = {"bridge", "wire"}

# Written so that no pattern matches its own line.
PLACES = re.compile(r"(?<![\w.~}-])/(?:root|work|home)/|pypi[.]org|registry[.]npmjs")
UNFINISHED = re.compile(
    r"NotImplemented[E]rror|coming[ ]soon|pytest[.]skip|importor[s]kip|mark[.]skip|x[f]ail", re.IGNORECASE
)


def files_below(*folders: str) -> Iterator[Path]:
    """Every file of the project below these folders, leaving out what git leaves out."""
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [".git", *(line.strip().strip("/") for line in lines if line and not line.startswith("#"))]

    def kept(name: str) -> bool:
        return not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)

    for folder in folders:
        for parent, names, files in os.walk(ROOT / folder):
            names[:] = filter(kept, names)
            yield from (Path(parent, name) for name in files if kept(name))


def text_of(path: Path) -> str:
    """The file's text; empty for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def matches(pattern: re.Pattern[str], *folders: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files_below(*folders)
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def imported(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """The dotted names that a module in `package` imports, in functions and for typing only too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                parent = package[: len(package) - level + 1] if level else ()
                origin = ".".join((*parent, *([module] if module else [])))
                yield from (f"{origin}.{name.name}" for name in names)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def parts() -> set[str]:
    """The parts of the package that exist now."""
    return {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }


def part_of(name: str) -> str:
    """The part that `quarterdeck.x.y` names; what is no part is an attribute of the package itself."""
    first = name.split(".")[1] if "." in name else "__init__"
    return first if first in MAY_IMPORT.keys() | parts() else "__init__"


def broken_rules(source: str, part: str, package: tuple[str, ...]) -> list[str]:
    """What this module imports against the tables above."""
    broken = []
    for name in imported(source, package):
        top = name.split(".")[0]
        if top == "quarterdeck":
            if part_of(name) not in MAY_IMPORT[part]:
                broken.append(f"{part} may not import {name}")
        elif part not in ONLY_IN.get(top, {part}):
            broken.append(f"only {', '.join(sorted(ONLY_IN[top]))} may import {top}, not {part}")
        elif part in STDLIB_ONLY and top not in sys.stdlib_module_names:
            broken.append(f"{part} may import the standard library only, not {top}")
    return broken


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(text_of(path).splitlines())
        for path in files_below("src", "tests", "bench")
        if path.suffix in CODE
    }
    assert lengths
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_every_part_of_the_package_has_its_row() -> None:
    assert parts() - MAY_IMPORT.keys() == set()


def test_imports_point_one_way() -> None:
    broken = {}
    for path in files_below("src/quarterdeck"):
        if path.suffix == ".py":
            inside = path.relative_to(PACKAGE)
            part = inside.parts[0].removesuffix(".py")
            found = broken_rules(text_of(path), part, ("quarterdeck", *inside.parent.parts))
            if found:
                broken[str(inside)] = found
    assert broken == {}


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("domain", "import quarterdeck.store.tasks"),
        ("domain", "from quarterdeck import core"),
        ("domain", "from .. import store"),
        ("domain", "from ..store import tasks"),
        ("domain", "from quarterdeck.paths import data_dir"),
        ("run", "def claim() -> None:\n    from quarterdeck.store import jobs"),
        ("core", "if TYPE_CHECKING:\n    from quarterdeck.surfaces.board import Board"),
        ("cli", "import importlib\nimportlib.import_module('quarterdeck.store.tasks')"),
        ("core", "from sqlalchemy import select"),
        ("core", "import sqlalchemy.exc"),
        ("core", "import mcp"),
        ("run", "from mcp_types import Tool"),
        ("bridge", "import httpx"),
        ("bridge", "from quarterdeck.config import Settings"),
    ],
)
def test_wrong_import_is_found(part: str, source: str) -> None:
    assert len(broken_rules(source, part, ("quarterdeck", part))) == 1


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("domain", "import re\nfrom quarterdeck.domain.errors import Refused\nfrom .states import Status"),
        ("store", "from sqlalchemy import select\nfrom quarterdeck.domain import states"),
        ("core", "from quarterdeck.store import tasks\nfrom quarterdeck import events, __version__"),
        ("surfaces", "import mcp_types\nfrom ..core import tasks"),
        ("bridge", "import asyncio\nfrom quarterdeck.paths import data_dir"),
    ],
)
def test_right_import_is_let_through(part: str, source: str) -> None:
    assert broken_rules(source, part, ("quarterdeck", part)) == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    assert matches(PLACES, ".") == []


def test_nothing_is_left_unfinished_or_switched_off() -> None:
    assert matches(UNFINISHED, "src", "tests") == []


@pytest.mark.parametrize("folder", ["root", "work", "home"])
def test_absolute_path_is_told_from_a_relative_one(folder: str) -> None:
    assert PLACES.search(f"open('/{folder}/notes')")
    assert PLACES.search(f"file:///{folder}/notes")
    assert not PLACES.search(f"{{base}}/{folder}/notes and src/{folder}/notes and ~/{folder}/notes")


@pytest.mark.parametrize(
    "words", ["Com_ing soon", "pytest._skip()", "mark._skipif", "mark.xfa_il", "Not_ImplementedError"]
)
def test_unfinished_word_is_found(words: str) -> None:
    assert UNFINISHED.search(words.replace("_", ""))
