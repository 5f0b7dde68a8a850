"""`quarterdeck mcp`: MCP over stdio, passed on to the running core. Standard library only: it starts fast."""

import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote, urljoin

from quarterdeck import paths
from quarterdeck.wire import CONNECT_SECONDS, Fields, Message, Reply, Unsent, send

_LONGEST_LINE = 16 * 1024 * 1024
_STARTING_SECONDS = 10.0
_LAUNCH_SECONDS = 20.0
_VERSION = "io.modelcontextprotocol/protocolVersion"
_SEQ, _AFTER, _REASON = "quarterdeck/seq", "quarterdeck/after", "quarterdeck/reason"
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_PAUSE_SECONDS = 3.0
_KINDS = {"method", "result", "error"}
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
_PLAIN = re.compile(r"(?!=\?base64\?)[!-~]([ -~]*[!-~])?")
# What a core that we start sees of our environment: a client's other secrets are none of its business.
_PASSED_ON = re.compile(
    r"PATH|HOME|LANG|LC_.*|TZ|TMPDIR|XDG_.*|USER|LOGNAME|SHELL|QUARTERDECK_.*"
    r"|(ANTHROPIC|OPENAI|GEMINI|GOOGLE)_(API_KEY|BASE_URL)"
)
# Stands between us and the core and ends at once: the core is nobody's child and leads its own session.
_ORPHAN = (
    "import subprocess as s, sys; "
    "s.Popen(sys.argv[1:], stdin=s.DEVNULL, stdout=s.DEVNULL, start_new_session=True)"
)


class Failure(Unsent):
    """Why a request has no answer, in words for the client. This one: it was not sent."""

    code = "DISCONNECTED"
    message = "The Quarterdeck core cannot be reached; nothing was sent to it."
    hint = "Start it with `quarterdeck up`, then call again."


class Lost(Failure):
    message = "The connection to the Quarterdeck core was lost before it answered."
    hint = "The call may have taken effect: look before you repeat it."


class Stale(Failure):
    code = "AUTH_STALE_TOKEN"
    message = "The Quarterdeck core does not accept the token."
    hint = "Reconnect the MCP client, so that it starts with a token that is valid now."


