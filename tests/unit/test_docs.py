"""Documentation under test: what exists is documented where it belongs, and what is documented exists."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import pkgutil
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

import quarterdeck
from quarterdeck import config
from quarterdeck.cli.main import app
from quarterdeck.domain import agents, records, states
from quarterdeck.domain.callers import LANES, PROFILES
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.events import GENESIS, KINDS, Draft
from quarterdeck.server.completions import PASSED_OVER, Completion
from quarterdeck.server.metrics import Metrics
from quarterdeck.surfaces.all import SURFACES
from quarterdeck.surfaces.table import Tool

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "quarterdeck"
PAGES = sorted(DOCS.glob("*.md"))
KEYS = config.keys()
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_VARIABLE = re.compile(r"QUARTERDECK_[A-Z]+(?:_+[A-Z]+)*")


# What the documentation says.


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", path.read_text())


def page(name: str) -> str:
    return prose(DOCS / f"{name}.md")


def code_words(path: Path) -> set[str]:
    """Everything between single backticks."""
    return set(_CODE.findall(prose(path)))


def section(name: str, title: str) -> str:
    """What stands below a heading, up to the next heading of its level or above; empty without it."""
    found = re.search(rf"^(#+) {re.escape(title)}$", page(name), re.MULTILINE)
    if found is None:
        return ""
    rest = page(name)[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def own_part(name: str, title: str) -> str:
    """A section without the sections inside it."""
    return re.split(r"^#+ ", section(name, title), maxsplit=1, flags=re.MULTILINE)[0]


def rows(markdown: str) -> dict[str, list[str]]:
    """The rows of its tables by their first cell, which loses its backticks."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in markdown.splitlines()
        if line.startswith("|")
    ]
    return {row[0].strip("`"): row for row in cells}


def anchors(path: Path) -> set[str]:
    """The anchors that the headings of a page get."""
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(prose(path))
    }


def command_lines(path: Path) -> Iterator[str]:
    """What is said to be typed: the lines of shell blocks, and code words that begin with our name."""
    for language, body in _FENCE.findall(path.read_text()):
        if language == "sh":
            yield from body.replace("\\\n", " ").splitlines()
    yield from code_words(path)


def our_commands(path: Path) -> Iterator[list[str]]:
    """The words that follow `quarterdeck` or `qd` on such a line."""
    for line in command_lines(path):
        for part in re.split(r"#|\$\(|\)|[|;&]", line):
            words = part.split()
            while words and re.match(r"\w+=|--$|claude$|mcp$|add$|quarterdeck$", words[0]):
                if words[0] == "quarterdeck" and words[1:2] != ["--"]:
                    break
                words.pop(0)
            if words and words[0] in ("quarterdeck", "qd"):
                yield words[1:]


# What the code has.


def nodes(folder: str = "") -> Iterator[ast.AST]:
    for path in (SOURCE / folder).rglob("*.py"):
        yield from ast.walk(ast.parse(path.read_text()))


def texts_given_to(*methods: str) -> set[str]:
    """The first argument, where it is written out, of every call of a method with one of these names."""
    found = set()
    for node in nodes():
        match node:
            case ast.Call(func=ast.Attribute(attr=attr), args=[ast.Constant(value=str(first)), *_]):
                if attr in methods:
                    found.add(first)
    return found


def kinds_passed_on() -> set[str]:
    """The event kinds that a module gives to a function of its own, which emits them."""
    found = set()
    for node in nodes("core"):
        match node:
            case ast.Call(func=ast.Name(id="_emit" | "_set"), args=args):
                given = {arg.value for arg in args if isinstance(arg, ast.Constant)}
                found |= {kind for kind in given if isinstance(kind, str) and "." in kind}
    return found


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(quarterdeck.__path__, "quarterdeck."):
        if not module.name.endswith("__main__") and ".migrations" not in module.name:
            yield module.name


@cache
def error_codes() -> frozenset[str]:
    for name in modules():
        importlib.import_module(name)
    found, waiting = set(), [QuarterdeckError]
    while waiting:
        kind = waiting.pop()
        found.add(kind.code)
        waiting += kind.__subclasses__()
    return frozenset(found)


