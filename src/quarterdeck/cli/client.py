"""How a command reaches the running core: its address and the local token from the data directory."""

import json
import shlex
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from quarterdeck import paths
from quarterdeck.cli.mcp_client import not_ready
from quarterdeck.domain.errors import QuarterdeckError, Unavailable

# The token is for the core alone: no proxy of the environment gets to see it.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Client:
    """REST calls to the core of a data directory, as the local user."""

    def __init__(self, data_dir: Path) -> None:
        address, token = paths.read_address(data_dir), paths.read_token(data_dir)
        if address is None or token is None:
            raise Unavailable(f"no core is running on {data_dir}", hint="start one with: quarterdeck up")
        self._url, self._token = address.url, token

    def request(self, method: str, path: str, body: Any = None, *, timeout: float = 30) -> Any:
        """The JSON answer; an error of the core is raised with its own words."""
        request = urllib.request.Request(  # noqa: S310
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with _OPENER.open(request, timeout=timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error) from None
        except (urllib.error.URLError, OSError) as error:
            raise Unavailable(
                f"the core at {self._url} does not answer", hint="start it with: quarterdeck up"
            ) from error


def claude_line(url: str, token_file: Path) -> str:
    """The command that connects Claude Code to a core; it works as it stands."""
    bearer = f'"Authorization: Bearer $(cat {shlex.quote(str(token_file))})"'
    return f"claude mcp add --transport http quarterdeck {url}/mcp --header {bearer}"


def _refusal(error: urllib.error.HTTPError) -> QuarterdeckError:
    try:
        found = json.load(error)
        if error.code == 503:
            return not_ready(found)
        return QuarterdeckError(str(found["detail"]), hint=found.get("hint"))
    except (ValueError, KeyError, TypeError):
        return QuarterdeckError(f"the core answered {error.code} {error.reason}")
