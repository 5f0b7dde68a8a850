"""The supervisor of one attempt: `python -I -S supervisor.py FOLDER`, in a session of its own.

It runs the agent that FOLDER/attempt.json describes, keeps its output, and sees to it that nothing of it is
left, whatever happens. Its stdin is the lifeline from the worker: `r` renews the lease, `c` cancels, `f` asks
for one `.` on stdout as soon as there is more output, and its end means that the worker is gone.
FOLDER/identity.json is there before the agent's first instruction, FOLDER/exit.json is written last.
Standard library only, and no more of it than needed: this starts once per attempt.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time
from contextlib import suppress
from functools import partial

if __name__ == "__main__":
    # With -I nothing but the standard library is found.
    sys.path.append(__file__.rpartition("/quarterdeck/")[0])

from quarterdeck.run.files import CHUNK, Output, load, publish
from quarterdeck.run.processes import boot_id, start_time
from quarterdeck.run.trees import (
    GIVE_UP_SECONDS,
    LIFELINE,
    RESCAN_SECONDS,
    STATUS,
    Namespaced,
    Plain,
    adopt_orphans,
    isolate,
    map_ids,
    wake_on,
    words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def now_us() -> int:
    return time.time_ns() // 1000


class Supervisor:
    """One attempt, from its description to its exit record."""

    tree: Plain | Namespaced

    def __init__(self, path: str) -> None:
        self.started_at = now_us()
        self.folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        spec = load(self.folder, "attempt.json")
        if spec is None:
            sys.exit("there is no attempt to supervise")
        self.spec: dict[str, Any] = spec
        self.namespace: str | None = None
        self.refused: str | None = None
        self.wanted: str | None = None
        self.reason: str | None = None
        self.error: str | None = None
        self.left = False
        # There is output that the worker was not told of; the worker wants to be told.
        self.fresh = self.asked = False
        self.lease_at = time.monotonic() + self.spec["lease_seconds"]
        self.deadline_at = self.kill_at = self.give_up_at = float("inf")
        caps = {"log": "log_cap_bytes", "stdout": "stdout_cap_bytes", "stderr": "log_cap_bytes"}
        self.outputs = {name: Output(self.folder, name, self.spec[cap]) for name, cap in caps.items()}
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[], object]] = {}
        self.watch(LIFELINE, self.on_lifeline)
        self.wake = wake_on(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self.watch(self.wake, self.on_signal)

    def run(self) -> None:
        adopt_orphans()
        code = None
        try:
            self.start()
        except OSError as error:
            self.reason, self.error = "unstarted", words(error)
        else:
            self.supervise()
            if self.tree.status is not None and not self.error:
                code = os.waitstatus_to_exitcode(self.tree.status)
        record = {
            "reason": self.reason,
            "code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "error": self.error,
            "started_at": self.started_at,
            "ended_at": now_us(),
            "left": self.left,
            "outputs": {name: output.finish() for name, output in self.outputs.items()},
        }
        publish(self.folder, "exit.json", record)
        self.drop_description()

    def start(self) -> None:
        """Make the agent's process, which waits until `supervise` releases it."""
        spec = self.spec
        try:
            # A FIFO is a stdin that the worker feeds; without O_NONBLOCK opening it would wait for that.
            stdin = os.open(spec["stdin"] or os.devnull, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise OSError(error.errno, f"cannot read {spec['stdin']}: {words(error)}") from error
        os.set_blocking(stdin, True)
        (out, out_end), (err, err_end), (report, report_end) = os.pipe(), os.pipe(), os.pipe()
        stdio = (stdin, out_end, err_end)
        ids = os.geteuid(), os.getegid()
        if spec["namespace"]:
            try:
                self.namespace = isolate()
            except OSError as error:
                self.refused = words(error)
        if self.namespace == "user":
            map_ids(*ids)
        self.tree = (Namespaced if self.namespace else Plain)(spec, stdio, report_end)
        for file in (*stdio, report_end):
            os.close(file)
        if self.namespace and not (said := os.read(report, CHUNK)).startswith(b"r"):
            raise OSError(errno.EIO, said[1:].decode().strip() or "PID 1 of the namespace ended at once")
        self.identify()
        self.copying = [partial(self.on_output, out, "stdout"), partial(self.on_output, err, "stderr")]
        self.watch(out, self.copying[0])
        self.watch(err, self.copying[1])
        self.report = report
        self.watch(report, self.on_report)

    def identify(self) -> None:
        """Put on record who is about to run."""
        own, pid, boot = os.getpid(), self.tree.pid, boot_id()
        identity = {
            "pid": pid,
            "start_time": start_time(pid),
            "boot_id": boot,
            "namespace": self.namespace,
            "refused": self.refused,
            "supervisor": [own, start_time(own), boot],
            "worker": self.spec["worker"],
            "secret": self.spec["secret"],
            "started_at": self.started_at,
        }
        publish(self.folder, "identity.json", identity)
        self.drop_description()

    def drop_description(self) -> None:
        """The agent's environment holds secrets; on disk they stay no longer than needed."""
        with suppress(FileNotFoundError):
            os.unlink("attempt.json", dir_fd=self.folder)

    def supervise(self) -> None:
        """From the agent's first instruction until nothing of it is left."""
        self.handle(0)
        if self.wanted or self.reason:
            self.end(self.wanted or "")
            self.kill_at = 0
        else:
            self.deadline_at = time.monotonic() + (self.spec["deadline_seconds"] or float("inf"))
            self.tree.release()
        self.tell(b"s")
        while not self.over():
            at = min(self.kill_at, self.give_up_at) if self.reason else min(self.lease_at, self.deadline_at)
            self.handle(min(max(at - time.monotonic(), 0.0), 3600.0))
        # More than a pipe holds, yet bounded: someone beyond our reach may have got hold of the other end.
        for _ in range(32):
            if not sum(copy() for copy in self.copying):
                break

    def over(self) -> bool:
        """Take stock: has the agent ended, must it, is it time to be less polite, is all of it gone?"""
        gone = self.tree.reap()
        self.on_report()
        now = time.monotonic()
        if gone or self.tree.status is not None:
            self.end("unstarted" if self.error else "exited", gone)
        elif self.wanted:
            self.end(self.wanted)
        elif now >= self.deadline_at:
            self.end("deadline")
        elif now >= self.lease_at:
            # We may have slept as well, and a renewal waits to be read.
            self.handle(0)
            if now >= self.lease_at:
                self.end(self.wanted or "lease")
        if not gone and now >= self.kill_at:
            self.tree.kill()
            self.kill_at = now + RESCAN_SECONDS
            self.give_up_at = min(self.give_up_at, now + GIVE_UP_SECONDS)
        self.left = not gone and now >= self.give_up_at
        return gone or self.left

    def end(self, reason: str, gone: bool = False) -> None:
        """End what is there for this reason, unless it is ending for another."""
        if self.reason is None:
            self.reason = reason
            self.kill_at = time.monotonic() + self.spec["grace_seconds"]
            if not gone:
                self.tree.terminate()

    def watch(self, file: int, handler: Callable[[], object]) -> None:
        os.set_blocking(file, False)
        self.handlers[file] = handler
        self.poll.register(file, select.POLLIN)

    def handle(self, seconds: float) -> None:
        """Wait for something to happen, and deal with all of it."""
        for file, _ in self.poll.poll(seconds * 1000):
            if file in self.handlers:
                self.handlers[file]()

    def read(self, file: int) -> bytes | None:
        """What there is to read now, None if nothing; at its end, which is empty, the file is left alone."""
        try:
            data = os.read(file, CHUNK) if file in self.handlers else None
        except BlockingIOError:
            return None
        if data == b"":
            self.poll.unregister(file)
            del self.handlers[file]
        return data

    def on_lifeline(self) -> None:
        # An order is only noted: an agent that has ended by itself meanwhile was not ended by us.
        orders = self.read(LIFELINE)
        if orders == b"":
            self.wanted = self.wanted or "lifeline"
        elif orders:
            if b"r" in orders:
                self.lease_at = time.monotonic() + self.spec["lease_seconds"]
            if b"c" in orders:
                self.wanted = self.wanted or "cancelled"
            if b"f" in orders:
                self.asked = True
                self.tell_of_output()

    def on_signal(self) -> None:
        # At once: who stops a whole service signals the agent in the same breath.
        if set(self.read(self.wake) or b"") - {signal.SIGCHLD}:
            self.end("terminated")

    def on_report(self) -> None:
        for line in (self.read(self.report) or b"").splitlines():
            if line.startswith(b"x"):
                self.tree.status = int(line[1:])
            elif line.startswith(b"e"):
                self.error = line[1:].decode()

    def on_output(self, file: int, name: str) -> bool:
        data = self.read(file)
        if data:
            self.outputs[name].write(data)
            self.outputs["log"].write(data)
            self.fresh = True
            self.tell_of_output()
        return bool(data)

    def tell_of_output(self) -> None:
        if self.fresh and self.asked:
            self.fresh = self.asked = False
            self.tell(b".")

    @staticmethod
    def tell(word: bytes) -> None:
        # Nobody may be left to listen.
        with suppress(OSError):
            os.write(STATUS, word)


if __name__ == "__main__":
    Supervisor(sys.argv[1]).run()
