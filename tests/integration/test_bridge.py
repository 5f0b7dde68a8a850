"""`quarterdeck mcp` as a client drives it: lines on stdin, lines on stdout, a real server behind it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import anyio
import psutil
import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

from quarterdeck import paths
from tests.core_process import CoreProcess, clean_environment

OLDER, MODERN = "2025-06-18", "2026-07-28"
LONGEST_LINE = 16 * 1024 * 1024
ANSWER_SECONDS = 30.0
MUTATING = {"task_create", "task_update", "decision_log", "pattern_store", "orchestrator_reset_cache"}

Env = dict[str, str]
Message = dict[str, Any]


class Client:
    """A client of either era that started the bridge. Whatever it hears must be a line of JSON."""

    def __init__(self, era: str, *flags: str | Path, env: Env | None = None) -> None:
        self.era = era
        self._ids = itertools.count(1)
        self._heard: queue.Queue[bytes] = queue.Queue()
        self._answers: dict[Any, Message] = {}
        self.notified: list[str] = []
        command, pipe = [sys.executable, "-m", "quarterdeck", "mcp", *flags], subprocess.PIPE
        self.process = subprocess.Popen(command, env=clean_environment(env), stdin=pipe, stdout=pipe)
        assert self.process.stdin is not None
        self._stdin = self.process.stdin
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        if self.era == OLDER:
            self.greeting = self.answer(self.greet())["result"]
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.leave()
        finally:
            self.process.kill()
            self.process.wait()
            self._listener.join()

    def leave(self) -> int:
        """Close stdin, as a client does; the exit code."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        return self.process.wait(ANSWER_SECONDS)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._heard.put(line)

    def write(self, line: bytes) -> None:
        self._stdin.write(line + b"\n")
        self._stdin.flush()

    def tell(self, method: str, **fields: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, **fields}).encode())

    def start(self, method: str, params: Message | None = None, **meta: Any) -> int:
        """Send a request without waiting for its answer; its id."""
        number = next(self._ids)
        if self.era == MODERN:
            meta["io.modelcontextprotocol/protocolVersion"] = MODERN
            meta["io.modelcontextprotocol/clientCapabilities"] = {}
        self.tell(method, id=number, params={**(params or {}), "_meta": meta})
        return number

    def greet(self) -> int:
        """Send the whole handshake of an older client at once; the id of its request."""
        about = {"clientInfo": {"name": "tests", "version": "1"}, "capabilities": {}}
        number = self.start("initialize", {"protocolVersion": OLDER, **about})
        self.tell("notifications/initialized")
        return number

    def answer(self, number: int | None) -> Message:
        """The answer to a request; the methods of what is heard before it are in `notified`."""
        while number not in self._answers:
            message = json.loads(self._heard.get(timeout=ANSWER_SECONDS))
            assert message["jsonrpc"] == "2.0"
            if "method" in message:
                self.notified.append(message["method"])
            else:
                self._answers[message["id"]] = message
        return self._answers.pop(number)

    def call(self, tool: str, /, **arguments: Any) -> int:
        """Send a call without waiting for its answer; its id."""
        return self.start("tools/call", {"name": tool, "arguments": arguments}, progressToken=tool)

    def text(self, tool: str, /, **arguments: Any) -> str:
        """The text of a call that must succeed."""
        result = self.answer(self.call(tool, **arguments))["result"]
        assert not result.get("isError"), result
        return str(result["content"][0]["text"])

    def done(self, tool: str, /, **arguments: Any) -> Any:
        return json.loads(self.text(tool, **arguments))

    def refused(self, tool: str, /, **arguments: Any) -> Message:
        """The body of a call that must fail; its text and its structure say the same."""
        result = self.answer(self.call(tool, **arguments))["result"]
        body: Message = result["structuredContent"]
        assert result["isError"] is True and json.loads(result["content"][0]["text"]) == body
        return body

    def tools(self) -> dict[str, Message]:
        return {tool["name"]: tool for tool in self.answer(self.start("tools/list"))["result"]["tools"]}


