"""A project's own command, acceptance or gate: its exit code decides, its output is told."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a command ended, `how` in words. `code` is None when it did not end by itself.

    `output` is the last part of what it said.
    """

    code: int | None
    how: str
    output: str

    @property
    def passed(self) -> bool:
        return self.code == 0
