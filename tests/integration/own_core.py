"""A core with the requests that most tests of the server make."""

from __future__ import annotations

import contextlib
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import httpx2

from tests import starter
from tests.core_process import CoreProcess, clean_environment
from tests.mcp_client import OLDER, Modern, Older

ADMIN = "an-admin-secret-of-this-test-run"
TOKENS = "/profile/mcp/tokens"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "quarterdeck", *arguments]


def quarterdeck(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return starter.run(arguments, clean_environment(variables))


class Core(CoreProcess):
    """A core with an admin secret. Its `requests` and clients end with it."""

    def __init__(self, data_dir: Path, *arguments: str, **variables: str) -> None:
        super().__init__(data_dir, {"QUARTERDECK_ADMIN_SECRET": ADMIN, **variables}, arguments)
        self._clients = contextlib.ExitStack()
        self._http = self._clients.enter_context(
            httpx2.Client(timeout=30, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._clients.close()
        self.stop()

    def leave(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, as a service manager does; its exit code."""
        process = self._process
        assert process is not None, "the core is not running"
        self._end(number)
        return process.wait()

    def request(self, method: str, path: str, token: str | None = None, **options: Any) -> httpx2.Response:
        """One HTTP request, as it is: redirects are not followed."""
        bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers = {**bearer, **options.pop("headers", {})}
        return self._http.request(method, self.url + path, headers=headers, **options)

    def minted(self, **body: Any) -> dict[str, Any]:
        """A new token as the answer shows it, minted by the admin for a user."""
        wanted = {"name": "test", "profile": "operator", "user_id": "ada", **body}
        response = self.request("POST", TOKENS, ADMIN, json=wanted)
        assert response.status_code == 201, response.text
        token: dict[str, Any] = response.json()
        return token

    def modern(self, token: str | None = None, path: str = "/mcp", **headers: str) -> Modern:
        """A client of the newest era, by default the local user's."""
        return self._clients.enter_context(Modern(self.url + path, token or self.token, **headers))

    def older(self, token: str | None = None, path: str = "/mcp", version: str = OLDER) -> Older:
        """A client with a session, by default the local user's."""
        return self._clients.enter_context(Older(self.url + path, token or self.token, version))
