"""Starts `quarterdeck` commands for tests without importing everything anew each time.

One process per test run imports the whole program once and forks a child for each command: the same program
in a process of its own, with its own environment, folder and streams, for a tenth of the CPU.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_IMPORTED = (
    "quarterdeck.cli.main",
    "quarterdeck.server.up",
    "quarterdeck.server.shell",
    "quarterdeck.server.app",
    "quarterdeck.store.sqlite",
    "quarterdeck.store.postgres",
    "quarterdeck.store.migrate",
    "alembic.command",
    "alembic.autogenerate",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)


class Started:
    """A command that runs, with the few methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._line = line

    def poll(self) -> int | None:
        return self._exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("quarterdeck", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], timeout)[0]:
            said = self._line.recv(64)
            self.returncode = int(said) if said else -signal.SIGKILL
            self._line.close()
        return self.returncode


class _Client:
    """The test's side: one starter for this process, made when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._lock = threading.Lock()

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path | None, streams: Sequence[int]
    ) -> Started:
        with self._lock:
            line = self._open()
            ours, theirs = socket.socketpair()
            request = {"argv": list(arguments), "env": dict(env), "cwd": str(cwd or Path.cwd())}
            body = json.dumps(request).encode()
            socket.send_fds(line, [len(body).to_bytes(8, "big")], [theirs.fileno(), *streams])
            line.sendall(body)
            theirs.close()
            pid = int.from_bytes(_exactly(ours, 8), "big")
            return Started(pid, ours)

    def _open(self) -> socket.socket:
        if self._line is None:
            ours, theirs = socket.socketpair()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.starter", str(theirs.fileno())],
                cwd=Path(__file__).parents[1],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            self._line = ours
        return self._line

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        with self._lock:
            if self._line is not None and self._process is not None:
                self._line.close()
                self._process.wait(30)
                self._line = self._process = None


_CLIENT = _Client()


def start(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: Path | None = None,
    stdin: int = -1,
    stdout: int = -1,
    stderr: int = -1,
) -> Started:
    """Run `quarterdeck ARGUMENTS` with exactly this environment; a stream of -1 is /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        streams = [null if each == -1 else each for each in (stdin, stdout, stderr)]
        return _CLIENT.start(arguments, env, cwd, streams)
    finally:
        os.close(null)


def run(
    arguments: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself; its output as text."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    started = start(arguments, env, cwd=cwd, stdout=out_end, stderr=err_end)
    os.close(out_end)
    os.close(err_end)
    collected: dict[int, bytearray] = {out: bytearray(), err: bytearray()}
    deadline = time.monotonic() + timeout
    open_ends = set(collected)
    while open_ends:
        ready = select.select(list(open_ends), [], [], max(deadline - time.monotonic(), 0))[0]
        if not ready:
            started.kill()
        for end in ready or list(open_ends):
            data = os.read(end, 65536)
            collected[end] += data
            if not data:
                open_ends.discard(end)
                os.close(end)
    code = started.wait(max(deadline - time.monotonic(), 5))
    texts = [collected[end].decode() for end in (out, err)]
    return subprocess.CompletedProcess(["quarterdeck", *arguments], code, *texts)


def pid() -> int | None:
    """The starter of this process, where there is one."""
    return _CLIENT.pid


def stop() -> None:
    """End the starter of this process; what it started is not touched."""
    _CLIENT.stop()


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise EOFError("the starter ended")
        data += part
    return data


class _Server:
    """The starter's side: forks on request, and tells how each child ended."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._children: dict[int, socket.socket] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake)

    def serve(self) -> None:
        while True:
            ready = select.select([self._line.fileno(), self._woken], [], [])[0]
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if self._line.fileno() in ready and not self._next():
                return

    def _reap(self) -> None:
        for pid, line in list(self._children.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._children[pid]
                with contextlib.suppress(OSError), line:
                    line.sendall(str(os.waitstatus_to_exitcode(status)).encode())

    def _next(self) -> bool:
        size, files, _, _ = socket.recv_fds(self._line, 8, 8)
        if not size:
            return False
        request = json.loads(_exactly(self._line, int.from_bytes(size, "big")))
        pid = os.fork()
        if pid == 0:
            self._become(request, files)
        for file in files[1:]:
            os.close(file)
        line = socket.socket(fileno=files[0])
        self._children[pid] = line
        line.sendall(pid.to_bytes(8, "big"))
        return True

    def _become(self, request: dict[str, Any], files: list[int]) -> None:
        """In the child: be the command, and never come back."""
        code = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, file in enumerate(files[1:]):
                os.dup2(file, number)
            for line in (self._line, *self._children.values()):
                line.close()
            for file in (*files, self._woken, self._wake):
                if file > 2:
                    os.close(file)
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            sys.argv = ["quarterdeck", *request["argv"]]
            _streams()
            from quarterdeck.__main__ import main

            main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 1
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _streams() -> None:
    """Python's own streams on the new descriptors, as a fresh interpreter would make them."""
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False, buffering=1 if os.isatty(1) else -1)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1, errors="backslashreplace")


def _serve(file: int) -> None:
    import importlib

    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _Server(socket.socket(fileno=file)).serve()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
