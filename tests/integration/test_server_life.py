"""A core comes up, says so, keeps its secrets, and leaves in order."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from quarterdeck.paths import address_file, read_address
from quarterdeck.server.up import bind
from tests.core_process import clean_environment
from tests.integration.own_core import ADMIN, TOKENS, Core, command, quarterdeck
from tests.mcp_client import Modern, eventually

GRACE_SECONDS = 10
WRITERS = 50


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_health_answers_while_the_rest_is_still_loading(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    seen: list[tuple[int, int, int]] = []

    def ready() -> bool:
        try:
            health, readiness, endpoint = http.get("/healthz"), http.get("/readyz"), http.post("/mcp")
        except httpx2.ConnectError:
            return False
        seen.append((health.status_code, readiness.status_code, endpoint.status_code))
        if readiness.status_code == 503:
            assert readiness.json() == {"status": "starting"}
            assert readiness.headers["retry-after"] == "1"
        return readiness.status_code == 200

    with (
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as http,
        subprocess.Popen(
            command("up", "--data-dir", str(data), "--port", str(port)),
            env=clean_environment(),
            stderr=subprocess.DEVNULL,
        ) as core,
    ):
        try:
            eventually(ready)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (data, *data.iterdir())}
        finally:
            core.terminate()
    assert seen[0] == (200, 503, 503)
    assert {health for health, _, _ in seen} == {200}
    # And what it wrote is for its owner alone.
    assert modes.pop("data") == 0o700
    assert {"token", "core.json", "core.lock", "quarterdeck.db"} <= modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode != 0o600} == {}
    assert re.fullmatch(r"mcp_[A-Za-z0-9_-]{48}\n", (data / "token").read_text())


def test_port_in_use_is_refused_with_a_next_step(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = quarterdeck("up", "--data-dir", str(tmp_path / "data"), "--port", port)
    assert refused.returncode == 1
    assert "--port" in refused.stderr and "Traceback" not in refused.stderr


def test_no_process_that_a_core_starts_keeps_its_port_taken() -> None:
    """A terminal goes on without the core, and a gate that is running when the core is killed."""
    with contextlib.closing(bind("127.0.0.1", 0)) as listening:
        assert not listening.get_inheritable()


def test_every_acknowledged_write_survives_a_graceful_stop_under_load(tmp_path: Path) -> None:
    with Core(tmp_path / "data", QUARTERDECK_SERVER__RATE_LIMIT_PER_MINUTE="0") as core:
        acknowledged: list[str] = []
        enough = threading.Event()

        def create_until_refused(client: Modern, writer: int) -> None:
            for number in range(10_000):
                try:
                    created = client.call("task_create", title=f"{writer}/{number}")
                except (httpx2.TransportError, OSError):
                    return
                assert not created.is_error, created.body
                acknowledged.append(created.body["id"])
                if len(acknowledged) >= 2 * WRITERS:
                    enough.set()

        clients = [core.modern() for _ in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            writers = [pool.submit(create_until_refused, client, n) for n, client in enumerate(clients)]
            try:
                assert enough.wait(30)
            finally:
                began = time.monotonic()
                code = core.leave()
                took = time.monotonic() - began
        for writer in writers:
            writer.result()
        assert code == 0
        assert took < GRACE_SECONDS
        assert not address_file(core.data_dir).exists()
        assert "Traceback" not in core.log
        core.restart()
        client = core.modern()
        missing = [task for task in acknowledged if client.call("task_get", task_id=task).is_error]
        assert len(acknowledged) >= 2 * WRITERS
        assert missing == []


def test_calls_in_flight_are_answered_before_the_end(tmp_path: Path) -> None:
    with Core(tmp_path / "data") as core, ThreadPoolExecutor(3) as pool:
        modern, older = core.modern(), core.older()
        port, data = int(core.url.rpartition(":")[2]), core.data_dir
        with contextlib.closing(sqlite3.connect(data / "quarterdeck.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # until this ends, no write of the core does
            calls = [pool.submit(client.call, "task_create", title="t") for client in (modern, older)]
            time.sleep(0.5)  # for the calls to arrive
            leaving = pool.submit(core.leave)
            eventually(lambda: not is_listening(port))
            time.sleep(1)  # whoever cuts calls off has had the time
            assert not any(call.done() for call in calls)
            other.execute("ROLLBACK")
        assert [call.result().body["title"] for call in calls] == ["t", "t"]
        assert leaving.result() == 0
        assert "Traceback" not in core.log


def test_open_streams_do_not_hold_up_a_stop_and_end_whole(tmp_path: Path) -> None:
    with Core(tmp_path / "data") as core:
        sessions = [core.older() for _ in range(3)]
        opened = threading.Barrier(len(sessions) + 1, timeout=10)

        def listen(index: int) -> str:
            session = sessions[index]
            headers = {"Authorization": f"Bearer {core.token}", "Accept": "text/event-stream"}
            headers["Mcp-Session-Id"] = str(session.session)
            with httpx2.stream("GET", session.url, headers=headers, timeout=30) as stream:
                assert stream.status_code == 200
                opened.wait()
                return "".join(stream.iter_text())  # raises when the stream is cut off

        with ThreadPoolExecutor(len(sessions)) as pool:
            streams = [pool.submit(listen, index) for index in range(len(sessions))]
            opened.wait()
            began = time.monotonic()
            assert core.leave() == 0
            assert time.monotonic() - began < GRACE_SECONDS / 3
            for stream in streams:
                stream.result()
        assert "Traceback" not in core.log
        assert "error" not in core.log


def test_core_that_was_killed_leaves_an_address_that_the_next_one_replaces(tmp_path: Path) -> None:
    with Core(tmp_path / "data") as core:
        token, pid = core.token, core.pid
        core.kill9()
        stale = read_address(core.data_dir)
        assert stale is not None and stale.pid == pid
        core.restart()
        assert core.token == token
        assert json.loads(address_file(core.data_dir).read_text()) == {"url": core.url, "pid": core.pid}
        assert core.modern().call("ping").body["pong"]
        assert core.leave(signal.SIGINT) == 0
        assert read_address(core.data_dir) is None


PASSWORD = "pa55-of-the-database"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"postgresql://deck:{PASSWORD}@127.0.0.1:1/deck", "cannot be reached"),
        (f"postgresql://deck:{PASSWORD}@127.0.0.1:port/deck", "cannot be read"),
        (f"mysql://deck:{PASSWORD}@127.0.0.1/deck", "must begin with"),
    ],
)
def test_database_that_cannot_be_used_ends_the_start_without_its_password(
    tmp_path: Path, url: str, says: str
) -> None:
    variables = {"QUARTERDECK_DATABASE_URL": url, "QUARTERDECK_LOG__LEVEL": "debug"}
    ended = quarterdeck("up", "--data-dir", str(tmp_path / "data"), "--port", "0", **variables)
    assert ended.returncode == 1
    assert says in ended.stderr and "Traceback" not in ended.stderr
    assert PASSWORD not in ended.stdout + ended.stderr
    assert read_address(tmp_path / "data") is None


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    data = tmp_path_factory.mktemp("talkative") / "data"
    with Core(data, QUARTERDECK_LOG__LEVEL="debug", QUARTERDECK_LOG__FORMAT="json") as running:
        yield running


def test_neither_the_log_nor_an_error_tells_a_secret(talkative: Core) -> None:
    core = talkative
    secrets = [core.token, ADMIN, core.minted()["token"]]
    told: list[str] = []
    for secret in secrets:
        wrong = secret[:-1] + ("a" if secret[-1] != "a" else "b")
        for client in (core.modern(secret), core.older(secret)):
            told += [
                json.dumps(client.call("no_such_tool").body),
                json.dumps(client.call("task_get", task_id="nope").body),
                client.post("{broken", "tools/call", "ping").text,
                client.post('{"jsonrpc": "2.0", "id": 1, "method": "nope"}', "nope").text,
            ]
        told += [
            core.request("POST", "/mcp/nope", secret).text,
            core.request("DELETE", f"{TOKENS}/nope", secret).text,
            core.request("POST", TOKENS, secret, json={"name": 1}).text,
            core.request("GET", "/mcp", secret, headers={"Mcp-Session-Id": "nope"}).text,
            core.request("GET", "/mcp", secret, headers={"Host": "evil.example"}).text,
            core.request("GET", "/mcp", secret, headers={"Quarterdeck-Profile": "nope"}).text,
            core.request("POST", "/mcp", wrong).text,
        ]
    with sqlite3.connect(core.data_dir / "quarterdeck.db") as database:
        database.execute("DROP TABLE mcp_sessions")
    for secret in secrets:  # now the server itself breaks, and logs it
        told.append(core.request("GET", "/mcp", secret, headers={"Mcp-Session-Id": "nope"}).text)
    assert "no such table" in core.log
    for text in (*told, core.log):
        assert not any(secret in text for secret in secrets), text[:500]
    lines = [line for line in core.log.splitlines() if line.startswith("{")]
    assert all({"event", "level", "timestamp"} <= json.loads(line).keys() for line in lines)


def test_second_core_on_a_data_directory_is_refused_and_told_of_the_first(talkative: Core) -> None:
    second = quarterdeck("up", "--data-dir", str(talkative.data_dir), "--port", "0")
    assert second.returncode == 1
    assert talkative.url in second.stderr and str(talkative.pid) in second.stderr
    assert "hint:" in second.stderr and "Traceback" not in second.stderr
    assert talkative.request("GET", "/readyz").status_code == 200  # and its address is still there
