"""One way to run git: with an environment and configuration of our own, a time limit, and no surprises.

Nothing of the host leaks in: no hooks, pager, prompt, editor, signing, background maintenance, replaced
objects or transport that was not named. The configuration of the system and of the user is left out as well,
since who asks for a job need not be who runs the core; `user_config` lets it in, with its credential helpers
and keys. A repository's own configuration always holds. A commit gets its name from `identity`, which asks
git as the user would.
"""

import asyncio
import base64
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from quarterdeck.domain.jobspec import without_secrets

MAX_OUTPUT: Final = 64 * 1024 * 1024
TIMEOUT_SECONDS: Final = 60.0
LOCK_TRIES: Final = 8
LOCK_SECONDS: Final = 0.25

_GRACE_SECONDS: Final = 2.0
_CHUNK: Final = 1 << 16
_MAX_ERRORS: Final = 1 << 16
_SHOWN: Final = 2_000
_SHOWN_WORD: Final = 200

# A lock that another holds; the record of a worktree, or the folder of all, that another makes or removes.
_CONTENDED: Final = (
    *("cannot lock ref", "could not lock", ".lock': File exists"),
    *("failed to read", "/locked'", "could not create"),
)
_SETTINGS: Final = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # Several work in one repository at once: git's own patience of a moment is too short for a busy host.
    "core.filesRefLockTimeout": "2000",
    "core.packedRefsTimeout": "10000",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "color.ui": "false",
    "init.defaultBranch": "main",
}
_OPTIONS: Final = ("--no-pager", *(word for item in _SETTINGS.items() for word in ("-c", "=".join(item))))
# What git needs of the host: programs, a folder for temporary files, and the way out through a proxy.
_PASSED: Final = (
    *("PATH", "TMPDIR", "GIT_EXEC_PATH", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE"),
    *("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"),
)
_PASSED_WITH_USER: Final = (
    "HOME",
    "XDG_CONFIG_HOME",
    "SSH_AUTH_SOCK",
    "GIT_SSH_COMMAND",
    "GIT_CONFIG_GLOBAL",
)
_FIXED: Final = {
    "LC_ALL": "C.UTF-8",
    "GIT_TERMINAL_PROMPT": "0",
    # Empty means none, whatever the configuration says.
    "GIT_ASKPASS": "",
    "GIT_EDITOR": ":",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ATTR_NOSYSTEM": "1",
}
_WITHOUT_USER: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_SSH_COMMAND": "ssh -F none -o BatchMode=yes -o IdentityFile=none -o IdentityAgent=none",
}


class GitError(Exception):
    """git refused or broke: the command's words, its exit code and what it said, without secrets of URLs."""

    def __init__(self, words: Sequence[str], code: int | None, said: str, output: bytes = b"") -> None:
        self.words = tuple(without_secrets(word)[:_SHOWN_WORD] for word in words)
        self.code = code
        # Some commands refuse with an answer, as a merge with its conflicts.
        self.output = output
        self.said = without_secrets(said).strip()[:_SHOWN]
        super().__init__(f"git {' '.join(self.words)}: {self.said or f'exit code {code}'}"[:_SHOWN])


class GitTimeout(GitError):
    """git took longer than it was given, and was ended with all that it had started."""


def environment(*, user_config: bool = False, protocols: Sequence[str] = ()) -> dict[str, str]:
    """The whole environment of a git command; `protocols` are the only transports it may use."""
    passed = (*_PASSED, *_PASSED_WITH_USER) if user_config else _PASSED
    kept = {name: os.environ[name] for name in passed if name in os.environ}
    own = _FIXED | ({} if user_config else _WITHOUT_USER)
    return {**kept, **own, "GIT_ALLOW_PROTOCOL": ":".join(protocols)}


