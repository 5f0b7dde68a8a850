"""The audit: who did what, who was refused, and a chain that shows a changed row."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core_process import CoreProcess
from tests.integration.own_core import quarterdeck
from tests.mcp_client import Client, Deck, eventually

ADMIN = "the admin secret of these tests"
KEYS = {
    *("event_id", "occurred_at", "actor_type", "actor_id", "capability", "command_name", "success"),
    *("entity_id", "task_id", "data"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("core")


@pytest.fixture(scope="module")
def deck(folder: Path) -> Iterator[Deck]:
    with CoreProcess(folder, {"QUARTERDECK_ADMIN_SECRET": ADMIN}) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture(scope="module")
def minted(deck: Deck) -> dict[str, Any]:
    return deck.mint()


@pytest.fixture(scope="module")
def board(deck: Deck, minted: dict[str, Any]) -> Client:
    return deck.connect(minted["token"], surface="board", Quarterdeck_Session="laptop")


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["command_name"] for event in events]


def test_every_write_and_every_refusal_is_told_newest_first(
    deck: Deck, board: Client, minted: dict[str, Any]
) -> None:
    task_id = board.done("tasks_create", title="T")["task_id"]
    board.done("tasks_move", task_id=task_id, status="DONE")
    board.refused("tasks_move", task_id=task_id, status="AUTO")
    board.done("get_task", task_id=task_id)
    refused = eventually(lambda: board.done("audit_tail", ok=False)["events"])
    assert refused[0].keys() == KEYS
    assert (refused[0]["capability"], refused[0]["command_name"]) == ("board.tasks_move", "call.refused")
    assert refused[0]["data"] == {"code": "validation_error", "field": "status", "target": task_id}
    of_task = board.done("audit_tail", task_id=task_id)["events"]
    assert kinds(of_task) == ["task.updated", "task.created"]
    moved = of_task[0]
    assert (moved["capability"], moved["success"]) == ("board.tasks_move", True)
    assert moved["actor_id"] == f"{minted['user_id']}/laptop" and moved["actor_type"] == "user"
    assert (moved["data"]["before"], moved["data"]["after"]) == ("pending", "completed")


def test_calls_of_the_other_surfaces_are_there_too(deck: Deck, board: Client, minted: dict[str, Any]) -> None:
    orchestrator = deck.connect(minted["token"])
    plans = deck.connect(minted["token"], surface="plans")
    orchestrator.done("decision_log", context="c", decision="d")
    plans.done("plan_create", title="P")
    for tool, kind in (("orchestrator.decision_log", "decision.logged"), ("plan_create", "plan.created")):
        assert kinds(board.done("audit_tail", capability=tool)["events"]) == [kind]


def test_a_cursor_walks_the_whole_tail_once(board: Client) -> None:
    for number in range(5):
        board.done("tasks_create", title=f"Walked {number}")
    seen: list[int] = []
    cursor: dict[str, str] = {}
    for _ in range(100):
        page = board.done("audit_tail", limit=2, capability="tasks_create", **cursor)
        seen += [event["event_id"] for event in page["events"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(seen) >= 5
    assert seen == sorted(set(seen), reverse=True)
    for wrong in ("x", "-1", "1" * 30):
        assert board.refused("audit_tail", cursor=wrong)["code"] == "INVALID_PARAMS"


def test_a_user_sees_their_own_and_the_admin_everything(deck: Deck, board: Client) -> None:
    stranger = deck.connect(surface="board")
    assert board.done("audit_tail")["count"] > 0
    assert kinds(stranger.done("audit_tail")["events"]) == ["token.minted"]
    admin = deck.connect(ADMIN, surface="board")
    actors = {event["actor_id"] for event in admin.done("audit_tail", limit=200)["events"]}
    assert any(actor.endswith("/laptop") for actor in actors)
    actor = next(actor for actor in actors if actor.endswith("/laptop"))
    assert {event["actor_id"] for event in admin.done("audit_tail", actor=actor)["events"]} == {actor}


def test_routes_are_for_maintainers(deck: Deck, minted: dict[str, Any]) -> None:
    operator = deck.mint(minted["user_id"], "operator")["token"]
    for path in ("/api/audit", "/api/audit/verify"):
        assert deck.rest("GET", path, operator).status_code == 403
        assert deck.rest("GET", path, minted["token"]).status_code == 200
        assert deck.rest("GET", path, "mcp_unknown").status_code == 403
        assert deck.rest("POST", path, minted["token"]).status_code == 405
    assert deck.rest("GET", "/api/audit/nowhere", minted["token"]).status_code == 404
    assert deck.rest("GET", "/api/audit?limit=many", minted["token"]).status_code == 422
    found = deck.rest("GET", "/api/audit?limit=1&capability=tasks_create", minted["token"]).json()
    assert kinds(found["events"]) == ["task.created"] and found["next_cursor"]


def test_the_command_line_shows_and_verifies(deck: Deck, folder: Path) -> None:
    local = deck.connect((folder / "token").read_text().strip(), surface="board")
    local.done("tasks_create", title="Mine")
    where = ("--data-dir", str(folder))
    shown = quarterdeck("audit", "tail", "--limit", "5", "--capability", "tasks_create", *where)
    assert shown.returncode == 0 and "board.tasks_create" in shown.stdout, shown
    as_json = json.loads(quarterdeck("audit", "tail", "--limit", "1", "--json", *where).stdout)
    assert kinds(as_json["events"]) == ["task.created"]
    whole = quarterdeck("audit", "verify", *where)
    assert whole.returncode == 0 and "unbroken" in whole.stdout


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET actor = 'somebody else' WHERE seq = 3",
        "UPDATE events SET data = '{}' WHERE seq = 3",
        "DELETE FROM events WHERE seq = 3",
    ],
)
def test_a_changed_or_removed_row_is_found(deck: Deck, folder: Path, damage: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "quarterdeck.db", timeout=30)) as database:
        row = database.execute("SELECT * FROM events WHERE seq = 3").fetchone()
        with database:
            database.execute(damage)
        verdict = deck.rest("GET", "/api/audit/verify").json()
        told = quarterdeck("audit", "verify", "--data-dir", str(folder))
        with database:
            database.execute("DELETE FROM events WHERE seq = 3")
            database.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row))})", row)
    assert (verdict["ok"], verdict["broken"], verdict["checked"]) == (False, 3, 2)
    assert told.returncode == 1 and "event 3" in told.stdout
    assert deck.rest("GET", "/api/audit/verify").json()["ok"] is True
