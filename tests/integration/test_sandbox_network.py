"""A sandbox without a network: what an agent in it reaches, what it does not, and the gate between."""

from __future__ import annotations

import asyncio
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from quarterdeck.domain.errors import Unavailable
from quarterdeck.domain.hosts import Allowed, Door
from quarterdeck.run import forward, gate, sandbox
from quarterdeck.run.gate import Gate
from tests.integration.relay_core import RelayCore, Row, answer, read
from tests.mcp_client import Client

# What the agent may use: each says in one line how it went.
TOOLS = """
import http.client, json, os, socket, urllib.request
from urllib.parse import urlsplit

def tell(name, what, *given):
    try:
        print("|", name, what(*given), flush=True)
    except OSError as error:
        print("|", name, "failed:", error.args[-1], flush=True)

def fetch(url):
    return urllib.request.urlopen(url, timeout=30).read().decode()

def direct(host, port):
    socket.create_connection((host, port), timeout=30).close()
    return "connected"

def proxy():
    at = urlsplit(os.environ["HTTPS_PROXY"])
    return http.client.HTTPConnection(at.hostname, at.port, timeout=30)

def tunnel(host, port):
    connection = proxy()
    connection.set_tunnel(host, port)
    connection.request("GET", "/tunnel")
    return connection.getresponse().read().decode()

def whole(url):
    connection = proxy()
    connection.request("POST", url, b"some words")
    answer = connection.getresponse()
    return f"{answer.status} {answer.read().decode()}"

def mcp():
    client = {"name": "agent", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    headers = {
        "Authorization": "Bearer " + os.environ["QUARTERDECK_TOKEN"],
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    url = os.environ["QUARTERDECK_MCP_URL"]
    said = fetch(urllib.request.Request(url, json.dumps(body).encode(), headers))
    data = next(line for line in said.splitlines() if line.startswith("data: {"))
    return json.loads(data[6:])["result"]["serverInfo"]["name"]
"""


class Greeting(BaseHTTPRequestHandler):
    """Says which path was asked for, and what came with it."""

    def do_GET(self) -> None:
        body = f"hello {self.path} {self.rfile.read(int(self.headers['Content-Length'] or 0)).decode()}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def greeter() -> Iterator[int]:
    """The port of a server on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Greeting)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def listed() -> Iterator[int]:
    with greeter() as port:
        yield port


@pytest.fixture(scope="module")
def unlisted() -> Iterator[int]:
    with greeter() as port:
        yield port


@pytest.fixture(scope="module")
def core(listed: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayCore]:
    variables = {
        "QUARTERDECK_WORKER__SANDBOX_NETWORK": "isolated",
        "QUARTERDECK_WORKER__SANDBOX_HOSTS": f"127.0.0.1:{listed}",
    }
    with RelayCore(tmp_path_factory.mktemp("isolated"), **variables) as core:
        yield core


@pytest.fixture(scope="module")
def client(core: RelayCore) -> Client:
    return core.modern(path="/mcp/relay")


def told(core: RelayCore, client: Client, script: str) -> tuple[Row, list[str]]:
    """The job whose agent runs a script, and what it told."""
    job = core.ran(client, ("python", TOOLS + textwrap.dedent(script)), ("say", answer()))
    log = read(client, job["id"], "logs.txt")
    assert job["state"] == "SUCCEEDED", (job["summary"], log[-3000:])
    return job, [line[2:] for line in log.splitlines() if line.startswith("| ")]


def test_an_agent_reaches_the_core_and_what_is_listed_by_their_own_addresses_and_by_the_proxy(
    core: RelayCore, client: Client, listed: int
) -> None:
    script = f"""
        tell("mcp", mcp)
        tell("own", fetch, "http://127.0.0.1:{listed}/own")
        tell("tunnel", tunnel, "127.0.0.1", {listed})
        tell("whole", whole, "http://127.0.0.1:{listed}/whole")
        tell("environment", lambda: os.environ["no_proxy"])
    """
    job, lines = told(core, client, script)
    assert lines == [
        "mcp quarterdeck",
        "own hello /own ",
        "tunnel hello /tunnel ",
        "whole 200 hello /whole some words",
        "environment 127.0.0.1,localhost,::1",
    ]
    assert job["result"] == {"sandbox": "bubblewrap", "network": "isolated"}


def test_an_agent_reaches_nothing_else(core: RelayCore, client: Client, listed: int, unlisted: int) -> None:
    script = f"""
        tell("port", direct, "127.0.0.1", {unlisted})
        tell("address", direct, "192.0.2.1", 80)
        tell("name", direct, "a.example", 443)
        tell("tunnel", tunnel, "127.0.0.1", {unlisted})
        tell("spelling", tunnel, "127.1", {listed})
        tell("host", tunnel, "localhost", {listed})
        tell("whole", whole, "http://a.example/path")
        tell("relative", whole, "/path")
        tell("interfaces", lambda: [name for _, name in socket.if_nameindex()])
    """
    job, lines = told(core, client, script)
    for line, word in zip(
        lines,
        (
            "port failed: Connection refused",
            "address failed: Network is unreachable",
            "name failed: ",
            "tunnel failed: Tunnel connection failed: 403 Forbidden",
            "spelling failed: Tunnel connection failed: 403 Forbidden",
            "host failed: Tunnel connection failed: 403 Forbidden",
            "whole 403 a.example:80 is not among the hosts",
            "relative 400 ",
            "interfaces ['lo']",
        ),
        strict=True,
    ):
        assert line.startswith(word)
    refused = {f"127.0.0.1:{unlisted}", f"127.1:{listed}", f"localhost:{listed}", "a.example:80"}
    assert set(job["result"]["refused"]) == refused
    assert job["result"]["network"] == "isolated"


def test_a_job_that_cannot_be_isolated_does_not_run(core: RelayCore) -> None:
    core.stop()
    core._env["QUARTERDECK_WORKER__SANDBOX"] = "off"
    core.start()
    client = core.modern(path="/mcp/relay")
    job = core.ran(client)
    assert (job["state"], job["reasonCode"]) == ("FAILED", "EXECUTOR_ERROR")
    assert "worker.sandbox_network is isolated" in job["summary"] and "is off" in job["summary"]


def test_without_bubblewrap_there_is_no_isolation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="isolated"):
        asyncio.run(sandbox.choose("auto", "isolated"))
    assert asyncio.run(sandbox.choose("auto")).program is None


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def asked(path: Path, line: str) -> tuple[str, Ends]:
    """What the gate answers, and the connection."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line.encode())
    return (await reader.readline()).decode(), (reader, writer)


