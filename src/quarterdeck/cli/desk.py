"""What every command shares: the core it talks to, the options, and how its answers are asked for."""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from quarterdeck import paths
from quarterdeck.cli.mcp_client import Connection, McpClient, Refused
from quarterdeck.domain.errors import QuarterdeckError, Unavailable

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where everything is kept.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Row = dict[str, Any]


class Refusal(QuarterdeckError):
    """What a tool refused, with its own words and next step."""


class Desk:
    """The running core of a data directory, as the local user sees it."""

    def __init__(self, data_dir: Path | None) -> None:
        directory = paths.data_dir(data_dir)
        address, token = paths.read_address(directory), paths.read_token(directory)
        if address is None or token is None:
            raise Unavailable(f"no core is running on {directory}", hint="start one with: quarterdeck up")
        self.url = address.url
        self.data_dir = directory
        self._token = token

    def call(self, surface: str, tool: str, /, **arguments: Any) -> Any:
        """What a tool of a surface answers; arguments of None are left out."""
        given = {name: value for name, value in arguments.items() if value is not None}
        client = McpClient(self.url, self._token, path=f"/mcp/{surface}")
        try:
            return client.call(tool, **given)
        except Refused as refused:
            body = refused.body
            said = str(body.get("message") or body.get("error") or "refused")
            code = body.get("code")
            raise Refusal(
                f"{said} ({code})" if code else said, hint=body.get("hint"), field=body.get("field")
            ) from None
        except Unavailable as error:
            raise Unavailable(
                f"the core at {self.url} does not answer", hint="start it with: quarterdeck up"
            ) from error
        finally:
            client.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a REST route."""
        return self.request("GET", path, **query)

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        connection = Connection(self.url, self._token, timeout=60)
        try:
            status, answer = connection.request(
                method, path + (f"?{urlencode(given)}" if given else ""), body
            )
        except Unavailable as error:
            raise Unavailable(
                f"the core at {self.url} does not answer", hint="start it with: quarterdeck up"
            ) from error
        finally:
            connection.close()
        if status >= 400:
            found = answer if isinstance(answer, dict) else {}
            raise QuarterdeckError(str(found.get("detail") or f"HTTP {status}"), hint=found.get("hint"))
        return answer


def as_json(value: Any) -> None:
    """One JSON document on standard output: the stable shape for scripts."""
    typer.echo(json.dumps(value, ensure_ascii=False))
