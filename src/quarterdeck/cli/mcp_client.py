"""A small MCP client: one connection, one bearer token, the stateless era of the protocol."""

import http.client
import itertools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from quarterdeck import __version__
from quarterdeck.domain.errors import Denied, NotFound, QuarterdeckError, Unavailable

PROTOCOL = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL,
    "io.modelcontextprotocol/clientInfo": {"name": "quarterdeck-cli", "version": __version__},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Refused(Exception):
    """A tool said no; `body` is what it answered."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(str(body.get("error", "refused")))
        self.body = body


class Refusal(QuarterdeckError):
    """What the core refused, with its own words, code and next step; `data` is the rest of its answer."""

    def __init__(
        self, message: str, code: str, *, hint: str | None = None, field: str | None = None, **data: Any
    ) -> None:
        super().__init__(message, hint=hint, field=field, **data)
        self.code = code


def refused(status: int, answer: Any) -> Refusal:
    """What an HTTP status above 399 means."""
    found = answer if isinstance(answer, dict) else {}
    said, code, hint, field = (found.get(name) for name in ("detail", "code", "hint", "field"))
    if isinstance(protocol := found.get("error"), dict):
        said = protocol.get("message")
    if status == 503:  # a core that starts says nothing else yet
        said, code, hint = (
            said or "the core is starting",
            code or Unavailable.code,
            hint or "try again in a moment",
        )
    elif status in (401, 403) and code is None:  # the gate's word, before any route was asked
        code, hint = Denied.code, hint or "the core keeps a working token when it starts: quarterdeck up"
    return Refusal(
        str(said or f"the core answered HTTP {status}"),
        code or (NotFound.code if status == 404 else QuarterdeckError.code),
        hint=hint,
        field=field,
    )


def _last_event(text: str) -> str:
    """The answer at the end of a stream, which a call becomes that takes long; else the text itself."""
    if not text.startswith((":", "event:", "id:", "data:")):
        return text
    return [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")][-1]


class Connection:
    """A kept-alive HTTP connection to a core. Not for two threads at once."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 30.0) -> None:
        address = urlsplit(url)
        self._http = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout)
        self._bearer = {"Authorization": f"Bearer {token}"} if token else {}

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer. Nothing is sent twice.

        Raises Unavailable when no answer came: the core may have done what was asked, or not.
        """
        status, text = self.text(method, path, None if body is None else json.dumps(body), headers)
        try:
            return status, json.loads(_last_event(text) or "null")
        except ValueError as error:
            raise QuarterdeckError(f"{path} was answered with HTTP {status} and no JSON") from error

    def text(
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """The status and the text of an answer; otherwise as `request`."""
        fields = {"Content-Type": "application/json", **self._bearer, **(headers or {})}
        try:
            self._http.request(method, path, body, fields)
            with self._http.getresponse() as response:
                return response.status, response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise Unavailable(f"no answer from {self._http.host}:{self._http.port}") from error

    def close(self) -> None:
        self._http.close()


class McpClient:
    """Calls tools as the user of a token."""

    def __init__(self, url: str, token: str, *, path: str = "/mcp", timeout: float = 30.0) -> None:
        self._connection = Connection(url, token, timeout=timeout)
        self._path = path
        self._ids = itertools.count(1)

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """What a tool answers; its refusal is raised as Refused."""
        result = self._send("tools/call", {"name": tool, "arguments": arguments}, {"Mcp-Name": tool})
        body = json.loads(result["content"][0]["text"])
        if result["isError"]:
            raise Refused(body)
        return body

    def tools(self) -> list[str]:
        """The names of the tools that this caller may use."""
        return [tool["name"] for tool in self._send("tools/list", {}, {})["tools"]]

    def close(self) -> None:
        self._connection.close()

    def _send(self, method: str, params: dict[str, Any], headers: dict[str, str]) -> Any:
        message = {
            "jsonrpc": "2.0",
            "id": next(self._ids),
            "method": method,
            "params": {**params, "_meta": _META},
        }
        fields = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL,
            "Mcp-Method": method,
            **headers,
        }
        status, answer = self._connection.request("POST", self._path, message, fields)
        if status >= 400:
            raise refused(status, answer)
        if status != 200 or "result" not in answer:
            raise QuarterdeckError(f"{method} was answered with HTTP {status}: {json.dumps(answer)[:300]}")
        return answer["result"]