def bridge_codes() -> set[str]:
    """The codes of the bridge's own errors: the `code` of its exceptions."""
    found = set()
    for node in ast.walk(ast.parse((SOURCE / "bridge.py").read_text())):
        match node:
            case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code))):
                found.add(code)
    return found


def bridge_flags() -> set[str]:
    found = set()
    for node in ast.walk(ast.parse((SOURCE / "bridge.py").read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=names):
                given = [name.value for name in names if isinstance(name, ast.Constant)]
                found |= {flag for flag in given if isinstance(flag, str) and flag.startswith("--")}
    return found


@cache
def commands() -> dict[str, set[str]]:
    """The flags of every command by its full name."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
        options = [param for param in command.params if param.param_type_name == "option"]
        yield name, {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
        for inner in getattr(command, "commands", {}).values():
            yield from walk(inner, f"{name} {inner.name}")

    found = dict(walk(typer.main.get_command(app), "quarterdeck"))
    found["quarterdeck mcp"] |= bridge_flags()
    return found


def tools() -> list[tuple[str, Tool]]:
    return [(surface.name, tool) for surface in SURFACES.values() for tool in surface.tools.values()]


def aliases(tool: Tool) -> set[str]:
    """Other names that a tool takes for its arguments."""
    found: set[str] = set()
    for field in tool.args.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            found |= {str(choice) for choice in field.validation_alias.choices}
    return found


def config_fields() -> dict[str, FieldInfo]:
    found = {}
    for key in KEYS:
        name, _, inner = key.partition(".")
        kind: Any = config.Settings.model_fields[name].annotation
        found[key] = kind.model_fields[inner]
    return found


def variable(key: str) -> str:
    return "QUARTERDECK_" + key.replace(".", "__").upper()


@cache
def variables() -> frozenset[str]:
    """Every environment variable that is read."""
    written = {
        found
        for node in nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in _VARIABLE.findall(node.value)
        if node.value == found
    }
    return frozenset(written | {variable(key) for key in KEYS} | {"QUARTERDECK_AGENTS"})


def metrics() -> set[str]:
    collected = Metrics()._registry.collect()
    return {family.name + ("_total" if family.type == "counter" else "") for family in collected}


def routes() -> set[str]:
    """The paths that the server compares with or names, and those of the surfaces; not the web board's."""
    found = {f"/mcp/{name}" for name in SURFACES}
    for path in (SOURCE / "server").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Compare(comparators=[ast.Constant(value=str(route))]):
                    found.add(route)
                case ast.Assign(value=ast.Constant(value=str(route))):
                    found.add(route)
                case ast.Assign(value=ast.Tuple(elts=elements)):
                    found |= {str(each.value) for each in elements if isinstance(each, ast.Constant)}
    return {route for route in found if re.fullmatch(r"(/[a-z0-9.]+)+", route)}


def statuses() -> set[int]:
    """Every HTTP status of a refusal that the server writes out."""
    values = {node.value for node in nodes("server") if isinstance(node, ast.Constant)}
    return {int(status) for status in HTTPStatus if status >= 400 and status in values}


# Surfaces and their tools: the page of a surface has its name; some of its tools have a page of their own.


def pages(surface: str) -> tuple[str, ...]:
    return {"plans": ("plans", "content"), "board": ("board", "review")}.get(surface, (surface,))


@pytest.mark.parametrize("surface", SURFACES)
def test_surface_has_a_page_that_documents_its_tools_and_no_others(surface: str) -> None:
    titles = [title for name in pages(surface) for title in _HEADING.findall(page(name))]
    headed = [title.strip("`") for title in titles if title.startswith("`")]
    assert sorted(headed) == sorted(SURFACES[surface].tools)
    assert f"`/mcp/{surface}`" in page(surface)


@pytest.mark.parametrize(("surface", "tool"), tools(), ids=lambda value: getattr(value, "name", value))
def test_tool_is_documented_with_its_arguments_defaults_and_profile(surface: str, tool: Tool) -> None:
    written = "".join(own_part(name, f"`{tool.name}`") for name in pages(surface))
    tables = [rows(table) for table in re.split(r"\n\n+", written)]
    table = next((found for found in tables if "argument" in found), {})
    properties, required = tool.input_schema["properties"], tool.input_schema.get("required", [])
    assert table.keys() - {"argument", "---"} == properties.keys()
    for name, schema in properties.items():
        default = schema.get("default")
        shown = (
            "–" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"
        )
        assert table[name][2] == ("required" if name in required else shown), name
    assert f"Least profile: `{tool.least}`" in written
    assert written.count("*Addition.*") == tool.addition, "an addition is marked, and nothing else"


def test_state_machine_is_documented_as_it_is() -> None:
    table = rows(section("orchestrator", "The state machine"))
    assert table.keys() - {"action", "---"} == set(states.ACTIONS)
    for action in states.ACTIONS:
        sources = [status for status in states.STATUSES if action in states.valid_actions(status)]
        assert _CODE.findall(table[action][1]) == sources
        assert table[action][2] == f"`{states.apply(sources[0], action)}`"


def test_least_profile_of_every_tool_is_in_the_table() -> None:
    table = rows(section("tokens", "Profiles"))
    assert list(table)[2:] == list(PROFILES)
    for profile in PROFILES:
        least = {tool.name for _, tool in tools() if tool.least == profile}
        assert set(_CODE.findall(table[profile][1])) == least


def test_names_that_look_like_a_tool_exist() -> None:
    every = [tool for _, tool in tools()]
    known = {tool.name for tool in every} | set(PROFILES) | set(LANES) | error_codes()
    known |= {name for tool in every for name in tool.input_schema["properties"]}
    known |= {alias for tool in every for alias in aliases(tool)}
    for kind in (records.Task, records.Decision, records.Pattern, records.Transition, records.Token):
        known |= {field.name for field in fields(kind)}
    firsts = {tool.name.partition("_")[0] for tool in every if "_" in tool.name}
    for path in WRITTEN:
        named = {word for word in code_words(path) if re.fullmatch(r"[a-z]+(_[a-z]+)+", word)}
        unknown = {word for word in named - known if word.partition("_")[0] in firsts}
        assert unknown == set(), path.name


# Errors.


def test_every_error_code_is_documented() -> None:
    listed = rows(section("errors", "Codes of tools")).keys() - {"code", "---"}
    assert listed == error_codes()


def test_every_code_of_the_bridge_is_documented() -> None:
    assert bridge_codes() >= {"DISCONNECTED", "AUTH_STALE_TOKEN"}
    listed = rows(section("errors", "Codes of the stdio bridge")).keys() - {"code", "---"}
    assert listed == bridge_codes()
    assert bridge_codes() <= code_words(DOCS / "stdio.md")


def test_every_http_status_is_documented() -> None:
    listed = rows(section("errors", "HTTP statuses")).keys() - {"status", "---"}
    assert {int(status) for status in listed} >= statuses()


# Configuration.


def test_every_config_key_is_documented_with_its_default_and_variable() -> None:
    table = rows(section("configuration", "Keys"))
    assert table.keys() - {"key", "---"} == config_fields().keys()
    for key, field in config_fields().items():
        default = field.get_default(call_default_factory=True, validated_data={})
        assert table[key][2] == ("none" if default is None else f"`{default}`"), key
        assert table[key][3] == f"`{variable(key)}`"


def test_every_key_of_an_agent_is_documented() -> None:
    table = rows(section("configuration", "Agents"))
    assert table.keys() - {"key", "---"} == {f"agents.<id>.{key}" for key in agents._FIELDS}
    choices = {"adapter": agents.ADAPTERS, "transport": agents.TRANSPORTS, "cost_tier": agents.COST_TIERS}
    for key, allowed in choices.items():
        assert _CODE.findall(table[f"agents.<id>.{key}"][1]) == list(allowed)


def test_every_variable_is_documented_and_every_documented_one_is_read() -> None:
    named = {path.name: set(_VARIABLE.findall(path.read_text())) for path in WRITTEN}
    assert variables() - named["configuration.md"] == set()
    assert {name: found - variables() for name, found in named.items() if found - variables()} == {}


def test_every_config_key_that_is_named_exists() -> None:
    looks_like_one = re.compile(rf"(?:{'|'.join(config.Settings.model_fields)})\.[a-z_]+")
    for path in WRITTEN:
        named = {word for word in code_words(path) if looks_like_one.fullmatch(word)}
        assert named - set(KEYS) == set(), path.name


# Command line.


@pytest.mark.parametrize("command", commands())
def test_command_is_documented_with_its_flags(command: str) -> None:
    assert section("cli", f"`{command}`"), f"docs/cli.md has no heading for {command}"
    listed = {flag for flag in rows(own_part("cli", f"`{command}`")) if flag.startswith("--")} - {"---"}
    assert listed == {flag for flag in commands()[command] if flag.startswith("--")} - {"--help"}


def test_every_flag_that_is_named_exists() -> None:
    known = {"--help"}.union(*commands().values())
    for path in WRITTEN:
        named = {flag for word in code_words(path) if word.startswith("--") for flag in _FLAG.findall(word)}
        assert named - known == set(), path.name


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_commands_that_are_shown_can_be_typed(path: Path) -> None:
    for words in our_commands(path):
        depth = max(n for n in range(len(words) + 1) if " ".join(["quarterdeck", *words[:n]]) in commands())
        name = " ".join(["quarterdeck", *words[:depth]])
        assert depth or not words or words[0].startswith("-"), f"{path.name}: there is no {words}"
        used = {flag for word in words for flag in _FLAG.findall(word)}
        assert used <= commands()[name] | {"--help"}, f"{path.name}: {name}"


# Operations.


def test_every_metric_is_documented() -> None:
    listed = rows(section("operations", "Metrics")).keys() - {"metric", "---"}
    assert listed == metrics()


def test_every_route_is_documented() -> None:
    listed = rows(section("operations", "Routes")).keys() - {"route", "---"}
    assert routes() >= {"/mcp", "/healthz", "/readyz", "/metrics", "/profile/mcp/tokens"}
    bare = {route.partition("/{")[0] for route in listed} - {"/", "/api/audit/verify"}
    assert bare == routes()


def test_every_field_that_chat_passes_over_or_honours_is_documented() -> None:
    named = set(re.findall(r"`([a-z_]+)`", section("agent", "Chat completions")))
    honoured = {"messages", "model", "stream", "stream_options", "reasoning_effort", "response_format"}
    assert honoured <= Completion.model_fields.keys()
    assert honoured | PASSED_OVER <= named


def test_every_kind_of_event_is_documented() -> None:
    listed = rows(section("store", "Event log")).keys() - {"kind", "---"}
    assert listed == texts_given_to("emit") | kinds_passed_on() == KINDS


def test_every_line_of_the_log_is_documented() -> None:
    listed = rows(section("operations", "Logs")).keys() - {"event", "---"}
    said = texts_given_to("debug", "info", "warning", "error", "exception")
    assert listed == {event for event in said if re.fullmatch(r"[a-z_]+\.[a-z_]+", event)}


def test_the_check_of_the_event_log_that_is_shown_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = next(
        body for language, body in _FENCE.findall((DOCS / "store.md").read_text()) if language == "python"
    )
    previous = GENESIS
    with contextlib.closing(sqlite3.connect("quarterdeck.db")) as database, database:
        database.execute(
            "CREATE TABLE events (seq, at, user_id, actor, tool, kind, entity_id, task_id, ok, data, hash)"
        )
        for number in (1, 2, 3):
            draft = Draft(
                number, None, "ä", "t", "task.created", "e", "k", number != 2, {"b": "ö", "a": [1.5]}
            )
            event = draft.seal(number, previous)
            previous = event.hash
            values = [getattr(event, name) for name in event.__slots__]
            values[-2] = json.dumps(event.data, ensure_ascii=False)
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    exec(shown, {})
    assert capsys.readouterr().out == "3 events, unbroken\n"
    with contextlib.closing(sqlite3.connect("quarterdeck.db")) as database, database:
        database.execute("UPDATE events SET actor = 'b' WHERE seq = 2")
    with pytest.raises(AssertionError, match="event 2 was changed"):
        exec(shown, {})


# Links.


def test_every_page_is_linked_from_the_index() -> None:
    linked = {target.partition("#")[0] for target in _LINK.findall(page("index"))}
    assert {path.name for path in PAGES} - {"index.md"} - linked == set()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in _LINK.findall(prose(path)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []
