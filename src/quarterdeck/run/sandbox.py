"""Bubblewrap around a relay job's agent: its tree read-only, its home, its program, nothing else of the disk.

It runs inside the supervisor's own PID namespace. Its network is the host's, or nothing but loopback with a
gate that leads to its model, the core and what else is allowed. Where bubblewrap does not run, the tree is
only verified afterwards.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from quarterdeck.domain.errors import QuarterdeckError, Unavailable
from quarterdeck.run.adapters.base import Launch
from quarterdeck.run.attempts import Attempt, Spec, transcript
from quarterdeck.run.gate import Gate

Wish = Literal["auto", "required", "off"]
Enforced = Literal["bubblewrap", "verified"]
Network = Literal["open", "isolated"]
Wrap = Callable[[Launch], Launch]

PROBE_SECONDS: Final = 30.0
FORWARD: Final = Path(__file__).with_name("forward.py")

_BASE: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What programs look up: certificates, names of hosts and users, the linker's cache, the time zone.
_ETC: Final = (
    *("ssl", "ca-certificates", "ca-certificates.conf", "pki", "crypto-policies", "resolv.conf", "hosts"),
    *("nsswitch.conf", "host.conf", "gai.conf", "passwd", "group", "ld.so.cache", "ld.so.conf"),
    *("ld.so.conf.d", "localtime", "timezone", "alternatives", "mime.types", "protocols", "services"),
)
_NAMESPACES: Final = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--cap-drop", "ALL"),
)
# The parts of an installation that hold programs. Its `share` and the like may be anything.
_INSTALLED: Final = ("bin", "lib", "lib64", "libexec", "pyvenv.cfg")
# Variables that name a file which the agent has to read: certificates, and the key of a cloud.
_FILES: Final = (
    *("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("GIT_SSL_CAINFO", "CODEX_CA_CERTIFICATE", "GOOGLE_APPLICATION_CREDENTIALS"),
)
_TEMPORARY: Final = "/tmp"  # noqa: S108 - its own
_SCRIPT_HEAD: Final = 512
_HOPS: Final = 10
# Where the way out lies inside, and the interpreter that serves it: no link, and no virtual environment.
_GATE_INSIDE: Final = "/run/.quarterdeck.gate"
_FORWARD_INSIDE: Final = "/run/.quarterdeck.py"
_PYTHON: Final = Path(sys.executable).resolve()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What is enforced here. `program` is bubblewrap where it was seen to work; `reason` says why not."""

    program: str | None
    reason: str | None = None

    @property
    def enforced(self) -> Enforced:
        return "verified" if self.program is None else "bubblewrap"

    def wrap(self, tree: Path, home: Path, gate: Gate | None = None) -> Wrap:
        """A function that puts a launch into the sandbox; without bubblewrap it is left outside.

        With a gate, that is its only way to the network.
        """
        program = self.program
        if program is None and gate is not None:
            raise Unavailable("A gate is no bound without bubblewrap.")

        def wrapped(launch: Launch) -> Launch:
            # A byte code cache would be a change of the tree.
            env = {"PYTHONDONTWRITEBYTECODE": "1", **launch.env}
            if program is None:
                return replace(launch, env=env)
            if "TMPDIR" in env:
                env["TMPDIR"] = _TEMPORARY
            options = arguments(launch, tree, home, gate)
            inside = [*_forwarder(gate), *_absolute(launch.argv, env)]
            return replace(launch, argv=[program, *options, "--", *inside], env=env)

        return wrapped


_probed: dict[str, Sandbox] = {}


async def choose(wish: Wish, network: Network = "open") -> Sandbox:
    """The sandbox for the settings; Unavailable when one is required and none works.

    An isolated network requires one.
    """
    found = Sandbox(None, "worker.sandbox is off") if wish == "off" else await probe()
    if found.program is None and network == "isolated":
        raise Unavailable(f"worker.sandbox_network is isolated, which needs bubblewrap: {found.reason}")
    if found.program is None and wish == "required":
        raise Unavailable(f"worker.sandbox is required, and bubblewrap does not run here: {found.reason}")
    return found


async def probe() -> Sandbox:
    """Whether bubblewrap runs here, learnt by running it as a job would; once it did, that is known."""
    program = shutil.which("bwrap")
    if program is None:
        return Sandbox(None, "bwrap is not on PATH")
    found = _probed.get(program) or await _tried(program)
    if found.program is not None:
        _probed[program] = found
    return found


