"""Tasks on the board: made, changed, moved and deleted; their notes, and a task in full."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.domain.states import STATUSES, column_of
from quarterdeck.surfaces.all import BOARD
from tests.core_process import CoreProcess
from tests.mcp_client import MODERN, OLDER, Client, Deck

ADMIN = "the admin secret of these tests"
ENVELOPE = {"success", "message", "code", "hint", "next_tool", "next_arguments"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("core")


@pytest.fixture(scope="module")
def deck(folder: Path) -> Iterator[Deck]:
    with CoreProcess(folder, {"QUARTERDECK_ADMIN_SECRET": ADMIN}) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture(scope="module", params=[MODERN, OLDER])
def board(request: pytest.FixtureRequest, deck: Deck) -> Client:
    return deck.connect(version=request.param, surface="board")


@pytest.fixture(scope="module")
def user(deck: Deck) -> str:
    return f"user-{uuid.uuid4()}"


@pytest.fixture(scope="module")
def owner(deck: Deck, user: str) -> Client:
    return deck.connect(deck.mint(user)["token"], surface="board")


@pytest.fixture(scope="module")
def orchestrator(deck: Deck, user: str) -> Client:
    return deck.connect(deck.mint(user)["token"])


def made(client: Client, **fields: Any) -> str:
    task_id: str = client.done("tasks_create", **{"title": "A task", **fields})["task_id"]
    return task_id


def write(folder: Path, statement: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(folder / "quarterdeck.db", timeout=30)) as database, database:
        database.execute(statement, values)


def add_job(
    folder: Path, job_id: str, task_id: str, user: str, state: str, at: int, log: bytes | None
) -> None:
    """A job as the engine leaves it, with its log when it has ended; of another place, so none runs it."""
    columns = "id, user_id, kind, task_id, spec, state, state_version, priority, attempt, result, place"
    values = (job_id, user, "auto", task_id, "{}", state, 1, 1, 0, "null", "elsewhere", at, at)
    marks = ", ".join("?" * len(values))
    write(folder, f"INSERT INTO jobs ({columns}, created_at, updated_at) VALUES ({marks})", *values)
    if log is not None:
        row = (job_id, "logs.txt", "text/plain", log, "digest", len(log), at)
        write(folder, "INSERT INTO artifacts VALUES (?, ?, ?, ?, ?, ?, ?)", *row)


def test_every_answer_that_writes_has_the_whole_envelope(board: Client) -> None:
    task = board.done("tasks_create", title="Write it", description="All of it", acceptance_criteria=["done"])
    assert task.keys() >= ENVELOPE
    assert (task["success"], task["code"], task["status"], task["state"]) == (
        *(True, "CREATED"),
        *("BACKLOG", "pending"),
    )
    task_id = task["task_id"]
    answers = [
        board.done("tasks_update", task_id=task_id, priority="high", task_type="auto"),
        board.done("tasks_move", task_id=task_id, status="in_progress"),
        board.done("update_scratchpad", task_id=task_id, content="begun"),
        board.done("tasks_delete", task_id=task_id),
    ]
    assert all(answer.keys() >= ENVELOPE and answer["success"] is True for answer in answers)
    assert [answer["code"] for answer in answers] == ["UPDATED", "MOVED", "UPDATED", "DELETED"]
    assert answers[1]["new_status"] == "IN_PROGRESS"


def test_annotations_tell_reads_writes_and_what_destroys(board: Client) -> None:
    hints = {tool["name"]: tool["annotations"] for tool in board.tools()}
    assert hints["tasks_list"]["readOnlyHint"] is True
    assert hints["tasks_move"] == {"readOnlyHint": False, "destructiveHint": False}
    assert hints["tasks_delete"] == {"readOnlyHint": False, "destructiveHint": True}


def test_a_task_takes_every_field_and_shows_it(board: Client) -> None:
    parent = made(board)
    given = {
        "description": "Long",
        "priority": "uRgEnT",
        "task_type": "AUTO",
        "terminal_backend": "vscode",
        "agent_backend": "codex",
        "parent_id": parent,
        "base_branch": "release/1.0",
        "acceptance_criteria": ["tests pass", "docs say so"],
        "created_by": "a person",
    }
    found = board.done("get_task", task_id=made(board, status="REVIEW", **given))
    assert {name: found[name] for name in given} == {**given, "priority": "URGENT"}
    assert (found["status"], found["state"]) == ("REVIEW", "review")


def test_an_update_changes_what_it_names_and_leaves_the_rest(board: Client) -> None:
    task_id = made(board, description="stays", acceptance_criteria=["a"])
    before = board.done("get_task", task_id=task_id)
    board.done("tasks_update", task_id=task_id, title="Another", priority="LOW", acceptance_criteria=[])
    after = board.done("get_task", task_id=task_id)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"title", "priority", "acceptance_criteria", "updated_at"}
    assert board.refused("tasks_update", task_id=task_id)["code"] == "INVALID_PARAMS"


@pytest.mark.parametrize("tool", ["tasks_move", "tasks_update"])
def test_a_type_for_a_status_leads_to_the_call_that_was_meant(board: Client, tool: str) -> None:
    task_id = made(board)
    refusal = board.refused(tool, task_id=task_id, status="auto")
    assert (refusal["success"], refusal["code"]) == (False, "STATUS_WAS_TASK_TYPE")
    assert refusal["next_tool"] == "tasks_update"
    assert refusal["next_arguments"] == {"task_id": task_id, "task_type": "AUTO"}
    assert board.done("get_task", task_id=task_id)["task_type"] == "PAIR"
    board.done(refusal["next_tool"], **refusal["next_arguments"])
    assert board.done("get_task", task_id=task_id)["task_type"] == "AUTO"


def test_a_type_for_the_status_of_a_new_task_keeps_its_other_fields(board: Client) -> None:
    refusal = board.refused("tasks_create", title="T", status="PAIR", priority="low")
    assert refusal["code"] == "STATUS_WAS_TASK_TYPE"
    assert refusal["next_arguments"] == {"title": "T", "priority": "LOW", "task_type": "PAIR"}
    assert board.done(refusal["next_tool"], **refusal["next_arguments"])["task_type"] == "PAIR"


def test_every_column_leads_to_every_other_and_each_move_is_on_record(
    owner: Client, orchestrator: Client
) -> None:
    task_id = made(owner)
    walk = ["DONE", "BACKLOG", "REVIEW", "IN_PROGRESS", "DONE", "REVIEW", "BACKLOG", "IN_PROGRESS", "BACKLOG"]
    for status in walk:
        assert owner.done("tasks_move", task_id=task_id, status=status)["status"] == status
    history = orchestrator.done("task_get", task_id=task_id)
    assert [column_of(each["to_status"]) for each in history["transitions"]] == ["BACKLOG", *walk]
    assert {each["actor"] for each in history["transitions"]} == {"board"}
    assert history["task"]["completed_at"] is None


def test_a_move_to_where_it_is_changes_nothing(owner: Client, orchestrator: Client) -> None:
    task_id = made(owner)
    before = owner.done("get_task", task_id=task_id)
    assert owner.done("tasks_move", task_id=task_id, status="BACKLOG")["updated_at"] == before["updated_at"]
    assert len(orchestrator.done("task_get", task_id=task_id)["transitions"]) == 1


def test_the_board_and_the_orchestrator_have_the_same_tasks(owner: Client, orchestrator: Client) -> None:
    task = orchestrator.done("task_create", title="Elsewhere")["id"]
    orchestrator.done("task_update", task_id=task, action="approve")
    shown = owner.done("get_task", task_id=task)
    assert (shown["status"], shown["state"]) == ("BACKLOG", "approved")
    owner.done("tasks_move", task_id=task, status="REVIEW")
    assert orchestrator.done("task_update", task_id=task, action="complete")["status"] == "completed"
    assert owner.done("get_task", task_id=task)["status"] == "DONE"


@pytest.mark.parametrize("status", STATUSES)
def test_a_list_filters_by_column_and_by_state(owner: Client, folder: Path, status: str) -> None:
    task_id = made(owner, title=f"Filtered {status}")
    write(folder, "UPDATE tasks SET status = ? WHERE id = ?", status, task_id)
    for name in (status, column_of(status), column_of(status).lower()):
        found = owner.done("tasks_list", filter=name, text=f"Filtered {status}")["tasks"]
        assert [task["task_id"] for task in found] == [task_id]
    other = "DONE" if column_of(status) != "DONE" else "REVIEW"
    assert owner.done("tasks_list", filter=other, text=f"Filtered {status}")["count"] == 0


def test_a_list_is_newest_first_paged_and_compact(board: Client) -> None:
    ids = [made(board, title=f"Paged {number}", description="long " * 500) for number in range(5)]
    board.done("update_scratchpad", task_id=ids[4], content="x" * 3000)
    first = board.done("tasks_list", text="Paged", limit=2)
    second = board.done("tasks_list", text="Paged", limit=2, cursor=first["next_cursor"])
    third = board.done("tasks_list", text="Paged", limit=2, cursor=second["next_cursor"])
    pages = [[task["task_id"] for task in page["tasks"]] for page in (first, second, third)]
    assert pages == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]
    assert third["next_cursor"] is None
    assert not {"description", "scratchpad"} & first["tasks"][0].keys()
    noted = board.done("tasks_list", text="Paged", limit=1, include_scratchpad=True)["tasks"][0]
    assert noted["scratchpad"] == "x" * 2000 and noted["scratchpad_truncated"] is True
    rest = board.done("tasks_list", text="Paged", exclude_task_ids=ids[1:])["tasks"]
    assert [task["task_id"] for task in rest] == [ids[0]]
    assert board.refused("tasks_list", cursor="nonsense")["code"] == "INVALID_PARAMS"


def test_a_list_is_a_thousand_tokens_long_however_many_tasks_there_are(deck: Deck) -> None:
    busy = deck.connect(surface="board")
    for number in range(20):
        made(busy, title=f"Make the totals exact, part {number}", agent_backend="claude")
    answer = busy.done("tasks_list")
    assert (answer["count"], bool(answer["next_cursor"])) == (15, True)
    assert len(json.dumps(answer, separators=(",", ":"))) <= 4096


def test_a_list_filters_by_priority_agent_and_plan(owner: Client) -> None:
    proposal = owner.done("propose_plan", tasks=[{"title": "Planned one"}, {"title": "Planned two"}])
    plan = owner.done("proposal_accept", proposal_id=proposal["proposal_id"])["plan"]
    assert owner.done("tasks_list", plan=plan)["count"] == 2
    assert owner.refused("tasks_list", plan="no-such-plan")["code"] == "PLAN_NOT_FOUND"
    agent = f"agent-{uuid.uuid4()}"
    task_id = made(owner, agent_backend=agent, priority="urgent")
    for filters in ({"agent": agent}, {"agent": agent, "priority": "Urgent"}):
        assert [task["task_id"] for task in owner.done("tasks_list", **filters)["tasks"]] == [task_id]
    assert owner.done("tasks_list", agent=agent, priority="low")["count"] == 0


def test_notes_are_appended_and_the_newest_fifty_thousand_kept(board: Client) -> None:
    task_id = made(board)
    board.done("update_scratchpad", task_id=task_id, content="first")
    board.done("update_scratchpad", task_id=task_id, content="second")
    assert board.done("get_task", task_id=task_id, include_scratchpad=True)["scratchpad"] == "first\nsecond"
    answer = board.done("update_scratchpad", task_id=task_id, content="y" * 60_000)
    assert answer["characters"] == 50_000
    board.done("update_scratchpad", task_id=task_id, content="the end")
    full = board.done("get_task", task_id=task_id, mode="full")
    assert full["scratchpad"].endswith("y\nthe end") and len(full["scratchpad"]) == 32_000
    assert full["truncated"] == ["scratchpad"]


def test_long_texts_are_cut_by_mode_and_said_to_be(board: Client) -> None:
    task_id = made(board, description="d" * 40_000)
    summary = board.done("get_task", task_id=task_id)
    assert len(summary["description"]) == 8_000 and summary["truncated"] == ["description"]
    assert (summary["scratchpad"], summary["logs"], summary["reviews"]) == (None, None, None)
    assert len(board.done("get_task", task_id=task_id, mode="full")["description"]) == 32_000
    short = board.done("get_task", task_id=made(board), mode="full")
    assert (short["truncated"], short["logs"], short["scratchpad"]) == ([], [], "")


def test_logs_of_runs_come_newest_first_within_their_budget(owner: Client, folder: Path, user: str) -> None:
    task_id = made(owner)
    for number in range(12):
        log = f"begin {number} {'ä' * 20_000} end {number}".encode()
        add_job(folder, f"job_{uuid.uuid4().hex[:20]}", task_id, user, "FAILED", number, log)
    summary = owner.done("get_task", task_id=task_id, include_logs=True)
    assert [entry["run"] for entry in summary["logs"]] == [12, 11, 10]
    assert all(len(entry["content"]) == 2_500 and entry["truncated"] for entry in summary["logs"])
    assert summary["logs"][0]["content"].endswith("end 11")
    assert summary["truncated"] == ["logs"]
    full = owner.done("get_task", task_id=task_id, mode="full")
    assert [len(entry["content"]) for entry in full["logs"]] == [10_000, 10_000, 4_000]
    short = made(owner)
    for number in range(12):
        add_job(folder, f"job_{uuid.uuid4().hex[:20]}", short, user, "FAILED", number, b"it broke")
    shown = owner.done("get_task", task_id=short, mode="full")
    assert ([entry["content"] for entry in shown["logs"]], shown["truncated"]) == (["it broke"] * 10, [])


def test_what_goes_on_with_a_task_is_told(
    owner: Client, orchestrator: Client, folder: Path, user: str
) -> None:
    task_id = made(owner)
    assert not any(owner.done("get_task", task_id=task_id)["runtime"].values())
    job_id = f"job_{uuid.uuid4().hex[:20]}"
    add_job(folder, job_id, task_id, user, "QUEUED", 1, None)
    waiting = owner.done("get_task", task_id=task_id)["runtime"]
    assert waiting["is_pending"] and waiting["pending_reason"] and not waiting["is_running"]
    owner.done("tasks_move", task_id=task_id, status="IN_PROGRESS")
    orchestrator.done("task_update", task_id=task_id, action="block", reason="no key")
    blocked = owner.done("get_task", task_id=task_id)["runtime"]
    assert (blocked["is_blocked"], blocked["blocked_reason"]) == (True, "no key")
    as_job = owner.done("jobs_get", task_id=task_id, job_id=job_id)["runtime"]
    assert as_job == blocked, "a job and its task must tell the same"


@pytest.mark.parametrize(
    "settle",
    [
        ("tasks_move", {"status": "DONE"}),
        ("tasks_update", {"status": "DONE"}),
        ("tasks_update", {"task_type": "PAIR"}),
        ("tasks_delete", {}),
    ],
    ids=str,
)
def test_jobs_end_when_their_task_needs_them_no_more(
    owner: Client, folder: Path, user: str, settle: tuple[str, dict[str, str]]
) -> None:
    task_id, job_id = made(owner, task_type="AUTO"), f"job_{uuid.uuid4().hex[:20]}"
    add_job(folder, job_id, task_id, user, "QUEUED", 1, None)
    tool, arguments = settle
    owner.done(tool, task_id=task_id, **arguments)
    with contextlib.closing(sqlite3.connect(folder / "quarterdeck.db")) as database:
        found = database.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()
    assert found == ("CANCELED",)
    if arguments:
        after = owner.done("get_task", task_id=task_id)
        assert after["status"] == arguments.get("status", "BACKLOG")
        assert not after["runtime"]["is_pending"]


def test_context_shows_the_tasks_that_a_task_mentions(owner: Client) -> None:
    other, third = made(owner, title="Other", description="d" * 900), made(owner, title="Third")
    task_id = made(owner, description=f"After @{other}, and @{uuid.uuid4()}, which is nobody's")
    owner.done("update_scratchpad", task_id=task_id, content=f"see @{third} and @{task_id}")
    found = owner.done("get_context", task_id=task_id)
    assert [each["task_id"] for each in found["linked_tasks"]] == [other, third]
    assert len(found["linked_tasks"][0]["description"]) == 500
    assert (found["repos"], found["repo_count"], found["workspace_path"]) == ([], 0, None)
    assert found["overlaps"] == []


def test_a_deleted_task_is_gone_everywhere(owner: Client, orchestrator: Client) -> None:
    task_id = made(owner)
    child = made(owner, parent_id=task_id)
    owner.done("tasks_delete", task_id=task_id)
    for tool in ("get_task", "get_context", "tasks_wait", "tasks_delete"):
        assert owner.refused(tool, task_id=task_id)["code"] == "TASK_NOT_FOUND"
    assert orchestrator.refused("task_get", task_id=task_id)["code"] == "not_found"
    assert owner.done("get_task", task_id=child)["parent_id"] is None


def test_a_task_is_never_below_itself(owner: Client) -> None:
    top = made(owner)
    low = made(owner, parent_id=made(owner, parent_id=top))
    for parent in (top, low):
        refusal = owner.refused("tasks_update", task_id=top, parent_id=parent)
        assert (refusal["code"], refusal["field"]) == ("INVALID_PARAMS", "parent_id")
    assert owner.refused("tasks_create", title="T", parent_id="nowhere")["code"] == "TASK_NOT_FOUND"


def test_a_proposal_waits_for_a_person_who_accepts_it_once(owner: Client) -> None:
    given = [
        {"title": "First", "task_type": "AUTO", "priority": "HIGH", "acceptance_criteria": ["it runs"]},
        {"title": "Second", "description": "More"},
    ]
    before = owner.done("tasks_list")["tasks"][0]["task_id"]
    answer = owner.done("propose_plan", tasks=given, todos=[{"content": "Read the code"}])
    assert (answer["status"], answer["task_count"], answer["todo_count"]) == ("received", 2, 1)
    assert answer["tasks"][0]["type"] == "AUTO" and answer["todos"][0]["status"] == "completed"
    assert owner.done("tasks_list")["tasks"][0]["task_id"] == before
    proposal_id = answer["proposal_id"]
    listed = owner.done("proposals_list", status="received")["proposals"]
    assert listed[0]["proposal_id"] == proposal_id
    accepted = owner.done("proposal_accept", proposal_id=proposal_id, title="The plan")
    first, second = (owner.done("get_task", task_id=task["task_id"]) for task in accepted["tasks"])
    assert (first["task_type"], first["priority"], first["acceptance_criteria"]) == (
        *("AUTO", "HIGH"),
        ["it runs"],
    )
    assert (second["task_type"], second["description"]) == ("PAIR", "More")
    for tool in ("proposal_accept", "proposal_dismiss"):
        assert owner.refused(tool, proposal_id=proposal_id)["code"] == "ACTION_NOT_ALLOWED"


def test_a_dismissed_proposal_leaves_no_task(owner: Client) -> None:
    proposal_id = owner.done("propose_plan", tasks=[{"title": "Nobody wants it"}])["proposal_id"]
    owner.done("proposal_dismiss", proposal_id=proposal_id)
    assert owner.done("tasks_list", text="Nobody wants it")["count"] == 0
    dismissed = owner.done("proposals_list", status="dismissed")["proposals"]
    assert [each["proposal_id"] for each in dismissed] == [proposal_id]
    assert owner.refused("proposal_accept", proposal_id="nowhere")["code"] == "PROPOSAL_NOT_FOUND"


# Arguments for a call of each tool that would do something to the row it names.
ON_A_TASK: dict[str, dict[str, Any]] = {
    "get_task": {},
    "get_context": {},
    "tasks_wait": {"timeout_seconds": 0.1},
    "update_scratchpad": {"content": "mine now"},
    "tasks_update": {"title": "mine now"},
    "tasks_move": {"status": "DONE"},
    "tasks_delete": {},
}


def test_another_users_task_is_not_there(deck: Deck, owner: Client) -> None:
    task_id, stranger = made(owner), deck.connect(surface="board")
    for tool, arguments in ON_A_TASK.items():
        assert stranger.refused(tool, task_id=task_id, **arguments)["code"] == "TASK_NOT_FOUND", tool
    assert stranger.done("tasks_list")["count"] == 0
    assert stranger.done("audit_tail", task_id=task_id)["count"] == 0
    proposal = owner.done("propose_plan", tasks=[{"title": "T"}])["proposal_id"]
    assert stranger.done("proposals_list")["count"] == 0
    assert stranger.refused("proposal_accept", proposal_id=proposal)["code"] == "PROPOSAL_NOT_FOUND"
    assert owner.done("get_task", task_id=task_id)["title"] == "A task"


def test_a_bound_token_reaches_its_own_task_and_no_other(deck: Deck, owner: Client, user: str) -> None:
    own, other = made(owner), made(owner)
    bound = deck.connect(deck.mint(user, "pair_worker", task_id=own)["token"], surface="board")
    listed = {tool["name"] for tool in bound.tools()}
    assert listed >= {
        *("get_task", "get_context", "tasks_list", "tasks_wait", "repos_list", "audit_tail"),
        *("update_scratchpad", "settings_get"),
    }
    assert not listed & {"projects_list", "proposals_list", "propose_plan", "tasks_create", "tasks_move"}
    assert bound.done("get_task", task_id=own)["task_id"] == own
    bound.done("update_scratchpad", task_id=own, content=f"see @{other}")
    assert bound.done("get_context", task_id=own)["linked_tasks"] == []
    for tool in ("get_task", "get_context", "tasks_wait", "update_scratchpad"):
        arguments = ON_A_TASK[tool]
        assert bound.refused(tool, task_id=other, **arguments)["code"] == "TASK_NOT_FOUND", tool
    assert bound.refused("tasks_wait", task_ids=[own, other])["code"] == "TASK_NOT_FOUND"
    for tool in ("tasks_list", "audit_tail"):
        assert bound.refused(tool)["code"] == "SESSION_SCOPE_DENIED"
    assert bound.refused("tasks_move", task_id=own, status="DONE")["code"] == "AUTHORIZATION_DENIED"
    assert {each["task_id"] for each in bound.done("audit_tail", task_id=own)["events"]} == {own}


@pytest.mark.parametrize("profile", ["viewer", "planner", "pair_worker", "operator"])
def test_a_tool_above_the_profile_is_neither_listed_nor_served(deck: Deck, user: str, profile: str) -> None:
    client = deck.connect(deck.mint(user, profile)["token"], surface="board")
    listed = {tool["name"] for tool in client.tools()}
    order = ["viewer", "planner", "pair_worker", "operator", "maintainer"]
    allowed = {tool.name for tool in BOARD.tools.values() if order.index(tool.least) <= order.index(profile)}
    assert listed == allowed
    for name in BOARD.tools.keys() - allowed:
        assert client.refused(name)["code"] == "AUTHORIZATION_DENIED", name


HOSTILE: list[tuple[str, str, str]] = [
    ("tasks_create", '{"title": ""}', "INVALID_PARAMS"),
    ("tasks_create", '{"title": "a\\u0000b"}', "INVALID_PARAMS"),
    ("tasks_create", '{"title": "T", "priority": "huge"}', "INVALID_PARAMS"),
    ("tasks_create", '{"title": "T", "status": "SOMEWHERE"}', "INVALID_PARAMS"),
    ("tasks_create", '{"title": "T", "base_branch": "--upload-pack=x"}', "INVALID_PARAMS"),
    ("tasks_create", '{"title": "T", "base_branch": "a..b"}', "INVALID_PARAMS"),
    ("tasks_create", '{"title": "T", "nonsense": 1}', "INVALID_PARAMS"),
    ("tasks_create", '{"title": "T", "project_id": "nowhere"}', "PROJECT_NOT_FOUND"),
    ("tasks_create", '{"title": {"a": 1}}', "INVALID_PARAMS"),
    ("get_task", '{"task_id": ""}', "INVALID_TASK_ID"),
    ("get_task", '{"task_id": 7}', "INVALID_TASK_ID"),
    ("get_task", "{}", "INVALID_TASK_ID"),
    ("get_task", '{"task_id": "x", "mode": "huge"}', "INVALID_PARAMS"),
    ("get_task", '{"task_id": "\' OR 1=1 --"}', "TASK_NOT_FOUND"),
    ("tasks_move", '{"task_id": "x", "status": null}', "INVALID_PARAMS"),
    ("tasks_list", '{"limit": "many"}', "INVALID_LIMIT"),
    ("tasks_list", '{"filter": "NOWHERE"}', "INVALID_PARAMS"),
    ("propose_plan", '{"tasks": []}', "INVALID_PARAMS"),
    ("propose_plan", json.dumps({"tasks": [{"title": "x" * 201}]}), "INVALID_PARAMS"),
    ("propose_plan", json.dumps({"tasks": [{"title": "x", "description": "x" * 10_001}]}), "INVALID_PARAMS"),
    ("no_such_tool", "{}", "UNKNOWN_METHOD"),
]


@pytest.mark.parametrize(("tool", "arguments", "code"), HOSTILE)
def test_a_wrong_call_is_refused_in_the_words_of_the_board(
    board: Client, tool: str, arguments: str, code: str
) -> None:
    result = board.call_json(tool, arguments)
    assert result.is_error
    assert result.body.keys() >= ENVELOPE
    assert (result.body["success"], result.body["code"]) == (False, code)
    assert "pydantic" not in json.dumps(result.body) and "Input should" not in json.dumps(result.body)


def test_the_union_speaks_the_boards_words_for_its_tools(deck: Deck) -> None:
    everything = deck.connect(surface="")
    task_id = everything.done("tasks_create", title="T")["task_id"]
    assert everything.refused("tasks_move", task_id=task_id, status="AUTO")["code"] == "STATUS_WAS_TASK_TYPE"
    assert everything.refused("task_get", task_id="nowhere")["code"] == "not_found"
    assert everything.refused("get_task", task_id="nowhere")["code"] == "TASK_NOT_FOUND"
    assert everything.refused("plan_get", slug="nowhere")["code"] == "not_found"