class Core:
    """The core that the bridge speaks to: where it is, what opens it, and its start when there is none."""

    def __init__(self, options: Namespace) -> None:
        self._directory = paths.data_dir(options.data_dir)
        self._surface = f"/{quote(options.surface, safe='')}" if options.surface else ""
        self._url = os.environ.get("QUARTERDECK_MCP_URL", "").rstrip("/")
        self._token = os.environ.get("QUARTERDECK_TOKEN")
        self.trouble: str | None = None

    def find(self) -> tuple[str, str | None]:
        """The endpoint and the token, read anew each time: a restart may change both."""
        if self._url:
            base = self._url.rpartition("/mcp")[0] or self._url
            # The data directory's token is not for whoever answers at a URL from outside.
            return f"{base}/mcp{self._surface}" if self._surface else self._url, self._token
        address = paths.read_address(self._directory)
        if address is None:
            raise Failure
        return f"{address.url}/mcp{self._surface}", self._token or paths.read_token(self._directory)

    async def ensure(self) -> None:
        """Start a core when none answers; of several bridges at once, one does. A job's bridge never does."""
        if self._url or self._token or await self._status("/healthz") is not None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self._directory / "bridge.lock").open("a") as lock:
                await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
                if await self._status("/healthz") is None:
                    await self._launch()
        except (OSError, subprocess.SubprocessError) as error:
            self.trouble = f"No core could be started: {error}"

    async def _launch(self) -> None:
        """Start a core that shares nothing with us and outlives us, and wait until it is ready."""
        log, said, deadline = paths.log_file(self._directory), "", time.monotonic() + _LAUNCH_SECONDS
        sys.stderr.write(f"quarterdeck: no core answers, starting one; its log is {log}\n")
        # -P: the folder that we were started in may hold modules of its own.
        command = [sys.executable, "-I", "-S", "-c", _ORPHAN, sys.executable, "-P", "-m", "quarterdeck", "up"]
        command += ["--data-dir", str(self._directory), "--port"]
        passed = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
        for port in (os.environ.get("QUARTERDECK_PORT", "7411"), "0"):
            with log.open("ab") as err:
                before = err.tell()
                run = partial(subprocess.check_call, [*command, port], stdin=subprocess.DEVNULL, stderr=err)
                await asyncio.to_thread(run, env=passed, cwd=self._directory)
            while time.monotonic() < deadline:
                if await self._status("/readyz") == 200:
                    return
                await asyncio.sleep(0.05)
                said = log.read_bytes()[before:].decode(errors="replace")
                # A core that somebody else has started may have yet to write down its address.
                if re.search("error:|Traceback", said) and "another core already owns" not in said:
                    break
            if "cannot listen on" not in said:
                break
        self.trouble = " ".join(said.split())[-500:] or "The core did not become ready in time."

    async def _status(self, path: str) -> int | None:
        """The status that a core answers with (0: it is too busy to tell); None when there is no core."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                with closing(await send(urljoin(self.find()[0], path), "GET", {})) as reply:
                    return reply.status
        except Exception as error:
            return None if isinstance(error, Unsent) else 0


class Bridge:
    """Carries messages between the client on stdio and the core, each request on its own."""

    def __init__(self, options: Namespace) -> None:
        self._core = Core(options)
        narrowing = {"Profile": options.profile, "Identity": options.identity, "Session": options.session_id}
        self._fields = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        self._fields |= {f"Quarterdeck-{name}": _header(value) for name, value in narrowing.items() if value}
        self._running: dict[asyncio.Task[None], Message] = {}
        # Of an older client: its initialize, the headers of its session, its handshake, its stream; what it
        # subscribed to, and the number of the last thing it was told.
        self._initialize, self._session = b"", Fields()
        self._subscribed: set[str] = set()
        self._told = Fields()
        self._handshake: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._reopening = asyncio.Lock()
        self._over = asyncio.Event()
        # A thread, for the loop must go on when the client does not read.
        self._writer = ThreadPoolExecutor(1)

    async def run(self) -> NoReturn:
        """Serve until the client is gone or a signal comes, then end the process."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._over.set)
        self._started = asyncio.create_task(self._core.ensure())
        threading.Thread(target=self._read_lines, daemon=True).start()
        await self._over.wait()
        session, self._session = self._session, {}
        if session:
            with suppress(Exception):
                async with asyncio.timeout(0.5):
                    (await self._request("DELETE", session, reopens=False)).close()
        # Not by way of the threads: one may wait for a client that neither writes nor reads.
        os._exit(0)

    def _read_lines(self) -> None:
        """Hand each line of stdin to the loop; an empty one stands for one that is too long."""
        with suppress(Exception), open(0, "rb", 65536, closefd=False) as stdin:
            while line := stdin.readline(_LONGEST_LINE + 1):
                rest = line if len(line) > _LONGEST_LINE else b"\n"
                while rest and not rest.endswith(b"\n"):
                    line, rest = b"", stdin.readline(_LONGEST_LINE)
                asyncio.run_coroutine_threadsafe(self._take(line), self._loop).result()
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop)

    async def _finish(self) -> None:
        """The client asks nothing more: what it has asked may be answered for a moment."""
        await asyncio.wait([self._started])
        due = [task for task, of in self._running.items() if of.get("method") != "subscriptions/listen"]
        await asyncio.wait([self._started, *due], timeout=2.0)
        self._over.set()

    async def _emit(self, message: bytes | Message) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message, separators=(",", ":")).encode()
        try:
            await self._loop.run_in_executor(self._writer, _write, line + b"\n")
        except OSError:
            self._over.set()

    async def _take(self, line: bytes) -> None:
        """Begin to serve one line of the client."""
        try:
            found = json.loads(line) if line else None
        except (ValueError, RecursionError):
            if line.strip():
                await self._emit(_error(None, -32700, "Parse error"))
            return
        message: Message = found if isinstance(found, dict) else {}
        if not message.keys() & _KINDS or not isinstance(message.get("id", 0), str | int | float):
            wanted = f"one JSON-RPC message a line, no batches, at most {_LONGEST_LINE} bytes"
            await self._emit(_error(None, -32600, f"Invalid Request: {wanted}"))
            return
        method = message.get("method")
        if method == "notifications/cancelled" and self._cut(message):
            return
        if "id" not in message and self._handshake is None:
            return  # a 2026 client's; a stateless core has no use for it
        task = asyncio.create_task(self._serve(message, line.strip(), self._handshake))
        self._running[task] = message
        task.add_done_callback(self._running.pop)
        if method in ("initialize", "notifications/initialized"):
            self._handshake = task

    def _cut(self, cancelled: Message) -> bool:
        """Close the 2026 request that this names: that is how its core hears of it."""
        params = cancelled.get("params")
        wanted = params.get("requestId") if isinstance(params, dict) else None
        for task, of in self._running.items():
            if wanted is not None and of.get("id") == wanted and _modern(of):
                return task.cancel()
        return False

    async def _serve(self, message: Message, line: bytes, handshake: asyncio.Task[None] | None) -> None:
        """Send one message of the client; a request is answered, whatever happens."""
        method, fields = message.get("method"), _modern(message)
        asks = "id" in message and "method" in message
        try:
            if not fields and handshake is not None:
                await asyncio.wait([handshake])
            if not fields and method != "initialize":
                fields = self._session
            if method == "subscriptions/listen" and fields:
                await self._hear(message, fields)
                return
            with closing(await self._request("POST", fields, line)) as reply:
                if asks:
                    await self._relay(message, line, reply)
        except Exception as error:
            if asks:
                failure = error if isinstance(error, Failure) else Lost()
                await self._emit(_failed(message, failure, self._core.trouble))
        if method == "notifications/initialized" and self._session and self._stream is None:
            self._stream = asyncio.create_task(self._listen())

    async def _relay(self, request: Message, line: bytes, reply: Reply) -> None:
        """Pass on what a reply says, as it comes."""
        if reply.status >= 400:
            await self._emit(_refused(request, reply.status, await reply.body()))
            return
        async for text, message in reply.messages():
            answer = "method" not in message and message.get("id") == request["id"]
            if answer and request["method"] == "initialize":
                self._opened(line, reply, message)
            elif answer and "result" in message:
                self._note(request)
            await self._emit(text)
            if answer:
                return
        raise Lost

    async def _listen(self) -> None:
        """Pass on what the core sends an older client by itself; after a restart, go on where it stopped."""
        pause = 0.1
        while True:
            with (
                suppress(Exception),
                closing(await self._request("GET", self._session, more=self._told)) as reply,
            ):
                if reply.status == 405:
                    return
                if reply.status == 200:
                    pause = 0.1
                    try:
                        async for text, _ in reply.messages():
                            await self._emit(text)
                    finally:
                        self._told = {"Last-Event-ID": reply.last_id} if reply.last_id else self._told
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS)

    def _note(self, request: Message) -> None:
        """Remember what an older client subscribed to, for a session that is opened again."""
        params = request.get("params")
        uri = params.get("uri") if isinstance(params, dict) else None
        if request["method"] == "resources/subscribe":
            self._subscribed.add(str(uri))
        elif request["method"] == "resources/unsubscribe":
            self._subscribed.discard(str(uri))

    async def _hear(self, request: Message, fields: Fields) -> None:
        """Pass on a 2026 subscription. One that ended with its core is opened again where it stopped."""
        pause, heard = 0.1, asyncio.Event()
        while True:
            try:
                with closing(await self._request("POST", fields, json.dumps(request).encode())) as reply:
                    if reply.status == 200:
                        if await self._hear_out(request, reply, heard):
                            return
                    elif reply.status < 500 or not heard.is_set():
                        await self._emit(_refused(request, reply.status, await reply.body()))
                        return
            except Stale:
                raise
            except (Failure, OSError, EOFError, ValueError):
                if not heard.is_set():
                    raise
            if not heard.is_set():
                raise Lost
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS)

    async def _hear_out(self, request: Message, reply: Reply, heard: asyncio.Event) -> bool:
        """Pass on one stream of a subscription; whether the subscription is over with it."""
        async for text, message in reply.messages():
            if "method" not in message:
                over = _meta(message.get("result")).get(_REASON) != "shutdown"
                if over:
                    await self._emit(text)
                return over
            if not (heard.is_set() and message["method"] == _ACKNOWLEDGED):
                await self._emit(text)
            heard.set()
            _meta(request["params"])[_AFTER] = _meta(message.get("params")).get(_SEQ)
        return False

    def _opened(self, initialize: bytes, reply: Reply, message: Message) -> None:
        result, session_id = message.get("result"), reply.fields.get("mcp-session-id")
        if isinstance(result, dict) and session_id:
            version = _header(result.get("protocolVersion"))
            self._session = {"Mcp-Session-Id": session_id, "MCP-Protocol-Version": version}
            self._initialize = initialize

    async def _reopen(self, gone: Fields) -> None:
        """Open a new session in place of one that the core has forgotten; the client need not know."""
        async with self._reopening:
            if self._session is gone:
                with closing(await self._request("POST", {}, self._initialize)) as reply:
                    async for _, message in reply.messages():
                        self._opened(self._initialize, reply, message)
                (await self._request("POST", self._session, _INITIALIZED, reopens=False)).close()
                for uri in self._subscribed:
                    again = {
                        "jsonrpc": "2.0",
                        "id": uri,
                        "method": "resources/subscribe",
                        "params": {"uri": uri},
                    }
                    body = json.dumps(again).encode()
                    with closing(await self._request("POST", self._session, body, reopens=False)) as reply:
                        await reply.body()

    async def _request(
        self,
        method: str,
        fields: Fields,
        body: bytes = b"",
        *,
        more: Fields | None = None,
        reopens: bool = True,
    ) -> Reply:
        """The answer of a core that is up and knows us. Only what cannot have had an effect is sent again."""
        await asyncio.wait([self._started])
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            try:
                url, token = self._core.find()
                known = {"Authorization": f"Bearer {token}"} if token else {}
                reply = await send(url, method, self._fields | fields | known | (more or {}), body)
            except Unsent as error:
                if waited > CONNECT_SECONDS:
                    raise Failure from error
                await asyncio.sleep(0.1)
                continue
            self._core.trouble = None
            if reply.status in (401, 403):
                reply.close()
                if self._core.find()[1] == token:
                    raise Stale
            elif reply.status == 503 and b'"starting"' in await reply.body():
                reply.close()
                if waited > _STARTING_SECONDS:
                    raise Failure
                await asyncio.sleep(0.2)
            elif reply.status == 404 and reopens and "Mcp-Session-Id" in fields:
                reply.close()
                await self._reopen(fields)
                fields, reopens = self._session, False
            else:
                return reply


