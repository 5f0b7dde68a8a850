"""PAIR: a person and an agent in one terminal, in the task's own checkout, in a real tmux."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.auto_core import Board, config, until
from tests.integration.own_core import Core, quarterdeck

AGENTS = """
[agents.keyless]
adapter = "command"
command = ["/bin/sh", "-c", "echo no key, $QUARTERDECK_TOKEN; exit 7"]
[agents.protocol]
adapter = "acp"
command = ["/bin/cat"]
"""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("pair")
    config(folder / "data", AGENTS)
    with Core(folder / "data") as core:
        yield Board(core, folder)
        tmux(core.data_dir, "kill-server", check=False)


def tmux(data_dir: Path, *words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["tmux", "-S", str(data_dir / "tmux.sock"), *words], capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def pair_task(board: Board, *repos: Any, **options: Any) -> str:
    project = board.project(*(repos or (board.repo(),)))
    given = {"task_type": "PAIR", "agent_backend": "terminal", **options}
    return board.task(project, **given)


def given(board: Board, task: str) -> dict[str, Any]:
    """What the agent in the terminal was given, once it has begun."""
    told = board.home(task) / "given.json"
    until(told.exists, "begun")
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def say(board: Board, session: dict[str, Any], line: str) -> None:
    """Type a line into the terminal."""
    tmux(board.core.data_dir, "send-keys", "-t", f"={session['session_name']}:", "-l", line)
    tmux(board.core.data_dir, "send-keys", "-t", f"={session['session_name']}:", "Enter")


def test_a_session_opens_in_the_tasks_checkout_with_the_prompt_and_a_token_of_its_own(board: Board) -> None:
    repo = board.repo()
    task = pair_task(board, repo, title="Pair on it", acceptance_criteria=["it works"])
    session = board.done("sessions_create", task_id=task)
    assert (session["success"], session["already_exists"], session["backend"]) == (True, False, "tmux")
    assert session["session_name"] == f"quarterdeck-{task.replace('-', '')[-12:]}"
    path = Path(session["worktree_path"])
    assert path == board.worktree(task)
    assert session["links"]["vscode"] == f"vscode://file{path}"
    assert session["links"]["cursor"] == f"cursor://file{path}"
    words = shlex.split(session["primary_command"])
    assert words[:2] == ["tmux", "-S"] and words[-1] == f"={session['session_name']}"
    assert session["commands"][0] == session["primary_command"]
    agent = given(board, task)
    assert agent["tty"] and agent["cwd"] == str(path)
    assert "Pair on it" in agent["prompt"] and "it works" in agent["prompt"]
    assert Path(session["prompt_path"]).read_text() == agent["prompt"]
    # The token is the task's own, in no argument and in no file that others may read.
    token = agent["env"]["QUARTERDECK_TOKEN"]
    with board.core.modern(token, "/mcp/board") as client:
        assert client.done("update_scratchpad", task_id=task, content="from the pair")["success"]
        other = board.task(None)
        assert client.refused("update_scratchpad", task_id=other, content="no")["code"] == "TASK_NOT_FOUND"
    assert "QUARTERDECK_ADMIN_SECRET" not in agent["env"]
    assert all(token not in word for word in agent["argv"])
    script = board.home(task) / "pair.sh"
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    # Our files stay out of the branch.
    assert subprocess.check_output(["git", "status", "--porcelain"], cwd=path, text=True) == ""
    assert board.state(task) == "in_progress"
    exists = board.done("sessions_exists", task_id=task)
    assert (exists["exists"], exists["code"], exists["backend"]) == (True, "SESSION_EXISTS", "tmux")
    # Ended: terminal, token, and the file with it.
    killed = board.done("sessions_kill", task_id=task)
    assert (killed["success"], killed["code"]) == (True, "SESSION_KILLED")
    assert not board.done("sessions_exists", task_id=task)["exists"]
    assert session["session_name"] not in tmux(board.core.data_dir, "list-sessions", check=False)
    assert board.core.request("POST", "/mcp/board", token, json={}).status_code == 403
    assert not script.exists()
    assert path.is_dir(), "the work stays"
    assert board.refused("sessions_kill", task_id=task)["code"] == "NOT_RUNNING"


def test_a_second_create_reuses_the_session_unless_told_otherwise(board: Board) -> None:
    task = pair_task(board)
    first = board.done("sessions_create", task_id=task)
    before = given(board, task)["pid"]
    again = board.done("sessions_create", task_id=task, worktree_path=first["worktree_path"])
    assert (again["already_exists"], again["session_id"]) == (True, first["session_id"])
    os.kill(before, 0)
    (board.home(task) / "given.json").unlink()
    fresh = board.done("sessions_create", task_id=task, reuse_if_exists=False)
    assert not fresh["already_exists"] and fresh["session_id"] != first["session_id"]
    assert (last := given(board, task)["pid"]) != before
    # An agent whose checkout was deleted under it is of no use: it is begun anew.
    (board.home(task) / "given.json").unlink()
    shutil.rmtree(first["worktree_path"])
    anew = board.done("sessions_create", task_id=task)
    assert not anew["already_exists"] and anew["worktree_path"] == first["worktree_path"]
    assert given(board, task)["pid"] != last
    assert Path(first["worktree_path"], "README.md").exists()
    board.done("sessions_kill", task_id=task)


def test_a_session_that_died_is_reported_dead_with_its_last_words(board: Board) -> None:
    task = pair_task(board)
    session = board.done("sessions_create", task_id=task)
    given(board, task)
    say(board, session, "exit 3")
    dead = until(
        lambda: (found := board.done("sessions_exists", task_id=task))["exists"] or found, "reported dead"
    )
    dead = until(lambda: _dead(board, task), "dead")
    assert (dead["exists"], dead["code"], dead["exit_code"]) == (False, "SESSION_DEAD", 3)
    assert "goodbye" in dead["last_output"] and dead["next_tool"] == "sessions_create"
    said = quarterdeck("session", "status", task, "--data-dir", str(board.core.data_dir))
    assert said.stdout.strip() == f"{session['session_name']} has died with exit code 3"
    assert "goodbye" in said.stderr
    anew = board.done("sessions_create", task_id=task)
    assert not anew["already_exists"] and anew["session_id"] != session["session_id"]
    board.done("sessions_kill", task_id=task)


def test_an_agent_that_fails_at_once_is_refused_with_its_words_and_leaves_the_task_as_it_was(
    board: Board,
) -> None:
    task = pair_task(board, agent_backend="keyless")

    def refused() -> dict[str, Any] | None:
        # A machine may be too slow to see it end at once, and tmux may lose the words of one that does.
        with board.core.modern(path="/mcp/board") as client:
            body: dict[str, Any] = client.call("sessions_create", task_id=task).body
        return body if not body["success"] and "no key" in body["message"] else None

    answer = until(refused, "refused")
    assert answer["code"] == "SESSION_CREATE_FAILED"
    assert "exit code 7" in answer["message"] and "mcp_" not in answer["message"]
    assert board.done("sessions_exists", task_id=task)["code"] == "SESSION_NOT_FOUND"
    assert not (board.home(task) / "pair.sh").exists()


def _dead(board: Board, task: str) -> dict[str, Any] | None:
    found: dict[str, Any] = board.done("sessions_exists", task_id=task)
    return None if found["exists"] else found


def test_nothing_of_an_ended_session_stays_deaf_or_hidden(board: Board, tmp_path: Path) -> None:
    task = pair_task(board)
    session = board.done("sessions_create", task_id=task)
    given(board, task)
    told = tmp_path / "pids"
    say(board, session, f"stay {told}")
    until(told.exists, "told")
    pids = told.read_text().split()
    assert len(pids) == 2
    board.done("sessions_kill", task_id=task)
    assert not [pid for pid in pids if runs(pid)]


def runs(pid: str) -> bool:
    """Whether a process is there and no zombie, which waits for its new parent to take note of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_editors_get_links_the_prompt_and_the_server_but_no_terminal(board: Board) -> None:
    task = pair_task(board, terminal_backend="vscode")
    session = board.done("sessions_create", task_id=task)
    path = Path(session["worktree_path"])
    assert session["backend"] == "vscode" and session["primary_command"].startswith("code --new-window ")
    server = json.loads((path / ".vscode" / "mcp.json").read_text())["servers"]["quarterdeck"]
    assert server["url"] == f"{board.core.url}/mcp"
    assert session["session_name"] not in tmux(board.core.data_dir, "list-sessions", check=False)
    assert subprocess.check_output(["git", "status", "--porcelain"], cwd=path, text=True) == ""
    assert board.done("sessions_exists", task_id=task)["exists"]
    board.done("sessions_kill", task_id=task)
    assert not (path / ".vscode").exists()


