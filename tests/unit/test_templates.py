"""Templates: what is read, what is refused and where, and that values arrive exactly as they were given."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.templates import (
    MAX_BYTES,
    MAX_RENDERED,
    MAX_VALUE,
    Rendered,
    Template,
    TemplateTask,
    Variable,
    parse,
    render,
)

FULL = """
name: Ship it
title: "Ship {{ WHAT }}"
description: Ship {{WHAT}} to {{  WHERE  }}
category: delivery
variables:
  WHAT: {description: The thing}
  WHERE: {default: production, allowed_values: [production, staging]}
  WHEN: {required: false}
guidelines:
  - Never ship {{ WHAT }} on a Friday
context:
  goal: "{{ WHAT }} in {{ WHERE }} {{ WHEN }}"
  flags: [true, null, "{{ WHAT }}", 3.10]
phases:
  - name: Build {{ WHAT }}
    description: Make {{ WHAT }}
    tasks:
      - Compile {{ WHAT }}
      - {name: Pack, description: "Pack {{ WHAT }}"}
      - {title: Sign}
    metadata: {owner: "{{ WHERE }}"}
  - name: Ship
    dependencies: [1]
  - name: Watch
    dependencies: [Ship, "Build {{ WHAT }}"]
metadata:
  version: 1.10
