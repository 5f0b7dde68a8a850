"""Decisions and patterns of the orchestrator surface, found by meaning and by the documented fallback."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.core_process import CoreProcess
from tests.integration.orchestrator_contract import DECISION, PATTERN, TIME
from tests.mcp_client import Client, Deck, eventually

ADMIN = "the admin secret of these tests"
ENVIRONMENT = {"QUARTERDECK_ADMIN_SECRET": ADMIN, "QUARTERDECK_SEARCH__PROVIDER": "local"}
Row = dict[str, Any]


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    folder = tmp_path_factory.mktemp("core")
    with CoreProcess(folder, ENVIRONMENT) as core, Deck(core.url, ADMIN) as deck:
        assert deck.search_mode() == "semantic"
        yield deck


@pytest.fixture(scope="module")
def plain_deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    """A core without embeddings."""
    folder = tmp_path_factory.mktemp("plain")
    with (
        CoreProcess(folder, ENVIRONMENT | {"QUARTERDECK_SEARCH__PROVIDER": "off"}) as core,
        Deck(core.url, ADMIN) as deck,
    ):
        assert deck.search_mode() == "fallback"
        yield deck


@pytest.fixture
def me(deck: Deck) -> Client:
    """A maintainer whom nobody else shares rows with."""
    return deck.connect()


@pytest.fixture
def plain(plain_deck: Deck) -> Client:
    """The same on the core without embeddings."""
    return plain_deck.connect()


def log(client: Client, decision: str, **more: Any) -> Row:
    row: Row = client.done("decision_log", **{"context": "some context", "decision": decision, **more})
    return row


def store(client: Client, name: str, **more: Any) -> Row:
    row: Row = client.done("pattern_store", name=name, trigger_conditions={}, actions={}, **more)
    return row


def embedded(client: Client, tool: str, count: int, **arguments: Any) -> list[Row]:
    """What a search finds once so many rows are embedded, which happens a moment after they are written."""

    def look() -> list[Row] | None:
        rows: list[Row] = client.done(tool, **arguments)
        return rows if sum("similarity" in row for row in rows) >= count else None

    return eventually(look)


def names(rows: list[Row]) -> list[str]:
    return [row.get("decision") or row["name"] for row in rows]


# Decisions


def test_decision_has_the_documented_defaults(me: Client) -> None:
    row = me.done("decision_log", context="Two candidates", decision="Take the first")
    assert list(row) == DECISION
    assert str(uuid.UUID(row["id"])) == row["id"]
    assert TIME.fullmatch(row["created_at"])
    assert row["user_id"].startswith("user-")
    assert {key: row[key] for key in DECISION[2:-1]} == {
        "task_id": None,
        "context": "Two candidates",
        "decision": "Take the first",
        "outcome": None,
        "confidence": None,
        "tags": [],
    }


def test_decision_keeps_every_field_as_given(me: Client) -> None:
    task = me.done("task_create", title="x")["id"]
    given = {
        "context": "Zwei Wege — 漢字",
        "decision": "Cascade exa → mcp; fall back to jina",
        "task_id": task,
        "outcome": "",
        "confidence": 0.7,
        "tags": ["retrieval", "cascade", "retrieval"],
    }
    row = me.done("decision_log", **given)
    assert {key: row[key] for key in given} == given
    assert me.done("context_for_task", task_id=task)["related_decisions"] == [row]


@pytest.mark.parametrize("confidence", [0, 1, 0.5])
def test_confidence_from_0_to_1_is_taken(me: Client, confidence: float) -> None:
    assert log(me, "sure", confidence=confidence)["confidence"] == confidence


@pytest.mark.parametrize(
    ("arguments", "field", "sentence"),
    [
        ({"confidence": 1.01}, "confidence", "confidence must be at most 1"),
        ({"confidence": -0.01}, "confidence", "confidence must be at least 0"),
        ({"confidence": "certain"}, "confidence", "confidence must be a number"),
        ({"tags": "a,b"}, "tags", "tags must be an array"),
        ({"tags": ["a", 1]}, "tags[1]", "tags[1] must be a string"),
        ({"tags": ["t"] * 51}, "tags", "tags has more than 50 entries"),
        ({"decision": ""}, "decision", "decision must not be empty"),
        ({"task_id": "no such task"}, "task_id", "task no such task not found"),
    ],
)
def test_wrong_decision_is_refused_and_not_kept(
    me: Client, arguments: Row, field: str, sentence: str
) -> None:
    body = me.refused("decision_log", **{"context": "c", "decision": "d", **arguments})
    assert (body["field"], body["error"]) == (field, sentence)
    assert me.done("decision_search", query="d", limit=50) == []


def test_outcome_is_recorded_later(me: Client) -> None:
    task = me.done("task_create", title="x")["id"]
    row = log(me, "try it", task_id=task, tags=["a"], confidence=0.5)
    done = me.done("decision_outcome", decision_id=row["id"], outcome="it worked")
    assert done == row | {"outcome": "it worked"}
    assert list(done) == DECISION
    assert me.done("context_for_task", task_id=task)["related_decisions"] == [done]
    assert me.refused("decision_outcome", decision_id=row["id"], outcome="")["field"] == "outcome"


def test_search_finds_the_decision_that_means_it_first(me: Client) -> None:
    rows = [
        log(me, "Use PostgreSQL for the ledger", tags=["storage"]),
        log(me, "Paint the office kitchen yellow", tags=["office"]),
        log(me, "Ship on Tuesdays only"),
    ]
    found = embedded(me, "decision_search", 3, query="which database do we store money movements in?")
    similarities = [row.pop("similarity") for row in found]
    assert found[0] == rows[0]
    assert similarities == sorted(similarities, reverse=True)
    assert all(0 <= similarity <= 1 for similarity in similarities)
    assert sorted(names(found)) == sorted(names(rows))


def test_one_of_the_tags_is_enough(me: Client) -> None:
    log(me, "one", tags=["a", "b"])
    log(me, "two", tags=["b"])
    log(me, "three")
    embedded(me, "decision_search", 3, query="numbers")
    for tags, expected in ([["a"], {"one"}], [["b", "z"], {"one", "two"}], [["a", "b"], {"one", "two"}]):
        assert set(names(me.done("decision_search", query="numbers", tags=tags))) == expected
    assert me.done("decision_search", query="numbers", tags=["z"]) == []
    assert len(me.done("decision_search", query="numbers", tags=[])) == 3


@pytest.fixture(scope="module")
def many(deck: Deck) -> Client:
    """A user with 55 decisions and 55 patterns, all embedded."""
    client = deck.connect()
    for number in range(55):
        log(client, f"Decision number {number}")
        store(client, f"Pattern number {number}")
    embedded(client, "decision_search", 50, query="decision number", limit=50)
    embedded(client, "pattern_match", 50, situation="pattern number", limit=50)
    return client


LIMITS = [({}, 10), ({"limit": 0}, 1), ({"limit": -3}, 1), ({"limit": 7}, 7), ({"limit": 1000}, 50)]


@pytest.mark.parametrize(("limit", "count"), LIMITS)
def test_search_limit_is_clamped(many: Client, limit: Row, count: int) -> None:
    assert len(many.done("decision_search", query="decision number", **limit)) == count
    assert len(many.done("pattern_match", situation="pattern number", **limit)) == count


# Patterns


def test_pattern_has_the_documented_fields(me: Client) -> None:
    given = {
        "name": "Cascade retrieval on judge failure",
        "trigger_conditions": {"event": "stage:judge/failed", "nested": {"any": [1, None, {"x": 2.5}]}},
        "actions": {"steps": ["use_mechanical_rank", "continue_to_analyze"]},
    }
    row = me.done("pattern_store", **given, description="When the judge fails, go on mechanically.")
    assert list(row) == PATTERN
    assert str(uuid.UUID(row["id"])) == row["id"]
    assert TIME.fullmatch(row["created_at"])
    assert row["updated_at"] == row["created_at"]
    assert row["user_id"].startswith("user-")
    assert row["description"] == "When the judge fails, go on mechanically."
    assert (row["success_rate"], row["usage_count"]) == (0, 0)
    assert {key: row[key] for key in given} == given
    assert me.done("pattern_store", **given)["description"] is None


@pytest.mark.parametrize("missing", ["name", "trigger_conditions", "actions"])
def test_pattern_needs_name_trigger_and_actions(me: Client, missing: str) -> None:
    given = {"name": "n", "trigger_conditions": {}, "actions": {}}
    del given[missing]
    body = me.refused("pattern_store", **given)
    assert (body["code"], body["error"]) == ("validation_error", f"{missing} is required")


def test_match_finds_the_pattern_that_means_it_first(me: Client) -> None:
    wanted = store(me, "Retry with backoff", description="The remote service answers with errors")
    store(me, "Water the plants", description="Every other day")
    found = embedded(me, "pattern_match", 2, situation="an upstream API keeps failing")
    assert 0 <= found[0].pop("similarity") <= 1
    assert found[0] == wanted
    assert len(found) == 2


def test_success_rate_is_the_running_average_of_all_uses(me: Client) -> None:
    row = store(me, "n")
    rates = [
        me.done("pattern_used", pattern_id=row["id"], success=success)["success_rate"]
        for success in (True, False, False, True)
    ]
    assert rates == pytest.approx([1, 1 / 2, 1 / 3, 1 / 2])
    last = me.done("pattern_used", pattern_id=row["id"], success=True)
    assert list(last) == PATTERN
    assert last["usage_count"] == 5
    assert last["success_rate"] == pytest.approx(3 / 5)
    assert last["updated_at"] > row["updated_at"]
    unchanged = [key for key in PATTERN if key not in {"usage_count", "success_rate", "updated_at"}]
    assert {key: last[key] for key in unchanged} == {key: row[key] for key in unchanged}
    (found,) = embedded(me, "pattern_match", 1, situation="n")
    assert found | {"similarity": 0} == last | {"similarity": 0}


def test_context_of_a_task_matches_at_most_10_patterns_by_meaning(me: Client) -> None:
    task = me.done("task_create", title="Rotate the signing keys", description="before they expire")["id"]
    store(me, "Water the plants")
    for number in range(11):
        store(me, f"Key rotation {number}")
    embedded(me, "pattern_match", 12, situation="x", limit=50)
    matching = me.done("context_for_task", task_id=task)["matching_patterns"]
    similarities = [row["similarity"] for row in matching]
    assert len(similarities) == 10
    assert similarities == sorted(similarities, reverse=True)
    assert "Water the plants" not in names(matching)


def test_reset_cache_counts_the_keys_that_were_there(deck: Deck, me: Client) -> None:
    admin = deck.connect(ADMIN)
    admin.done("orchestrator_reset_cache")
    assert admin.done("orchestrator_reset_cache") == {"cleared_keys": 0}
    for query in ("one", "two", "three", "one"):
        admin.done("decision_search", query=query)
    me.done("ping")
    # Three embedded queries and one token; the admin secret is looked up nowhere.
    assert admin.done("orchestrator_reset_cache") == {"cleared_keys": 4}
    assert me.done("ping")["pong"] is True


# The fallback


def test_without_embeddings_decisions_are_found_by_substring_newest_first(plain: Client) -> None:
    old = log(plain, "use Redis for the cache")
    log(plain, "something else", context="unrelated")
    new = log(plain, "of no interest", context="the REDIS question")
    assert plain.done("decision_search", query="redis") == [new, old]
    assert plain.done("decision_search", query="databases") == []


def test_without_embeddings_case_does_not_matter_in_any_script(plain: Client) -> None:
    row = log(plain, "ÉCOLE в Москве", context="Ärger")
    for query in ("école", "ÉCOLE", "москве", "МОСКВЕ", "ärger"):
        assert plain.done("decision_search", query=query) == [row]


def test_without_embeddings_the_longest_texts_can_be_searched_for(plain: Client) -> None:
    longest = "word " * 20_000
    row = log(plain, longest)
    pattern = store(plain, "n", description=longest)
    task = plain.done("task_create", title="word", description=longest)["id"]
    assert plain.done("decision_search", query=longest) == [row]
    assert plain.done("pattern_match", situation=longest) == [pattern]
    assert plain.done("context_for_task", task_id=task)["matching_patterns"] == []


def test_without_embeddings_wildcards_are_plain_characters(plain: Client) -> None:
    row = log(plain, "100% of user_id", context="c")
    log(plain, "1000 of userXid", context="c")
    assert plain.done("decision_search", query="0% of user_id") == [row]
    assert plain.done("decision_search", query="%") == [row]
    assert plain.done("decision_search", query="user_") == [row]


def test_without_embeddings_tags_still_filter(plain: Client) -> None:
    row = log(plain, "d", tags=["a", "b"])
    log(plain, "d")
    assert plain.done("decision_search", query="d", tags=["b", "z"]) == [row]


def test_without_embeddings_limits_are_clamped_the_same(plain: Client) -> None:
    for number in range(52):
        log(plain, f"Decision number {number}")
        store(plain, f"Pattern number {number}")
    for limit, count in LIMITS:
        assert len(plain.done("decision_search", query="number", **limit)) == count
        assert len(plain.done("pattern_match", situation="number", **limit)) == count


def test_without_embeddings_the_most_successful_then_the_most_used_pattern_comes_first(
    plain: Client,
) -> None:
    uses = {"never": [], "once": [True], "twice": [True, True], "half": [True, False, True, False]}
    for name, successes in uses.items():
        pattern = store(plain, name, description="A common WORD")["id"]
        for success in successes:
            plain.done("pattern_used", pattern_id=pattern, success=success)
    found = plain.done("pattern_match", situation="common word")
    assert names(found) == ["twice", "once", "half", "never"]
    assert all("similarity" not in row for row in found)


def test_without_embeddings_context_matches_patterns_by_the_tasks_text(plain: Client) -> None:
    pattern = store(plain, "When asked to rotate the keys")
    task = plain.done("task_create", title="rotate the KEYS")["id"]
    assert plain.done("context_for_task", task_id=task)["matching_patterns"] == [pattern]