def peer() -> None:
    """A server of the official SDK with slow calls, in a process of its own; it prints its port."""
    server, cut = MCPServer("peer"), list[float]()

    @server.tool()
    async def slow(seconds: float, ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        try:
            await anyio.sleep(seconds)
        except BaseException:
            cut.append(seconds)
            raise
        return "slow"

    @server.tool()
    async def times_cut() -> str:
        return str(len(cut))

    @server.tool()
    async def announce(ctx: Context) -> str:
        await ctx.session.send_tool_list_changed()
        return "announced"

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run([listening])


@pytest.fixture(scope="module")
def peer_env() -> Iterator[Env]:
    """What points a bridge to a running `peer`."""
    program = [sys.executable, "-c", f"from {__name__} import peer; peer()"]
    with subprocess.Popen(program, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield {"QUARTERDECK_MCP_URL": f"http://127.0.0.1:{port}/mcp", "QUARTERDECK_TOKEN": "any"}
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoreProcess]:
    """A core for the tests that leave it as it is."""
    with CoreProcess(tmp_path_factory.mktemp("core")) as running:
        yield running


@pytest.fixture(params=[OLDER, MODERN])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def port() -> int:
    """A port that nobody gets by chance while the core that it is for is away."""
    while True:
        number = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", number)):
            return number


@contextlib.contextmanager
def ending_its_core(data_dir: Path) -> Iterator[None]:
    """For tests whose bridge starts a core, which outlives it."""
    try:
        yield
    finally:
        running = psutil.process_iter(["cmdline"])
        cores = [found for found in running if str(data_dir) in (found.info["cmdline"] or ())]
        for core in cores:
            core.terminate()
        assert psutil.wait_procs(cores, timeout=15)[1] == []


@pytest.mark.parametrize("flags", [[], ["--surface", "orchestrator"]])
def test_client_of_either_era_lists_and_calls_tools(core: CoreProcess, era: str, flags: list[str]) -> None:
    with Client(era, "--data-dir", core.data_dir, *flags) as client:
        assert client.tools().keys() >= MUTATING
        created = client.done("task_create", title="Über die Brücke")
        assert client.done("task_get", task_id=created["id"])["task"]["title"] == "Über die Brücke"
        assert client.leave() == 0


@pytest.mark.parametrize(("flag", "known"), [("--surface", "/mcp/orchestrator"), ("--profile", "maintainer")])
def test_unknown_choice_is_refused_with_what_there_is(core: CoreProcess, flag: str, known: str) -> None:
    with Client(MODERN, "--data-dir", core.data_dir, flag, "größer als") as client:
        assert known in json.dumps(client.answer(client.start("tools/list"))["error"])


def test_unusual_tool_name_reaches_the_core_as_it_is(core: CoreProcess) -> None:
    with Client(MODERN, "--data-dir", core.data_dir) as client:
        for name in ("naïve\r\nX-Evil: 1", "=?base64?cGluZw==?=", " ping "):
            assert repr(name) in client.refused(name)["message"]


def test_unknown_method_is_answered_by_the_core(core: CoreProcess, era: str) -> None:
    with Client(era, "--data-dir", core.data_dir) as client:
        assert client.answer(client.start("no/such"))["error"]["code"] == -32601


def test_call_sent_along_with_the_handshake_is_answered(core: CoreProcess) -> None:
    with Client("", "--data-dir", core.data_dir) as client:
        greeting, call = client.greet(), client.call("ping")
        assert client.leave() == 0
        assert client.answer(greeting)["result"]["protocolVersion"] == OLDER
        assert client.answer(call)["result"]["isError"] is False


def test_running_core_answers_within_half_a_second_of_the_start(core: CoreProcess) -> None:
    def measured() -> float:
        began = time.monotonic()
        with Client(OLDER, "--data-dir", core.data_dir):
            return time.monotonic() - began

    assert min(measured() for _ in range(5)) < 0.5


def test_slow_call_does_not_hold_up_another_and_tells_its_progress(peer_env: Env, era: str) -> None:
    with Client(era, env=peer_env) as client:
        began, slow = time.monotonic(), client.call("slow", seconds=2)
        client.text("times_cut")
        assert time.monotonic() - began < 1.5
        assert client.answer(slow)["result"]["content"][0]["text"] == "slow"
        assert client.notified == ["notifications/progress"]


def test_cancelled_call_ends_in_the_server(peer_env: Env, era: str) -> None:
    with Client(era, env=peer_env) as client:
        before, slow = client.text("times_cut"), client.call("slow", seconds=60)
        while "notifications/progress" not in client.notified:
            client.text("times_cut")
        client.tell("notifications/cancelled", params={"requestId": slow})
        deadline = time.monotonic() + 10
        while client.text("times_cut") == before:
            assert time.monotonic() < deadline


def test_what_the_server_says_by_itself_reaches_an_older_client(peer_env: Env) -> None:
    with Client(OLDER, env=peer_env) as client:
        deadline = time.monotonic() + 10
        # What is said before the stream is open is lost.
        while "notifications/tools/list_changed" not in client.notified:
            client.text("announce")
            assert time.monotonic() < deadline


def test_clients_go_on_after_their_core_was_killed_and_restarted(tmp_path: Path) -> None:
    flags = ("--data-dir", tmp_path)
    with CoreProcess(tmp_path) as core, Client(OLDER, *flags) as older, Client(MODERN, *flags) as modern:
        both = (older, modern)
        assert [client.done("task_create", title="kept")["title"] for client in both] == ["kept", "kept"]
        core.kill9()
        calls = [client.call("task_list") for client in both]
        lists = [client.start("tools/list") for client in both]
        for client, call, listing in zip(both, calls, lists, strict=True):
            result, error = client.answer(call)["result"], client.answer(listing)["error"]
            told, why = error["data"], error["message"]
            assert (error["code"], told["code"]) == (-32000, "DISCONNECTED")
            assert "quarterdeck up" in told["hint"]
            body = {"success": False, "error": why, "message": why, **told}
            body |= {"next_tool": None, "next_arguments": None}
            assert json.loads(result["content"][0]["text"]) == result["structuredContent"] == body
            assert result["isError"] is True
            assert result.get("resultType") == ("complete" if client is modern else None)
        core.start()
        assert [len(client.done("task_list")) for client in both] == [2, 2]


def test_call_whose_answer_was_lost_is_not_sent_again(tmp_path: Path) -> None:
    flags = ("--data-dir", tmp_path)
    with CoreProcess(tmp_path) as core, Client(OLDER, *flags) as older, Client(MODERN, *flags) as modern:
        both = (older, modern)
        assert [client.done("task_list") for client in both] == [[], []]
        os.kill(core.pid, signal.SIGSTOP)
        calls = [client.call("task_create", title="once at most") for client in both]
        time.sleep(0.5)
        core.kill9()
        core.start()
        for client, call in zip(both, calls, strict=True):
            body = client.answer(call)["result"]["structuredContent"]
            assert (body["code"], "may have taken effect" in body["hint"]) == ("DISCONNECTED", True)
        assert older.done("task_list") == []


def test_call_waits_for_a_core_that_is_starting(tmp_path: Path, port: int) -> None:
    fixed = ("--port", str(port))
    with CoreProcess(tmp_path, args=fixed) as core, Client(MODERN, "--data-dir", tmp_path) as client:
        client.done("ping")
        core.kill9()
        starting = threading.Thread(target=core.start)
        starting.start()
        for _ in range(2000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.01)
        assert client.done("ping")["pong"] is True
        starting.join()


def test_session_that_the_core_forgot_is_opened_again(core: CoreProcess) -> None:
    with Client(OLDER, "--data-dir", core.data_dir) as client:
        client.done("ping")
        [session] = sessions(core)
        headers = {"Authorization": f"Bearer {core.token}", "Mcp-Session-Id": session}
        request = urllib.request.Request(f"{core.url}/mcp", method="DELETE", headers=headers)
        urllib.request.urlopen(request, timeout=10).close()
        calls = [client.call("ping") for _ in range(12)]
        assert [client.answer(call)["result"]["isError"] for call in calls] == [False] * 12
        assert sessions(core) != [session]


def test_session_ends_with_its_client(core: CoreProcess) -> None:
    with Client(OLDER, "--data-dir", core.data_dir):
        assert len(sessions(core)) == 1
    assert sessions(core) == []


def sessions(core: CoreProcess) -> list[str]:
    with contextlib.closing(sqlite3.connect(core.data_dir / "quarterdeck.db")) as database:
        return [session for (session,) in database.execute("select id from mcp_sessions")]


def test_token_that_the_core_does_not_accept_is_stale(core: CoreProcess, era: str) -> None:
    file, token = paths.token_file(core.data_dir), core.token
    with Client(era, "--data-dir", core.data_dir) as client:
        try:
            paths.write_private(file, "mcp_" + "x" * 48)
            body, error = client.refused("ping"), client.answer(client.start("tools/list"))["error"]
        finally:
            paths.write_private(file, token)
        assert body["code"] == error["data"]["code"] == "AUTH_STALE_TOKEN"
        assert body["hint"].startswith("Reconnect the MCP client")
        assert client.done("ping")["pong"] is True


def test_viewer_sees_no_tool_that_changes_anything(core: CoreProcess, era: str) -> None:
    with Client(era, "--data-dir", core.data_dir, "--profile", "viewer") as client:
        assert {tool["annotations"]["readOnlyHint"] for tool in client.tools().values()} == {True}
        assert client.refused("task_create", title="no")


def test_safe_lane_is_held_to_its_profile(core: CoreProcess) -> None:
    flags = ("--data-dir", core.data_dir, "--identity")
    with Client(MODERN, *flags, "kagan") as safe, Client(MODERN, *flags, "kagan_admin") as admin:
        # The plans surface has a task_update of its own, which a pair worker may use.
        assert safe.tools().keys() & MUTATING == {"decision_log", "pattern_store", "task_update"}
        assert admin.tools().keys() >= MUTATING


@pytest.mark.parametrize("flag", ["--task={}", "--session-id=task:{}"])
def test_bridge_of_a_task_reaches_that_task_only(core: CoreProcess, flag: str) -> None:
    with Client(MODERN, "--data-dir", core.data_dir) as client:
        mine, other = (client.done("task_create", title=title)["id"] for title in ("mine", "other"))
    with Client(MODERN, "--data-dir", core.data_dir, flag.format(mine)) as bound:
        assert bound.done("task_get", task_id=mine)["task"]["title"] == "mine"
        assert bound.refused("task_get", task_id=other)
        assert "task_create" not in bound.tools()


def test_long_line_works_and_one_that_is_too_long_is_skipped(core: CoreProcess, era: str) -> None:
    with Client(era, "--data-dir", core.data_dir) as client:
        phases = [{"name": f"phase {number}", "tasks": ["x" * 500] * 200} for number in range(11)]
        assert client.done("plan_create", title="large", phases=phases)["plan"]["phases"] == 11
        refused = client.answer(client.call("task_create", title="x" * 5 * 1024 * 1024))["error"]
        assert "too large" in refused["message"]
        client.write(b"x" * (LONGEST_LINE + 1024 * 1024))
        error = client.answer(None)["error"]
        assert (error["code"], str(LONGEST_LINE) in error["message"]) == (-32600, True)
        assert client.done("ping")["pong"] is True


def test_line_that_is_no_message_is_refused(core: CoreProcess) -> None:
    with Client(MODERN, "--data-dir", core.data_dir) as client:
        for line in (b"{", b"\xff\xfe", b"[" * 100_000):
            client.write(line)
            assert client.answer(None)["error"]["code"] == -32700
        for line in (
            b"[]",
            b'[{"id":1,"method":"ping"}]',
            b"null",
            b'{"id":1}',
            b'{"id":null,"method":"ping"}',
        ):
            client.write(line)
            assert client.answer(None)["error"]["code"] == -32600
        client.write(b"  ")
        assert client.done("ping")["pong"] is True


def test_bridge_starts_a_core_that_outlives_it_and_knows_no_secrets(tmp_path: Path, port: int) -> None:
    data_dir = tmp_path / "new"
    env = {"QUARTERDECK_PORT": str(port), "AWS_SECRET": "s", "OPENAI_API_KEY": "k"}
    with ending_its_core(data_dir), Client(OLDER, "--data-dir", data_dir, env=env) as client:
        assert client.done("ping")["pong"] is True
        assert client.leave() == 0
        address = paths.read_address(data_dir)
        assert address is not None and address.url.endswith(f":{port}")
        process = psutil.Process(address.pid)
        assert (os.getsid(process.pid), process.cwd()) == (process.pid, str(data_dir))
        assert process.environ().keys() & {"AWS_SECRET", "OPENAI_API_KEY"} == {"OPENAI_API_KEY"}


def test_two_bridges_at_once_start_one_core(tmp_path: Path, port: int) -> None:
    flags, env = ("--data-dir", tmp_path), {"QUARTERDECK_PORT": str(port)}
    with ending_its_core(tmp_path), Client("", *flags, env=env) as one, Client("", *flags, env=env) as two:
        assert all("result" in client.answer(client.greet()) for client in (one, two))
        log = paths.log_file(tmp_path).read_text()
        assert (log.count("is up at"), "error:" in log) == (1, False)


def test_core_is_started_on_another_port_when_its_own_is_taken(tmp_path: Path, port: int) -> None:
    flags, env, taken = ("--data-dir", tmp_path), {"QUARTERDECK_PORT": str(port)}, ("127.0.0.1", port)
    with socket.create_server(taken), ending_its_core(tmp_path), Client(MODERN, *flags, env=env) as client:
        assert client.done("ping")["pong"] is True


def test_reason_why_no_core_starts_is_the_hint(tmp_path: Path, port: int) -> None:
    (tmp_path / "quarterdeck.toml").write_text("[server]\nno_such_key = 1\n")
    with Client(MODERN, "--data-dir", tmp_path, env={"QUARTERDECK_PORT": str(port)}) as client:
        body = client.refused("ping")
        assert (body["code"], "no_such_key" in body["hint"]) == ("DISCONNECTED", True)


def test_bridge_of_a_job_starts_no_core(tmp_path: Path, port: int) -> None:
    env = {"QUARTERDECK_MCP_URL": f"http://127.0.0.1:{port}/mcp", "QUARTERDECK_TOKEN": "mcp_job"}
    with Client(MODERN, "--data-dir", tmp_path / "none", env=env) as client:
        assert client.refused("ping")["code"] == "DISCONNECTED"
    assert not (tmp_path / "none").exists()


def test_bridge_of_a_job_uses_its_own_token(core: CoreProcess, tmp_path: Path) -> None:
    env = {"QUARTERDECK_MCP_URL": f"{core.url}/mcp", "QUARTERDECK_TOKEN": core.token}
    with Client(OLDER, "--data-dir", tmp_path, "--surface", "orchestrator", env=env) as client:
        assert client.greeting["serverInfo"]["name"] == "manticscore-orchestrator"
    with Client(MODERN, "--data-dir", core.data_dir, env={**env, "QUARTERDECK_TOKEN": "mcp_other"}) as client:
        assert client.refused("ping")["code"] == "AUTH_STALE_TOKEN"


def test_end_of_input_lets_a_call_be_answered(peer_env: Env, era: str) -> None:
    with Client(era, env=peer_env) as client:
        call = client.call("slow", seconds=0.5)
        assert client.leave() == 0
        assert client.answer(call)["result"]["content"][0]["text"] == "slow"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_bridge_at_once(peer_env: Env, number: signal.Signals) -> None:
    with Client(OLDER, env=peer_env) as client:
        client.call("slow", seconds=60)
        client.text("times_cut")
        client.process.send_signal(number)
        assert client.process.wait(2.0) == 0


def test_client_that_no_longer_reads_ends_the_bridge(core: CoreProcess) -> None:
    bridge = f"{sys.executable} -m quarterdeck mcp --data-dir {core.data_dir}"
    script = f"while echo x; do sleep 0.1; done | {bridge} | head -n 1; exit ${{PIPESTATUS[1]}}"
    ended = subprocess.run(["bash", "-c", script], env=clean_environment(), capture_output=True, timeout=30)
    assert (ended.returncode, json.loads(ended.stdout)["error"]["code"]) == (0, -32700)
