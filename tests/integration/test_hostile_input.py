"""Whatever comes in, the orchestrator surface answers in its own words, keeps its rows and stays up."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarterdeck.surfaces.orchestrator import SURFACE
from tests.core_process import CoreProcess
from tests.integration.orchestrator_contract import ANSWERS, ARGUMENTS
from tests.mcp_client import MODERN, OLDER, Client, Deck, ProtocolError, Result

ADMIN = "the admin secret of these tests"
ENVIRONMENT = {"QUARTERDECK_ADMIN_SECRET": ADMIN, "QUARTERDECK_SEARCH__PROVIDER": "local"}
# What an argument can be blamed for. A broken core would say internal_error or service_unavailable.
CODES = {"validation_error", "not_found", "invalid_transition", "unknown_tool"}
KEYS = {"error", "code", "field", "hint", "errors", "status", "valid_actions"}
FOREIGN_WORDS = re.compile(
    r"pydantic|validation error|Input should|Traceback|Error\b|sqlite|psycopg", re.IGNORECASE
)
TOOLS = list(SURFACE.tools)
A_TASK = "(a task of the caller)"
# Type or name of an argument → a value that is taken.
PLAUSIBLE: Row = {
    "string": "x",
    "object": {},
    "boolean": True,
    "task_id": A_TASK,
    "tier": "fast",
    "agent_id": "claude-code",
}
FEW = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Row = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("core")


@pytest.fixture(scope="module")
def deck(folder: Path) -> Iterator[Deck]:
    with CoreProcess(folder, ENVIRONMENT) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture(scope="module")
def modern(deck: Deck) -> Client:
    return deck.connect()


@pytest.fixture(scope="module")
def older(deck: Deck) -> Client:
    return deck.connect(version=OLDER)


@pytest.fixture(params=["modern", "older"])
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def core_stays_up(deck: Deck) -> Iterator[None]:
    """After each test the core still answers, in both eras."""
    yield
    for version in (MODERN, OLDER):
        assert deck.connect(version=version).done("ping")["pong"] is True


def count(folder: Path) -> list[int]:
    """How many rows there are of each kind that a tool can write."""
    uri = f"file:{folder / 'quarterdeck.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        tables = ("tasks", "transitions", "decisions", "decision_tags", "patterns")
        return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]


def check_refusal(result: Result, tool: str, arguments: Row) -> None:
    """A refusal has the documented body, in words of ours, and blames an argument that there is."""
    body = result.body
    assert isinstance(body, dict)
    assert {"error", "code"} <= body.keys() <= KEYS, body
    assert body["code"] in CODES, body
    for sentence in (body["error"], body.get("hint", "x")):
        assert isinstance(sentence, str) and sentence
    # A name that the caller made up is quoted, whatever it is.
    assert not FOREIGN_WORDS.search(body["error"]) or FOREIGN_WORDS.search(json.dumps(arguments)), body
    if "field" in body:
        names = {name[:200] or '""' for name in {*arguments, *SURFACE.tools[tool].input_schema["properties"]}}
        assert any(
            body["field"] == name or body["field"].startswith((f"{name}.", f"{name}[")) for name in names
        ), body


# Random arguments


def texts(surrogates: bool) -> st.SearchStrategy[str]:
    alphabet = st.characters() if surrogates else st.characters(exclude_categories=["Cs"])
    return st.text(alphabet, max_size=30)


def values(surrogates: bool) -> st.SearchStrategy[Any]:
    """Any JSON value, and the ones that our own arguments take."""
    text = texts(surrogates)
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        text,
        st.sampled_from(["pending", "approve", "high", "fast", "claude-code", "0.5", "nan", "1e9", "true"]),
    )
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4)
    )


def calls(surrogates: bool) -> st.SearchStrategy[tuple[str, Row]]:
    """A tool with arguments: what it needs and more that fits, or anything beside it, or anything at all."""
    text, value = texts(surrogates), values(surrogates)
    fitting: dict[str, st.SearchStrategy[Any]] = {
        "string": text,
        "object": st.dictionaries(text, value, max_size=4),
        "array": st.lists(text, max_size=4),
        "integer": st.integers(-(2**63), 2**63 - 1),
        "number": st.floats(0, 1),
        "boolean": st.booleans(),
    }

    def with_arguments(tool: str) -> st.SearchStrategy[tuple[str, Row]]:
        types = {
            name: schema["type"] for name, schema in SURFACE.tools[tool].input_schema["properties"].items()
        }
        needed = {name: PLAUSIBLE.get(name, PLAUSIBLE[types[name]]) for name in ARGUMENTS[tool][0]}
        fits = st.fixed_dictionaries(
            {}, optional={name: fitting[kind] for name, kind in types.items() if name not in PLAUSIBLE}
        )
        anything = st.dictionaries(st.sampled_from(list(types) or [""]) | text, value, max_size=3)
        some = st.sampled_from([needed, {}])
        return st.tuples(
            st.just(tool),
            st.builds(dict.__or__, st.just(needed), fits) | st.builds(dict.__or__, some, anything),
        )

    return st.sampled_from(TOOLS).flatmap(with_arguments)


def try_call(client: Client, folder: Path, tool: str, arguments: Row) -> bool:
    """Whether the call succeeded; either way its answer is a documented one."""
    if arguments.get("task_id") == A_TASK:
        arguments = {**arguments, "task_id": client.done("task_list", limit=1)[0]["id"]}
    before = count(folder)
    result = client.call_json(tool, json.dumps(arguments))
    if result.is_error:
        check_refusal(result, tool, arguments)
        assert count(folder) == before
        return False
    rows = result.body if isinstance(result.body, list) else [result.body]
    assert all([key for key in row if key != "similarity"] == ANSWERS[tool] for row in rows)
    return True


@pytest.mark.parametrize(("era", "surrogates"), [("modern", True), ("older", False)])
def test_random_arguments_are_answered_or_refused_in_our_own_words(
    request: pytest.FixtureRequest, folder: Path, era: str, surrogates: bool
) -> None:
    client: Client = request.getfixturevalue(era)
    client.done("task_create", title="the one to name")
    outcomes: list[bool] = []

    @FEW
    @given(call=calls(surrogates))
    def run(call: tuple[str, Row]) -> None:
        outcomes.append(try_call(client, folder, *call))

    run()
    # Both ways are walked often, or the test would say little.
    assert min(outcomes.count(True), outcomes.count(False)) > 20


@settings(FEW, max_examples=50)
@given(name=texts(surrogates=False).filter(lambda name: name not in SURFACE.tools))
def test_random_name_is_an_unknown_tool(modern: Client, older: Client, name: str) -> None:
    for client in (modern, older):
        body = client.refused(name)
        assert body.keys() == {"error", "code", "hint"}
        assert body["code"] == "unknown_tool"


# Chosen arguments


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


LARGE = "x" * 1_000_000
CASES: list[tuple[str, str, str, str]] = [
    ("title", LARGE[:501], "longer than", '"{}"'),
    ("title", LARGE, "longer than", '"{}"'),
    ("title", "a\\u0000b", "NUL", '"{}"'),
    ("title", "NaN", "finite", "{}"),
    ("title", "7", "must be a string", "{}"),
    ("title", "null", "must be a string", "{}"),
    ("title", "true", "must be a string", "{}"),
    ("title", '["a"]', "must be a string", "{}"),
    ("title", '{"a": "b"}', "must be a string", "{}"),
    ("metadata.x", "NaN", "finite", '{{"x": {}}}'),
    ("metadata.x", "-Infinity", "finite", '{{"x": {}}}'),
    ("metadata.x", "1e999", "finite", '{{"x": {}}}'),
    ("metadata.x[1]", str(2**63), "64 bits", '{{"x": [0, {}]}}'),
    ("metadata.x", str(-(2**63) - 1), "64 bits", '{{"x": {}}}'),
    ("metadata.x", "9" * 4000, "64 bits", '{{"x": {}}}'),
    ("metadata.a.b[0]", "\\u0000", "NUL", '{{"a": {{"b": ["{}"]}}}}'),
    ("metadata.a", "\\u0000", "a name in metadata.a contains a NUL", '{{"a": {{"{}": 1}}}}'),
    ('metadata.""', "\\u0000", "NUL", '{{"": "{}"}}'),
    ("metadata", deep(64), "nested deeper than 64", "{}"),
    ("metadata", deep(100), "nested deeper than 64", "{}"),
    ("metadata", "[" * 100 + "]" * 100, "nested deeper than 64", "{}"),
    ("priority", "URGENT", "must be one of 'low', 'medium', 'high', 'urgent'", '"{}"'),
    ("priority", "1", "must be one of", "{}"),
    ("nonsense", "1", "is not an argument of this tool", "{}"),
    ("__class__", "1", "is not an argument of this tool", "{}"),
    ("model_config", "1", "is not an argument of this tool", "{}"),
]


@pytest.mark.parametrize(
    ("field", "value", "sentence", "frame"), CASES, ids=[f"{case[0]}-{case[1][:12]}" for case in CASES]
)
def test_argument_that_cannot_be_taken_is_named(
    client: Client, folder: Path, field: str, value: str, sentence: str, frame: str
) -> None:
    name = re.split(r"[.\[]", field)[0]
    others = "" if name == "title" else '"title": "t", '
    before = count(folder)
    result = client.call_json("task_create", f'{{{others}"{name}": {frame.format(value)}}}')
    assert result.is_error
    assert result.body["code"] == "validation_error"
    assert result.body["field"] == field
    assert sentence in result.body["error"]
    assert len(json.dumps(result.body)) < 1000
    assert count(folder) == before


@pytest.mark.parametrize(
    ("tool", "arguments", "field", "sentence"),
    [
        ("task_list", {"limit": "many"}, "limit", "must be an integer"),
        ("task_list", {"limit": 1.5}, "limit", "must be an integer"),
        ("task_list", {"limit": 1e300}, "limit", "is too large"),
        ("task_list", {"limit": "9" * 5000}, "limit", "is too large"),
        ("task_list", {"limit": []}, "limit", "must be an integer"),
        ("task_list", {"limit": None}, "limit", "must be an integer"),
        ("decision_log", {"confidence": "nan"}, "confidence", "must be"),
        ("decision_log", {"confidence": "inf"}, "confidence", "must be at most 1"),
        ("decision_log", {"confidence": {}}, "confidence", "must be a number"),
        ("decision_log", {"tags": {"a": 1}}, "tags", "must be an array"),
        ("decision_log", {"tags": [["a"]]}, "tags[0]", "must be a string"),
        ("decision_log", {"tags": [""]}, "tags[0]", "must not be empty"),
        ("route_task", {"task_id": "x", "assign": "perhaps"}, "assign", "must be true or false"),
        ("route_task", {"task_id": "x", "assign": 2}, "assign", "must be true or false"),
        (
            "pattern_store",
            {"name": "n", "trigger_conditions": [], "actions": {}},
            "trigger_conditions",
            "object",
        ),
        ("task_get", {"task_id": "x" * 101}, "task_id", "longer than 100"),
        ("task_get", {"": 1, "task_id": "x"}, '""', "is not an argument of this tool"),
        ("get_agent", {"agent_id": "x" * 201}, "agent_id", "longer than 200"),
    ],
)
def test_wrong_type_or_range_is_worded(
    client: Client, tool: str, arguments: Row, field: str, sentence: str
) -> None:
    given = {"context": "c", "decision": "d", **arguments} if tool == "decision_log" else arguments
    body = client.refused(tool, **given)
    assert (body["code"], body["field"]) == ("validation_error", field)
    assert body["error"].startswith(f"{field} ")
    assert sentence in body["error"]


def test_every_wrong_argument_is_reported_at_once(client: Client) -> None:
    body = client.refused("task_create", title=1, priority="x", metadata=2, nonsense=3)
    assert body["field"] == "title"
    assert {problem["field"] for problem in body["errors"]} == {"priority", "metadata", "nonsense"}
    assert len(client.refused("task_create", **{f"a{n}": 1 for n in range(1000)})["errors"]) == 9


@pytest.mark.parametrize("arguments", ["{}", "null", None])
def test_missing_arguments_are_asked_for(client: Client, arguments: str | None) -> None:
    result = client.call_json("task_create", arguments)
    assert result.is_error
    assert (result.body["code"], result.body["error"]) == ("validation_error", "title is required")
    assert client.call_json("ping", arguments).body["pong"] is True


def test_half_a_surrogate_pair_is_refused(modern: Client, older: Client, folder: Path) -> None:
    before = count(folder)
    for arguments in ('{"title": "\\ud800"}', '{"title": "t", "metadata": {"\\udc00": 1}}'):
        result = modern.call_json("task_create", arguments)
        assert result.is_error
        assert "half a surrogate pair" in result.body["error"]
        with pytest.raises(ProtocolError) as refusal:
            older.call_json("task_create", arguments)
        assert (refusal.value.status, refusal.value.error["code"]) == (400, -32700)
    assert count(folder) == before


@pytest.mark.parametrize(
    "title",
    [
        "🙂👩‍👩‍👧",
        "مرحبا שלום",
        "e\u0301 \u202e \ufeff \u200b",
        "line\nreturn\r\ttab\x0b\x1b\x7f\x85\u2028\u2029",
        "\ud7ff\ue000\ufffe\uffff\U0010ffff",
        "'; DROP TABLE tasks; --",
        "x" * 500,
        "漢" * 500,
    ],
)
def test_text_comes_back_as_it_was(client: Client, title: str) -> None:
    row = client.done("task_create", title=title, metadata={title: [title]})
    assert row["title"] == title
    assert row["metadata"] == {title: [title]}
    assert client.done("task_get", task_id=row["id"])["task"] == row


def test_numbers_at_the_edge_come_back_as_they_were(client: Client) -> None:
    numbers = [2**63 - 1, -(2**63), 0, -0.0, 1e308, 5e-324, 2**53 + 1, 0.1]
    row = client.done("task_create", title="t", metadata={"n": numbers})
    assert client.done("task_get", task_id=row["id"])["task"]["metadata"]["n"] == numbers


def test_deepest_metadata_comes_back_as_it_was(client: Client) -> None:
    # The arguments are the first level and metadata the second.
    result = client.call_json("task_create", f'{{"title": "t", "metadata": {deep(63)}}}')
    assert not result.is_error
    assert client.done("task_get", task_id=result.body["id"])["task"]["metadata"] == json.loads(deep(63))


# Envelopes that are no call at all


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ('{"name": "task_create", "arguments": [1]}', -32602),
        ('{"name": "task_create", "arguments": "x"}', -32602),
        ('{"name": "task_create", "arguments": 1}', -32602),
        ('{"name": "task_create", "arguments": true}', -32602),
        ('{"arguments": {}}', -32602),
        (f'{{"name": "task_create", "arguments": {{"title": {deep(100_000)}}}}}', -32700),
        (f'{{"name": "task_create", "arguments": {{"title": {"9" * 5000}}}}}', -32700),
        ('{"name": "task_create", "arguments": {"title": "t"', -32700),
        ('{"name": "task_create", "arguments": {"title": \'t\'}}', -32700),
    ],
    ids=lambda value: str(value)[:60],
)
def test_malformed_envelope_is_a_protocol_error(client: Client, folder: Path, params: str, code: int) -> None:
    before = count(folder)
    with pytest.raises(ProtocolError) as refusal:
        client.request("tools/call", params, "task_create")
    assert refusal.value.status in (200, 400)
    assert refusal.value.error["code"] == code
    assert not FOREIGN_WORDS.search(json.dumps(refusal.value.error).replace("Parse error", ""))
    assert count(folder) == before


def test_body_over_the_limit_is_refused(client: Client, folder: Path) -> None:
    before = count(folder)
    arguments = json.dumps({"title": "t", "description": "x" * 5_000_000})
    with pytest.raises(ProtocolError) as refusal:
        client.call_json("task_create", arguments)
    assert refusal.value.status == 413
    assert count(folder) == before


def test_large_body_within_the_limit_is_answered_in_our_words(client: Client) -> None:
    numbers = list(range(100_000))
    refusal = client.refused("task_create", title="t", metadata={"k" * 100_000: numbers})
    assert (refusal["code"], refusal["field"]) == ("validation_error", "metadata")
    kept = {"k" * 10_000: list(range(10_000))}
    assert client.done("task_create", title="t", metadata=kept)["metadata"] == kept


def test_longest_texts_that_are_taken_can_be_searched_for(client: Client) -> None:
    longest = "word " * 20_000
    task = client.done("task_create", title="t", description=longest)["id"]
    client.done("decision_log", context=longest, decision=longest)
    client.done("pattern_store", name="n", description=longest, trigger_conditions={}, actions={})
    client.done("decision_search", query=longest)
    client.done("pattern_match", situation=longest)
    client.done("context_for_task", task_id=task)
    client.done("route_task", task_id=task, assign=True)
    client.done("orchestrator_classify", title="t", description=longest)
