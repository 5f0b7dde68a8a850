"""The result of a call as it goes out: the same as JSON text and as an object."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quarterdeck.surfaces.table import encoded, result

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
ANSWERS = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(ANSWERS, st.booleans())
@example({"said": 'a "quote", a back\\slash, \x00, \x1f, \x7f, \u2028 and a line\nbreak'}, False)
@example({"half a pair": "\ud800 and \\udfff"}, True)
def test_text_form_says_the_same_as_the_object(answer: object, error: bool) -> None:
    shown = result(answer, error=error)
    assert json.loads(encoded(shown)) == shown
    sent = encoded(shown).encode(errors="backslashreplace")
    assert json.loads(sent) == shown


@pytest.mark.parametrize("answer", [{"a": 1}, [], "{", 0, None])
def test_structure_is_always_an_object(answer: object) -> None:
    shown = json.loads(encoded(result(answer)))
    assert shown["structuredContent"] == (answer if isinstance(answer, dict) else {"result": answer})
    assert json.loads(shown["content"][0]["text"]) == answer
