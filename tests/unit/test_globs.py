"""Patterns of file names, as people write them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.domain.globs import compiled, matches

names = st.text(st.sampled_from("ab.*?[]!-{},x "), min_size=1, max_size=6)
parts = st.text(st.sampled_from("abx."), min_size=1, max_size=4).filter(lambda name: name.strip("."))
paths = st.lists(parts, min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("**/*.ts", "a.ts"),
        ("**/*.ts", "src/deep/er/a.ts"),
        ("*.ts", "src/deep/a.ts"),
        ("src/**", "src/a/b/c"),
        ("src/", "src/a/b/c"),
        ("src/**/test_*.py", "src/test_a.py"),
        ("src/**/test_*.py", "src/a/b/test_a.py"),
        ("**/a/**/b", "x/a/y/a/z/b"),
        ("src/*/index.js", "src/a/index.js"),
        ("./src/*.js", "src/a.js"),
        ("**/*.{ts,tsx}", "src/a.tsx"),
        ("{src,lib}/**/*.{c,h}", "lib/a/b.h"),
        ("{a,{b,c}}.py", "c.py"),
        ("[ab].py", "b.py"),
        ("[!ab].py", "c.py"),
        ("a?c", "abc"),
        ("**", "any/thing"),
        (".*", "x/.env"),
        ("größe/*.md", "größe/ä.md"),
    ],
)
def test_pattern_takes_the_path(pattern: str, path: str) -> None:
    assert matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("**/*.ts", "a.tsx"),
        ("**/*.ts", "a.ts/b"),
        ("src/*.ts", "src/a/b.ts"),
        ("src/*.ts", "x/src/a.ts"),
        ("src/**", "source/a"),
        ("*.TS", "a.ts"),
        ("a?c", "a/c"),
        ("[!ab].py", "a.py"),
        ("**/a/**/b", "a/c"),
        ("{a}.py", "a.py"),
        ("a.b", "axb"),
    ],
)
def test_pattern_leaves_the_path(pattern: str, path: str) -> None:
    assert not matches(pattern, path)


@given(names, paths)
def test_any_pattern_is_matched_without_an_error(pattern: str, path: str) -> None:
    assert matches(pattern, path) in (True, False)


@given(paths)
def test_a_path_without_special_characters_matches_itself(path: str) -> None:
    assert matches(f"./{path}", path)
    assert matches("**", path)


def test_too_many_alternatives_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 64 alternatives"):
        compiled("{a,b}" * 20)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("*a" * 60 + "b", "a" * 250), ("**/a/" * 40 + "b", "a/" * 400 + "c"), ("{" * 400, "x")],
)
def test_hostile_pattern_takes_no_time(pattern: str, path: str) -> None:
    began = time.perf_counter()
    assert not matches(pattern, path)
    assert time.perf_counter() - began < 1
