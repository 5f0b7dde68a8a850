"""Patterns of templates: the meaning that Python gives them, without the time it can take."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.domain.regex import Pattern
from quarterdeck.domain.templates import CHARSETS

atoms = st.sampled_from(
    [
        *("", "a", "b", "-", ".", "é", r"\.", r"\d", r"\W", r"\n"),
        *("[ab]", "[^a]", "[a-c1-]", "[]a]", "[^]]", "[[&|~]", r"[\w-]", r"[\]b]"),
    ]
)
counts = st.sampled_from(["*", "+", "?", "{2}", "{0}", "{1,3}", "{,2}", "{2,}", "{,}", "*?", "{0,2}?"])
groups = st.builds("({}|{}{}){}".format, atoms, atoms, atoms, counts | st.just(""))
sequences = st.lists(st.one_of(atoms, groups, st.builds("(?:{}){}".format, atoms, counts)), max_size=4)
alternatives = st.lists(sequences.map("".join), min_size=1, max_size=2).map("|".join)


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@settings(max_examples=300, deadline=None)
@given(alternatives, st.lists(st.text("ab1-.&é]\n", max_size=6), min_size=1, max_size=10))
def test_patterns_mean_what_they_mean_to_python(pattern: str, values: list[str]) -> None:
    ours = Pattern(pattern)
    for value in values:
        assert ours.fullmatch(value) == bool(re.fullmatch(pattern, value)), value


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[a-z0-9]+(-[a-z0-9]+)*$", "a-b2-c", "a--b"),
        (r"v?\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?", "v1.20.3-rc.1", "1.2"),
        (r"(?P<key>[A-Z]{2,10})-\d{1,6}", "QD-12", "Q-12"),
        (r"https?://[^\s/]+(/\S*)?", "https://example.com/a?b", "ftp://example.com"),
        (r"[^\n]{1,120}", "one line", "two\nlines"),
    ],
)
def test_everyday_patterns_work(pattern: str, good: str, bad: str) -> None:
    assert Pattern(pattern).fullmatch(good)
    assert not Pattern(pattern).fullmatch(bad)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "[", "[]", "[a", "[z-a]", "[a--b]", "*", "a**", "a++", "{2}", "a{2}{3}", "a{3,2}"),
        *("{", "a|*", "\\", r"\b", r"\1", r"\Z", "(?=a)", "(?!a)", "(?<=a)", "(?i)a", "(?P=n)", "(?P<>a)"),
        *("a^b", "a$b", "a{1001}", "((((a{9}){9}){9}){9})", "((((){999}){999}){999}){999}", "(" * 30),
        "a" * 201,
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^(has|is|may|ends|repeats) "):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "((a|a)+)+b", ".*.*.*.*.*.*b", ".*a.{900}b", "(a|b|ab)*c"])
def test_the_worst_patterns_answer_soon(pattern: str) -> None:
    started = time.monotonic()
    assert not Pattern(pattern).fullmatch("ab" * 999 + "a!")
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("name", CHARSETS)
def test_every_charset_is_a_usable_pattern(name: str) -> None:
    assert Pattern(CHARSETS[name]).fullmatch("")
    assert not Pattern(CHARSETS[name]).fullmatch("é\n")
