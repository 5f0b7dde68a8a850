"""Finding and ending what a dead supervisor left behind: by identity, descent and mark, never by name."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from quarterdeck.run.processes import ancestors, boot_id, contents, descendants, processes, start_time
from quarterdeck.run.trees import GIVE_UP_SECONDS, RESCAN_SECONDS, VARIABLE

GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process, not to be mistaken for a later one with the same number."""

    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def own(cls) -> "Process":
        return cls(os.getpid(), start_time(os.getpid()) or 0, boot_id())

    def alive(self) -> bool:
        return start_time(self.pid) == self.start_time and self.boot_id == boot_id()

    def send(self, *numbers: int) -> None:
        """Signal it, if it still runs and is ours to signal."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            # The handle is taken first: whatever has this number now cannot change any more.
            if self.alive():
                for number in numbers:
                    signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            return
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who runs an attempt, as its supervisor recorded it before the agent's first instruction."""

    agent: Process
    supervisor: Process
    worker: Process
    secret: str
    started_at: int
    namespace: str | None
    refused: str | None


def leftovers(identity: Identity, known: set[Process]) -> set[Process]:
    """What runs of an attempt: the known, whatever carries its mark, and everything below these."""
    table = processes()
    mark = f"{VARIABLE}={identity.secret}".encode()
    roots = {each.pid for each in known if each.pid in table and table[each.pid][1] == each.start_time}
    roots |= {pid for pid in table if mark in environment(pid)}
    found = (roots | descendants(table, roots)) - ancestors(table, os.getpid())
    return {Process(pid, table[pid][1], identity.agent.boot_id) for pid in found}


def environment(pid: int) -> list[bytes]:
    """A process's environment as it was given; empty when we may not look."""
    with suppress(OSError):
        return contents(f"/proc/{pid}/environ").split(b"\0")
    return []


def end_leftovers(identity: Identity) -> bool:
    """End what is left of an attempt whose supervisor is gone; whether nothing is. Takes its time."""
    if identity.agent.boot_id != boot_id():
        return True
    began = time.monotonic()
    known = {identity.agent}
    told: set[Process] = set()
    while found := leftovers(identity, known):
        passed = time.monotonic() - began
        if passed > GRACE_SECONDS + GIVE_UP_SECONDS:
            return False
        # PID 1 of a namespace heeds nothing else, and is being killed already.
        polite = passed <= GRACE_SECONDS and not identity.namespace
        for process in found - told if polite else found:
            process.send(*((signal.SIGTERM, signal.SIGCONT) if polite else (signal.SIGKILL,)))
        # A parent's end makes its children orphans: remember them, descent will not lead there again.
        known |= found
        told |= found
        time.sleep(RESCAN_SECONDS)
    return True


def outwait(process: Process, seconds: float) -> None:
    """Give a process this long to end by itself, then kill it."""
    process.send(signal.SIGCONT)
    end = time.monotonic() + seconds
    while process.alive() and time.monotonic() < end:
        time.sleep(RESCAN_SECONDS)
    while process.alive() and time.monotonic() < end + GIVE_UP_SECONDS:
        process.send(signal.SIGKILL)
        time.sleep(RESCAN_SECONDS)