def at_the_gate(body: Callable[[int], Awaitable[None]]) -> None:
    """Run beside a server on loopback that says everything twice."""

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data * 2)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(twice, "127.0.0.1", 0)
        async with asyncio.timeout(60):
            await body(server.sockets[0].getsockname()[1])
        server.close()

    asyncio.run(run())


def test_the_gate_passes_bytes_on_until_both_sides_have_ended(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        async with Gate(tmp_path / "gate", Allowed(frozenset({Door("localhost", port)}))) as opened:
            status, (reader, writer) = await asked(opened.path, f"LOCALHOST:{port}\n")
            assert status == "200\n"
            writer.write(b"word" * 500_000)
            writer.write_eof()
            assert await reader.read() == b"word" * 1_000_000
            writer.close()
        assert not opened.path.exists()

    at_the_gate(body)


def test_the_gate_refuses_with_a_reason(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        allowed = Allowed(frozenset({Door("127.0.0.1", 1)}), frozenset({Door("localhost", port)}))
        async with Gate(tmp_path / "gate", allowed) as opened:
            answers = []
            for line in (f"127.0.0.1:{port}\n", f"localhost:{port}\n", "127.0.0.1:1\n", "no host\n", "\n"):
                status, (_, writer) = await asked(opened.path, line)
                answers.append(status)
                writer.close()
            assert [each.split()[0] for each in answers] == ["403", "403", "502", "400", "400"]
            assert "private address" in answers[1]
            assert opened.refused == {f"127.0.0.1:{port}"}

    at_the_gate(body)


def test_all_connections_end_with_the_gate(tmp_path: Path) -> None:
    # Longer than the path of a socket may be.
    folder, short = tmp_path / ("long" * 40), tmp_path / "short"
    folder.mkdir()

    async def body(port: int) -> None:
        async with Gate(folder / "gate", Allowed(frozenset({Door("127.0.0.1", port)}))) as opened:
            assert opened.path.is_socket()
            short.symlink_to(folder)
            _, (reader, writer) = await asked(short / "gate", f"127.0.0.1:{port}\n")
            waiting = await asyncio.open_unix_connection(short / "gate")
            writer.write(b"a")
            assert await reader.readexactly(2) == b"aa"
        for each, other in ((reader, writer), waiting):
            with suppress(ConnectionResetError):
                assert await each.read() == b""
            other.close()

    at_the_gate(body)


def test_a_connection_without_traffic_is_closed(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        allowed = Allowed(frozenset({Door("127.0.0.1", port)}))
        async with Gate(tmp_path / "gate", allowed, idle=0.05) as opened:
            status, (reader, writer) = await asked(opened.path, f"127.0.0.1:{port}\n")
            assert (status, await reader.read()) == ("200\n", b"")
            writer.close()

    at_the_gate(body)


def test_connections_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        async with Gate(tmp_path / "gate", Allowed(frozenset({Door("127.0.0.1", port)}))) as opened:
            held = [await asked(opened.path, f"127.0.0.1:{port}\n") for _ in range(gate.CONNECTIONS)]
            assert {status for status, _ in held} == {"200\n"}
            status, (_, writer) = await asked(opened.path, f"127.0.0.1:{port}\n")
            assert status.startswith("503")
            for each in (writer, *(ends[1] for _, ends in held)):
                each.close()

    at_the_gate(body)


@pytest.mark.parametrize(
    ("head", "door", "request_line"),
    [
        ("CONNECT a.example:443 HTTP/1.1", "a.example:443", ""),
        ("GET http://a.example/x?y=1 HTTP/1.1", "a.example:80", "GET /x?y=1 HTTP/1.1"),
        ("GET HTTP://[::1]:81 HTTP/1.0", "[::1]:81", "GET / HTTP/1.0"),
        ("GET http://[::1]/ HTTP/1.1", "[::1]:80", "GET / HTTP/1.1"),
    ],
)
def test_a_request_to_the_proxy_becomes_one_to_its_host(head: str, door: str, request_line: str) -> None:
    headers = "Host: a.example\r\nProxy-Authorization: Basic x\r\nConnection: keep-alive\r\nX: y"
    to, said = forward.wanted(f"{head}\r\n{headers}\r\n\r\n".encode())
    assert to == door
    if request_line:
        kept = f"{request_line}\r\nHost: a.example\r\nX: y\r\nConnection: close\r\n\r\n"
        assert said.decode() == kept
    else:
        assert said == b""


def test_a_name_and_its_address_share_a_port_inside() -> None:
    held = forward.listen(["localhost:0"])
    try:
        assert {door for _, door in held} == {"localhost:0"}
        assert "127.0.0.1" in {each.getsockname()[0] for each, _ in held}
    finally:
        for each, _ in held:
            each.close()
