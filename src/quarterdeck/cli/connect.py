"""`quarterdeck connect`: writes a client's MCP configuration, or shows it."""

import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from quarterdeck import paths
from quarterdeck.cli.desk import AsJson, DataDir, as_json
from quarterdeck.domain.errors import Invalid, Unavailable

NAME = "quarterdeck"


class ClientName(StrEnum):
    claude = "claude"
    codex = "codex"
    gemini = "gemini"
    opencode = "opencode"
    cursor = "cursor"
    vscode = "vscode"


class SurfaceName(StrEnum):
    board = "board"
    orchestrator = "orchestrator"
    plans = "plans"
    relay = "relay"
    agent = "agent"


@dataclass(frozen=True, slots=True)
class Server:
    """How a client is to reach us: by starting the bridge, or by the core's address and a token."""

    command: list[str]
    url: str | None = None
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True, slots=True)
class _Kind:
    """A client: where it keeps its servers, below which key, and how it words one."""

    file: Callable[[], Path]
    key: str
    entry: Callable[[Server], dict[str, Any]]


def _home(*parts: str) -> Callable[[], Path]:
    return lambda: Path.home().joinpath(*parts)


def _claude_file() -> Path:
    own = os.environ.get("CLAUDE_CONFIG_DIR")
    return Path(own) / ".claude.json" if own else Path.home() / ".claude.json"


def _codex_file() -> Path:
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml"


def _opencode_file() -> Path:
    root = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return root / "opencode" / "opencode.json"


def _vscode_file() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Code" / "User" / "mcp.json"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "Code" / "User" / "mcp.json"


def _typed(server: Server) -> dict[str, Any]:
    if server.url:
        return {"type": "http", "url": server.url, "headers": server.headers}
    return {"type": "stdio", "command": server.command[0], "args": server.command[1:]}


def _gemini(server: Server) -> dict[str, Any]:
    if server.url:
        return {"httpUrl": server.url, "headers": server.headers}
    return {"command": server.command[0], "args": server.command[1:]}


def _opencode(server: Server) -> dict[str, Any]:
    if server.url:
        return {
            "type": "remote",
            "url": server.url,
            "headers": server.headers,
            "oauth": False,
            "enabled": True,
        }
    return {"type": "local", "command": server.command, "enabled": True}


def _cursor(server: Server) -> dict[str, Any]:
    if server.url:
        return {"url": server.url, "headers": server.headers}
    return {"command": server.command[0], "args": server.command[1:]}


def _codex(server: Server) -> dict[str, Any]:
    if server.url:
        return {"url": server.url, "http_headers": server.headers}
    return {"command": server.command[0], "args": server.command[1:]}


_KINDS: dict[ClientName, _Kind] = {
    ClientName.claude: _Kind(_claude_file, "mcpServers", _typed),
    ClientName.codex: _Kind(_codex_file, "mcp_servers", _codex),
    ClientName.gemini: _Kind(_home(".gemini", "settings.json"), "mcpServers", _gemini),
    ClientName.opencode: _Kind(_opencode_file, "mcp", _opencode),
    ClientName.cursor: _Kind(_home(".cursor", "mcp.json"), "mcpServers", _cursor),
    ClientName.vscode: _Kind(_vscode_file, "servers", _typed),
}


def connect(
    client: Annotated[ClientName, typer.Argument(help="Which client.")],
    show: Annotated[
        bool, typer.Option("--print", help="Show what would be written, and write nothing.")
    ] = False,
    http: Annotated[
        bool, typer.Option("--http", help="The core's address and token instead of the stdio bridge.")
    ] = False,
    surface: Annotated[SurfaceName | None, typer.Option(help="One surface only, such as board.")] = None,
    file: Annotated[Path | None, typer.Option(help="Another configuration file of the client.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Write a client's MCP configuration: it starts the stdio bridge, which finds or starts the core."""
    kind = _KINDS[client]
    entry = kind.entry(_server(data_dir, http=http, surface=surface))
    target = file or kind.file()
    before = _text(target)
    after = (_toml if target.suffix == ".toml" else _json)(target, before, kind.key, entry)
    changed = before != after
    if changed and not show:
        _write(target, after)
    if json_:
        told = {"client": client.value, "file": str(target), "written": changed and not show}
        as_json(told | ({"entry": entry} if show else {}))
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if show:
        console.print(f"# {target}", markup=False, style="dim")
        typer.echo(_alone(target, kind.key, entry), nl=False)
    elif changed:
        console.print(f"connected {client}: wrote {NAME} to {target}", markup=False)
        console.print("Start the client anew to see the tools.", style="dim")
    else:
        console.print(f"{client} is connected already: {target}", markup=False)


def claude_line(url: str, token_file: Path) -> str:
    """The command that connects Claude Code to a core; it works as it stands."""
    bearer = f'"Authorization: Bearer $(cat {shlex.quote(str(token_file))})"'
    return f"claude mcp add --transport http quarterdeck {url}/mcp --header {bearer}"


def _server(data_dir: Path | None, *, http: bool, surface: str | None) -> Server:
    directory = paths.data_dir(data_dir)
    program = shutil.which(NAME) or str(Path(sys.executable).with_name(NAME))
    command = [program, "mcp", "--data-dir", str(directory)] + (["--surface", surface] if surface else [])
    if not http:
        return Server(command)
    address, token = paths.read_address(directory), paths.read_token(directory)
    if address is None or token is None:
        raise Unavailable(f"no core is running on {directory}", hint="start one with: quarterdeck up")
    return Server(command, f"{address.url}/mcp" + (f"/{surface}" if surface else ""), token)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} cannot be read: {error}", hint="use --print and edit it by hand") from error


def _json(file: Path, text: str, key: str, entry: dict[str, Any]) -> str:
    """The file with our server in it; everything else stays as it is."""
    try:
        settings = json.loads(text) if text.strip() else {}
        servers = settings.setdefault(key, {})
        servers[NAME] = entry
    except (ValueError, AttributeError, TypeError) as error:
        raise Invalid(
            f"{file} is not the JSON that was expected", hint="use --print and edit it by hand"
        ) from error
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _toml(file: Path, text: str, key: str, entry: dict[str, Any]) -> str:
    """The file with our table at its end, in place of an older one."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{file} is not valid TOML: {error}", hint="use --print and edit it by hand") from error
    own = re.compile(rf"(?ms)^\[{key}\.{NAME}(?:\.[^\]]*)?\]\n.*?(?=^\[|\Z)")
    kept = own.sub("", text).rstrip("\n")
    return (kept + "\n\n" if kept else "") + _table(key, entry)


def _table(key: str, entry: dict[str, Any]) -> str:
    lines = [f"[{key}.{NAME}]"]
    for name, value in entry.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in value.items())
            lines.append(f"{name} = {{ {inner} }}")
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _alone(file: Path, key: str, entry: dict[str, Any]) -> str:
    """Our part alone: a client's file may hold other secrets."""
    if file.suffix == ".toml":
        return _table(key, entry)
    return json.dumps({key: {NAME: entry}}, indent=2) + "\n"


def _write(file: Path, text: str) -> None:
    """Replace the file as a whole, keeping who may read it; a new one is its owner's alone."""
    target = file.resolve() if file.is_symlink() else file
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        paths.write_private(target, text)
        target.chmod(mode)
    except OSError as error:
        raise Invalid(
            f"{file} cannot be written: {error.strerror}", hint="use --print and edit it by hand"
        ) from error
