"""Where an agent's program is, which version it has and which flags it knows: asked, not assumed."""

import asyncio
import os
import platform
import re
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarterdeck.config import Settings
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import Unavailable
from quarterdeck.run.adapters.base import Adapter, Flags
from quarterdeck.run.adapters.registry import adapter_of
from quarterdeck.run.adapters.variables import environment

__all__ = ["Found", "ask", "environment", "find", "locate"]

PROBE_SECONDS: Final = 30.0
_MAX_ANSWER: Final = 1 << 22
_QUIET: Final = {"GEMINI_CLI_NO_RELAUNCH": "true"}
_VERSION: Final = re.compile(r"\d+\.\d+[\w.+-]*")
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_COMMAND: Final = re.compile(r"^ {1,4}([a-z][a-z-]+)(?= |$)", re.MULTILINE)
_NATIVE: Final = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")

# The native program of an npm package: a signal to the Node shim in front of it does not reach it.
_PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "claude": ("@anthropic-ai/claude-code-{host}", "claude"),
    "codex": ("@openai/codex-{host}", "vendor/*/bin/codex"),
    "opencode": ("opencode-{host}", "bin/opencode"),
}
_CPUS: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Found:
    """A program that can be started. `version` and `flags` are None where it is not asked: what a program of
    the adapters `acp` and `command` does with a question is not known. `folders` hold it, for a sandbox."""

    argv: tuple[str, ...]
    version: str | None
    flags: Flags
    folders: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Answers:
    version: str
    flags: frozenset[str]


_known: dict[object, _Answers] = {}


async def find(agent: Agent, settings: Settings) -> Found:
    """The agent's program, asked for its version and flags once for each build of it. Raises Unavailable."""
    adapter = _adapter(agent)
    argv = await asyncio.to_thread(locate, agent, settings)
    folders = await asyncio.to_thread(lambda: tuple(dict.fromkeys(_folders(argv))))
    if not adapter.helps:
        return Found(argv, None, None, folders)
    key = await asyncio.to_thread(_build, argv)
    answers = _known.get(key)
    if answers is None:
        answers = _known[key] = await _asked(agent, settings, adapter, argv)
    return Found(argv, answers.version, answers.flags, folders)


def locate(agent: Agent, settings: Settings) -> tuple[str, ...]:
    """The words that start it, without asking it anything. Raises Unavailable with what to do."""
    adapter = _adapter(agent)
    words = agent.command or ((adapter.program,) if adapter.program else ())
    if not words:
        raise Unavailable(
            f"The agent {agent.id} has no program.", hint=f"set agents.{agent.id}.command to what starts it"
        )
    search = environment(agent, settings, Path("/")).get("PATH")
    path = shutil.which(str(Path(words[0]).expanduser()), path=search)
    if path is None:
        raise Unavailable(
            f"The program {words[0]} of the agent {agent.id} is not installed.",
            hint=f"install it, or set agents.{agent.id}.command to where it is",
        )
    return (_native(adapter.name, Path(path).absolute()), *words[1:])


def _adapter(agent: Agent) -> Adapter:
    adapter = adapter_of(agent)
    if adapter is None:
        raise Unavailable(
            f"The agent {agent.id} cannot be run here.", hint=f"give it an adapter: agents.{agent.id}.adapter"
        )
    return adapter


def _native(adapter: str, path: Path) -> str:
    """The native program behind an npm shim, else the path as it is."""
    if adapter not in _PACKAGES:
        return str(path)
    real = path.resolve()
    modules = [parent for parent in real.parents if parent.name == "node_modules"]
    if not modules or _is_native(real):
        return str(path)
    package, inside = _PACKAGES[adapter]
    cpu = platform.machine().lower()
    name = package.format(host=f"{platform.system().lower()}-{_CPUS.get(cpu, cpu)}")
    own = [parent / "node_modules" for parent in real.parents if modules[0] in parent.parents]
    for folder in (*own, *modules):
        # With the C library at the end of the name, if at all; the plain one comes first.
        for found in sorted(folder.glob(f"{name}*/{inside}")):
            if os.access(found, os.X_OK):
                return str(found)
    return str(path)


