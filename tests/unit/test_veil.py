"""Secrets in a text that comes in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.run.veil import Veil

SECRETS = {"mcp_token": "[token]", "key": "[secret]"}
TEXT = "use mcp_token, not my mcp_tok or the key; k"


def shown(*pieces: str) -> list[str]:
    veil = Veil(lambda: SECRETS)
    return [*map(veil.add, pieces), veil.rest()]


@given(st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_however_a_text_is_cut_its_secrets_are_not_in_it(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[begin:end] for begin, end in pairwise(places)]
    assert "".join(shown(*pieces)) == "use [token], not my mcp_tok or the [secret]; k"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (("good evening",), ["good evening", ""]),
        (("a mcp_", "tok", "en b"), ["a ", "", "[token] b", ""]),
        (("a mcp_", "x"), ["a ", "mcp_x", ""]),
        (("it ends with k",), ["it ends with ", "k"]),
    ],
)
def test_only_what_may_be_a_secret_waits(pieces: tuple[str, ...], expected: list[str]) -> None:
    assert shown(*pieces) == expected
