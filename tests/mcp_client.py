"""A small MCP client over plain HTTP, one class an era, that shows a test exactly what came back."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import ssl
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx2
from mcp.shared.inbound import encode_header_value

MODERN = "2026-07-28"
OLDER = "2025-06-18"

# Loading the system's certificates, which no test needs, takes longer than most tests.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

_SESSION = "Mcp-Session-Id"

T = TypeVar("T")


class ProtocolError(Exception):
    """The server answered a request with something other than a result."""

    def __init__(self, status: int, error: Any) -> None:
        super().__init__(f"HTTP {status}: {error}")
        self.status = status
        self.error = error


@dataclass(frozen=True, slots=True)
class Result:
    """The answer of a tool: `body` is what its text says, `raw` the whole result."""

    is_error: bool
    body: Any
    raw: dict[str, Any]


class Client:
    """What both eras share. A context manager, which closes the connection."""

    def __init__(self, url: str, token: str, headers: dict[str, str]) -> None:
        self.url = url
        self._ids = itertools.count(1)
        self._http = httpx2.Client(
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                **headers,
            },
            timeout=30,
            trust_env=False,
            verify=_NO_TLS,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def session(self) -> str:
        """The id of an older client's session."""
        return self._http.headers[_SESSION]

    @session.setter
    def session(self, session_id: str) -> None:
        self._http.headers[_SESSION] = session_id

    @property
    def headers(self) -> dict[str, str]:
        """What it sends with every request, its token and session among them."""
        return dict(self._http.headers)

    def tools(self) -> list[dict[str, Any]]:
        """The tools that this caller sees."""
        listed: list[dict[str, Any]] = self.request("tools/list", "{}")["tools"]
        return listed

    def call(self, tool: str, /, **arguments: Any) -> Result:
        return self.call_json(tool, json.dumps(arguments))

    def done(self, tool: str, /, **arguments: Any) -> Any:
        """The body of a call that must succeed."""
        result = self.call(tool, **arguments)
        assert not result.is_error, result.body
        return result.body

    def refused(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The body of a call that must be refused."""
        result = self.call(tool, **arguments)
        assert result.is_error, result.body
        body: dict[str, Any] = result.body
        return body

    def call_json(self, tool: str, arguments: str | None) -> Result:
        """Call a tool with the JSON text of its arguments, sent as it stands; None sends none."""
        given = "" if arguments is None else f', "arguments": {arguments}'
        raw = self.request("tools/call", f'{{"name": {json.dumps(tool)}{given}}}', tool)
        body = json.loads(raw["content"][0]["text"])
        structured = body if isinstance(body, dict) else {"result": body}
        assert raw["structuredContent"] == structured, "text and structure must say the same"
        return Result(raw["isError"], body, raw)

    def request(self, method: str, params: str, name: str | None = None) -> dict[str, Any]:
        """The result of one request whose params are JSON text; anything else is a ProtocolError."""
        number = next(self._ids)
        response = self.post(
            f'{{"jsonrpc": "2.0", "id": {number}, "method": "{method}", "params": {params}}}', method, name
        )
        message = _message(response, number)
        if response.status_code != 200 or "result" not in message:
            raise ProtocolError(response.status_code, message.get("error", message))
        result: dict[str, Any] = message["result"]
        return result

    def post(self, body: str | bytes, method: str, name: str | None = None) -> httpx2.Response:
        """Post a body as it stands, with the headers of this era."""
        return self._http.post(self.url, content=body, headers=self.headers_of(method, name))

    def headers_of(self, method: str, name: str | None) -> dict[str, str]:
        return {}


class Modern(Client):
    """2026-07-28: every request stands alone and says who sent it."""

    def __init__(self, url: str, token: str, **headers: str) -> None:
        super().__init__(url, token, {"MCP-Protocol-Version": MODERN, **_dashed(headers)})

    def request(self, method: str, params: str, name: str | None = None) -> dict[str, Any]:
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        comma = "" if params == "{}" else ", "
        return super().request(method, f'{{"_meta": {json.dumps(meta)}{comma}{params[1:]}', name)

    def headers_of(self, method: str, name: str | None) -> dict[str, str]:
        named = {} if name is None else {"Mcp-Name": encode_header_value(name)}
        return {"Mcp-Method": method, **named}


class Older(Client):
    """The handshake eras: a session, opened here, and answers as event streams."""

    def __init__(self, url: str, token: str, version: str = OLDER, **headers: str) -> None:
        super().__init__(url, token, _dashed(headers))
        params = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "tests", "version": "1"},
        }
        opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        response = self._http.post(url, content=json.dumps(opening))
        message = _message(response, 0)
        if "result" not in message:
            self._http.close()
            raise ProtocolError(response.status_code, message)
        self.greeting: dict[str, Any] = message["result"]
        self.session = response.headers[_SESSION]
        self._http.headers["MCP-Protocol-Version"] = self.greeting["protocolVersion"]
        self._http.post(url, content='{"jsonrpc": "2.0", "method": "notifications/initialized"}')


class Deck:
    """A running core as a test sees it: mints tokens and opens clients, which it closes at the end."""

    def __init__(self, url: str, admin_secret: str) -> None:
        self.url = url
        self.admin_secret = admin_secret
        self._open = contextlib.ExitStack()
        self._http = self._open.enter_context(
            httpx2.Client(base_url=url, timeout=30, trust_env=False, verify=_NO_TLS)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def search_mode(self) -> str:
        """How search works here, once that is known."""

        def look() -> str | None:
            mode: str = self.rest("GET", "/readyz").json()["search"]["mode"]
            return None if mode == "loading" else mode

        return eventually(look)

    def rest(self, method: str, path: str, token: str | None = None, body: Any = None) -> httpx2.Response:
        """One REST request, by default with the admin secret."""
        bearer = {"Authorization": f"Bearer {token or self.admin_secret}"}
        return self._http.request(method, path, headers=bearer, json=body)

    def mint(self, user: str | None = None, profile: str = "maintainer", **more: Any) -> dict[str, Any]:
        """A new token, of a new user unless one is named, as the answer shows it."""
        wanted = {"name": "test", "profile": profile, "user_id": user or f"user-{uuid.uuid4()}", **more}
        response = self.rest("POST", "/profile/mcp/tokens", body=wanted)
        assert response.status_code == 201, response.text
        minted: dict[str, Any] = response.json()
        return minted

    def connect(
        self, token: str | None = None, version: str = MODERN, surface: str = "orchestrator", **headers: str
    ) -> Client:
        """A client with this token, or with that of a new user."""
        bearer = token or self.mint()["token"]
        url = f"{self.url}/mcp/{surface}"
        if version == MODERN:
            return self._open.enter_context(Modern(url, bearer, **headers))
        return self._open.enter_context(Older(url, bearer, version, **headers))


def eventually(look: Callable[[], T | None], seconds: float = 30) -> T:
    """The first true answer of `look`, which is asked again and again for so long."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"still {found!r} after {seconds} s"
        time.sleep(0.02)
    return found


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def _message(response: httpx2.Response, number: int) -> dict[str, Any]:
    """The JSON-RPC message that answers a request, out of a plain body or an event stream."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        # Not splitlines: an answer may hold characters that end a line for Python alone.
        lines = re.split("\r\n|\n|\r", response.text)
        datas = [line.removeprefix("data:") for line in lines if line.startswith("data:")]
        answers = [message for data in datas if (message := json.loads(data)).get("id") == number]
        assert len(answers) == 1, f"one answer expected: {response.text[:500]}"
        found: Any = answers[0]
    else:
        found = response.json()
    assert isinstance(found, dict), f"a message expected: {response.text[:500]}"
    return found
