"""The board's job tools: every code, every field, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.auto_core import Board, config, until
from tests.integration.own_core import Core
from tests.mcp_client import Modern, Older

RUNTIME = {
    *("is_running", "is_reviewing", "is_blocked", "blocked_reason", "blocked_by_task_ids", "overlap_hints"),
    *("blocked_at", "is_pending", "pending_reason", "pending_at"),
}
FIELDS = {
    *("success", "message", "code", "hint", "next_tool", "next_arguments"),
    *("job_id", "task_id", "action", "status", "timed_out", "timeout_metadata", "created_at", "updated_at"),
    *("result", "runtime", "current_task_type"),
}
NO_JOB = "job_" + "z" * 20


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("jobs")
    config(folder / "data")
    with Core(folder / "data", QUARTERDECK_WORKER__GRACE_SECONDS="30") as core:
        yield Board(core, folder)


@pytest.fixture(scope="module")
def project(board: Board) -> str:
    return board.project(board.repo())


@pytest.fixture(scope="module")
def finished(board: Board, project: str) -> tuple[str, dict[str, Any]]:
    """A task whose job has succeeded, and that job."""
    task = board.task(project, "say hello", "write a.txt b")
    return task, board.run(task)


def test_the_actions_are_listed(board: Board) -> None:
    assert board.done("jobs_list_actions")["actions"] == ["start_agent", "stop_agent"]


def test_a_job_is_followed_from_submission_to_its_end(board: Board, project: str, tmp_path: Path) -> None:
    task = board.task(project, f"wait {tmp_path / 'go'}", "write a.txt b")
    submitted = board.done("jobs_submit", task_id=task, action="start_agent")
    assert (submitted["success"], submitted["code"]) == (True, "JOB_SUBMITTED")
    job = {"job_id": submitted["job_id"], "task_id": task}
    assert (submitted["next_tool"], submitted["next_arguments"]) == ("jobs_wait", job)
    until(lambda: board.done("jobs_get", **job)["status"] == "running", "running")
    waited = board.done("jobs_wait", **job, timeout_seconds=0.05)
    assert set(waited) >= FIELDS and set(waited["runtime"]) == RUNTIME
    assert (waited["success"], waited["code"], waited["timed_out"]) == (False, "JOB_RUNNING", True)
    assert waited["runtime"]["is_running"] and waited["current_task_type"] == "AUTO"
    assert waited["timeout_metadata"] == {"timeout_seconds": 0.05, "requested_seconds": 0.05, "capped": False}
    heard = with_progress(board, {**job, "timeout_seconds": 0.2})
    assert "notifications/progress" in heard and "still running" in heard and "JOB_RUNNING" in heard
    (tmp_path / "go").touch()
    ended = board.done("jobs_wait", **job, timeout_seconds=20)
    assert (ended["success"], ended["code"], ended["timed_out"]) == (True, "JOB_SUCCEEDED", False)
    assert board.done("jobs_get", **job)["success"]


def with_progress(board: Board, arguments: dict[str, Any]) -> str:
    """All that a client hears that waits for a job and asks to be told of progress."""
    params = {"name": "jobs_wait", "arguments": arguments, "_meta": {"progressToken": "p1"}}
    with Older(board.core.url + "/mcp/board", board.core.token) as client:
        message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        return client.post(json.dumps(message), "tools/call", "jobs_wait").text


def test_a_wait_that_is_too_long_is_capped_and_says_so(board: Board, finished: Any) -> None:
    task, job = finished
    waited = board.done("jobs_wait", job_id=job["job_id"], task_id=task, timeout_seconds=10_000)
    assert waited["timeout_metadata"] == {"timeout_seconds": 900, "requested_seconds": 10_000, "capped": True}
    assert "capped" in waited["message"]
    for wrong in (0, -1, "soon"):
        refused = board.refused("jobs_wait", job_id=job["job_id"], task_id=task, timeout_seconds=wrong)
        assert refused["code"] == "INVALID_TIMEOUT"


def test_events_are_paged_oldest_first(board: Board, finished: Any) -> None:
    task, job = finished
    first = board.done("jobs_events", job_id=job["job_id"], task_id=task, limit=2)
    assert (first["offset"], first["limit"], first["returned_events"]) == (0, 2, 2)
    assert first["has_more"] and first["next_offset"] == 2
    codes = [event["code"] for event in first["events"]]
    assert codes == ["JOB_QUEUED", "STARTED"]
    assert set(first["events"][0]) >= {"job_id", "task_id", "status", "timestamp", "message", "code"}
    rest = board.done("jobs_events", job_id=job["job_id"], task_id=task, limit=100, offset=2)
    assert not rest["has_more"] and rest["next_offset"] is None
    assert rest["total_events"] == first["total_events"] == 2 + rest["returned_events"]
    assert rest["events"][-1]["code"] == "JOB_SUCCEEDED"
    assert "JOB_RUNNING" in [event["code"] for event in rest["events"]]
    for name, wrong in (("limit", 0), ("limit", 101), ("limit", "all"), ("offset", -1)):
        refused = board.refused("jobs_events", job_id=job["job_id"], task_id=task, **{name: wrong})
        assert refused["code"] == f"INVALID_{name.upper()}"


def test_a_job_is_reached_through_its_own_task_alone(board: Board, project: str, finished: Any) -> None:
    task, job = finished
    other = board.task(project)
    for tool in ("jobs_get", "jobs_wait", "jobs_events", "jobs_cancel"):
        assert board.refused(tool, job_id=job["job_id"], task_id=other)["code"] == "JOB_NOT_FOUND"
        assert board.refused(tool, job_id=NO_JOB, task_id=task)["code"] == "JOB_NOT_FOUND"
        assert board.refused(tool, job_id="12", task_id=task)["code"] == "INVALID_JOB_ID"
        assert board.refused(tool, job_id=job["job_id"], task_id="gone")["code"] == "TASK_NOT_FOUND"


def test_a_pair_task_points_to_the_call_that_makes_it_auto(board: Board, project: str) -> None:
    task = board.task(project, task_type="PAIR")
    for action in ("start_agent", "stop_agent"):
        refused = board.refused("jobs_submit", task_id=task, action=action)
        assert (refused["code"], refused["next_tool"]) == ("TASK_TYPE_MISMATCH", "tasks_update")
        assert refused["next_arguments"] == {"task_id": task, "task_type": "AUTO"}
    board.done(refused["next_tool"], **refused["next_arguments"])
    assert board.done("jobs_submit", task_id=task, action="start_agent")["success"]


def test_what_cannot_start_says_what_to_do(board: Board, project: str, finished: Any) -> None:
    for task in (board.task(None), board.task(board.project())):
        refused = board.refused("jobs_submit", task_id=task, action="start_agent")
        assert (refused["code"], refused["next_tool"]) == ("NOT_STARTED", "projects_list")
        assert board.done(refused["next_tool"], **refused["next_arguments"])["success"]
    for agent in ("missing", "nobody", "research-agent"):
        task = board.task(project, agent_backend=agent)
        refused = board.refused("jobs_submit", task_id=task, action="start_agent")
        assert refused["code"] == "NOT_STARTED" and refused["hint"], refused
    done, _ = finished
    refused = board.refused("jobs_submit", task_id=done, action="start_agent")
    assert (refused["code"], refused["next_tool"]) == ("NOT_STARTED", "review")
    assert board.refused("jobs_submit", task_id=done, action="fly")["code"] == "UNSUPPORTED_ACTION"


def test_a_blocked_task_is_not_started_and_says_why(board: Board, project: str) -> None:
    task = board.task(project, "write a.txt b")
    board.done("tasks_move", task_id=task, status="IN_PROGRESS")
    with Modern(board.core.url + "/mcp/orchestrator", board.core.token) as orchestrator:
        orchestrator.done("task_update", task_id=task, action="block", reason="no key")
    refused = board.refused("jobs_submit", task_id=task, action="start_agent")
    assert (refused["code"], refused["blocked_reason"]) == ("START_BLOCKED", "no key")
    assert "no key" in refused["message"] and "next_tool" not in {k for k, v in refused.items() if v}
    assert board.refused("jobs_submit", task_id=task, action="stop_agent")["code"] == "NOT_RUNNING"
    board.done("tasks_move", task_id=task, status="IN_PROGRESS")
    assert board.run(task)["success"]


def test_a_start_behind_a_run_that_is_still_ending_is_queued(
    board: Board, project: str, tmp_path: Path
) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    task = board.task(project, "deaf", f"touch {began}", f"wait {go}", "append a.txt b")
    first = board.start(task)
    until(began.exists, "begun")
    assert board.done("jobs_submit", task_id=task, action="stop_agent")["code"] == "STOP_QUEUED"
    queued = board.done("jobs_submit", task_id=task, action="start_agent")
    assert (queued["success"], queued["code"], queued["job_id"] != first) == (True, "START_QUEUED", True)
    assert queued["next_tool"] == "jobs_wait"
    go.touch()
    assert board.ended(task, queued["job_id"])["success"]


def test_a_job_that_no_worker_would_take_says_so(tmp_path: Path) -> None:
    config(tmp_path / "data")
    with Core(tmp_path / "data", QUARTERDECK_WORKER__CONCURRENCY="0") as core:
        board = Board(core, tmp_path)
        task = board.task(board.project(board.repo()), "write a.txt b")
        missing = board.done("jobs_submit", task_id=task, action="start_agent")
        assert (missing["success"], missing["code"], missing["status"]) == (
            True,
            "JOB_RUNNER_MISSING",
            "queued",
        )
        assert "worker.concurrency" in missing["hint"] and missing["runtime"]["is_pending"]
        job = {"job_id": missing["job_id"], "task_id": task}
        for tool, more in (("jobs_get", {}), ("jobs_wait", {"timeout_seconds": 0.05})):
            told = board.done(tool, **job, **more)
            assert (told["success"], told["code"]) == (False, "JOB_RUNNER_MISSING")
            assert "no worker" in told["message"]
        again = board.done("jobs_submit", task_id=task, action="start_agent")
        assert (again["code"], again["job_id"]) == ("JOB_RUNNER_MISSING", job["job_id"])
        assert board.done("jobs_cancel", **job)["code"] == "JOB_CANCELLED"


def test_arguments_choose_the_agent_but_never_another_task(board: Board, project: str) -> None:
    task, other = board.task(project, "write a.txt b"), board.task(project, "write a.txt b")
    refused = board.refused(
        "jobs_submit", task_id=task, action="start_agent", arguments={"task_id": other, "agent": "scripted"}
    )
    assert refused["code"] == "INVALID_PARAMS"
    odd = board.refused("jobs_submit", task_id=task, action="start_agent", arguments={"fast": True})
    assert odd["code"] == "INVALID_PARAMS"
    job = board.run(task, agent="lonely")
    assert job["agent"] == "lonely" and job["success"]
    assert board.state(other) == "pending"


def test_a_run_that_takes_too_long_ends_as_a_timeout(board: Board, project: str, tmp_path: Path) -> None:
    task = board.task(project, "write kept.txt yes", f"wait {tmp_path / 'never'}")
    job = board.run(task, timeout_seconds=2)
    assert (job["success"], job["code"], job["reason"]) == (False, "JOB_TIMEOUT", "TIMEOUT")
    assert "commits" in job["result"], "what it did until then is kept"
    assert board.state(task) == "failed"


def test_a_queued_job_that_is_stopped_never_runs(board: Board, project: str, tmp_path: Path) -> None:
    busy = board.task(project, f"wait {tmp_path / 'go'}", "write a.txt b", agent_backend="lonely")
    running = board.start(busy)
    until(lambda: board.state(busy) == "in_progress", "started")
    task = board.task(project, f"touch {tmp_path / 'ran'}", agent_backend="lonely")
    job = board.start(task)
    again = board.done("jobs_submit", task_id=task, action="start_agent")
    assert (again["code"], again["job_id"]) == ("START_PENDING", job)
    stopped = board.done("jobs_submit", task_id=task, action="stop_agent")
    assert (stopped["code"], stopped["status"]) == ("JOB_CANCELLED", "cancelled")
    (tmp_path / "go").touch()
    assert board.ended(busy, running)["success"]
    assert board.done("jobs_get", job_id=job, task_id=task)["code"] == "JOB_CANCELLED"
    assert not (tmp_path / "ran").exists() and board.state(task) == "pending"


def test_the_union_takes_the_boards_shape_too(board: Board, finished: Any) -> None:
    task, job = finished
    with Modern(board.core.url + "/mcp", board.core.token) as client:
        assert client.done("jobs_get", job_id=job["job_id"], task_id=task)["code"] == "JOB_SUCCEEDED"
        assert client.done("jobs_cancel", job_id=job["job_id"], task_id=task)["code"] == "ALREADY_TERMINAL"


def test_another_user_and_a_viewer_get_nowhere(board: Board, finished: Any) -> None:
    task, job = finished
    stranger = board.core.minted(user_id="bob", profile="maintainer")["token"]
    with Modern(board.core.url + "/mcp/board", stranger) as client:
        assert client.refused("jobs_get", job_id=job["job_id"], task_id=task)["code"] == "TASK_NOT_FOUND"
        assert client.refused("jobs_submit", task_id=task, action="start_agent")["code"] == "TASK_NOT_FOUND"
    viewer = board.core.minted(user_id="local", profile="viewer")["token"]
    with Modern(board.core.url + "/mcp/board", viewer) as client:
        assert client.done("jobs_get", job_id=job["job_id"], task_id=task)["success"]
        denied = client.refused("jobs_submit", task_id=task, action="start_agent")
        assert denied["code"] == "AUTHORIZATION_DENIED"
