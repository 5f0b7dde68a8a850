"""What the steps of the demo share: a core of their own, the callers, the words, the checks."""

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from quarterdeck import paths
from quarterdeck.cli import core_child, demo_repo
from quarterdeck.cli.mcp_client import Connection, McpClient

Row = dict[str, Any]


class Unverified(Exception):
    """An answer was not what the demo promises."""


def check(holds: object, promise: str) -> None:
    """Every step goes through here: the demo succeeds only if all of its promises hold."""
    if not holds:
        raise Unverified(f"this did not hold: {promise}")


class Stage:
    """One data directory, the core on it, and the clients of the users."""

    def __init__(self, console: Console, folder: Path) -> None:
        self.folder = folder / "data"
        self.repo = folder / "harbour"
        self.waiting = ""
        self.title = "start"
        self.semantic = False
        self._console = console
        self._secret = secrets.token_urlsafe(24)
        self._cores: list[core_child.CoreChild] = []
        self._clients: list[McpClient] = []

    @property
    def core(self) -> core_child.CoreChild:
        return self._cores[-1]

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A heading before, the time it took after."""
        self.title = title
        self._console.print(f"[bold cyan]▸ {escape(title)}[/]")
        began = time.perf_counter()
        yield
        self._console.print(f"  [green]✓[/] [dim]{time.perf_counter() - began:.2f} s[/]\n")

    def say(self, text: str) -> None:
        self._console.print(f"  {escape(text)}")

    def start_core(self, port: int = 0) -> None:
        """Start a core on the data directory, after the last one ended."""
        for client in self._clients:
            client.close()  # its connection died with the last core; the next call opens another
        environment = {"QUARTERDECK_ADMIN_SECRET": self._secret, "QUARTERDECK_AGENTS": demo_repo.agents()}
        demo_repo.write_template(self.folder)
        self._cores.append(core_child.start(self.folder, port=port, environment=environment))

    def mint(self, user: str) -> str:
        """A token for a user, minted over REST with the admin secret and kept in the folder."""
        admin = Connection(self.core.url, self._secret)
        wanted = {"name": "demo", "profile": "operator", "user_id": user}
        status, minted = admin.request("POST", "/profile/mcp/tokens", wanted)
        admin.close()
        check(status == 201 and minted["user_id"] == user, f"the admin secret mints a token for {user}")
        paths.write_private(self.token_file(user), minted["token"] + "\n")
        return str(minted["token"])

    def local_token(self) -> str:
        """The token that the core keeps in its data directory for the local user."""
        token = paths.read_token(self.folder)
        check(token, "the core keeps a token for the local user")
        return str(token)

    def link(self) -> str:
        """An address that signs in once to the web board."""
        me = Connection(self.core.url, self.local_token())
        status, answer = me.request("POST", "/api/signin")
        me.close()
        check(status == 200, "the core makes a link to its board")
        return str(answer["url"])

    def token_file(self, user: str) -> Path:
        return self.folder / f"{user}.token"

    def client(self, token: str) -> McpClient:
        self._clients.append(McpClient(self.core.url, token))
        return self._clients[-1]

    def close(self) -> None:
        """End every process of this stage; safe at any time."""
        for client in self._clients:
            client.close()
        for core in self._cores:
            core.stop()