def _modern(message: Message) -> Fields:
    """The headers that a 2026 message needs beside its body; none for an older one."""
    method, params = message.get("method"), message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(meta, dict) or _VERSION not in meta:
        return {}
    name = params.get(_NAMED.get(str(method), ""))
    fields = {"MCP-Protocol-Version": _header(meta[_VERSION]), "Mcp-Method": _header(method)}
    return fields | ({"Mcp-Name": _header(name)} if isinstance(name, str) else {})


def _meta(part: object) -> Message:
    """The `_meta` of the params or the result of a message, empty without one."""
    meta = part.get("_meta") if isinstance(part, dict) else None
    return meta if isinstance(meta, dict) else {}


def _header(value: object) -> str:
    """A value as a header carries it: as it stands, or in base64 when it would not arrive so."""
    text = value if isinstance(value, str) else ""
    wrapped = b64encode(text.encode(errors="replace")).decode()
    return text if _PLAIN.fullmatch(text) else f"=?base64?{wrapped}?="


def _error(request_id: Any, code: int, message: str, data: Message | None = None) -> Message:
    error = {"code": code, "message": message} | ({"data": data} if data else {})
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def _failed(request: Message, failure: Failure, trouble: str | None) -> Message:
    """The answer to a request that got none: for a tool the documented body, else a protocol error."""
    told = {"code": failure.code, "hint": trouble or failure.hint}
    if request["method"] != "tools/call":
        return _error(request["id"], -32000, failure.message, told)
    body = {"success": False, "error": failure.message, "message": failure.message, **told}
    body |= {"next_tool": None, "next_arguments": None}
    result: Message = {"content": [{"type": "text", "text": json.dumps(body)}], "structuredContent": body}
    result |= {"isError": True} | ({"resultType": "complete"} if _modern(request) else {})
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def _refused(request: Message, status: int, body: bytes) -> Message:
    """The core's own error as the answer to a request; where it has none, its HTTP status and reason."""
    try:
        found = dict(json.loads(body))
    except (ValueError, TypeError):
        found = {"detail": body[:200].decode(errors="replace") or "no reason given"}
    if isinstance(found.get("error"), dict):
        return {"jsonrpc": "2.0", "id": request["id"], "error": found["error"]}
    message = f"The core answered HTTP {status}: {found.pop('detail', 'no reason given')}"
    return _error(request["id"], -32000, message, {**found, "status": status})


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(1, line) :]


def main(argv: list[str]) -> None:
    """Serve one client on stdin and stdout until it leaves."""
    parser = ArgumentParser("quarterdeck mcp", description="MCP over stdio: a bridge to the running core.")
    parser.add_argument(
        "--surface", help="one set of tools (board, orchestrator, plans, relay or agent) instead of all"
    )
    parser.add_argument("--profile", help="narrow to this profile: viewer … maintainer")
    parser.add_argument("--identity", help="kagan (the safe lane) or kagan_admin")
    session = parser.add_mutually_exclusive_group()
    session.add_argument("--session-id", help="a label for the audit; task:<id> binds to that task")
    session.add_argument("--task", dest="session_id", type="task:{}".format, metavar="ID", help="bind to it")
    parser.add_argument("--data-dir", help="where everything is kept")
    for descriptor in (0, 1):
        with suppress(OSError):
            os.set_blocking(descriptor, True)
    asyncio.run(Bridge(parser.parse_args(argv)).run())
