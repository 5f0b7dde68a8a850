"""AUTO: an agent works on a task in a worktree of its own, and git decides what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.auto_core import Board, config, until
from tests.integration.own_core import Core


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("auto")
    config(folder / "data")
    with Core(folder / "data") as core:
        yield Board(core, folder)


def test_changes_lead_to_review_with_a_summary_and_nothing_of_the_users_checkout_moves(board: Board) -> None:
    repo = board.repo()
    before = repo.git("rev-parse", "main"), repo.git("status", "--porcelain")
    steps = ("write a.txt one", "commit Add a", "write deep/new.txt two", "append README.md more")
    task = board.task(board.project(repo), *steps)
    job = board.run(task)
    assert (job["success"], job["code"], job["status"]) == (True, "JOB_SUCCEEDED", "succeeded"), job
    result = job["result"]
    assert result["commits"] == 2 and result["files"] == 3 and result["insertions"] == 3
    assert sorted(result["changed_files"]) == ["README.md", "a.txt", "deep/new.txt"]
    assert board.state(task) == "review"
    branch = f"quarterdeck/{task}"
    assert repo.git("show", f"{branch}:deep/new.txt") == "two"
    assert (repo.git("rev-parse", "main"), repo.git("status", "--porcelain")) == before
    assert not (repo.path / "a.txt").exists()


def test_an_agent_that_does_nothing_sends_the_task_back_with_the_reason(board: Board) -> None:
    task = board.task(board.project(board.repo()), "say nothing to be done here")
    job = board.run(task)
    assert (job["success"], job["code"], job["reason"]) == (False, "JOB_EXECUTION_ERROR", "NO_CHANGES")
    assert "nothing to be done here" in job["message"]
    assert board.state(task) == "pending"


def test_a_failing_agent_fails_the_task_with_the_end_of_its_log_and_keeps_its_work(board: Board) -> None:
    repo = board.repo()
    task = board.task(board.project(repo), "write half.txt done", "say the disk is on fire", "exit 3")
    job = board.run(task)
    assert (job["success"], job["reason"]) == (False, "EXECUTOR_ERROR")
    assert "the disk is on fire" in job["result"]["log_tail"]
    assert board.state(task) == "failed"
    assert repo.git("show", f"quarterdeck/{task}:half.txt") == "done"


def test_a_branch_that_is_not_there_fails_the_task_and_not_the_next_one(board: Board) -> None:
    project = board.project(board.repo())
    missing = board.run(board.task(project, "write a.txt b", base_branch="missing"))
    assert (missing["code"], missing["reason"]) == ("JOB_EXECUTION_ERROR", "EXECUTOR_ERROR")
    assert "no branch missing" in missing["message"]
    assert board.run(board.task(project, "write a.txt b"))["success"]


def test_the_acceptance_command_decides_whatever_the_agent_says(board: Board) -> None:
    repo = board.repo()
    project = board.project(repo, acceptance_command="echo checking; grep -q right answer.txt")
    wrong = board.task(project, "write answer.txt wrong", "say all is well")
    job = board.run(wrong)
    assert (job["success"], job["reason"]) == (False, "ACCEPTANCE_FAILED")
    assert job["result"]["acceptance"]["exit_code"] == 1
    assert "checking" in job["result"]["acceptance"]["output_tail"]
    assert board.state(wrong) == "failed"
    assert not board.run(wrong)["success"]
    assert "It said:\n\nchecking\n" in (board.home(wrong) / "prompt.txt").read_text()
    said = board.core.request("GET", f"/api/jobs/{job['job_id']}/files/acceptance.txt", board.core.token)
    assert said.json()["text"] == "checking\n"
    right = board.task(project, "write answer.txt right")
    assert board.run(right)["result"]["acceptance"]["passed"]
    assert board.state(right) == "review"


def test_a_task_of_two_repositories_is_worked_on_in_both(board: Board) -> None:
    one, two = board.repo(), board.repo()
    steps = (f"write {one.path.name}/x.txt 1", f"write {two.path.name}/y.txt 2")
    task = board.task(board.project(one, two), *steps)
    assert board.run(task)["result"]["files"] == 2
    assert one.git("show", f"quarterdeck/{task}:x.txt") == "1"
    assert two.git("show", f"quarterdeck/{task}:y.txt") == "2"


def test_stop_ends_the_agent_and_the_task_goes_back(board: Board, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = board.task(board.project(board.repo()), f"touch {began}", f"wait {tmp_path / 'never'}")
    job_id = board.start(task)
    until(began.exists, "begun")
    assert board.state(task) == "in_progress"
    stopped = board.done("jobs_submit", task_id=task, action="stop_agent")
    assert (stopped["success"], stopped["code"], stopped["job_id"]) == (True, "STOP_QUEUED", job_id)
    assert board.ended(task, job_id)["code"] == "JOB_CANCELLED"
    assert board.state(task) == "pending"
    assert board.refused("jobs_submit", task_id=task, action="stop_agent")["code"] == "NOT_RUNNING"


def test_a_cancelled_run_and_the_next_one_never_overlap(board: Board, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = board.task(
        board.project(board.repo()), f"touch {began}", f"wait {tmp_path / 'go'}", "write a.txt b"
    )
    first = board.start(task)
    until(began.exists, "begun")
    assert board.done("jobs_cancel", job_id=first, task_id=task)["code"] == "JOB_CANCELLED"
    began.unlink()
    (tmp_path / "go").touch()
    second = board.start(task)
    assert second != first
    assert board.ended(task, second)["success"]
    assert board.done("jobs_cancel", job_id=first, task_id=task)["code"] == "ALREADY_TERMINAL"


def test_a_second_start_returns_the_live_job(board: Board, tmp_path: Path) -> None:
    task = board.task(board.project(board.repo()), f"wait {tmp_path / 'go'}", "write a.txt b")
    first = board.start(task)
    assert board.start(task) == first
    until(lambda: board.state(task) == "in_progress", "started")
    again = board.done("jobs_submit", task_id=task, action="start_agent")
    assert (again["code"], again["job_id"]) == ("STARTED", first)
    (tmp_path / "go").touch()
    assert board.ended(task, first)["success"]


def test_a_job_beyond_its_agents_limit_waits_for_admission(board: Board, tmp_path: Path) -> None:
    project = board.project(board.repo())
    busy = board.task(project, f"wait {tmp_path / 'go'}", "write a.txt 1", agent_backend="lonely")
    running = board.start(busy)
    until(lambda: board.state(busy) == "in_progress", "started")
    task = board.task(project, "write b.txt 2", agent_backend="lonely")
    pending = board.done("jobs_submit", task_id=task, action="start_agent")
    assert (pending["success"], pending["code"], pending["status"]) == (True, "START_PENDING", "queued")
    assert pending["runtime"]["is_pending"] and "limit" in pending["runtime"]["pending_reason"]
    job = board.done("jobs_get", job_id=pending["job_id"], task_id=task)
    assert (job["success"], job["code"]) == (False, "START_PENDING")
    (tmp_path / "go").touch()
    assert board.ended(busy, running)["success"]
    assert board.ended(task, pending["job_id"])["success"]


def test_a_task_that_a_person_moved_meanwhile_stays_where_it_is(board: Board, tmp_path: Path) -> None:
    began = tmp_path / "began"
    steps = (f"touch {began}", f"wait {tmp_path / 'go'}", "write a.txt b")
    task = board.task(board.project(board.repo()), *steps)
    job_id = board.start(task)
    until(began.exists, "begun")
    board.done("tasks_move", task_id=task, status="BACKLOG")
    (tmp_path / "go").touch()
    assert board.ended(task, job_id)["success"]
    assert board.state(task) == "pending"


def test_completing_a_task_cancels_its_job(board: Board, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = board.task(board.project(board.repo()), f"touch {began}", f"wait {tmp_path / 'never'}")
    job_id = board.start(task)
    until(began.exists, "begun")
    board.done("tasks_move", task_id=task, status="DONE")
    assert board.ended(task, job_id)["code"] == "JOB_CANCELLED"
    assert board.state(task) == "completed"


def test_an_agents_own_request_for_review_does_not_outweigh_the_facts(board: Board) -> None:
    task = board.task(board.project(board.repo()), "call request_review all done", "say but nothing changed")
    assert board.run(task)["reason"] == "NO_CHANGES"
    assert board.state(task) == "pending"


def test_the_next_run_is_told_the_feedback_and_the_notes(board: Board) -> None:
    task = board.task(board.project(board.repo()), "call update_scratchpad I chose b", "append a.txt b")
    assert board.run(task)["success"]
    board.done("review", task_id=task, action="reject", feedback="a.txt needs a heading")
    assert board.state(task) == "in_progress"
    assert board.run(task)["success"]
    prompt = (board.home(task) / "prompt.txt").read_text()
    assert "a.txt needs a heading" in prompt and "I chose b" in prompt
    assert board.state(task) == "review"


def test_a_deleted_task_takes_its_agent_its_worktree_and_its_home_along(board: Board, tmp_path: Path) -> None:
    repo, began = board.repo(), tmp_path / "began"
    task = board.task(board.project(repo), f"touch {began}", f"wait {tmp_path / 'never'}")
    board.start(task)
    until(began.exists, "begun")
    board.done("tasks_delete", task_id=task)
    assert not (board.core.data_dir / "worktrees" / task).exists()
    assert not board.home(task).exists()
    assert repo.git("branch", "--list", "quarterdeck/*") == ""


def test_the_setting_of_how_many_agents_run_at_once_holds_at_once(board: Board, tmp_path: Path) -> None:
    project = board.project(board.repo())
    try:
        board.done("settings_update", max_concurrent_agents=1)
        first = board.task(project, f"wait {tmp_path / 'go'}", "write a.txt 1")
        running = board.start(first)
        until(lambda: board.state(first) == "in_progress", "started")
        second = board.task(project, f"wait {tmp_path / 'go'}", "write b.txt 2")
        job = board.start(second)

        def pending() -> bool:
            return bool(board.done("jobs_get", job_id=job, task_id=second)["code"] == "START_PENDING")

        until(pending, "waiting for admission")
        board.done("settings_update", max_concurrent_agents=3)
        until(lambda: board.state(second) == "in_progress", "admitted")
        (tmp_path / "go").touch()
        assert board.ended(first, running)["success"] and board.ended(second, job)["success"]
    finally:
        board.done("settings_update", max_concurrent_agents=3)
