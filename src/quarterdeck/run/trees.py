"""The agent's processes as one tree that can be ended as a whole. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal

from quarterdeck.run.files import CHUNK
from quarterdeck.run.processes import descendants, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    Spec = dict[str, Any]
    Stdio = tuple[int, int, int]

VARIABLE = "QUARTERDECK_ATTEMPT"
# Where the supervisor has its lifeline from the worker, and where it tells the worker how things stand.
LIFELINE, STATUS = 0, 1
# How long processes may outlive SIGKILL (they hang in the kernel, or are another user's) before we give up.
GIVE_UP_SECONDS = 2.5
RESCAN_SECONDS = 0.02
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 0x2, 0x4, 0x8, 0x4000, 0x80000


def libc(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library that answers 0 when it worked."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*(ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments)):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def adopt_orphans() -> None:
    """From now on processes below us whose parent ends become our children."""
    libc("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def words(error: BaseException) -> str:
    """An error in one line, without the number that means nothing to a reader."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())


def wake_on(*signals: int) -> int:
    """A descriptor from which the numbers of these signals are read as they come."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return reader


def default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # The C library keeps some of the real-time signals for itself.
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reaped() -> Iterator[tuple[int, int]]:
    """Every child that has ended, with its status; last (0, 0) when there are no children at all."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found
    except ChildProcessError:
        yield 0, 0


def become_agent(spec: Spec, stdio: Stdio, report: int) -> NoReturn:
    """In a fresh child: turn into the agent. Every other descriptor closes itself on exec."""
    step = "cannot make a session"
    try:
        os.setsid()
        default_signals()
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        step = f"cannot work in {spec['cwd']}"
        os.chdir(spec["cwd"])
        step = f"cannot run {spec['argv'][0]}"
        os.execvpe(spec["argv"][0], spec["argv"], {**spec["env"], VARIABLE: spec["secret"]})  # noqa: S606
    except BaseException as error:
        os.write(report, f"e{step}: {words(error)}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def init(spec: Spec, stdio: Stdio, control: int, report: int) -> None:
    """PID 1 of the agent's namespace. It reaps; when it ends, the kernel ends whatever else is in there."""
    libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    default_signals()
    # They are the supervisor's: a copy here would hide its end from the worker.
    os.close(LIFELINE)
    os.close(STATUS)
    libc("unshare", CLONE_NEWNS)
    libc("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
    libc("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    os.write(report, b"r\n")
    if os.read(control, 1) != b"g":
        return
    wake = wake_on(signal.SIGCHLD)
    agent = os.fork()
    if agent == 0:
        become_agent(spec, stdio, report)
    for file in stdio:
        os.close(file)
    while True:
        ready = select.select([control, wake], [], [])[0]
        if wake in ready:
            os.read(wake, CHUNK)
        if control in ready:
            if os.read(control, 1) != b"t":
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGTERM)
                os.kill(-1, signal.SIGCONT)
        for pid, status in reaped():
            if pid == agent:
                os.write(report, f"x{status}\n".encode())
            elif pid == 0:
                return


class Plain:
    """The agent as our child. We are the reaper of its orphans, so all of it stays below us."""

    def __init__(self, spec: Spec, stdio: Stdio, report: int) -> None:
        self.status: int | None = None
        gate, self.gate = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.gate)
            if os.read(gate, 1):
                become_agent(spec, stdio, report)
            os._exit(0)
        os.close(gate)

    def release(self) -> None:
        os.write(self.gate, b"g")

    def reap(self) -> bool:
        """Whether nothing is left."""
        for pid, status in reaped():
            if pid == self.pid:
                self.status = status
            elif pid == 0:
                return True
        return False

    def terminate(self) -> None:
        self._signal(signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    @staticmethod
    def _signal(*numbers: int) -> None:
        for pid in descendants(processes(), {os.getpid()}):
            # It may be gone by now, or another user's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                for number in numbers:
                    os.kill(pid, number)


class Namespaced:
    """The agent below a PID 1 of its own, with which all of it ends, even when we are killed."""

    def __init__(self, spec: Spec, stdio: Stdio, report: int) -> None:
        self.status: int | None = None
        control, self.control = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.control)
            try:
                init(spec, stdio, control, report)
            except BaseException as error:
                os.write(report, f"e{words(error)}\n".encode(errors="replace"))
            finally:
                os._exit(0)
        os.close(control)

    def release(self) -> None:
        self._tell(b"g")

    def reap(self) -> bool:
        """Whether nothing is left: the kernel lets PID 1 go as the last of its namespace."""
        for pid, status in reaped():
            if pid == self.pid and os.WIFSIGNALED(status) and self.status is None:
                self.status = status
            if pid in {0, self.pid}:
                return True
        return False

    def terminate(self) -> None:
        self._tell(b"t")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _tell(self, order: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.control, order)


def isolate() -> str:
    """Make our next child PID 1 of a new namespace: directly where we may, else through a user namespace."""
    try:
        libc("unshare", CLONE_NEWPID)
    except PermissionError:
        libc("unshare", CLONE_NEWUSER | CLONE_NEWPID)
        return "user"
    return "pid"


def map_ids(uid: int, gid: int) -> None:
    """Stay who we are in our new user namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with os.fdopen(os.open(f"/proc/self/{name}", os.O_WRONLY), "w") as file:
            file.write(text)
