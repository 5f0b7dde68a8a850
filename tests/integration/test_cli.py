"""The command line as a person and a script use it, against a real core with a scripted agent."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from quarterdeck.cli.connect import SurfaceName
from quarterdeck.cli.mcp_client import McpClient
from quarterdeck.surfaces.all import SURFACES
from tests.auto_core import Board, config
from tests.integration.own_core import Core, quarterdeck

SECRETIVE = "echo key $API_KEY token $QUARTERDECK_TOKEN; printf half"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("cli")
    waits = f"until test -e {folder}/go; do sleep 0.1; done"
    command = json.dumps(["sh", "-c", f"{SECRETIVE}; {waits}; echo over"])
    env = '{ API_KEY = "hush-hush-hush" }'
    more = f'[agents.secretive]\nadapter = "command"\ncommand = {command}\nenv = {env}\n'
    config(folder / "data", more)
    with Core(folder / "data") as core:
        yield Board(core, folder)


class Shell:
    """Runs commands on the core of this module."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return quarterdeck(*words, "--data-dir", str(self.data_dir))

    def text(self, *words: str) -> str:
        """What a command that must succeed prints."""
        ran = self.run(*words)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def json(self, *words: str) -> Any:
        return json.loads(self.text(*words, "--json"))


@pytest.fixture
def shell(board: Board) -> Shell:
    return Shell(board.core.data_dir)


def test_a_task_goes_from_its_creation_to_the_merge(board: Board, shell: Shell) -> None:
    repo = board.repo()
    project = shell.text("project", "create", "Harbour", "--repo", str(repo.path))
    assert project in shell.text("project", "list")
    assert "updated" in shell.text(
        "project", "update", project, "--description", "Ships", "--gate-command", ""
    )
    assert str(repo.path) in shell.text("project", "repos", project)
    task = shell.text("task", "create", "Write it", "--type", "AUTO", "--description", "DO write new.txt hi")
    assert shell.json("task", "show", task)["project_id"] == project, "a created project is open"
    job = shell.text("task", "start", task)
    followed = shell.run("logs", "-f", job)
    assert followed.returncode == 0, followed.stderr
    assert shell.text("wait", job) == "SUCCEEDED"
    assert shell.text("wait", task, "--status", "REVIEW") == "REVIEW"
    assert "new.txt" in shell.text("review", "diff", task)
    assert "new.txt" in shell.text("review", "diff", task, "--stat")
    assert shell.json("review", "diff", task)["files"] == 1
    shell.text("review", "approve", task)
    shell.text("review", "merge", task)
    assert (repo.path / "new.txt").exists()
    assert shell.json("task", "show", task)["status"] == "DONE"
    files = {each["name"] for each in shell.json("job", "show", job)["files"]}
    assert "logs.txt" in files
    assert shell.run("job", "file", job, "logs.txt").returncode == 0
    assert job in shell.text("job", "list", "--kind", "auto")


def test_tasks_are_listed_changed_moved_noted_and_deleted(shell: Shell) -> None:
    options = ("--priority", "high", "--criterion", "it is seen", "--type", "AUTO", "--agent", "scripted")
    task = shell.text(
        "task", "create", "Look at it", *options, "--base-branch", "trunk", "--description", "d"
    )
    shell.text("task", "update", task, "--title", "Look twice", "--description", "")
    made = shell.json("task", "show", task)
    assert (made["priority"], made["task_type"], made["agent_backend"]) == ("HIGH", "AUTO", "scripted")
    assert (made["base_branch"], made["acceptance_criteria"]) == ("trunk", ["it is seen"])
    assert not made["description"], "what is given as empty is emptied"
    shell.text("task", "move", task, "in_progress")
    shell.text("task", "note", task, "seen once")
    shown = shell.text("task", "show", task)
    assert "Look twice" in shown
    assert "seen once" in shown
    assert "it is seen" in shown
    listed = shell.json("task", "list", "--status", "IN_PROGRESS")
    assert task in {each["task_id"] for each in listed["tasks"]}
    assert "Look twice" in shell.text("task", "list", "--text", "twice")
    shell.text("task", "delete", task)
    gone = shell.run("task", "show", task)
    assert gone.returncode == 1
    assert "TASK_NOT_FOUND" in gone.stderr


