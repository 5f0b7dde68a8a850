"""Work sessions of the plans surface: log, hand off, resume, replay, continue, over real HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.core_process import CoreProcess
from tests.mcp_client import Client, Deck

ADMIN = "the admin secret of these tests"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def deck(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    environment = {"QUARTERDECK_ADMIN_SECRET": ADMIN}
    if request.param == "postgres":
        environment["QUARTERDECK_DATABASE_URL"] = request.getfixturevalue("postgres").create_database()
    folder = tmp_path_factory.mktemp("core")
    with CoreProcess(folder, environment) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture
def plans(deck: Deck) -> Client:
    return deck.connect(surface="plans")


@pytest.fixture
def session(plans: Client) -> str:
    made: str = plans.done("session_start", agent_type="opus", context={"branch": "main"})["session"][
        "session_id"
    ]
    return made


def replay(client: Client, session: str) -> dict[str, Any]:
    found: dict[str, Any] = client.done("session_replay", session_id=session)["replay_context"]
    return found


def test_a_session_starts_active_on_its_plan(plans: Client) -> None:
    plans.done("plan_create", title="T", slug="t")
    shown = plans.done("session_start", agent_type="opus", plan_slug="t", context={"a": 1})["session"]
    assert re.fullmatch(r"ses_[a-z0-9]{12,}", shown["session_id"])
    assert (shown["agent_type"], shown["plan"], shown["status"]) == ("opus", "t", "active")
    assert shown["context"] == {"a": 1}


@pytest.mark.parametrize("agent", ["opus", "sonnet", "haiku", "claude-code"])
def test_an_agent_type_is_one_of_the_three_or_a_registered_agent(plans: Client, agent: str) -> None:
    assert plans.done("session_start", agent_type=agent)["session"]["agent_type"] == agent
    refusal = plans.refused("session_start", agent_type="gpt")
    assert (refusal["code"], refusal["field"]) == ("validation_error", "agent_type")


@pytest.mark.parametrize(
    "kind", ["info", "warning", "error", "success", "checkpoint", "decision", "progress"]
)
def test_every_entry_type_is_logged(plans: Client, session: str, kind: str) -> None:
    entry = plans.done("session_log", session_id=session, message="m", type=kind, data={"n": 1})["entry"]
    assert (entry["type"], entry["message"], entry["data"]["n"]) == (kind, "m", 1)
    assert replay(plans, session)["progress_summary"]["entries_by_type"] == {kind: 1}


def test_an_entry_is_info_unless_it_says_otherwise(plans: Client, session: str) -> None:
    assert plans.done("session_log", session_id=session, message="m")["entry"]["type"] == "info"
    assert plans.refused("session_log", session_id=session, message="m", type="shout")["field"] == "type"


def test_a_decision_in_a_session_is_found_in_the_memory(deck: Deck) -> None:
    token = deck.mint()["token"]
    plans, memory = deck.connect(token, surface="plans"), deck.connect(token)
    session = plans.done("session_start", agent_type="opus")["session"]["session_id"]
    entry = plans.done(
        "session_log", session_id=session, message="Use a queue", type="decision", data={"reason": "bursts"}
    )["entry"]
    (found,) = memory.done("decision_search", query="use a queue")
    assert found["id"] == entry["data"]["decision_id"]
    assert "session" in found["tags"] and "bursts" in found["context"]


def test_a_replay_holds_what_the_next_agent_needs(plans: Client, session: str) -> None:
    for kind, message in (
        ("progress", "parsed the file"),
        ("checkpoint", "first"),
        ("decision", "keep it simple"),
        ("error", "the build broke"),
        ("checkpoint", "second"),
    ):
        plans.done("session_log", session_id=session, message=message, type=kind)
    plans.done(
        "session_artifact", session_id=session, path="src/a.py", action="modified", metadata={"lines": 3}
    )
    plans.done(
        "session_handoff", session_id=session, summary="half done", next_steps=["test"], blockers=["CI"]
    )
    shown = replay(plans, session)
    assert shown["session_id"] == session
    assert shown["progress_summary"]["total_entries"] == 5
    assert shown["progress_summary"]["completed_steps"] == ["parsed the file", "first", "second"]
    assert shown["last_checkpoint"]["message"] == "second"
    assert [entry["message"] for entry in shown["decisions"]] == ["keep it simple"]
    assert [entry["message"] for entry in shown["errors"]] == ["the build broke"]
    (artifact,) = shown["artifacts"]
    assert (artifact["path"], artifact["action"], artifact["metadata"]) == (
        "src/a.py",
        "modified",
        {"lines": 3},
    )
    assert shown["handoff"]["next_steps"] == ["test"]


def test_a_handed_off_session_is_paused_until_it_is_resumed(plans: Client, session: str) -> None:
    handed = plans.done(
        "session_handoff", session_id=session, summary="s", next_steps=["a"], context_for_next={"k": 1}
    )
    assert handed["session"]["status"] == "paused"
    refusal = plans.refused("session_log", session_id=session, message="m")
    assert (refusal["code"], refusal["field"]) == ("validation_error", "session_id")
    resumed = plans.done("session_resume", session_id=session)
    assert resumed["session"]["status"] == "active"
    assert resumed["handoff_context"] == {
        "summary": "s",
        "next_steps": ["a"],
        "blockers": [],
        "context_for_next": {"k": 1},
    }
    assert plans.refused("session_resume", session_id=session)["code"] == "validation_error"
    plans.done("session_log", session_id=session, message="m")


def test_a_continued_session_is_linked_and_carries_the_context(plans: Client) -> None:
    plans.done("plan_create", title="T", slug="t")
    first = plans.done("session_start", agent_type="opus", plan_slug="t", context={"a": 1, "b": 1})
    first = first["session"]["session_id"]
    plans.done("session_log", session_id=first, message="did it", type="success")
    plans.done("session_handoff", session_id=first, summary="s", context_for_next={"b": 2})
    went_on = plans.done("session_continue", previous_session_id=first, agent_type="sonnet")
    second = went_on["session"]
    assert (second["parent_session_id"], second["agent_type"], second["plan"]) == (first, "sonnet", "t")
    assert second["status"] == "active" and second["context"] == {"a": 1, "b": 2}
    assert went_on["continued_from"] == first
    assert went_on["replay_context"]["progress_summary"]["completed_steps"] == ["did it"]
    third = plans.done("session_continue", session_id=second["session_id"])["session"]
    assert third["agent_type"] == "sonnet"
    states = {row["session_id"]: row["status"] for row in plans.done("session_list")["sessions"]}
    assert states == {first: "handed_off", second["session_id"]: "handed_off", third["session_id"]: "active"}


@pytest.mark.parametrize("status", ["completed", "failed", "handed_off"])
def test_nothing_is_written_to_a_session_after_its_end(plans: Client, session: str, status: str) -> None:
    ended = plans.done("session_end", session_id=session, status=status, summary="over")["session"]
    assert (ended["status"], ended["summary"]) == (status, "over") and ended["ended_at"] is not None
    writes: list[tuple[str, dict[str, Any]]] = [
        ("session_log", {"message": "late"}),
        ("session_artifact", {"path": "p", "action": "created"}),
        ("session_handoff", {"summary": "late"}),
        ("session_resume", {}),
        ("session_end", {"status": "failed"}),
    ]
    before = replay(plans, session)
    for tool, arguments in writes:
        assert plans.refused(tool, session_id=session, **arguments)["code"] == "validation_error", tool
    assert replay(plans, session) == before
    assert plans.done("session_continue", session_id=session)["session"]["parent_session_id"] == session


def test_a_session_ended_as_paused_can_be_resumed(plans: Client, session: str) -> None:
    assert plans.done("session_end", session_id=session, status="paused")["session"]["status"] == "paused"
    assert plans.done("session_resume", session_id=session)["session"]["status"] == "active"


@pytest.mark.parametrize("action", ["created", "modified", "deleted", "reviewed"])
def test_every_artifact_action_is_kept_with_its_description(plans: Client, session: str, action: str) -> None:
    plans.done("session_artifact", session_id=session, path="p", action=action, description="why")
    (kept,) = replay(plans, session)["artifacts"]
    assert (kept["action"], kept["metadata"]) == (action, {"description": "why"})


def test_a_list_is_filtered_by_plan_and_status(plans: Client) -> None:
    plans.done("plan_create", title="T", slug="t")
    on_plan = plans.done("session_start", agent_type="opus", plan_slug="t")["session"]["session_id"]
    alone = plans.done("session_start", agent_type="haiku")["session"]["session_id"]
    plans.done("session_end", session_id=alone, status="failed")
    rows = plans.done("session_list")
    assert [row["session_id"] for row in rows["sessions"]] == [alone, on_plan] and rows["count"] == 2
    assert [row["session_id"] for row in plans.done("session_list", plan_slug="t")["sessions"]] == [on_plan]
    assert [row["session_id"] for row in plans.done("session_list", status="failed")["sessions"]] == [alone]
    assert plans.done("session_list", limit=1)["count"] == 1


def test_another_users_session_is_not_found(deck: Deck, plans: Client, session: str) -> None:
    other = deck.connect(surface="plans")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("session_log", {"message": "m"}),
        ("session_artifact", {"path": "p", "action": "created"}),
        ("session_handoff", {"summary": "s"}),
        ("session_resume", {}),
        ("session_replay", {}),
        ("session_continue", {}),
        ("session_end", {"status": "failed"}),
    ]
    for tool, arguments in calls:
        refusal = other.refused(tool, session_id=session, **arguments)
        assert (refusal["code"], refusal["error"]) == ("not_found", f"session {session} not found"), tool
    assert plans.done("session_list")["sessions"][0]["status"] == "active"


def test_a_hundred_entries_from_fifty_writers_are_all_there(deck: Deck) -> None:
    token = deck.mint()["token"]
    plans = deck.connect(token, surface="plans")
    session = plans.done("session_start", agent_type="opus")["session"]["session_id"]

    def work(n: int) -> None:
        client = deck.connect(token, surface="plans")
        client.done("session_log", session_id=session, message=f"entry {n}", type="error")
        client.done("session_artifact", session_id=session, path=f"file-{n}", action="created")

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    shown = replay(plans, session)
    assert {entry["message"] for entry in shown["errors"]} == {f"entry {n}" for n in range(50)}
    assert {artifact["path"] for artifact in shown["artifacts"]} == {f"file-{n}" for n in range(50)}