def _is_native(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(4) in _NATIVE
    return False


def _build(argv: Sequence[str]) -> object:
    """What makes an earlier answer out of date: another file, or other words."""
    stamps = []
    for word in argv:
        with suppress(OSError, ValueError):
            if Path(word).is_absolute():
                state = Path(word).stat()
                stamps.append((word, state.st_mtime_ns, state.st_size))
    return tuple(argv), tuple(stamps)


def _folders(argv: Sequence[str]) -> Iterator[Path]:
    """The program and the files that its words name, and where they lie, through links too. A sandbox binds
    no folder around the data directory: the file itself is then all that it shows."""
    for word in argv:
        named = Path(word)
        if not named.is_absolute() or not named.exists():
            continue
        for path in dict.fromkeys((named, named.resolve())):
            yield from (path, path.parent, _folder(path)) if path.is_file() else (_folder(path),)


def _folder(path: Path) -> Path:
    outermost = [parent for parent in path.parents if parent.name == "node_modules"][-1:]
    if outermost:
        return outermost[0]
    folder = path if path.is_dir() else path.parent
    # An interpreter's own files lie beside `bin`, but nobody's home is meant.
    shared = (Path("/"), Path.home(), Path.home() / ".local")
    return folder.parent if folder.name == "bin" and folder.parent not in shared else folder


async def _asked(agent: Agent, settings: Settings, adapter: Adapter, argv: tuple[str, ...]) -> _Answers:
    version = _VERSION.search(await _answer(agent, settings, (*argv, "--version")))
    if version is None:
        raise Unavailable(
            f"The program of the agent {agent.id} does not tell its version.",
            hint=f"try {Path(argv[0]).name} by hand, or set agents.{agent.id}.command",
        )
    flags: set[str] = set()
    for words in adapter.helps:
        said = await _answer(agent, settings, (*argv, *words))
        flags.update(_FLAG.findall(said), _COMMAND.findall(said))
    return _Answers(version[0], frozenset(flags))


async def _answer(agent: Agent, settings: Settings, argv: Sequence[str]) -> str:
    """What the program says to a question. A busy machine may be slow: it is asked twice."""
    problem = ""
    for _ in range(2):
        code, said = await _run(agent, settings, argv)
        if code == 0 and said.strip():
            return said
        problem = f"exit code {code}" if code is not None else said
    raise Unavailable(
        f"The program of the agent {agent.id} does not answer {argv[-1]}: {problem}.",
        hint=f"try {Path(argv[0]).name} by hand",
    )


async def ask(
    agent: Agent, settings: Settings, argv: Sequence[str], home: Path, cwd: Path | None = None
) -> str:
    """What a program prints to a question in the home of its agent; nothing where it does not answer."""
    env = environment(agent, settings, home) | _QUIET
    code, said = await _said(argv, env, cwd or home, DEVNULL)
    return said if code == 0 else ""


async def _run(agent: Agent, settings: Settings, argv: Sequence[str]) -> tuple[int | None, str]:
    """Its exit code and words, in an empty home; no code when it could not be run to its end."""
    with tempfile.TemporaryDirectory(prefix="quarterdeck-", ignore_cleanup_errors=True) as home:
        env = environment(agent, settings, Path(home)) | {"HOME": home} | _QUIET
        return await _said(argv, env, Path(home), STDOUT)


async def _said(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, stderr: int
) -> tuple[int | None, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=cwd, env=env, stdin=DEVNULL, stdout=PIPE, stderr=stderr, start_new_session=True
        )
    except OSError as error:
        return None, f"it cannot be started: {error.strerror}"
    assert process.stdout is not None
    said = bytearray()
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            while chunk := await process.stdout.read(1 << 16):
                said += chunk[: _MAX_ANSWER - len(said)]
            return await process.wait(), said.decode("utf-8", "replace")
    except TimeoutError:
        return None, f"no answer within {PROBE_SECONDS:g} s"
    finally:
        # What it left in its session too; no more than a question was asked.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
