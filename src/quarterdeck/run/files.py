"""The files of an attempt: records, whole or absent, and output up to a cap. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 65536


def publish(folder: int, name: str, value: object) -> None:
    """Write a JSON file that is complete on disk or absent, never half: synced, then renamed into place."""
    draft = f".{name}.{os.getpid()}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
    with os.fdopen(file, "w", encoding="ascii") as stream:
        json.dump(value, stream)
        stream.flush()
        os.fsync(file)
    os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def load(folder: int, name: str) -> dict[str, Any] | None:
    """A record, or None when there is none."""
    try:
        file = os.open(name, os.O_RDONLY, dir_fd=folder)
    except FileNotFoundError:
        return None
    with os.fdopen(file, encoding="ascii") as stream:
        record: dict[str, Any] = json.load(stream)
    return record


class Output:
    """A stream on disk up to a cap: its first half, then rolling parts with its newest bytes.

    NAME is the head, NAME.<offset> a part that begins at that offset of the stream. Files only grow and
    vanish whole, so that a reader may follow them and a crash leaves nothing torn.
    """

    def __init__(self, folder: int, name: str, cap: int) -> None:
        self.folder = folder
        self.name = name
        self.room = cap // 2
        self.part_size = cap // 4
        self.bytes = self.kept = 0
        self.broken = False
        self.head = self.file = self._create(name)
        self.parts: list[tuple[str, int]] = []

    def _create(self, name: str) -> int:
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=self.folder)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and not self.broken:
                if not self.room:
                    self._roll()
                count = os.write(self.file, view[: self.room])
                view = view[count:]
                self.room -= count
                self.bytes += count
                self.kept += count
        except OSError:
            # A full disk must not end the agent: its output is cut from here on.
            self.broken = True
        self.bytes += len(view)

    def _roll(self) -> None:
        if len(self.parts) == 2:
            name, file = self.parts.pop(0)
            os.close(file)
            os.unlink(name, dir_fd=self.folder)
            self.kept -= self.part_size
        name = f"{self.name}.{self.bytes:015d}"
        self.file = self._create(name)
        self.parts.append((name, self.file))
        self.room = self.part_size

    def finish(self) -> dict[str, int | bool]:
        """Sync what is kept, and tell how much came and how much that is."""
        for file in (self.head, *(file for _, file in self.parts)):
            with contextlib.suppress(OSError):
                os.fsync(file)
        return {"bytes": self.bytes, "kept": self.kept, "cut": self.kept < self.bytes}


def read_output(folder: str, name: str, offset: int, limit: int = CHUNK) -> tuple[int, bytes]:
    """What an `Output` has from `offset` on, and where that begins: later than asked where bytes were cut."""
    while True:
        # Listed before reading: a part that a later one follows is complete by then.
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(f"{name}.")]
        parts = {int(part.rpartition(".")[2]): part for part in names}
        begin = max((start for start in parts if start <= offset), default=0)
        try:
            file = os.open(f"{folder}/{parts.get(begin, name)}", os.O_RDONLY)
        except FileNotFoundError:
            if begin:
                continue
            return offset, b""
        try:
            data = os.pread(file, limit, offset - begin)
        finally:
            os.close(file)
        later = min((start for start in parts if start > offset), default=None)
        if data or later is None:
            return offset, data
        offset = later
