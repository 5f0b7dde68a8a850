"""The plans surface: plans, phases, their tasks and shared state, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core_process import CoreProcess
from tests.mcp_client import Client, Deck

ADMIN = "the admin secret of these tests"
PHASES = [
    {"name": "Design", "description": "Think", "tasks": ["Write it down", "Review it"]},
    {"name": "Build", "tasks": [{"name": "Code it", "description": "In Python"}]},
]
CODES = {"validation_error", "not_found", "permission_denied", "rate_limited", "service_unavailable"}


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
    """A new user on the plans surface."""
    return deck.connect(surface="plans")


@pytest.fixture
def slug(plans: Client) -> str:
    made: str = plans.done("plan_create", title="Ship the thing", phases=PHASES)["plan"]["slug"]
    return made


def plan(client: Client, slug: str) -> dict[str, Any]:
    found: dict[str, Any] = client.done("plan_get", slug=slug)["plan"]
    return found


def test_a_new_plan_is_a_draft_with_its_phases_counted(plans: Client) -> None:
    answer = plans.done("plan_create", title="My Plan", phases=PHASES)
    assert answer["success"] is True
    made = answer["plan"]
    assert set(made) == {"slug", "title", "status", "phases"}
    assert made["slug"].startswith("my-plan-") and len(made["slug"]) == len("my-plan-") + 6
    assert (made["title"], made["status"], made["phases"]) == ("My Plan", "draft", 2)


def test_two_plans_of_one_title_have_two_slugs_and_a_given_slug_is_taken_once(plans: Client) -> None:
    first, second = (plans.done("plan_create", title="Same")["plan"]["slug"] for _ in range(2))
    assert first != second
    assert plans.done("plan_create", title="Given", slug="given")["plan"]["slug"] == "given"
    refusal = plans.refused("plan_create", title="Again", slug="given")
    assert (refusal["code"], refusal["field"]) == ("validation_error", "slug")


@pytest.mark.parametrize("slug", ["../etc", "With Space", "UPPER", "", "a" * 101, "-x"])
def test_a_slug_that_is_no_slug_is_refused(plans: Client, slug: str) -> None:
    refusal = plans.refused("plan_create", title="T", slug=slug)
    assert (refusal["code"], refusal["field"]) == ("validation_error", "slug")
    assert plans.done("plan_list")["count"] == 0


def test_a_title_of_any_script_makes_a_slug(plans: Client) -> None:
    assert plans.done("plan_create", title="日本語 🎉")["plan"]["slug"].startswith("plan-")
    assert plans.done("plan_create", title="Größe naïve")["plan"]["slug"].startswith("groe-naive-")


def test_plan_get_shows_progress_phases_tasks_and_checkpoints(plans: Client, slug: str) -> None:
    plans.done(
        "phase_add_checkpoint", plan_slug=slug, phase_order=1, note="half way", context={"file": "a.py"}
    )
    shown = plan(plans, slug)
    assert shown["progress"] == {"total": 3, "completed": 0, "percentage": 0}
    design, build = shown["phases"]
    assert (design["order"], design["name"], design["status"]) == (1, "Design", "pending")
    assert [task["name"] for task in design["tasks"]] == ["Write it down", "Review it"]
    assert [task["index"] for task in design["tasks"]] == [0, 1]
    assert build["tasks"][0]["description"] == "In Python"
    assert [(note["note"], note["context"]) for note in design["checkpoints"]] == [
        ("half way", {"file": "a.py"})
    ]


def test_markdown_ticks_what_is_done(plans: Client, slug: str) -> None:
    plans.done("task_toggle", plan_slug=slug, phase_order=1, task_identifier=0)
    text = plans.done("plan_get", slug=slug, format="markdown")["markdown"]
    assert "# Ship the thing" in text
    assert "- [x] Write it down" in text and "- [ ] Review it" in text


def test_a_list_is_newest_first_filtered_and_without_the_archived(plans: Client) -> None:
    slugs = [plans.done("plan_create", title=f"P{n}", slug=f"p{n}")["plan"]["slug"] for n in range(3)]
    plans.done("plan_update_status", slug="p1", status="active")
    plans.done("plan_archive", slug="p0", reason="superseded")
    assert [p["slug"] for p in plans.done("plan_list")["plans"]] == ["p2", "p1"]
    assert [p["slug"] for p in plans.done("plan_list", status="active")["plans"]] == ["p1"]
    assert [p["slug"] for p in plans.done("plan_list", status="archived")["plans"]] == ["p0"]
    assert plans.done("plan_list", include_archived=True)["count"] == len(slugs)
    assert plans.done("plan_list", limit=0)["count"] == 1
    assert plan(plans, "p0")["archive_reason"] == "superseded"


@pytest.mark.parametrize("status", ["draft", "active", "paused", "completed", "archived"])
def test_every_plan_status_can_be_set(plans: Client, slug: str, status: str) -> None:
    assert plans.done("plan_update_status", slug=slug, status=status)["plan"]["status"] == status
    shown = plan(plans, slug)
    assert shown["status"] == status
    assert (shown["completed_at"] is not None) == (status == "completed")


@pytest.mark.parametrize("status", ["pending", "in_progress", "completed", "blocked", "skipped"])
def test_every_phase_status_can_be_set_with_its_reason(plans: Client, slug: str, status: str) -> None:
    answer = plans.done("phase_update_status", plan_slug=slug, phase_order=2, status=status, reason="because")
    assert (answer["phase"]["status"], answer["phase"]["reason"]) == (status, "because")
    assert plans.done("phase_get", plan_slug=slug, phase_order=2)["phase"]["status"] == status


@pytest.mark.parametrize("which", [2, "2", "Build", "build"])
def test_a_phase_is_found_by_order_or_name(plans: Client, slug: str, which: int | str) -> None:
    assert plans.done("phase_get", plan_slug=slug, phase_order=which)["phase"]["name"] == "Build"
    assert plans.done("phase_get", plan_slug=slug, phase=which)["phase"]["order"] == 2


@pytest.mark.parametrize("which", [0, 3, -1, "Nowhere", "²"])
def test_a_phase_that_is_not_there_is_not_found(plans: Client, slug: str, which: int | str) -> None:
    refusal = plans.refused("phase_get", plan_slug=slug, phase_order=which)
    assert (refusal["code"], refusal["field"]) == ("not_found", "phase_order")


def test_two_phases_of_one_name_need_the_order(plans: Client) -> None:
    plans.done("plan_create", title="T", slug="twins", phases=[{"name": "X"}, {"name": "x"}])
    assert plans.refused("phase_get", plan_slug="twins", phase="X")["code"] == "validation_error"
    assert plans.done("phase_get", plan_slug="twins", phase_order=2)["phase"]["name"] == "x"


@pytest.mark.parametrize("status", ["pending", "completed", "in_progress", "blocked", "skipped"])
def test_a_plan_task_takes_every_status_and_shows_the_state(plans: Client, slug: str, status: str) -> None:
    answer = plans.done(
        "task_update", plan_slug=slug, phase_order=2, task_identifier="Code it", status=status, notes="so"
    )
    state = {"skipped": "cancelled"}.get(status, status)
    shown = "completed" if status == "completed" else "pending"
    task = answer["task"]
    assert (task["status"], task["state"], task["notes"]) == (shown, state, "so")
    expected = 2 if status == "skipped" else 3
    assert answer["plan"]["progress"]["total"] == expected


def test_a_task_is_found_by_index_id_and_title(plans: Client, slug: str) -> None:
    ids = [task["id"] for task in plan(plans, slug)["phases"][0]["tasks"]]
    for identifier in (1, ids[1], "Review it", "review IT"):
        answer = plans.done("task_toggle", plan_slug=slug, phase_order=1, task_identifier=identifier)
        assert answer["task"]["id"] == ids[1]
    assert plans.done("task_toggle", plan_slug=slug, phase="Design", task_index=0)["task"]["id"] == ids[0]


def test_a_task_named_twice_needs_an_index(plans: Client) -> None:
    plans.done("plan_create", title="T", slug="twice", phases=[{"name": "P", "tasks": ["Same", "Same"]}])
    refusal = plans.refused("task_toggle", plan_slug="twice", phase_order=1, task_identifier="Same")
    assert (refusal["code"], refusal["field"]) == ("validation_error", "task_identifier")
    assert (
        plans.done("task_toggle", plan_slug="twice", phase_order=1, task_identifier=1)["task"]["index"] == 1
    )


@pytest.mark.parametrize("identifier", [2, -1, "Nothing", True, 1.5])
def test_a_task_that_is_not_there_changes_nothing(plans: Client, slug: str, identifier: Any) -> None:
    refusal = plans.refused("task_toggle", plan_slug=slug, phase_order=1, task_identifier=identifier)
    assert refusal["code"] in {"not_found", "validation_error"}
    assert plan(plans, slug)["progress"]["completed"] == 0


def test_an_update_without_status_or_notes_is_refused(plans: Client, slug: str) -> None:
    refusal = plans.refused("task_update", plan_slug=slug, phase_order=1, task_identifier=0)
    assert (refusal["code"], refusal["field"]) == ("validation_error", "status")


def test_the_last_task_completes_its_phase_and_the_last_phase_its_plan(plans: Client, slug: str) -> None:
    for phase, index in ((1, 0), (1, 1), (2, 0)):
        plans.done("task_toggle", plan_slug=slug, phase_order=phase, task_identifier=index)
    shown = plan(plans, slug)
    assert shown["status"] == "completed" and shown["completed_at"] is not None
    assert [phase["status"] for phase in shown["phases"]] == ["completed", "completed"]
    assert shown["progress"] == {"total": 3, "completed": 3, "percentage": 100}
    reopened = plans.done("task_toggle", plan_slug=slug, phase_order=2, task_identifier=0)
    assert reopened["plan"]["status"] == "active" and reopened["phase"]["status"] == "in_progress"
    assert plan(plans, slug)["completed_at"] is None


def test_a_plans_tasks_are_the_orchestrators_and_follow_it(deck: Deck) -> None:
    token = deck.mint()["token"]
    plans, tasks = deck.connect(token, surface="plans"), deck.connect(token)
    slug = plans.done("plan_create", title="One", phases=[{"name": "Only", "tasks": ["First", "Second"]}])
    slug = slug["plan"]["slug"]
    rows = tasks.done("task_list")
    assert [row["title"] for row in rows] == ["Second", "First"]
    assert {row["source_channel"] for row in rows} == {"plans"}
    first = rows[1]["id"]
    for action in ("approve", "start", "submit", "complete"):
        tasks.done("task_update", task_id=first, action=action)
    shown = plan(plans, slug)
    assert shown["progress"]["completed"] == 1
    assert shown["phases"][0]["status"] == "in_progress"
    plans.done("task_toggle", plan_slug=slug, phase_order=1, task_identifier="Second")
    history = tasks.done("task_get", task_id=rows[0]["id"])["transitions"]
    assert [(t["from_status"], t["to_status"], t["actor"]) for t in history] == [
        (None, "pending", "plans"),
        ("pending", "completed", "plans"),
    ]
    assert plan(plans, slug)["status"] == "completed"


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, {"a": [1, {"b": None}]}, "日本🎉", 2**62, 0.1])
def test_any_value_round_trips_through_the_state(plans: Client, slug: str, value: Any) -> None:
    plans.done("state_set", plan_slug=slug, key="k", value=value)
    kept = plans.done("state_get", plan_slug=slug, key="k")["state"]
    assert kept["value"] == value and type(kept["value"]) is type(value)
    assert kept["category"] == "general"


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abc日_", min_size=1, max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(value=_JSON)
def test_any_json_round_trips_exactly(plans: Client, slug: str, value: Any) -> None:
    plans.done("state_set", plan_slug=slug, key="any", value=value)
    kept = plans.done("state_get", plan_slug=slug, key="any")["state"]["value"]
    assert json.dumps(kept) == json.dumps(value)


def test_state_is_replaced_by_key_and_listed_by_category(plans: Client, slug: str) -> None:
    for key, value, category in (("b", 1, "x"), ("a", 2, "general"), ("b", 3, "y")):
        plans.done("state_set", plan_slug=slug, key=key, value=value, category=category)
    listed = plans.done("state_list", plan_slug=slug)
    assert [(row["key"], row["value"]) for row in listed["state"]] == [("a", 2), ("b", 3)]
    assert [row["key"] for row in plans.done("state_list", plan_slug=slug, category="y")["state"]] == ["b"]
    assert plans.refused("state_get", plan_slug=slug, key="nope")["code"] == "not_found"
    assert plans.refused("state_set", plan_slug=slug, key="no value")["field"] == "value"


def test_another_users_plan_is_not_found_anywhere(deck: Deck, plans: Client, slug: str) -> None:
    other = deck.connect(surface="plans")
    where = {"plan_slug": slug, "phase_order": 1}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("plan_get", {"slug": slug}),
        ("plan_update_status", {"slug": slug, "status": "active"}),
        ("plan_archive", {"slug": slug}),
        ("phase_get", where),
        ("phase_update_status", {**where, "status": "completed"}),
        ("phase_add_checkpoint", {**where, "note": "x"}),
        ("task_update", {**where, "task_identifier": 0, "status": "completed"}),
        ("task_toggle", {**where, "task_identifier": 0}),
        ("state_set", {"plan_slug": slug, "key": "k", "value": 1}),
        ("state_get", {"plan_slug": slug, "key": "k"}),
        ("state_list", {"plan_slug": slug}),
        ("session_start", {"plan_slug": slug, "agent_type": "opus"}),
        ("session_list", {"plan_slug": slug}),
        ("content_from_plan", {"plan_slug": slug}),
    ]
    before = plan(plans, slug)
    for tool, arguments in calls:
        refusal = other.refused(tool, **arguments)
        assert refusal["code"] == "not_found", tool
        assert refusal["error"] == f"plan {slug} not found", tool
    assert other.done("plan_list", include_archived=True)["count"] == 0
    assert plan(plans, slug) == before


def test_a_task_bound_token_works_on_its_own_task_of_the_plan_alone(deck: Deck) -> None:
    owner = f"user-{deck.mint()['id']}"
    plans = deck.connect(deck.mint(owner)["token"], surface="plans")
    made = plans.done("plan_create", title="T", slug="bound", phases=PHASES)["plan"]["slug"]
    task = plan(plans, made)["phases"][0]["tasks"][0]["id"]
    bound = deck.connect(deck.mint(owner, "pair_worker", task_id=task)["token"], surface="plans")
    where = {"plan_slug": made, "phase_order": 1}
    assert bound.done("task_toggle", **where, task_identifier=0)["task"]["id"] == task
    assert bound.refused("task_toggle", **where, task_identifier=1)["code"] == "not_found"
    assert bound.done("plan_get", slug=made)["plan"]["slug"] == made
    assert bound.refused("plan_list")["code"] == "permission_denied"
    plans.done("plan_create", title="Other", slug="other")
    assert bound.refused("plan_get", slug="other")["code"] == "not_found"


def test_fifty_writers_on_one_plan_lose_nothing(deck: Deck) -> None:
    token = deck.mint()["token"]
    plans = deck.connect(token, surface="plans")
    tasks = [f"Task {n}" for n in range(50)]
    slug = plans.done("plan_create", title="Busy", phases=[{"name": "P", "tasks": tasks}])["plan"]["slug"]

    def work(n: int) -> None:
        client = deck.connect(token, surface="plans")
        where = {"plan_slug": slug, "phase_order": 1}
        client.done("task_toggle", **where, task_identifier=n)
        client.done("phase_add_checkpoint", **where, note=f"note {n}")
        client.done("state_set", plan_slug=slug, key=f"key {n}", value=n)

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    shown = plan(plans, slug)
    assert shown["status"] == "completed"
    assert shown["progress"] == {"total": 50, "completed": 50, "percentage": 100}
    state = plans.done("state_list", plan_slug=slug)["state"]
    assert {row["key"]: row["value"] for row in state} == {f"key {n}": n for n in range(50)}


def test_refusals_speak_the_documents_codes_alone(deck: Deck, plans: Client, slug: str) -> None:
    viewer = deck.connect(deck.mint(profile="viewer")["token"], surface="plans")
    refusals = [
        plans.refused("plan_create"),
        plans.refused("plan_get", slug="nope"),
        plans.refused("no_such_tool"),
        viewer.refused("plan_create", title="x"),
        plans.refused("plan_update_status", slug=slug, status="wild"),
    ]
    assert [refusal["code"] for refusal in refusals] == [
        "validation_error",
        "not_found",
        "not_found",
        "permission_denied",
        "validation_error",
    ]
    assert all(isinstance(refusal["error"], str) and refusal["code"] in CODES for refusal in refusals)
