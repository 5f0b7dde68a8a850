"""What every command shares: the core it talks to, the options, and how its answers are asked for."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer
from rich.console import Console

from quarterdeck import paths
from quarterdeck.cli.mcp_client import Connection, McpClient, Refusal, Refused, refused
from quarterdeck.domain.errors import QuarterdeckError, Unavailable

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where everything is kept.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Row = dict[str, Any]
_LONG_SECONDS = 7200.0


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
        return self._called(surface, tool, arguments, timeout=30.0)

    def call_long(self, doing: str, surface: str, tool: str, /, **arguments: Any) -> Any:
        """The same for work that may take its time; a terminal says meanwhile what is being done."""
        with waiting(doing):
            return self._called(surface, tool, arguments, timeout=_LONG_SECONDS)

    def _called(self, surface: str, tool: str, arguments: Row, *, timeout: float) -> Any:
        given = {name: value for name, value in arguments.items() if value is not None}
        client = McpClient(self.url, self._token, path=f"/mcp/{surface}", timeout=timeout)
        try:
            return client.call(tool, **given)
        except Refused as error:
            raise _worded(error.body) from None
        except Unavailable as error:
            raise Unavailable(
                f"the core at {self.url} does not answer", hint="start it with: quarterdeck up"
            ) from error
        finally:
            client.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a REST route."""
        return self.request("GET", path, **query)

    def request(
        self, method: str, path: str, body: Any = None, *, timeout: float = 60.0, **query: Any
    ) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        connection = Connection(self.url, self._token, timeout=timeout)
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
            raise refused(status, answer)
        return answer


_WORDS = ("success", "message", "error", "code", "hint", "field", "next_tool", "next_arguments")


def _worded(body: Row) -> Refusal:
    """A tool's refusal in the words of the command line."""
    return Refusal(
        str(body.get("message") or body.get("error") or "refused"),
        str(body.get("code") or QuarterdeckError.code),
        hint=_command(body) or body.get("hint"),
        field=body.get("field"),
        **{name: value for name, value in body.items() if name not in _WORDS and value is not None},
    )


def _command(refusal: Row) -> str | None:
    """The command that a refusal points to, where there is one for it."""
    match refusal.get("next_tool"), refusal.get("next_arguments"):
        case "tasks_update", {"task_id": task_id, "task_type": kind}:
            return f"quarterdeck task update {task_id} --type {kind}"
        case "review", {"task_id": task_id, "action": action}:
            return f"quarterdeck review {action} {task_id}"
        case "request_review", {"task_id": task_id}:
            return f"quarterdeck review request {task_id}"
        case "projects_list", _:
            return "quarterdeck project list, then quarterdeck task update TASK --project ID"
    return None


def part(text: str) -> str:
    """A piece of a path, whatever was typed."""
    return quote(text, safe="")


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """Say on a terminal that something is being done."""
    console = Console(stderr=True)
    with console.status(doing) if console.is_terminal else nullcontext():
        yield


def as_json(value: Any) -> None:
    """One JSON document on standard output: the stable shape for scripts."""
    typer.echo(json.dumps(value, ensure_ascii=False))