def test_an_editors_file_of_the_repository_is_left_alone(board: Board) -> None:
    repo = board.repo()
    repo.commit({".cursor/mcp.json": '{"mcpServers": {"theirs": {}}}'})
    task = pair_task(board, repo, terminal_backend="cursor")
    session = board.done("sessions_create", task_id=task)
    kept = Path(session["worktree_path"], ".cursor", "mcp.json")
    assert "theirs" in kept.read_text()
    board.done("sessions_kill", task_id=task)
    assert "theirs" in kept.read_text()


def test_what_cannot_be_opened_is_refused_and_changes_nothing(board: Board) -> None:
    auto = board.task(board.project(board.repo()))
    refused = board.refused("sessions_create", task_id=auto)
    assert (refused["code"], refused["next_tool"]) == ("TASK_TYPE_MISMATCH", "tasks_update")
    assert refused["next_arguments"] == {"task_id": auto, "task_type": "PAIR"}
    bare = board.task(None, task_type="PAIR")
    assert board.refused("sessions_create", task_id=bare)["code"] == "NOT_STARTED"
    task = pair_task(board)
    wrong = board.refused("sessions_create", task_id=task, worktree_path="/elsewhere")
    assert wrong["code"] == "INVALID_WORKTREE_PATH"
    missing = pair_task(board, agent_backend="missing")
    assert board.refused("sessions_create", task_id=missing)["code"] == "NOT_STARTED"
    protocol = pair_task(board, agent_backend="protocol")
    assert board.refused("sessions_create", task_id=protocol)["code"] == "NOT_STARTED"
    over = pair_task(board)
    board.done("tasks_move", task_id=over, status="DONE")
    assert board.refused("sessions_create", task_id=over)["code"] == "ACTION_NOT_ALLOWED"
    for each in (auto, bare, task, missing, protocol, over):
        assert not (board.core.data_dir / "worktrees" / each).exists()
        assert not board.done("sessions_exists", task_id=each)["exists"]


