"""The task state machine against the documented table, pair by pair."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.domain.errors import IllegalTransition
from quarterdeck.domain.states import (
    ACTIONS,
    COLUMN_OF,
    COLUMNS,
    PRIORITIES,
    STATUS_OF_COLUMN,
    STATUSES,
    action_for,
    apply,
    valid_actions,
)

DOCUMENTED = {
    ("pending", "approve"): "approved",
    ("approved", "start"): "in_progress",
    ("in_progress", "block"): "blocked",
    ("blocked", "unblock"): "in_progress",
    ("in_progress", "submit"): "review",
    ("review", "reject"): "in_progress",
    ("review", "complete"): "completed",
    ("in_progress", "fail"): "failed",
    ("pending", "cancel"): "cancelled",
    ("approved", "cancel"): "cancelled",
    ("in_progress", "cancel"): "cancelled",
    ("blocked", "cancel"): "cancelled",
    ("review", "cancel"): "cancelled",
    ("failed", "cancel"): "cancelled",
}

LEGAL = {
    "pending": ["approve", "cancel"],
    "approved": ["start", "cancel"],
    "in_progress": ["block", "submit", "fail", "cancel"],
    "blocked": ["unblock", "cancel"],
    "review": ["reject", "complete", "cancel"],
    "completed": [],
    "failed": ["cancel"],
    "cancelled": [],
}


@pytest.mark.parametrize(("status", "actions"), LEGAL.items())
def test_valid_actions_are_the_documented_ones_in_the_documents_order(
    status: str, actions: list[str]
) -> None:
    assert valid_actions(status) == actions


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_pair_yields_the_documented_target_or_raises_with_the_legal_list(
    status: str, action: str
) -> None:
    if (status, action) in DOCUMENTED:
        assert apply(status, action) == DOCUMENTED[status, action]
        return
    with pytest.raises(IllegalTransition) as refusal:
        apply(status, action)
    assert refusal.value.data == {"status": status, "valid_actions": LEGAL[status]}
    assert refusal.value.field == "action"
    assert all(legal in refusal.value.message for legal in LEGAL[status])


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("target", STATUSES)
def test_a_target_status_is_legal_exactly_when_one_action_leads_there(status: str, target: str) -> None:
    leading = [action for (source, action), to in DOCUMENTED.items() if (source, to) == (status, target)]
    if leading:
        assert [action_for(status, target)] == leading
        return
    with pytest.raises(IllegalTransition) as refusal:
        action_for(status, target)
    assert refusal.value.data == {"status": status, "valid_actions": LEGAL[status]}
    assert refusal.value.field == "status"


def test_cancel_is_illegal_from_completed_and_lists_no_action() -> None:
    with pytest.raises(IllegalTransition) as refusal:
        apply("completed", "cancel")
    error = refusal.value
    assert (
        error.message
        == "Cannot apply 'cancel' to a task that is completed. Legal actions from completed: none"
    )
    assert error.hint == "completed is final; create a new task for further work"
    assert error.data["valid_actions"] == []


def test_an_illegal_action_is_refused_with_the_ways_out_in_the_hint() -> None:
    with pytest.raises(IllegalTransition) as refusal:
        apply("pending", "complete")
    assert refusal.value.message.endswith("Legal actions from pending: approve, cancel")
    assert refusal.value.hint == "Use one of: approve (to approved), cancel (to cancelled)"


@given(st.sampled_from(STATUSES), st.text())
def test_an_action_that_is_no_action_is_refused_like_an_illegal_one(status: str, action: str) -> None:
    if action not in ACTIONS:
        with pytest.raises(IllegalTransition) as refusal:
            apply(status, action)
        assert refusal.value.data["valid_actions"] == valid_actions(status)


@given(st.lists(st.sampled_from(ACTIONS), max_size=12))
def test_any_walk_stays_within_the_eight_states_and_ends_where_no_action_is_left(walk: list[str]) -> None:
    status = "pending"
    for action in walk:
        if action in valid_actions(status):
            status = apply(status, action)
    assert status in STATUSES
    assert (valid_actions(status) == []) == (status in {"completed", "cancelled"})


def test_states_and_actions_are_plain_strings_in_json() -> None:
    assert json.dumps([apply("pending", "approve"), action_for("pending", "approved")]) == (
        '["approved", "approve"]'
    )


@pytest.mark.parametrize(
    ("column", "statuses", "set_by_a_move"),
    [
        ("BACKLOG", {"pending", "approved", "failed"}, "pending"),
        ("IN_PROGRESS", {"in_progress", "blocked"}, "in_progress"),
        ("REVIEW", {"review"}, "review"),
        ("DONE", {"completed", "cancelled"}, "completed"),
    ],
)
def test_a_column_shows_its_statuses_and_a_move_sets_one_of_them(
    column: str, statuses: set[str], set_by_a_move: str
) -> None:
    assert {status for status, shown in COLUMN_OF.items() if shown == column} == statuses
    assert {of: status for of, status in STATUS_OF_COLUMN.items() if of == column} == {column: set_by_a_move}


def test_every_status_has_a_column_and_every_column_a_status() -> None:
    assert set(COLUMN_OF) == set(STATUSES)
    assert tuple(STATUS_OF_COLUMN) == COLUMNS


def test_priorities_rise_from_low_to_urgent() -> None:
    assert PRIORITIES == ("low", "medium", "high", "urgent")
