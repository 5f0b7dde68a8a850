"""Arguments: what is refused before validation, how a refusal is worded, and the short schemas."""

from __future__ import annotations

import json
import tracemalloc
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, field_validator

from quarterdeck.domain.errors import Invalid
from quarterdeck.surfaces.all import SURFACES
from quarterdeck.surfaces.schema import Args, Id, Label, Some, Text, Title, json_schema, normal, parse

TOOLS = {
    f"{surface.name}.{tool.name}": tool for surface in SURFACES.values() for tool in surface.tools.values()
}


class Inner(Args):
    path: Label
    depth: int = 1


class Example(Args):
    title: Title
    note: Text | None = None
    size: Annotated[int, Field(ge=1, le=10)] = 5
    share: Annotated[float, Field(ge=0.5)] | None = None
    force: bool = False
    colour: Literal["red", "green"] = "red"
    shade: Literal["red", "green"] | None = None
    tags: Annotated[list[Label], Field(max_length=3)] | None = None
    data: dict[str, Any] | None = None
    inner: Inner | None = None
    needed: Inner = Inner(path="p")
    many: tuple[Inner, ...] = ()
    either: int | str | None = None
    odd: str = "x"

    @field_validator("odd")
    @classmethod
    def _even(cls, value: str) -> str:
        if len(value) % 2 == 0:
            raise ValueError("must have an odd length")
        return value


def refusal(arguments: dict[str, Any]) -> Invalid:
    with pytest.raises(Invalid) as caught:
        parse(Example, arguments)
    return caught.value