def test_a_terminal_that_cannot_be_opened_leaves_no_session_and_no_token(board: Board) -> None:
    task = pair_task(board)
    socket = board.core.data_dir / "tmux.sock"
    if socket.exists():
        socket.rename(socket.with_suffix(".away"))
    socket.mkdir()
    try:
        refused = board.refused("sessions_create", task_id=task)
    finally:
        socket.rmdir()
        if socket.with_suffix(".away").exists():
            socket.with_suffix(".away").rename(socket)
    assert refused["code"] == "SESSION_CREATE_FAILED" and "tmux" in refused["message"]
    assert not board.done("sessions_exists", task_id=task)["exists"]
    assert not (board.home(task) / "pair.sh").exists()
    assert board.state(task) == "pending"


def test_auto_takes_a_session_over_and_a_person_takes_it_back(board: Board, tmp_path: Path) -> None:
    task = pair_task(board, agent_backend="terminal")
    session = board.done("sessions_create", task_id=task)
    given(board, task)
    say(board, session, "write pair.txt by-hand")
    until((Path(session["worktree_path"]) / "pair.txt").exists, "written")
    began = tmp_path / "began"
    steps = f"DO touch {began}\nDO wait {tmp_path / 'go'}\nDO append pair.txt by-itself"
    board.done("tasks_update", task_id=task, task_type="AUTO", agent_backend="scripted", description=steps)
    job = board.start(task)
    until(began.exists, "begun")
    assert not board.done("sessions_exists", task_id=task)["exists"]
    assert session["session_name"] not in tmux(board.core.data_dir, "list-sessions", check=False)
    (tmp_path / "go").touch()
    assert board.ended(task, job)["success"]
    both = Path(session["worktree_path"], "pair.txt").read_text()
    assert both.splitlines() == ["by-hand", "by-itself"]
    board.done("tasks_update", task_id=task, task_type="PAIR", agent_backend="terminal")
    again = board.done("sessions_create", task_id=task)
    assert again["worktree_path"] == session["worktree_path"]
    board.done("sessions_kill", task_id=task)


def test_a_session_outlives_a_killed_core_and_is_found_again(board: Board) -> None:
    task = pair_task(board)
    session = board.done("sessions_create", task_id=task)
    pid = given(board, task)["pid"]
    dying = pair_task(board)
    lost = board.done("sessions_create", task_id=dying)
    token = given(board, dying)["env"]["QUARTERDECK_TOKEN"]
    board.core.kill9()
    os.kill(pid, 0)
    tmux(board.core.data_dir, "kill-session", "-t", f"={lost['session_name']}")
    board.core.start()
    os.kill(pid, 0)
    again = board.done("sessions_create", task_id=task)
    assert (again["already_exists"], again["session_id"]) == (True, session["session_id"])
    # The one that died while nobody looked is ended, and its token with it.
    until(
        lambda: board.core.request("POST", "/mcp/board", token, json={}).status_code == 403,
        "its token revoked",
    )
    board.done("tasks_delete", task_id=task)
    until(lambda: not runs(str(pid)), "ended with its task")