async def _tried(program: str) -> Sandbox:
    """Below a supervisor as always, since a namespace within another may be refused."""
    with TemporaryDirectory(prefix="quarterdeck-") as root:
        tree, home = await asyncio.to_thread(_stage, Path(root))
        check = f"test ! -w {tree} && test -w {home} && test ! -e {root}/outside && test -e /proc/self"
        launch = Sandbox(program).wrap(tree, home)(Launch(["/bin/sh", "-c", check], {"PATH": os.defpath}))
        spec = Spec(launch.argv, tree, launch.env, PROBE_SECONDS, deadline_seconds=PROBE_SECONDS)
        try:
            attempt = await Attempt.start(Path(root, "probe"), spec)
            ended = await attempt.wait()
        except QuarterdeckError as error:
            return Sandbox(None, error.message)
        said = await asyncio.to_thread(transcript, Path(root, "probe"), "stderr")
    if ended.reason == "exited" and ended.code == 0:
        return Sandbox(program)
    last = said.decode("utf-8", "replace").strip().splitlines()[-1:]
    return Sandbox(None, *(last or [ended.error or "a process inside it did not end well"]))


def _stage(root: Path) -> tuple[Path, Path]:
    (root / "outside").mkdir()
    tree, home = root / "tree", root / "home"
    tree.mkdir()
    home.mkdir()
    return tree, home


def arguments(launch: Launch, tree: Path, home: Path, gate: Gate | None = None) -> list[str]:
    """The options of bubblewrap for one agent, working in `tree` with `home` as its own."""
    words = [*_NAMESPACES, "--ro-bind", "/usr", "/usr"]
    if gate is not None:
        words.append("--unshare-net")
        launch = replace(launch, folders=(*launch.folders, *_installation(_PYTHON)))
    for path in map(Path, _BASE):
        if path.is_symlink():
            words += ["--symlink", os.fspath(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for path in (Path("/etc", name) for name in _ETC):
        words += ["--ro-bind-try", str(path), str(path)]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", _TEMPORARY, "--dir", "/run"]
    for path in _reachable(launch, tree, home):
        if path.is_symlink() and path.is_file():
            # A program may look for its parts beside what the link leads to.
            words += ["--symlink", os.fspath(path.readlink()), str(path)]
        else:
            words += ["--ro-bind-try", str(path), str(path)]
    words += ["--bind", str(home), str(home), "--ro-bind", str(tree), str(tree)]
    if gate is not None:
        words += ["--ro-bind", str(FORWARD), _FORWARD_INSIDE, "--ro-bind", str(gate.path), _GATE_INSIDE]
    # The parents of what is bound are made on the way; nothing may be added to them.
    return [*words, "--remount-ro", "/", "--chdir", str(tree)]


def _forwarder(gate: Gate | None) -> list[str]:
    """What stands before the agent's own words where a gate is its way to the network."""
    if gate is None:
        return []
    doors = " ".join(map(str, gate.allowed.loopback))
    return [str(_PYTHON), "-I", "-S", _FORWARD_INSIDE, _GATE_INSIDE, doors]


def _reachable(launch: Launch, tree: Path, home: Path) -> list[Path]:
    """What the program needs beside the system: where it lies, its interpreter, and the files and
    programs that its variables name."""
    env = launch.env
    programs = [Path(_absolute(launch.argv, env)[0]), *map(Path, filter(_is_program, env.values()))]
    found = [*launch.folders, *(path for program in programs for path in _around(program, env))]
    found += [Path(env[name]) for name in _FILES if env.get(name, "").startswith("/")]
    private = {Path.home(), *Path.home().parents, *tree.parents, *home.parents, Path("/etc")}
    kept = {path for path in found if path.is_absolute() and path not in private}
    # What lies in a folder that is bound comes with it.
    covered = {Path("/usr"), *map(Path, _BASE), *kept}
    return sorted(path for path in kept if covered.isdisjoint(path.parents) and path not in map(Path, _BASE))


def _is_program(word: str) -> bool:
    return word.startswith("/") and Path(word).is_file() and os.access(word, os.X_OK)


def _around(program: Path, env: Mapping[str, str], hops: int = _HOPS) -> Iterator[Path]:
    """A program and what it consists of, through links and the first line of a script."""
    yield from _installation(program)
    if not hops:
        return
    if program.is_symlink():
        yield from _around(program.parent / program.readlink(), env, hops - 1)
    elif (interpreter := _interpreter(program, env)) is not None:
        yield from _around(interpreter, env, hops - 1)


def _installation(program: Path) -> Iterator[Path]:
    program = Path(os.path.normpath(program))
    yield program
    if program.parent.name in ("bin", "sbin"):
        yield from (path for name in _INSTALLED if (path := program.parent.parent / name).exists())
    else:
        yield program.parent


def _interpreter(script: Path, env: Mapping[str, str]) -> Path | None:
    """The program that a script's first line names."""
    try:
        with script.open("rb") as file:
            line = file.read(_SCRIPT_HEAD).partition(b"\n")[0]
    except OSError:
        return None
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    if not words:
        return None
    if Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
        found = shutil.which(named, path=env.get("PATH")) if named else None
        return Path(found) if found else None
    return Path(words[0])


def _absolute(argv: Iterable[str], env: Mapping[str, str]) -> list[str]:
    """The command line with its program by its full path, so that it can be bound."""
    program, *rest = argv
    return [shutil.which(program, path=env.get("PATH", os.defpath)) or program, *rest]