def nested(levels: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind is dict else [value]
    return value


# What no store takes


@pytest.mark.parametrize(
    ("arguments", "field", "sentence"),
    [
        ({"a": "x\0y"}, "a", "a contains a NUL character"),
        ({"a": {"b": ["", "\0"]}}, "a.b[1]", "a.b[1] contains a NUL character"),
        ({"a": {"\0": 1}}, "a", "a name in a contains a NUL character"),
        ({"\0": 1}, "", "a name in the arguments contains a NUL character"),
        ({"a": "\ud800"}, "a", "a contains half a surrogate pair"),
        ({"a": [{"\udfff": 1}]}, "a[0]", "a name in a[0] contains half a surrogate pair"),
        ({"a": float("nan")}, "a", "a must be a finite number"),
        ({"a": [float("inf")]}, "a[0]", "a[0] must be a finite number"),
        ({"a": -float("inf")}, "a", "a must be a finite number"),
        ({"a": 2**63}, "a", "a does not fit in 64 bits"),
        ({"a": -(2**63) - 1}, "a", "a does not fit in 64 bits"),
        ({"": {"": "\0"}}, '"".""', '""."" contains a NUL character'),
        ({"a": nested(64, dict)}, "a", "a is nested deeper than 64 levels"),
        ({"a": nested(64, list)}, "a", "a is nested deeper than 64 levels"),
        ({"a": nested(10_000, list)}, "a", "a is nested deeper than 64 levels"),
    ],
)
def test_value_that_no_store_takes_is_refused(arguments: dict[str, Any], field: str, sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        normal(arguments)
    assert (caught.value.message, caught.value.field) == (sentence, field)


@pytest.mark.parametrize(
    "value",
    [
        *("", "a\nb\t\x01\x7f", "🙂 \ud7ff\ue000\U0010ffff", None, True, False, 0.0, -0.0, 1e308, 5e-324),
        *(2**63 - 1, -(2**63), [], {}, {"": {}}, nested(63, dict), nested(63, list)),
    ],
)
def test_every_other_value_is_let_through(value: Any) -> None:
    normal({"a": value})


def test_long_name_over_many_values_costs_neither_memory_nor_a_long_answer() -> None:
    # A path built for each value would take a gigabyte here.
    arguments = {"k" * 100_000: [0] * 10_000 + [float("nan")]}
    tracemalloc.start()
    try:
        with pytest.raises(Invalid) as caught:
            normal(arguments)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    assert len(caught.value.message) < 300


# The wording of a refusal


@pytest.mark.parametrize(
    ("arguments", "field", "sentence"),
    [
        ({}, "title", "is required"),
        ({"title": 1}, "title", "must be a string"),
        ({"title": None}, "title", "must be a string"),
        ({"title": ""}, "title", "must not be empty"),
        ({"title": "x" * 501}, "title", "is longer than 500 characters"),
        ({"size": "x"}, "size", "must be an integer"),
        ({"size": 1.5}, "size", "must be an integer"),
        ({"size": []}, "size", "must be an integer"),
        ({"size": "9" * 5000}, "size", "is too large"),
        ({"size": 0}, "size", "must be at least 1"),
        ({"size": 11}, "size", "must be at most 10"),
        ({"share": 0.4}, "share", "must be at least 0.5"),
        ({"share": "x"}, "share", "must be a number"),
        ({"share": {}}, "share", "must be a number"),
        ({"force": "x"}, "force", "must be true or false"),
        ({"force": []}, "force", "must be true or false"),
        ({"colour": "blue"}, "colour", "must be one of 'red', 'green'"),
        ({"shade": "blue"}, "shade", "must be one of 'red', 'green'"),
        ({"tags": "x"}, "tags", "must be an array"),
        ({"tags": ["x", 1]}, "tags[1]", "must be a string"),
        ({"tags": ["x"] * 4}, "tags", "has more than 3 entries"),
        ({"data": []}, "data", "must be an object"),
        ({"inner": 1}, "inner", "must be an object"),
        ({"inner": {}}, "inner.path", "is required"),
        ({"inner": {"path": "p", "pth": 1}}, "inner.pth", "is not an argument of this tool"),
        ({"many": [{"path": "p"}, {"path": ""}]}, "many[1].path", "must not be empty"),
        ({"titel": "x"}, "titel", "is not an argument of this tool"),
        ({"": "x"}, '""', "is not an argument of this tool"),
        ({"odd": "even"}, "odd", "must have an odd length"),
    ],
)
def test_refusal_says_what_is_wrong_with_which_argument(
    arguments: dict[str, Any], field: str, sentence: str
) -> None:
    error = refusal(arguments if field == "title" else {"title": "t", **arguments})
    assert error.field == field
    assert error.message == f"{field} {sentence}"
    assert error.hint == "see the tool's input schema"
    assert error.data == {}


def test_further_problems_follow_the_first_ten_in_all() -> None:
    error = refusal({"title": 1, "size": "x", "colour": "blue"})
    assert error.field == "title"
    assert error.data["errors"] == [
        {"field": "size", "error": "must be an integer"},
        {"field": "colour", "error": "must be one of 'red', 'green'"},
    ]
    many = refusal({"title": "t", **{f"unknown{n}": n for n in range(100)}})
    assert len(many.data["errors"]) == 9


def test_long_name_is_cut_in_the_refusal() -> None:
    error = refusal({"title": "t", "n" * 10_000: 1})
    assert error.field == "n" * 200


def test_right_arguments_are_parsed_with_their_defaults() -> None:
    parsed = parse(Example, {"title": "t", "inner": {"path": "p"}, "many": [{"path": "q", "depth": 2}]})
    assert parsed.size == 5
    assert parsed.inner == Inner(path="p", depth=1)
    assert parsed.many == (Inner(path="q", depth=2),)
    assert parsed.note is None


@pytest.mark.parametrize(("kind", "longest"), [(Id, 100), (Label, 200), (Title, 500), (Some, 100_000)])
def test_kinds_of_text_have_their_limits(kind: Any, longest: int) -> None:
    class One(Args):
        text: kind

    assert parse(One, {"text": "x" * longest})
    for wrong in ("", "x" * (longest + 1)):
        with pytest.raises(Invalid):
            parse(One, {"text": wrong})


# The schema that agents read


def test_schema_is_short_and_says_what_is_needed() -> None:
    inner = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "depth": {"type": "integer", "default": 1}},
        "required": ["path"],
    }
    assert json_schema(Example) == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "note": {"type": "string"},
            "size": {"type": "integer", "minimum": 1, "maximum": 10, "default": 5},
            "share": {"type": "number", "minimum": 0.5},
            "force": {"type": "boolean", "default": False},
            "colour": {"type": "string", "enum": ["red", "green"], "default": "red"},
            "shade": {"type": "string", "enum": ["red", "green"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "data": {"type": "object"},
            "inner": inner,
            "needed": inner | {"default": {"path": "p", "depth": 1}},
            "many": {"type": "array", "items": inner},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "odd": {"type": "string", "default": "x"},
        },
        "required": ["title"],
    }


def test_schema_of_no_arguments_is_an_empty_object() -> None:
    class Nothing(Args):
        pass

    assert json_schema(Nothing) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", TOOLS)
def test_schema_of_every_tool_is_one_object_without_references(name: str) -> None:
    schema = TOOLS[name].input_schema
    assert schema["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf"} & schema.keys()
    assert set(schema.get("required", ())) <= schema["properties"].keys()
    text = json.dumps(schema)
    assert "$ref" not in text
    assert '"null"' not in text
    # Each argument is described by its type, an argument called title included.
    assert all(isinstance(inner, dict) and inner for inner in schema["properties"].values())