def test_a_running_job_is_stopped_and_retried(board: Board, shell: Shell) -> None:
    project = board.project(board.repo())
    task = board.task(project, f"wait {board.folder / 'never'}")
    job = shell.text("task", "start", task)
    assert shell.run("wait", job, "--timeout", "0.2").returncode == 2
    assert shell.text("job", "cancel", job).endswith("CANCELED")
    assert shell.run("job", "cancel", job).returncode == 1
    assert shell.run("wait", job).returncode == 1
    again = shell.text("job", "retry", job).split()[0]
    assert again != job
    shell.text("task", "stop", task)
    ended = shell.run("logs", "-f", again)
    assert ended.returncode == 1
    assert "CANCELED" in ended.stderr


def on_a_terminal(shell: Shell, columns: int, *words: str) -> str:
    """What a command prints on a terminal of that width."""
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "quarterdeck", *words, "--data-dir", str(shell.data_dir)]
    seen = b""
    with subprocess.Popen(command, stdout=writer, env={**os.environ, "COLUMNS": str(columns)}) as running:
        os.close(writer)
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(reader, 65536):
                seen += piece
    os.close(reader)
    assert running.returncode == 0
    return seen.decode()


def test_an_id_is_whole_on_a_narrow_terminal_and_a_row_is_one_line_in_a_pipe(shell: Shell) -> None:
    title = "A title that is a good deal longer than what is left\nof eighty columns"
    task = shell.text("task", "create", title, "--agent", "scripted")
    shown = on_a_terminal(shell, 80, "task", "list", "--limit", "5")
    assert task in shown and "BACKLOG" in shown
    assert all(cell_len(line) <= 80 for line in Text.from_ansi(shown).plain.splitlines())
    narrow = on_a_terminal(shell, 30, "task", "list", "--limit", "1")
    assert task in narrow and "longer than what is left" in narrow
    (line,) = (line for line in shell.text("task", "list").splitlines() if task in line)
    assert "longer than what is left of eighty columns" in line
    assert line == line.rstrip()
    shell.text("task", "update", task, "--description", "word " * 400)
    shown = shell.text("task", "show", task)
    assert ("word " * 400).strip() in shown, "nor is a long text broken"


def test_a_task_is_shown_with_its_agent_its_reviews_and_its_runs(board: Board, shell: Shell) -> None:
    task = board.task(board.project(board.repo()), "write x.txt hi", agent_backend="scripted")
    job = shell.text("task", "start", task)
    shell.text("wait", job)
    shell.text("review", "reject", task, "--feedback", "say hello")
    shown = shell.text("task", "show", task)
    assert "rejected: say hello" in shown
    assert f"{job} SUCCEEDED scripted" in shown


def test_what_a_gate_said_is_shown_when_it_refuses_a_merge(board: Board, shell: Shell) -> None:
    project = board.project(board.repo(), gate_command="echo the roof leaks; exit 3")
    task = board.task(project, "write x.txt hi")
    board.run(task)
    refused = shell.run("review", "merge", task)
    assert refused.returncode == 1
    assert "the roof leaks" in refused.stderr and "exit code 3" in refused.stderr


def test_the_audit_names_what_a_refused_call_was_about(shell: Shell) -> None:
    task = shell.text("task", "create", "Stay")
    assert shell.run("task", "move", task, "AUTO").returncode == 1
    assert task in shell.text("audit", "tail", "--refused", "--limit", "1")


def test_a_bound_token_needs_no_profile(shell: Shell) -> None:
    task = shell.text("task", "create", "Bound")
    assert shell.json("token", "create", "for an agent", "--task", task)["profile"] == "pair_worker"
    assert shell.json("token", "create", "for a person")["profile"] == "operator"


