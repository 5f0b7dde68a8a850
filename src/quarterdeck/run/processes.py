"""The process table, as far as telling one process from all others takes. Standard library only."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    Table = dict[int, tuple[int, int]]


def contents(path: str) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file:
        return file.read()


def boot_id() -> str:
    return contents("/proc/sys/kernel/random/boot_id").decode().strip()


def stat_of(pid: int) -> tuple[int, int] | None:
    """Parent and start time (in ticks since boot) of a process; None when it is gone or a zombie."""
    try:
        # The name may hold blanks and brackets; what follows it may not.
        fields = contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[1]), int(fields[19])) if fields and fields[0] not in b"ZX" else None


def start_time(pid: int) -> int | None:
    """With pid and boot it names one process for ever; None when that is gone or a zombie."""
    found = stat_of(pid)
    return found and found[1]


def processes() -> Table:
    """Parent and start time of every process that runs."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return {pid: stat for pid in pids if (stat := stat_of(pid))}


def descendants(table: Table, roots: set[int]) -> set[int]:
    """Everything below these processes, without themselves."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    below: set[int] = set()
    queue = list(roots)
    while queue:
        fresh = set(children.get(queue.pop(), ())) - below - roots
        below |= fresh
        queue.extend(fresh)
    return below


def ancestors(table: Table, pid: int) -> set[int]:
    """The process itself and everything above it."""
    above = set()
    while pid in table and pid not in above:
        above.add(pid)
        pid = table[pid][0]
    return above