def credentials_apart(url: str) -> tuple[str, dict[str, str]]:
    """A web URL without its user and password, and the environment in which git sends them all the same.

    A command line is for every user of the host to see, an environment is not.
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at or parts.scheme not in ("http", "https"):
        return url, {}
    name, _, password = user.partition(":")
    word = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    config = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{host}/.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: Basic {word}",
    }
    return urlunsplit(parts._replace(netloc=host)), config


async def git(
    args: Sequence[str],
    cwd: Path,
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
    max_output: int = MAX_OUTPUT,
    user_config: bool = False,
    protocols: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
) -> bytes:
    """Run git in a session of its own and give back its output. Raises GitError, or GitTimeout.

    It inherits `pass_fds`: a lock held through one lasts as long as git runs, even without us.
    """
    whole = environment(user_config=user_config, protocols=protocols) | dict(env or {})
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", *_OPTIONS, *args),
            cwd=cwd,
            env=whole,
            stdin=DEVNULL if stdin is None else PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except OSError as error:
        raise GitError(args, None, f"cannot be started: {error.strerror}") from error
    output, errors = bytearray(), bytearray()
    try:
        async with asyncio.timeout(timeout):
            await asyncio.gather(
                _read(process, process.stdout, output, max_output),
                _read(process, process.stderr, errors, None),
                _feed(process.stdin, stdin or b""),
                process.wait(),
            )
    except TimeoutError:
        await _end(process)
        raise GitTimeout(args, None, f"took longer than {timeout:g} s") from None
    except BaseException:
        await _end(process)
        raise
    if len(output) > max_output:
        raise GitError(args, process.returncode, f"the output is larger than {max_output} bytes")
    if process.returncode != 0:
        raise GitError(args, process.returncode, errors.decode("utf-8", "replace"), bytes(output))
    return bytes(output)


# For the repositories of projects: as their user would run it there, with credentials, filters and all.
users_git = partial(git, user_config=True)


async def in_turn(words: Sequence[str], repo: Path, **options: Any) -> bytes:
    """Run `users_git`, and once more where another git was in its way."""
    for _ in range(LOCK_TRIES):
        try:
            return await users_git(words, repo, **options)
        except GitError as error:
            if not in_the_way(error):
                raise
        await asyncio.sleep(LOCK_SECONDS)
    return await users_git(words, repo, **options)


def in_the_way(error: BaseException) -> bool:
    """Whether git failed because of another that was at work in the same repository."""
    return isinstance(error, GitError) and any(word in error.said for word in _CONTENDED)


async def identity(repo: Path) -> dict[str, str]:
    """The environment for a commit in the name that git would use in this repository, else `Quarterdeck`.

    The user's own configuration is asked here, as most people set their name there and not per repository.
    """
    found = {}
    for key, fallback in (("name", "Quarterdeck"), ("email", "quarterdeck@localhost")):
        try:
            answer = await git(["config", "--get", f"user.{key}"], repo, user_config=True)
            found[key] = answer.decode("utf-8", "replace").strip() or fallback
        except GitError:
            found[key] = fallback
    return {
        f"GIT_{role}_{key.upper()}": value for role in ("AUTHOR", "COMMITTER") for key, value in found.items()
    }


def readable(name: str) -> str:
    """A file's name for people and for JSON: bytes that are no text are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


async def _read(
    process: Process, stream: asyncio.StreamReader | None, into: bytearray, limit: int | None
) -> None:
    """Keep what comes up to the limit. Always read on to the end, else the pipe would never be closed."""
    assert stream is not None
    while chunk := await stream.read(_CHUNK):
        if limit is None:
            into += chunk[: _MAX_ERRORS - len(into)]
        elif len(into) <= limit:
            into += chunk
            if len(into) > limit:
                _signal(process, signal.SIGKILL)


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    # git may end without having read all; its exit code says what is wrong.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await stream.wait_closed()


async def _end(process: Process) -> None:
    """End git and its helpers: kindly, so that it takes its lock files away, then by force."""
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(_GRACE_SECONDS):
            await _ended(process)
    except BaseException as problem:
        _signal(process, signal.SIGKILL)
        if not isinstance(problem, TimeoutError):
            raise
        await _ended(process)


async def _ended(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    rest = bytearray()
    await asyncio.gather(
        _read(process, process.stdout, rest, None), _read(process, process.stderr, rest, None), process.wait()
    )


def _signal(process: Process, number: signal.Signals) -> None:
    # The group outlives its leader while a helper runs, and its number is not given away before it is empty.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