def test_what_is_typed_wrong_is_refused_with_its_name(shell: Shell) -> None:
    assert "job a b?c not found" in shell.run("job", "show", "a b?c").stderr
    assert "task a b not found" in shell.run("review", "diff", "a b").stderr
    assert "state must be one of QUEUED" in shell.run("job", "list", "--state", "gone").stderr


def test_a_call_that_became_a_stream_is_read_to_its_answer() -> None:
    """A core answers a call that takes long as a stream, so that nothing between takes it for dead."""
    result = {"content": [{"type": "text", "text": '{"done": true}'}], "isError": False}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result})

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = f": ping\n\nevent: message\ndata: {message}\n\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = McpClient(f"http://127.0.0.1:{server.server_address[1]}", "token")
        assert client.call("tasks_wait") == {"done": True}
        client.close()
        server.shutdown()


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_shells_complete_ids_and_never_run_what_a_title_says(
    board: Board, shell: Shell, shell_name: str
) -> None:
    task = shell.text("task", "create", "Run \\$(touch x) `id` 'now'\tor \"never\"")
    line = "quarterdeck task show "
    asked = {
        "_QUARTERDECK_COMPLETE": f"complete_{shell_name}",
        "QUARTERDECK_DATA_DIR": str(board.core.data_dir),
        "COMP_WORDS": line,
        "COMP_CWORD": "3",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    script = "import sys; sys.argv[0] = 'quarterdeck'; from quarterdeck.cli.main import run; run()"
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert task in told
    assert "touch x" in told or shell_name == "bash"
    assert not set(told) & set("$`\\")


def test_plans_begin_from_templates(shell: Shell) -> None:
    assert "bug-fix" in shell.text("plan", "templates")
    slug = shell.text("plan", "new", "bug-fix", "--var", "BUG=It sinks", "--activate")
    assert slug in shell.text("plan", "list")
    assert "It sinks" in shell.text("plan", "show", slug)
    assert shell.json("plan", "show", slug)
    assert "NAME=VALUE" in shell.run("plan", "new", "bug-fix", "--var", "BUG").stderr
    assert shell.run("plan", "proposals").returncode == 0
    assert shell.run("session", "list").returncode == 0


def test_a_proposal_is_listed_and_accepted(board: Board, shell: Shell) -> None:
    proposed = board.done("propose_plan", tasks=[{"title": "Dig a well"}, {"title": "Draw water"}])
    (line,) = (
        line for line in shell.text("plan", "proposals").splitlines() if proposed["proposal_id"] in line
    )
    assert "received" in line and "Dig a well, Draw water" in line
    assert "2 tasks" in shell.text("plan", "accept", proposed["proposal_id"])
    assert shell.run("plan", "accept", proposed["proposal_id"]).returncode == 1
    assert shell.json("plan", "list")["plans"][0]["title"] == "Dig a well"


def test_a_work_session_is_listed_with_its_plan(board: Board, shell: Shell) -> None:
    slug = shell.text("plan", "new", "bug-fix", "--var", "BUG=It leaks")
    with board.core.modern(path="/mcp/plans") as plans:
        started = plans.done("session_start", plan_slug=slug, agent_type="scripted")["session"]
    listed = shell.text("session", "list", "--plan", slug).split()
    assert {started["session_id"], "scripted", "active", slug} <= set(listed)


def test_an_error_is_one_line_with_a_next_step(shell: Shell, tmp_path: Path) -> None:
    refused = shell.run("task", "move", "no-such-task", "DONE")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert "Traceback" not in refused.stderr
    task = shell.text("task", "create", "Mistaken")
    mistaken = shell.run("task", "move", task, "AUTO")
    assert f"quarterdeck task update {task} --type AUTO" in mistaken.stderr
    assert f"quarterdeck review request {task}" in shell.run("review", "approve", task).stderr
    for words in (("task", "list"), ("logs", "job_x"), ("job", "list"), ("review", "diff", "x")):
        alone = quarterdeck(*words, "--data-dir", str(tmp_path / "empty"))
        assert alone.returncode == 1
        assert "quarterdeck up" in alone.stderr


def refused(ran: subprocess.CompletedProcess[str], exit_code: int = 1) -> dict[str, Any]:
    """What a script reads of a command that failed: nothing as its answer, one object as its error."""
    assert ran.returncode == exit_code, ran.stderr
    assert ran.stdout == ""
    told: dict[str, Any] = json.loads(ran.stderr)
    assert list(told) == ["error", "code", "field", "hint", "details"]
    return told


def test_a_refusal_of_the_core_is_one_json_object_for_a_script(board: Board, shell: Shell) -> None:
    lost = refused(shell.run("task", "show", "no-such-task", "--json"))
    assert lost["code"] == "TASK_NOT_FOUND"
    assert "no-such-task" in lost["error"]
    assert lost["hint"] == "quarterdeck task list to see their ids", "in words that can be typed"
    task = shell.text("task", "create", "Mistaken")
    mistaken = refused(shell.run("task", "move", task, "AUTO", "--json"))
    assert mistaken["hint"] == f"quarterdeck task update {task} --type AUTO"
    for words in (("job", "show", "x"), ("token", "revoke", "x"), ("review", "diff", "x"), ("logs", "x")):
        assert refused(shell.run(*words, "--json"))["code"] == "not_found"
    wrong = refused(shell.run("job", "list", "--state", "gone", "--json"))
    assert (wrong["code"], wrong["field"]) == ("validation_error", "state")
    gated = board.task(board.project(board.repo(), gate_command="echo it leaks; exit 3"), "write x.txt hi")
    board.run(gated)
    merge = refused(shell.run("review", "merge", gated, "--json"))
    assert merge["code"] == "MERGE_FAILED"
    assert "it leaks" in merge["details"]["gate_output"]


def test_a_wrong_command_line_is_one_json_object_for_a_script(shell: Shell) -> None:
    for words, field in (
        (("task", "list", "--nope"), None),
        (("task", "lst"), None),
        (("task", "show"), "task_id"),
        (("task", "list", "--limit", "many"), "limit"),
        (("wait", "x", "--timeout", "-1"), "timeout"),
        (("connect", "cursor", "--surface", "bord", "--print"), "surface"),
    ):
        told = refused(quarterdeck(*words, "--json"), exit_code=2)
        assert (told["code"], told["field"]) == ("usage_error", field)
        assert told["hint"].endswith("--help")
    task = shell.text("task", "create", "Note")
    assert shell.run("task", "note", task, "--nope").stderr.startswith("Usage: ")
    noted = quarterdeck("task", "note", "--data-dir", str(shell.data_dir), task, "--", "--json")
    assert noted.returncode == 0, noted.stderr
    assert "--json" in shell.json("task", "show", task)["scratchpad"]


def test_an_answer_that_cannot_be_written_is_one_line(shell: Shell) -> None:
    words = [sys.executable, "-m", "quarterdeck", "task", "list", "--data-dir", str(shell.data_dir)]
    for more in ([], ["--json"]):
        with Path("/dev/full").open("w") as full:
            ran = subprocess.run([*words, *more], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert ran.returncode == 1
        assert len(ran.stderr.splitlines()) == 1 and "No space left" in ran.stderr


def test_no_core_and_a_wrong_token_are_told_to_a_script_as_well(board: Board, tmp_path: Path) -> None:
    away = refused(quarterdeck("task", "list", "--json", "--data-dir", str(tmp_path)))
    assert (away["code"], away["hint"]) == ("service_unavailable", "start one with: quarterdeck up")
    (tmp_path / "core.json").write_text((board.core.data_dir / "core.json").read_text())
    (tmp_path / "token").write_text("mcp_wrong")
    for words in (("task", "list"), ("token", "list")):
        stranger = refused(quarterdeck(*words, "--json", "--data-dir", str(tmp_path)))
        assert stranger["code"] == "permission_denied"
        assert "unknown, revoked or expired" in stranger["error"]


def test_the_last_page_of_a_log_tells_a_script_how_the_job_ended(board: Board, shell: Shell) -> None:
    job = shell.text("task", "start", board.task(board.project(board.repo()), "exit 3"))
    followed = shell.run("logs", "-f", job, "--json")
    assert followed.returncode == 1
    assert followed.stderr == ""
    *_, last = map(json.loads, followed.stdout.splitlines())
    assert (last["ended"], last["state"]) == (True, "FAILED")


def test_a_log_that_grows_shows_no_secrets_and_goes_on_where_it_was_left(board: Board, shell: Shell) -> None:
    task = board.task(board.project(board.repo()), "nothing", agent_backend="secretive")
    job = shell.text("task", "start", task)

    def page(offset: int) -> dict[str, Any]:
        query = f"/api/jobs/{job}/log?offset={offset}&wait=25"
        found: dict[str, Any] = board.core.request("GET", query, board.core.token).json()
        return found

    first = page(0)
    while not first["text"]:
        assert first["state"] in ("QUEUED", "RUNNING")
        first = page(0)
    assert first["text"] == "key [secret] token [secret]\n", "the half line is still to come"
    (board.folder / "go").touch()
    shell.run("wait", job)
    rest = page(first["offset"])
    assert rest["text"] == "halfover\n"
    assert page(rest["offset"])["ended"]
    whole = shell.text("logs", job)
    assert "hush" not in whole and "mcp_" not in whole


def test_connect_knows_every_surface() -> None:
    assert {name.value for name in SurfaceName} == set(SURFACES)


@pytest.mark.parametrize(
    ("client", "file", "key"),
    [
        ("claude", ".claude.json", "mcpServers"),
        ("codex", ".codex/config.toml", "mcp_servers"),
        ("gemini", ".gemini/settings.json", "mcpServers"),
        ("opencode", ".config/opencode/opencode.json", "mcp"),
        ("cursor", ".cursor/mcp.json", "mcpServers"),
        ("vscode", ".config/Code/User/mcp.json", "servers"),
    ],
)
def test_connect_writes_each_clients_configuration_and_keeps_the_rest(
    board: Board, tmp_path: Path, client: str, file: str, key: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    is_toml = path.suffix == ".toml"
    path.write_text('model = "x"\n\n[other]\na = 1\n' if is_toml else '{"model": "x"}')
    words = ("connect", client, "--data-dir", str(board.core.data_dir))

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        ran = quarterdeck(*words, *more, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / ".config"))
        assert ran.returncode == 0, ran.stderr
        return ran

    def written() -> dict[str, Any]:
        text = path.read_text()
        found: dict[str, Any] = tomllib.loads(text) if is_toml else json.loads(text)
        return found

    before = path.read_text()
    assert "quarterdeck" in run("--print").stdout
    assert json.loads(run("--print", "--json").stdout)["entry"]
    assert path.read_text() == before, "--print writes nothing"
    told = json.loads(run("--json").stdout)
    assert told == {"client": client, "file": str(path), "written": True}
    assert written()["model"] == "x"
    assert "mcp" in json.dumps(written()[key]["quarterdeck"])
    assert board.core.token not in path.read_text(), "the bridge finds the token by itself"
    run("--http", "--surface", "board")
    assert f"{board.core.url}/mcp/board" in path.read_text()
    assert board.core.token in path.read_text()
    once = path.read_text()
    assert "connected already" in run("--http", "--surface", "board").stderr
    assert path.read_text() == once


def test_connect_leaves_a_file_alone_that_it_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{ // a comment\n}")
    refused = quarterdeck("connect", "cursor", "--file", str(file), "--data-dir", str(tmp_path))
    assert refused.returncode == 1
    assert "--print" in refused.stderr
    assert file.read_text() == "{ // a comment\n}"