"""
# Everything that a careless substitution would read again.
NASTY = [
    "say \"hi\" and 'bye'",
    "{{ WHERE }}",
    "{{WHAT}} {{ NOBODY }}",
    "{{",
    "}}",
    "a\nb\r\n\tc",
    r"\1 \g<0> \\ C:\new",
    "$1 ${HOME} $(id) `id` %s %(x)s {0} {x}",
    "naïve 数据 🚀 \u202e",
    "  padded  ",
    "- a: [b, *c] # d",
    "\x00",
]
pieces = st.sampled_from([*NASTY, "{", "}", "{{ ", " }}", "\\", "WHAT", "$", "\n"])
texts = st.text(max_size=80) | st.lists(pieces, max_size=8).map("".join)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def template(text: str) -> Template:
    return parse("example", text)


EXAMPLE = template(FULL)


def minimal(**variable: str) -> Template:
    fields = "".join(f"\n    {name}: {value}" for name, value in variable.items())
    return template(f"name: N {{{{ V }}}} N\nvariables:\n  V:{fields}\nphases:\n  - name: P\n    tasks: [T]")


def refusal(text: str) -> Invalid:
    with pytest.raises(Invalid) as caught:
        template(text)
    assert caught.value.message.startswith("template example: ")
    assert caught.value.data == {"template": "example"}
    return caught.value


def refused(given: Any, of: Template) -> Invalid:
    with pytest.raises(Invalid) as caught:
        render(of, given)
    return caught.value


def strings(rendered: Rendered) -> list[str]:
    """Every text of a rendered plan, except the values themselves."""
    found = [rendered.title, rendered.description]
    stack: list[Any] = [rendered.context, rendered.metadata, *(phase.metadata for phase in rendered.phases)]
    while stack:
        item = stack.pop()
        if isinstance(item, dict | list):
            stack += item.values() if isinstance(item, dict) else item
        elif isinstance(item, str):
            found.append(item)
    for phase in rendered.phases:
        found += [phase.name, phase.description]
        found += [text for task in phase.tasks for text in (task.title, task.description)]
    return found


def test_every_field_is_read() -> None:
    read = template(FULL)
    assert (read.slug, read.name, read.title, read.category) == (
        "example",
        "Ship it",
        "Ship {{ WHAT }}",
        "delivery",
    )
    assert read.source == FULL
    assert read.variables == (
        Variable("WHAT", "The thing", required=True),
        Variable("WHERE", "", required=False, default="production", allowed_values=("production", "staging")),
        Variable("WHEN", "", required=False),
    )
    assert [phase.dependencies for phase in read.phases] == [(), (1,), (1, 2)]
    assert read.metadata == {"version": "1.10"}


def test_placeholders_are_filled_in_every_string() -> None:
    rendered = render(EXAMPLE, {"WHAT": "it"})
    assert rendered.title == "Ship it"
    assert rendered.description == "Ship it to production"
    assert rendered.context == {
        "goal": "it in production ",
        "flags": [True, None, "it", "3.10"],
        "guidelines": ["Never ship it on a Friday"],
    }
    assert rendered.phases[0].name == "Build it"
    assert rendered.phases[0].metadata == {"owner": "production"}
    assert rendered.phases[0].tasks == (
        TemplateTask("Compile it"),
        TemplateTask("Pack", "Pack it"),
        TemplateTask("Sign"),
    )
    assert rendered.variables == {"WHAT": "it", "WHERE": "production", "WHEN": ""}


def test_title_is_the_name_when_there_is_none_and_a_text_context_is_the_background() -> None:
    rendered = render(template("name: N\ncontext: |\n  some\n  words\nphases: [{name: P}]"), {})
    assert (rendered.title, rendered.context) == ("N", {"background": "some\nwords"})


@pytest.mark.parametrize("value", NASTY)
def test_a_value_survives_exactly(value: str) -> None:
    rendered = render(EXAMPLE, {"WHAT": value})
    assert rendered.title == f"Ship {value}"
    assert rendered.phases[0].tasks[1].description == f"Pack {value}"
    assert rendered.context["guidelines"] == [f"Never ship {value} on a Friday"]


@settings(deadline=None)
@given(texts)
def test_any_text_is_found_verbatim_in_the_output(value: str) -> None:
    rendered = render(EXAMPLE, {"WHAT": "it", "WHEN": value})
    assert rendered.context["goal"] == f"it in production {value}"
    assert rendered.variables["WHEN"] == value


@settings(deadline=None)
@given(st.sampled_from(["{{ WHERE }}", "{{WHAT}}", "{{ WHEN }}"]), texts, texts)
def test_a_placeholder_inside_a_value_is_not_expanded(placeholder: str, before: str, after: str) -> None:
    value = f"{before[:500]}{placeholder}{after[:500]}"
    rendered = render(EXAMPLE, {"WHAT": value, "WHERE": "staging", "WHEN": "never"})
    whole = "\n".join(strings(rendered))
    assert whole.count(value) >= 9
    assert rendered.title == f"Ship {value}"


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["WHAT", "WHERE", "WHEN"]) | st.text(max_size=9), anything))
def test_rendering_raises_nothing_but_invalid(variables: dict[str, Any]) -> None:
    try:
        rendered = render(EXAMPLE, variables)
    except Invalid as error:
        assert error.field == error.data["errors"][0]["field"]
        assert all(f"{one['field']} {one['error']}" in error.message for one in error.data["errors"])
    else:
        assert rendered.variables["WHEN"] in rendered.context["goal"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.integers(0, len(FULL)), st.integers(0, 40))
def test_parsing_raises_nothing_but_invalid(junk: str, start: int, cut: int) -> None:
    try:
        template(FULL[:start] + junk + FULL[start + cut :])
    except Invalid as error:
        assert error.data == {"template": "example"}


@pytest.mark.parametrize(
    ("value", "written"),
    [(True, "true"), (False, "false"), (3, "3"), (-2.5, "-2.5"), ("3.10", "3.10"), (2**63, str(2**63))],
)
def test_numbers_and_booleans_are_written_as_json_writes_them(value: object, written: str) -> None:
    assert render(minimal(), {"V": value}).title == f"N {written} N"


@pytest.mark.parametrize("value", [None, [], ["x"], {}, {"a": 1}, b"x", float("nan"), float("inf"), 2**1001])
def test_a_value_of_another_kind_is_refused(value: object) -> None:
    assert refused({"V": value}, minimal()).field == "variables.V"


def test_a_value_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert len(render(minimal(), {"V": "x" * MAX_VALUE}).title) == MAX_VALUE + 4
    assert refused({"V": "x" * (MAX_VALUE + 1)}, minimal()).field == "variables.V"
    assert refused({"V": 10**5000}, minimal()).field == "variables.V"


@pytest.mark.parametrize("value", ["", " ", "\n\t"])
def test_a_blank_value_does_not_satisfy_a_required_variable(value: str) -> None:
    assert refused({"V": value}, minimal()).message == "variables.V is required and may not be blank"
    assert render(minimal(required="false"), {"V": value}).title == f"N {value} N"


def test_a_heading_that_would_be_blank_is_refused() -> None:
    headed = template("name: N\nvariables: {V: {default: ''}}\nphases: [{name: P, tasks: ['{{ V }}']}]")
    assert refused({}, headed).message == "phases[0].tasks[0] would be blank"
    assert render(headed, {"V": "T"}).phases[0].tasks[0].title == "T"


def test_all_problems_with_the_variables_come_in_one_error() -> None:
    error = refused({"WHERE": "moon", "WHEN": [], "WHO": "me"}, EXAMPLE)
    assert error.field == "variables.WHAT"
    assert error.data["errors"] == [
        {"field": "variables.WHAT", "error": "is required"},
        {"field": "variables.WHERE", "error": "must be one of production, staging"},
        {"field": "variables.WHEN", "error": "must be text, a number, true or false"},
        {"field": "variables.WHO", "error": "is not a variable of this template"},
    ]
    for name in ("WHAT", "WHERE", "WHEN", "WHO"):
        assert f"variables.{name} " in error.message
    assert error.hint == "variables of example: WHAT (required), WHERE, WHEN"


def test_thousands_of_unknown_names_make_a_short_error() -> None:
    error = refused({f"X{n}" * 100: "" for n in range(5_000)}, minimal(default="d"))
    assert len(error.message) < 4_000
    assert "and 4980 more" in error.message


def test_variables_that_are_no_object_are_refused() -> None:
    assert refused(["WHAT"], EXAMPLE).field == "variables"


def test_a_plan_that_would_be_too_long_is_refused() -> None:
    many = "{{ V }}" * (MAX_RENDERED // MAX_VALUE + 1)
    large = template(f"name: N\ndescription: '{many}'\nvariables: {{V: }}\nphases: [{{name: P}}]")
    assert refused({"V": "x" * MAX_VALUE}, large).field == "variables"
    assert render(large, {"V": "x"}).description == "x" * (MAX_RENDERED // MAX_VALUE + 1)


@pytest.mark.parametrize(
    ("fields", "required"),
    [
        ({}, True),
        ({"description": "d"}, True),
        ({"default": "d"}, False),
        ({"default": "''"}, False),
        ({"required": "true"}, True),
        ({"required": "false"}, False),
    ],
)
def test_required_means_the_same_in_listing_and_in_validation(fields: dict[str, str], required: bool) -> None:
    one = minimal(**fields)
    assert one.variables[0].required is required
    if required:
        assert refused({}, one).message == "variables.V is required"
    else:
        render(one, {})


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"enum": "[a, b]"}, "b", "c"),
        ({"allowed_values": "[yes, 3.10, true]"}, "yes", "3.1"),
        ({"allowed_values": "[1, 2]"}, 2, 3),
        ({"allowed_values": "[true, other]"}, True, False),
        ({"pattern": r"'[a-z]+(-[a-z]+)*'"}, "a-bc-d", "a-"),
        ({"pattern": r"'^v?\d+\.\d+$'"}, "v1.20", "v1.20\n"),
        ({"pattern": "'a'"}, "a", "xax"),
        ({"charset": "slug"}, "a-1", "A"),
        ({"charset": "identifier"}, "a_1", "1a"),
    ],
)
def test_values_are_held_to_the_rules_of_their_variable(fields: dict[str, str], good: Any, bad: Any) -> None:
    one = minimal(**fields)
    render(one, {"V": good})
    assert refused({"V": bad}, one).field == "variables.V"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ""),
        ("- a", ""),
        ("phases: [{name: P}]", "name"),
        ("name: [a]\nphases: [{name: P}]", "name"),
        ("name: true\nphases: [{name: P}]", "name"),
        ("name: N", "phases"),
        ("name: N\nphases: []", "phases"),
        ("name: N\nphases: {name: P}", "phases"),
        ("name: N\nphases: [P]", "phases[0]"),
        ("name: N\nphases: [{name: P}, {name: Q}, {name: R, tasks: do it}]", "phases[2].tasks"),
        ("name: N\nphases: [{name: P, tasks: [a, [b]]}]", "phases[0].tasks[1]"),
        ("name: N\nphases: [{name: P, tasks: ['']}]", "phases[0].tasks[0]"),
        ("name: N\nphases: [{name: P, tasks: [{description: d}]}]", "phases[0].tasks[0].name"),
        ("name: N\nphases: [{name: P, tasks: [{name: a, title: b}]}]", "phases[0].tasks[0].title"),
        ("name: N\nphases: [{name: P, tasks: [{name: a, prio: 1}]}]", "phases[0].tasks[0].prio"),
        ("name: N\nphases: [{name: P, taks: []}]", "phases[0].taks"),
        ("name: N\nphases: [{name: P, dependencies: [P]}]", "phases[0].dependencies[0]"),
        ("name: N\nphases: [{name: P, dependencies: [0]}]", "phases[0].dependencies[0]"),
        ("name: N\nphases: [{name: P}, {name: Q, dependencies: [2]}]", "phases[1].dependencies[0]"),
        ("name: N\nphases: [{name: P, metadata: x}]", "phases[0].metadata"),
        ("name: N\nphase: []\nphases: [{name: P}]", "phase"),
        ("name: N\nguidelines: be good\nphases: [{name: P}]", "guidelines"),
        ("name: N\nguidelines: [a]\ncontext: {guidelines: b}\nphases: [{name: P}]", "context.guidelines"),
        ("name: N\ncontext: [a]\nphases: [{name: P}]", "context"),
        ("name: N\nvariables: [V]\nphases: [{name: P}]", "variables"),
        ("name: N\nvariables: {V: text}\nphases: [{name: P}]", "variables.V"),
        ("name: N\nvariables: {'A B': }\nphases: [{name: P}]", "variables.A B"),
        ('name: "N\\0"\nphases: [{name: P}]', "name"),
        ("name: N {{ V }}\nphases: [{name: P}]", "name"),
        ("name: N\nphases: [{name: P, tasks: ['T {{ V }}']}]", "phases[0].tasks[0]"),
        ("name: N\ncontext: {a: [x, '{{ V }}']}\nphases: [{name: P}]", "context.a[1]"),
        ("name: N\ncontext: {'{{ V }}': a}\nphases: [{name: P}]", "context.{{ V }}"),
        ("name: N\nvariables: {V: }\ndescription: '{{ V | upper }}'\nphases: [{name: P}]", "description"),
        ("name: N\nvariables: {V: }\ndescription: '{{ V'\nphases: [{name: P}]", "description"),
        (f"name: N\nphases: [{', '.join(['{name: P}'] * 51)}]", "phases"),
        (f"name: N\nphases: [{{name: P, tasks: [{', '.join('a' * 101)}]}}]", "phases[0].tasks"),
    ],
)
def test_a_wrong_structure_is_refused_with_its_place(text: str, path: str) -> None:
    assert refusal(text).field == path


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ("{requird: true}", "requird"),
        ("{required: maybe}", "required"),
        ("{required: true, default: d}", "required"),
        ("{default: [a]}", "default"),
        ("{default: c, enum: [a]}", "default"),
        ("{enum: [a], allowed_values: [a]}", "enum"),
        ("{allowed_values: []}", "allowed_values"),
        ("{enum: [[a]]}", "enum[0]"),
        ("{pattern: '('}", "pattern"),
        ("{charset: runes}", "charset"),
        (f"{{pattern: {'a' * 201}}}", "pattern"),
    ],
)
def test_a_wrong_variable_is_refused_with_its_place(fields: str, path: str) -> None:
    error = refusal(f"name: N\nvariables: {{V: {fields}}}\nphases: [{{name: P}}]")
    assert error.field == f"variables.V.{path}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: N\nphases: [a, }", "line 2"),
        ("name: 'N", "line 1"),
        ("name: N\nname: M", "line 2, column 1"),
        ("name: N\n? [a]\n: b", "line 2"),
        ("name: N\n---\nname: M", "line 2"),
        ("a: &x [1]\nb: *x", "line 2"),
        ("name: !!python/object/apply:os.system [id]", "line 1"),
        ("name: !!binary aGk=", "line 1"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_line(text: str, place: str) -> None:
    assert str(refusal(text).field).startswith(place)


def test_characters_and_numbers_that_yaml_cannot_hold_are_refused() -> None:
    for text in ("\x00", "a: \ud800", '"\\UFFFFFFFF"', f"%YAML {'9' * 5000}.1\n--- a"):
        refusal(text)


@pytest.mark.parametrize("opening", ["[", "- ", "{a: ", "? "])
def test_deep_nesting_costs_nothing(opening: str) -> None:
    started = time.monotonic()
    assert str(refusal(opening * 60_000).field).startswith("line 1")
    assert time.monotonic() - started < 2


def test_a_bomb_of_aliases_costs_nothing() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    started = time.monotonic()
    assert "alias" in refusal("\n".join(lines)).message
    assert time.monotonic() - started < 1


def test_a_text_over_the_limit_is_not_even_read() -> None:
    assert "256 KB" in refusal("# " + "é" * (MAX_BYTES // 2)).message


def test_words_keep_their_spelling() -> None:
    words = "allowed_values: [no, on, 1.10, 0o17, 2024-01-31, 1_000, .inf, <<, =]"
    read = template(f"name: N\nvariables: {{V: {{{words}}}}}\nphases: [{{name: P}}]")
    assert read.variables[0].allowed_values == (
        *("no", "on", "1.10", "0o17", "2024-01-31", "1_000", ".inf", "<<", "="),
    )


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)*b", "a*a*a*a*a*a*b", "(.*a){12}b", "(a?){300}b"])
def test_a_catastrophic_pattern_does_not_hang(pattern: str) -> None:
    started = time.monotonic()
    assert refused({"V": "a" * (MAX_VALUE - 1) + "!"}, minimal(pattern=f"'{pattern}'")).field == "variables.V"
    assert time.monotonic() - started < 5
