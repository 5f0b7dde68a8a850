"""Changing tasks on the orchestrator surface: the state machine and the fields beside it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.core_process import CoreProcess
from tests.mcp_client import Client, Deck

ADMIN = "the admin secret of these tests"
ENVIRONMENT = {"QUARTERDECK_ADMIN_SECRET": ADMIN}
# Action → (from, to), as the document has it.
ACTIONS = {
    "approve": ({"pending"}, "approved"),
    "start": ({"approved"}, "in_progress"),
    "block": ({"in_progress"}, "blocked"),
    "unblock": ({"blocked"}, "in_progress"),
    "submit": ({"in_progress"}, "review"),
    "reject": ({"review"}, "in_progress"),
    "complete": ({"review"}, "completed"),
    "fail": ({"in_progress"}, "failed"),
    "cancel": ({"pending", "approved", "in_progress", "blocked", "review", "failed"}, "cancelled"),
}
# Status → the actions that lead there from a new task.
WAYS = {
    "pending": [],
    "approved": ["approve"],
    "in_progress": ["approve", "start"],
    "blocked": ["approve", "start", "block"],
    "review": ["approve", "start", "submit"],
    "completed": ["approve", "start", "submit", "complete"],
    "failed": ["approve", "start", "fail"],
    "cancelled": ["cancel"],
}

Row = dict[str, Any]


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    folder = tmp_path_factory.mktemp("core")
    with CoreProcess(folder, ENVIRONMENT) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture
def me(deck: Deck) -> Client:
    """A maintainer whom nobody else shares rows with."""
    return deck.connect()


def task_in(client: Client, status: str, **fields: Any) -> Row:
    """A new task, taken to a status."""
    task: Row = client.done("task_create", title=f"to be {status}", **fields)
    for action in WAYS[status]:
        task = client.done("task_update", task_id=task["id"], action=action)
    assert task["status"] == status
    return task


def legal(status: str) -> list[str]:
    return [action for action, (sources, _) in ACTIONS.items() if status in sources]


@pytest.mark.parametrize("status", WAYS)
def test_every_action_does_what_the_table_says(me: Client, status: str) -> None:
    task = task_in(me, status)
    before = me.done("task_get", task_id=task["id"])
    assert before["valid_actions"] == legal(status)
    for action, (sources, target) in ACTIONS.items():
        if status in sources:
            other = task_in(me, status)["id"]
            assert me.done("task_update", task_id=other, action=action)["status"] == target
            last = me.done("task_get", task_id=other)["transitions"][-1]
            assert (last["from_status"], last["to_status"]) == (status, target)
            continue
        body = me.refused("task_update", task_id=task["id"], action=action)
        assert (body["code"], body["field"]) == ("invalid_transition", "action")
        assert body["valid_actions"] == legal(status)
        assert body["error"].endswith(f"Legal actions from {status}: {', '.join(legal(status)) or 'none'}")
    assert me.done("task_get", task_id=task["id"]) == before


@pytest.mark.parametrize("status", WAYS)
def test_every_target_status_obeys_the_same_table(me: Client, status: str) -> None:
    task = task_in(me, status)
    before = me.done("task_get", task_id=task["id"])
    reachable = {ACTIONS[action][1] for action in legal(status)}
    for target in WAYS:
        if target in reachable:
            other = task_in(me, status)["id"]
            assert me.done("task_update", task_id=other, status=target)["status"] == target
        elif target == status:
            assert me.done("task_update", task_id=task["id"], status=target) == task
        else:
            body = me.refused("task_update", task_id=task["id"], status=target)
            assert (body["code"], body["field"]) == ("invalid_transition", "status")
            assert body["valid_actions"] == legal(status)
            assert body["error"].endswith(
                f"Legal actions from {status}: {', '.join(legal(status)) or 'none'}"
            )
    assert me.done("task_get", task_id=task["id"]) == before


def test_unknown_action_and_status_are_refused_with_the_known_ones(me: Client) -> None:
    task = task_in(me, "pending")["id"]
    for field, known in (("action", list(ACTIONS)), ("status", list(WAYS))):
        body = me.refused("task_update", task_id=task, **{field: "explode"})
        assert (body["code"], body["field"]) == ("validation_error", field)
        assert all(name in body["error"] for name in known)


def test_action_and_status_that_agree_are_one_change(me: Client) -> None:
    task = task_in(me, "pending")["id"]
    assert me.done("task_update", task_id=task, action="approve", status="approved")["status"] == "approved"
    assert len(me.done("task_get", task_id=task)["transitions"]) == 2


def test_action_and_status_that_disagree_change_nothing(me: Client) -> None:
    task = task_in(me, "pending")["id"]
    before = me.done("task_get", task_id=task)
    body = me.refused("task_update", task_id=task, action="approve", status="cancelled", title="new")
    assert (body["code"], body["field"]) == ("validation_error", "status")
    assert me.done("task_get", task_id=task) == before


def test_transition_keeps_actor_and_reason_and_history_is_oldest_first(me: Client) -> None:
    task = me.done("task_create", title="x", source_channel="chat")["id"]
    me.done("task_update", task_id=task, action="approve", reason="scoped", actor="agent.triage")
    me.done("task_update", task_id=task, status="in_progress", actor="agent.research")
    me.done("task_update", task_id=task, action="block")
    history = me.done("task_get", task_id=task)["transitions"]
    shown = [(row["from_status"], row["to_status"], row["reason"], row["actor"]) for row in history]
    assert shown == [
        (None, "pending", None, "chat"),
        ("pending", "approved", "scoped", "agent.triage"),
        ("approved", "in_progress", None, "agent.research"),
        ("in_progress", "blocked", None, None),
    ]
    times = [row["created_at"] for row in history]
    assert times == sorted(set(times))
    assert {row["task_id"] for row in history} == {task}
    assert len({row["id"] for row in history}) == 4


def test_reason_and_actor_without_a_status_change_leave_no_transition(me: Client) -> None:
    task = task_in(me, "approved")
    before = me.done("task_get", task_id=task["id"])
    me.done("task_update", task_id=task["id"], reason="just saying", actor="me")
    assert me.done("task_get", task_id=task["id"]) == before


def test_status_and_every_field_change_in_one_call(me: Client) -> None:
    made = me.done("task_create", title="old", metadata={"kept": 1})
    given = {
        "title": "new",
        "description": "described",
        "priority": "low",
        "assigned_agent": "someone",
        "metadata": {"added": 2},
    }
    task = me.done("task_update", task_id=made["id"], action="approve", reason="go", actor="me", **given)
    expected = {**made, **given, "status": "approved", "metadata": {"kept": 1, "added": 2}}
    assert task == expected | {"updated_at": task["updated_at"]}
    assert task["updated_at"] > made["updated_at"]
    history = me.done("task_get", task_id=made["id"])
    assert history["task"] == task
    assert len(history["transitions"]) == 2
    assert history["transitions"][-1]["created_at"] == task["updated_at"]


def test_illegal_action_takes_the_fields_beside_it_down(me: Client) -> None:
    made = task_in(me, "approved", metadata={"kept": 1})
    before = me.done("task_get", task_id=made["id"])
    for change in ({"action": "complete"}, {"status": "pending"}, {"priority": "asap"}):
        me.refused("task_update", task_id=made["id"], title="new", metadata={"kept": 2}, **change)
    assert me.done("task_get", task_id=made["id"]) == before


def test_fields_change_in_every_status_even_a_final_one(me: Client) -> None:
    for status in WAYS:
        task = task_in(me, status)
        changed = me.done("task_update", task_id=task["id"], title="renamed")
        assert (changed["title"], changed["status"]) == ("renamed", status)
        assert changed["completed_at"] == task["completed_at"]


def test_update_without_a_change_answers_the_task_as_it_is(me: Client) -> None:
    task = task_in(me, "approved")
    assert me.done("task_update", task_id=task["id"]) == task
    assert me.done("task_update", task_id=task["id"], title=None, metadata=None) == task


def test_metadata_is_merged_at_the_top_level_only(me: Client) -> None:
    task = me.done(
        "task_create", title="x", metadata={"deep": {"a": 1, "b": 2}, "list": [1], "kept": "k", "gone": 1}
    )["id"]
    given: Row = {"deep": {"c": 3}, "list": [], "gone": None, "new": {}}
    merged = me.done("task_update", task_id=task, metadata=given)["metadata"]
    assert merged == {"deep": {"c": 3}, "list": [], "kept": "k", "gone": None, "new": {}}
    assert me.done("task_update", task_id=task, metadata={})["metadata"] == merged
    assert me.done("task_get", task_id=task)["task"]["metadata"] == merged


@pytest.mark.parametrize("status", WAYS)
def test_completed_at_is_set_by_completing_and_by_nothing_else(me: Client, status: str) -> None:
    task = task_in(me, status)
    if status == "completed":
        assert task["completed_at"] == task["updated_at"] > task["created_at"]
    else:
        assert task["completed_at"] is None


def test_updated_at_rises_with_every_change(me: Client) -> None:
    task = me.done("task_create", title="x")
    stamps = [task["updated_at"]]
    for number in range(5):
        stamps.append(me.done("task_update", task_id=task["id"], title=f"x {number}")["updated_at"])
    assert stamps == sorted(set(stamps))
    assert me.done("task_get", task_id=task["id"])["task"]["created_at"] == task["created_at"]


def test_of_ten_callers_at_once_one_approves_a_task(deck: Deck) -> None:
    token = deck.mint()["token"]
    clients = [deck.connect(token) for _ in range(10)]
    task = clients[0].done("task_create", title="contended")["id"]
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda c: c.call("task_update", task_id=task, action="approve"), clients))
    assert sorted(result.is_error for result in results) == [False] + [True] * 9
    assert len(clients[0].done("task_get", task_id=task)["transitions"]) == 2
