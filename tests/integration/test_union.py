"""`/mcp`: every surface at once, and a name that two documents share."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from quarterdeck.surfaces.all import SURFACES
from tests.core_process import CoreProcess
from tests.mcp_client import Client, Deck

ADMIN = "the admin secret of these tests"
BUDGET = 11_000


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    folder = tmp_path_factory.mktemp("core")
    with CoreProcess(folder, {"QUARTERDECK_ADMIN_SECRET": ADMIN}) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture
def everything(deck: Deck) -> Client:
    return deck.connect(surface="")


def test_it_lists_the_tools_of_every_surface_once(everything: Client) -> None:
    names = [tool["name"] for tool in everything.tools()]
    assert len(names) == len(set(names))
    assert set(names) == {name for surface in SURFACES.values() for name in surface.tools}


def test_its_list_stays_within_its_budget(everything: Client) -> None:
    assert len(json.dumps(everything.tools())) / 4 < BUDGET


def test_no_schema_has_alternatives_at_the_top(everything: Client) -> None:
    for tool in everything.tools():
        assert tool["inputSchema"]["type"] == "object", tool["name"]
        assert not {"anyOf", "oneOf", "allOf"} & tool["inputSchema"].keys(), tool["name"]


def test_task_update_takes_either_shape_and_answers_in_the_callers(everything: Client) -> None:
    task = everything.done("task_create", title="Alone")
    assert everything.done("task_update", task_id=task["id"], action="approve")["status"] == "approved"
    slug = everything.done("plan_create", title="P", phases=[{"name": "A", "tasks": ["One"]}])["plan"]["slug"]
    where = {"plan_slug": slug, "phase_order": 1, "task_identifier": "One"}
    assert everything.done("task_update", **where, status="completed")["plan"]["status"] == "completed"


def test_a_refusal_speaks_the_dialect_of_the_shape(everything: Client) -> None:
    task = everything.done("task_create", title="Alone")
    refusal = everything.refused("task_update", task_id=task["id"], action="complete")
    assert (refusal["code"], refusal["valid_actions"]) == ("invalid_transition", ["approve", "cancel"])
    refusal = everything.refused(
        "task_update", plan_slug="nope", phase_order=1, task_identifier=0, status="completed"
    )
    assert (refusal["code"], refusal["error"]) == ("not_found", "plan nope not found")
    assert everything.refused("task_update", status="completed")["code"] == "validation_error"


def test_a_shared_name_is_judged_by_the_shape_of_the_call(deck: Deck) -> None:
    owner = f"user-{deck.mint()['id']}"
    maintainer = deck.connect(deck.mint(owner)["token"], surface="")
    worker = deck.connect(deck.mint(owner, "pair_worker")["token"], surface="")
    viewer = deck.connect(deck.mint(owner, "viewer")["token"], surface="")
    made = maintainer.done("plan_create", title="P", phases=[{"name": "A", "tasks": ["One"]}])["plan"]["slug"]
    task = maintainer.done("task_list")[0]["id"]
    assert "task_update" in {tool["name"] for tool in worker.tools()}
    assert "task_update" not in {tool["name"] for tool in viewer.tools()}
    assert worker.refused("task_update", task_id=task, action="approve")["code"] == "permission_denied"
    where = {"plan_slug": made, "phase_order": 1, "task_identifier": 0}
    assert worker.done("task_update", **where, status="in_progress")["task"]["state"] == "in_progress"
    assert viewer.refused("task_update", **where, status="completed")["code"] == "permission_denied"
