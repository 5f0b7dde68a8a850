"""Fusion, and the query expressions: SQLite itself says whether they are well formed and what they find."""

import re
import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarterdeck.domain import fusion

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Plain random text rarely looks like an operator or an identifier; these pieces do.
operators = ["AND", "OR", "NOT", "NEAR(", "{a}", *"\"'*^-:()+\\\0._/ \n"]
names = ["foo", "BarBaz", "v2", "1e5", "CVE-2024-0727", "#12", "é", "İ", "数据", "\u0301", "\ud800"]
pieces = st.sampled_from(operators + names)
# Letters to Python, marks to SQLite's older Unicode table.
contested = [*map(chr, range(0x19B0, 0x19CA)), "\u1cf2", "\u1cf3"]
characters = st.characters(exclude_characters=contested)
texts = st.one_of(st.text(characters, max_size=60), st.lists(pieces, max_size=14).map("".join))


class Index:
    """One real FTS5 table of the texts that were given to it, as the store indexes them."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("CREATE VIRTUAL TABLE rows USING fts5(row_id UNINDEXED, body)")

    def add(self, row_id: str, text: str) -> None:
        self.connection.execute("INSERT INTO rows VALUES (?, ?)", (row_id, fusion.plain(text)))

    def find(self, expression: str | None) -> set[str]:
        if expression is None:
            return set()
        found = self.connection.execute("SELECT row_id FROM rows WHERE rows MATCH ?", (expression,))
        return {row_id for (row_id,) in found}


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    yield index
    index.connection.close()


def test_fusion_prefers_what_several_rankings_agree_on() -> None:
    assert fusion.fuse([["a", "b", "c"], ["b", "d"], ["b"]]) == ["b", "a", "d", "c"]


def test_a_tie_goes_to_the_earlier_ranking() -> None:
    assert fusion.fuse([["z"], ["a"]]) == ["z", "a"]


def test_an_id_counts_once_in_each_ranking() -> None:
    assert fusion.fuse([["a", "a", "a"], ["b"], ["b"]]) == ["b", "a"]


def test_a_small_k_lets_one_first_place_beat_two_low_ones() -> None:
    rankings = [["top", *"abcdefgh", "low"], [*"ijklmnopq", "low"]]
    assert fusion.fuse(rankings)[0] == "low"
    assert fusion.fuse(rankings, k=1)[0] == "top"


@given(st.lists(st.lists(st.text(max_size=2)), max_size=4))
def test_fusion_returns_every_id_once(rankings: list[list[str]]) -> None:
    fused = fusion.fuse(rankings)
    assert sorted(fused) == sorted({row_id for ranking in rankings for row_id in ranking})


@relaxed
@given(texts)
def test_sqlite_accepts_the_expressions_of_any_text(index: Index, text: str) -> None:
    index.find(fusion.fts5_and(text))
    index.find(fusion.fts5_phrases(text))


@relaxed
@given(texts, texts, texts)
def test_any_text_is_found_by_its_own_words_and_identifiers(before: str, text: str, after: str) -> None:
    index = Index()
    try:
        index.add("row", f"{before} {text} {after}")
        for expression in (fusion.fts5_and(text), fusion.fts5_phrases(text)):
            assert expression is None or index.find(expression) == {"row"}
    finally:
        index.connection.close()


@given(texts)
def test_postgresql_gets_nothing_but_tokens_and_operators(text: str) -> None:
    token = r"[^\W_]{1,64}"
    both = fusion.tsquery_and(text)
    assert both is None or re.fullmatch(rf"{token}( & {token})*", both)
    phrase = rf"\({token}( <-> {token})*\)"
    any_of = fusion.tsquery_phrases(text)
    assert any_of is None or re.fullmatch(rf"{phrase}( \| {phrase})*", any_of)


@given(texts)
def test_indexed_text_is_its_own_plain_form(text: str) -> None:
    assert fusion.plain(fusion.plain(text)) == fusion.plain(text)


@given(texts)
def test_both_databases_get_the_same_words_and_phrases(text: str) -> None:
    query = f"{text} CVE-2024-0727 port"
    assert re.findall(r'"(\S+)"', fusion.fts5_and(query) or "") == fusion.words(query)
    assert (fusion.tsquery_and(query) or "").split(" & ") == fusion.words(query)
    phrases = [" ".join(phrase) for phrase in fusion.identifiers(query)]
    assert re.findall(r'"([^"]+)"', fusion.fts5_phrases(query) or "") == phrases
    assert (fusion.tsquery_phrases(query) or "")[1:-1].replace(" <-> ", " ").split(") | (") == phrases


@pytest.mark.parametrize(
    ("written", "phrase"),
    [
        ("CVE-2024-0727", ("cve", "2024", "0727")),
        ("orders.v2", ("orders", "v2")),
        ("user_id", ("user", "id")),
        ("FooBarBaz", ("foobarbaz",)),
        ("HTTPServer", ("httpserver",)),
        ("src/app/main.py", ("src", "app", "main", "py")),
        ("#1234", ("1234",)),
        ("#7", ("7",)),
        ("7411", ("7411",)),
        ("3.11", ("3", "11")),
        ("SIGTERM", ("sigterm",)),
        ("std::vector", ("std", "vector")),
        ("pytest-xdist", ("pytest", "xdist")),
        ("sha256", ("sha256",)),
        ("NOT_STARTED", ("not", "started")),
        ("ops@example.com", ("ops", "example", "com")),
        ("__init__.py", ("init", "py")),
    ],
)
def test_an_identifier_in_a_sentence_is_one_phrase(
    index: Index, written: str, phrase: tuple[str, ...]
) -> None:
    assert fusion.identifiers(f"why did we touch ({written}), of all things?") == [phrase]
    index.add("right", f"Context: about {written}. Decision: keep it.")
    index.add("wrong", f"Context: {' or else '.join(reversed(phrase))}x. Decision: drop it.")
    assert index.find(fusion.fts5_phrases(f"what about {written}?")) == {"right"}


@pytest.mark.parametrize(
    "prose",
    [
        "why do we retry the job twice",
        "e.g. this and/or that, i.e. w/o a plan",
        "it's the user's own choice, don't ask...and then wait",
        "the 2nd of 10 or so: how-to",
        "PLEASE REVERT THE MIGRATION",
        "?! -- ... ''",
        "",
    ],
)
def test_prose_holds_no_identifier(prose: str) -> None:
    assert fusion.identifiers(prose) == []
    assert fusion.fts5_phrases(prose) is None
    assert fusion.tsquery_phrases(prose) is None


@pytest.mark.parametrize(
    ("indexed", "asked"),
    [
        ("FooBarBaz", "foobarbaz"),
        ("FooBarBaz", "foo bar baz"),
        ("FooBarBaz", "foo_bar_baz"),
        ("foo_bar_baz", "fooBarBaz"),
        ("GitHub", "github"),
        ("github", "GitHub"),
        ("hand-off", "handoff"),
        ("Café", "CAFE"),
        ("Cafe\u0301", "café"),
        ("STRASSE", "straße"),
        ("ｆｕｌｌ ｗｉｄｔｈ", "full width"),
        ("数据库迁移", "数据库"),
    ],
)
def test_another_spelling_finds_it(index: Index, indexed: str, asked: str) -> None:
    index.add("row", f"we chose {indexed} then")
    assert index.find(fusion.fts5_and(asked)) == {"row"}


def test_words_are_distinct_and_leave_out_what_says_little() -> None:
    assert fusion.words("What's the plan for the User's plan, e.g. Plan 9?") == ["plan", "user", "9"]


def test_a_query_of_stop_words_has_no_expression() -> None:
    assert fusion.words("to be or not to be") == []
    assert fusion.fts5_and("to be or not to be") is None
    assert fusion.tsquery_and("to be or not to be") is None


def test_huge_queries_are_bounded() -> None:
    many = " ".join(f"word{n}_x{n}" for n in range(10_000))
    assert len(fusion.words(many)) == fusion.MAX_WORDS
    assert len(fusion.identifiers(many)) == fusion.MAX_IDENTIFIERS
    assert max(map(len, fusion.identifiers("a1/" * 10_000))) == fusion.MAX_PHRASE
    assert fusion.words("x" * 10_000) == ["x" * fusion.MAX_TOKEN]


def test_a_long_token_is_found_by_itself(index: Index) -> None:
    index.add("row", "digest " + "f0" * 64)
    assert index.find(fusion.fts5_and("f0" * 64)) == {"row"}
