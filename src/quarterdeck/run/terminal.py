"""PAIR sessions in tmux, on a socket of the data directory, and the files for editors.

A session outlives the core: tmux is a daemon of its own, started with none of our descriptors and none of our
environment. What an agent gets, its token too, stands in a file that only its owner may read.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from quarterdeck.core.auto import model_for
from quarterdeck.core.context import Core
from quarterdeck.core.terminals import EDITORS, Opening, State, prompt_path
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import Unavailable
from quarterdeck.git.spawn import GitError
from quarterdeck.git.worktrees import common_dir
from quarterdeck.paths import write_private
from quarterdeck.run import interactive
from quarterdeck.run.adapters import programs
from quarterdeck.run.adapters.base import MCP_NAME, TOKEN_VARIABLE, Assignment, Conversation
from quarterdeck.run.adapters.registry import adapter_of, model_of
from quarterdeck.run.adapters.variables import secrets
from quarterdeck.run.leftovers import Identity, Process, end_leftovers
from quarterdeck.run.processes import boot_id
from quarterdeck.run.trees import VARIABLE

_SECONDS: Final = 30.0
# A socket's path may have about a hundred bytes.
_LONGEST: Final = 90
_TAIL: Final = 2_000
_STATUS_TRIES: Final = 40
_STATUS_SECONDS: Final = 0.05
_BEGIN_TRIES: Final = 3
_BEGIN_SECONDS: Final = 0.1
_SAID: Final = 500
_PASSED: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SHELL", "TMPDIR", "XDG_RUNTIME_DIR")
_SIZE: Final = ("-x", "160", "-y", "48")
# Where an editor looks for MCP servers, and what it calls the table of them.
_EDITOR_FILES: Final = {
    "vscode": (".vscode/mcp.json", "servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
}
_OWN_FOLDER: Final = ".quarterdeck"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Tmux:
    """The terminals of one data directory."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.socket = socket_of(core.data_dir)

    async def open(self, opening: Opening) -> str | None:
        """See `core.terminals.Terminal`."""
        await asyncio.to_thread(_write_prompt, opening)
        await self._exclude(opening)
        if opening.backend in EDITORS:
            await asyncio.to_thread(_write_editor, opening)
            return None
        own_id, begin, script = await self._script(opening)
        await self.end(opening.name)
        await self._tmux(
            *("start-server", ";", "set-option", "-g", "remain-on-exit", "on", ";"),
            *("set-option", "-g", "default-terminal", "screen-256color", ";"),
            *("new-session", "-d", "-s", opening.name, *_SIZE, "-c", str(opening.cwd)),
            f"exec /bin/sh {shlex.quote(str(script))}",
        )
        await self._begun(opening.name, secrets({**begin.env, TOKEN_VARIABLE: opening.token}))
        return own_id

    async def _begun(self, name: str, hidden: set[str]) -> None:
        """Watch for a moment: an agent that cannot begin, as without a key, ends at once and says why."""
        for _ in range(_BEGIN_TRIES):
            state = await self.state(name)
            if state is None:
                raise Unavailable("the terminal is gone at once")
            if not state.alive and state.exit_code != 0:
                said = state.tail
                for secret in hidden:
                    said = said.replace(secret, "[secret]")
                raise Unavailable(
                    f"the agent ended at once with exit code {state.exit_code}: {said[-_SAID:]}",
                    hint="put it right, and open the session again",
                )
            await asyncio.sleep(_BEGIN_SECONDS)

    async def _script(self, opening: Opening) -> tuple[str | None, interactive.Start, Path]:
        """The file that starts the agent; its environment is in it, and so on no command line."""
        agent = opening.agent
        assert agent is not None, "an editor needs no script"
        adapter = adapter_of(agent)
        if adapter is None:
            raise Unavailable(f"the agent {agent.id} cannot be run here")
        found = await programs.find(agent, self._core.settings)
        how = Conversation()
        if opening.resume:
            how = Conversation("resume", opening.agent_session_id)
        elif "new_id" in adapter.features:
            how = Conversation("new", opening.agent_session_id)
        assignment = Assignment(
            prompt=opening.prompt,
            cwd=opening.cwd,
            home=opening.home,
            model=model_of(agent, await model_for(self._core, agent)),
            conversation=how,
            mcp_url=opening.mcp_url,
            token=opening.token,
            task_id=opening.task.id,
        )
        env = programs.environment(agent, self._core.settings, opening.home)
        launch = adapter.launch(found.argv, env, assignment, found.flags)
        path = prompt_path(opening.cwd)
        first = f"Read {path} and begin." if not opening.resume else f"Go on. {path} says what is known now."
        roots = [folder.parent for folder in await _git_folders(opening)]
        answered = await interactive.answers(agent, self._core.settings, found.argv, assignment, roots)
        begin = interactive.start(agent, found.argv, launch, assignment, first, answered)
        own = {
            "QUARTERDECK_TASK_ID": opening.task.id,
            "QUARTERDECK_MCP_URL": opening.mcp_url,
            "QUARTERDECK_PROMPT_PATH": str(path),
            TOKEN_VARIABLE: opening.token,
            VARIABLE: self._mark(opening.name),
        }
        script = opening.home / "pair.sh"
        await asyncio.to_thread(interactive.prepare, agent, opening.home, opening.cwd, begin.env)
        await asyncio.to_thread(write_private, script, _shell(begin.argv, {**begin.env, **own}))
        return how.id, begin, script

    async def _exclude(self, opening: Opening) -> None:
        """Keep our files out of the branch: git is told to overlook them, in its own folder."""
        wanted = [f"/{_OWN_FOLDER}/"]
        if opening.backend in EDITORS:
            wanted.append(f"/{_EDITOR_FILES[opening.backend][0]}")
        for folder in await _git_folders(opening):
            await asyncio.to_thread(_append_lines, folder / "info" / "exclude", wanted)

    async def state(self, name: str) -> State | None:
        """See `core.terminals.Terminal`."""
        pane = await self._pane(name)
        if pane is None:
            return None
        dead, status, number = pane
        if dead != "1":
            return State(alive=True)
        _, screen = await self._ask("capture-pane", "-p", "-J", "-S", "-200", "-t", f"={name}:")
        # The last line may be tmux's own, about the end.
        lines = [line.rstrip() for line in screen.splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith("Pane is dead (")]
        code = int(status) if status.isdigit() else 128 + int(number) if number.isdigit() else None
        return State(False, code, "\n".join(lines)[-_TAIL:])

    async def _pane(self, name: str) -> tuple[str, str, str] | None:
        """Whether the pane is dead, its exit code and its signal; None when it is not there."""
        form = "#{pane_dead}/#{pane_dead_status}/#{pane_dead_signal}"
        for _ in range(_STATUS_TRIES):
            code, said = await self._ask("list-panes", "-t", f"={name}:", "-F", form)
            if code != 0 or "/" not in said:
                return None
            dead, status, number = said.splitlines()[0].split("/")
            # tmux sees the end of the output a moment before it knows how the program ended.
            if dead != "1" or status or number:
                break
            # It may also have missed that altogether: the end of another child makes it look again.
            await self._ask("run-shell", "-b", "true")
            await asyncio.sleep(_STATUS_SECONDS)
        return dead, status, number

    async def names(self) -> list[str]:
        """See `core.terminals.Terminal`."""
        code, said = await self._ask("list-sessions", "-F", "#{session_name}")
        return said.split() if code == 0 else []

    async def end(self, name: str) -> None:
        """See `core.terminals.Terminal`."""
        await self._ask("kill-session", "-t", f"={name}")
        # tmux only hangs up. What does not heed it, or left the terminal, is found by its mark alone: the
        # number of a pane that has died may be another process's by now.
        nobody = Process(-1, -1, boot_id())
        marked = Identity(nobody, nobody, nobody, self._mark(name), 0, None, None)
        await asyncio.to_thread(end_leftovers, marked)

    def _mark(self, name: str) -> str:
        """What all processes of a session carry; the same after a restart of the core."""
        return hashlib.sha256(f"{self._core.place}/{name}".encode()).hexdigest()[:32]

    async def clear(self, cwd: Path, home: Path) -> None:
        """See `core.terminals.Terminal`."""
        await asyncio.to_thread(_clear, cwd, home)

    async def agent_session(self, agent: Agent, home: Path, cwd: Path, session_id: str | None) -> str | None:
        """See `core.terminals.Terminal`."""
        return await interactive.known_session(agent, self._core.settings, home, cwd, session_id)

    def attach(self, name: str) -> list[str]:
        """See `core.terminals.Terminal`."""
        return ["tmux", "-S", str(self.socket), "attach-session", "-t", f"={name}"]

    async def _tmux(self, *words: str) -> str:
        code, said = await self._ask(*words)
        if code != 0:
            raise Unavailable(f"tmux refused: {said.strip()[:500]}", hint="tmux 3.0 or later is needed")
        return said

    async def _ask(self, *words: str) -> tuple[int, str]:
        """tmux's exit code and words."""
        env = {name: os.environ[name] for name in _PASSED if name in os.environ}
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **env, "TERM": "screen-256color"}
        starts = words[0] == "start-server"
        if not starts and not await asyncio.to_thread(self.socket.exists):
            return 1, "no server is running"
        if (program := shutil.which("tmux", path=env["PATH"])) is None:
            raise Unavailable("tmux is not installed", hint="install tmux, or set terminal_backend to vscode")
        if starts:
            await asyncio.to_thread(_own_folder, self.socket.parent)
        # A file and no pipe: the daemon that the first command starts keeps it open.
        with tempfile.TemporaryFile() as said:
            process = await asyncio.create_subprocess_exec(
                *(program, "-S", str(self.socket), "-f", os.devnull, *words),
                env=env,
                cwd="/",
                stdin=DEVNULL,
                stdout=said,
                stderr=STDOUT,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(_SECONDS):
                    code = await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise Unavailable("tmux does not answer") from None
            said.seek(0)
            return code, said.read().decode("utf-8", "replace")


def socket_of(data_dir: Path) -> Path:
    """The socket of a data directory's tmux; in the temporary folder where its path would be too long."""
    own = data_dir / "tmux.sock"
    if len(os.fsencode(own)) <= _LONGEST:
        return own
    name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"quarterdeck-{os.getuid()}-{name}" / "tmux.sock"


async def _git_folders(opening: Opening) -> list[Path]:
    """Where git keeps the repositories of a task."""
    folders = []
    for repo in opening.repos:
        try:
            folders.append(await common_dir(repo))
        except GitError as error:
            raise Unavailable(f"git does not answer in {repo}: {error.said}") from error
    return folders


def _own_folder(folder: Path) -> None:
    """A folder that is ours alone: who could write to it could put another socket there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise Unavailable(f"{folder} belongs to another user")


def _shell(argv: Sequence[str], env: dict[str, str]) -> str:
    """A script that starts a program in this environment and not in the terminal's own."""
    known = {name: value for name, value in env.items() if _NAME.fullmatch(name)}
    given = [f"export {name}={shlex.quote(value)}" for name, value in sorted(known.items())]
    return "\n".join([f"unset {' '.join(_PASSED)}", *given, f"exec {shlex.join(argv)}", ""])


def _write_prompt(opening: Opening) -> None:
    path = prompt_path(opening.cwd)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_private(path, opening.prompt)
    opening.home.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write_editor(opening: Opening) -> None:
    """Our MCP server for the editor, unless the repository has a file of its own there."""
    name, table = _EDITOR_FILES[opening.backend]
    path = opening.cwd / name
    if path.exists() and not _is_ours(path):
        return
    headers = {"Authorization": f"Bearer {opening.token}"}
    server = {"type": "http", "url": opening.mcp_url, "headers": headers}
    path.parent.mkdir(exist_ok=True)
    write_private(path, json.dumps({table: {MCP_NAME: server}}, indent=2) + "\n")


def _is_ours(path: Path) -> bool:
    """Whether an editor's file names our server and nothing else."""
    try:
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    tables = list(found.values()) if isinstance(found, dict) else []
    return len(tables) == 1 and isinstance(tables[0], dict) and list(tables[0]) == [MCP_NAME]


def _append_lines(file: Path, wanted: Sequence[str]) -> None:
    file.parent.mkdir(exist_ok=True)
    known = file.read_text(errors="surrogateescape") if file.exists() else ""
    missing = [line for line in wanted if line not in known.splitlines()]
    if missing:
        gap = "" if not known or known.endswith("\n") else "\n"
        with file.open("a") as exclude:
            exclude.write(gap + "".join(f"{line}\n" for line in missing))


def _clear(cwd: Path, home: Path) -> None:
    (home / "pair.sh").unlink(missing_ok=True)
    for name, _ in _EDITOR_FILES.values():
        path = cwd / name
        if _is_ours(path):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()
    path = prompt_path(cwd)
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
