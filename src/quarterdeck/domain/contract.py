"""The output contract: an agent's final text, taken apart into its diff, test plan and notes.

A section begins with its heading, `### DIFF`, `### TEST_PLAN` or `### NOTES`, alone on a line and at its very
start: in any case and order, with or without a colon. Text before the first heading is passed over. When a
heading is repeated, the last section with text wins: a correction stands after what it corrects, and a quoted
instruction before the answer. A heading within a closed code fence is not one, unless a section would be
missing without it (then some fence was left open).

The diff comes back byte for byte: of its fenced blocks those that are diffs, one after the other; without a
fence the section itself. A final newline that was lost is restored, since git takes no patch without it.
"""

import re
from dataclasses import dataclass
from typing import Final

from quarterdeck.domain import patch

_HEADING: Final = re.compile(
    r"###[ \t]+(DIFF|TEST[_ -]PLAN|NOTES)[ \t]*:?[ \t]*(?:#+[ \t]*)?\r?", re.IGNORECASE
)
_LONGEST_HEADING: Final = 100
_OPENING: Final = re.compile(r"(`{3,})([^`]*)|(~{3,})(.*)", re.DOTALL)
_CLOSING: Final = re.compile(r"(`{3,}|~{3,})[ \t]*\r?")
_DIFF_LABELS: Final = {"diff", "patch", "udiff"}
_DIFF_LINES: Final = ("diff --git ", "--- ", "@@ -")
_NAMES: Final = ("DIFF", "TEST_PLAN", "NOTES")

Lines = list[str]


class BadArtifacts(ValueError):
    """The text does not keep the contract; `problems` says where."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Sections:
    """What an agent has to deliver. The diff ends in a newline, the other two are without outer blanks."""

    diff: str
    test_plan: str
    notes: str


@dataclass(frozen=True, slots=True)
class _Block:
    """A fenced block: the lines of its two fences, and what the first says of its content."""

    start: int
    end: int
    info: str


def parse(text: str) -> Sections:
    """The sections of an agent's final text. Raises BadArtifacts when one is missing or empty."""
    # Not splitlines(): a form feed or a lone carriage return may be content of the diff.
    lines = text.split("\n")
    strict = _bodies(lines, _outside(lines))
    found = strict if len(strict) == len(_NAMES) else _bodies(lines, [True] * len(lines))
    if len(found) < len(_NAMES):
        found = strict
    diff = _diff(found.get("DIFF", []))
    plain = {name: _prose(body) for name, body in found.items()}
    problems = [f"the section ### {name} is missing" for name in _NAMES if name not in found]
    problems += [
        f"the section ### {name} is empty"
        for name in _NAMES
        if name in found and not (diff.strip() if name == "DIFF" else plain[name])
    ]
    if problems:
        raise BadArtifacts(tuple(problems))
    return Sections(diff, plain["TEST_PLAN"], plain["NOTES"])


def out_md(sections: Sections) -> str:
    """The text of the artifact `out.md`."""
    return f"# Test Plan\n\n{sections.test_plan}\n\n# Notes\n\n{sections.notes}\n"


def _bodies(lines: Lines, outside: list[bool]) -> dict[str, Lines]:
    """The lines below each heading: of the last one with text where it is repeated."""
    headings = [
        (number, found[1].upper().replace(" ", "_").replace("-", "_"))
        for number, line in enumerate(lines)
        if outside[number] and len(line) < _LONGEST_HEADING and (found := _HEADING.fullmatch(line))
    ]
    ends = [*(number for number, _ in headings), len(lines)]
    bodies: dict[str, Lines] = {}
    for (number, name), end in zip(headings, ends[1:], strict=True):
        body = lines[number + 1 : end]
        if name not in bodies or any(line.strip() for line in body):
            bodies[name] = body
    return bodies


def _outside(lines: Lines) -> list[bool]:
    """For each line whether it stands outside every closed fence."""
    outside = [True] * len(lines)
    for block in _blocks(lines):
        outside[block.start : block.end + 1] = [False] * (block.end + 1 - block.start)
    return outside


def _blocks(lines: Lines) -> list[_Block]:
    """The fenced blocks that are closed, from first to last."""
    # The longest closing fence from each line on, so that an open one costs no search to the end of the text.
    longest = {"`": [0] * (len(lines) + 1), "~": [0] * (len(lines) + 1)}
    for number in range(len(lines) - 1, -1, -1):
        closing = _CLOSING.fullmatch(lines[number])
        for mark, lengths in longest.items():
            length = len(closing[1]) if closing and closing[1][0] == mark else 0
            lengths[number] = max(lengths[number + 1], length)
    blocks: list[_Block] = []
    at = 0
    while at < len(lines):
        opening = _OPENING.fullmatch(lines[at])
        fence = (opening[1] or opening[3]) if opening else ""
        if opening and longest[fence[0]][at + 1] >= len(fence):
            end = next(number for number in range(at + 1, len(lines)) if _closes(lines[number], fence))
            blocks.append(_Block(at, end, (opening[2] or opening[4] or "").strip()))
            at = end
        at += 1
    return blocks


def _closes(line: str, fence: str) -> bool:
    closing = _CLOSING.fullmatch(line)
    return closing is not None and closing[1][0] == fence[0] and len(closing[1]) >= len(fence)


def _prose(body: Lines) -> str:
    return "\n".join(line.removesuffix("\r") for line in body).strip()


def _diff(body: Lines) -> str:
    chosen = [
        content
        for block in _blocks(body)
        for content in [body[block.start + 1 : block.end]]
        if block.info.lower().partition(" ")[0] in _DIFF_LABELS or _shows_a_diff(content)
    ]
    lines = [line for content in chosen for line in content] if chosen else _unfenced(body)
    # No header of a diff ends in a carriage return, so one there was put on every line on the way.
    if lines and next((line for line in lines if line.strip()), "").endswith("\r"):
        lines = [line.removesuffix("\r") for line in lines]
    return "".join(f"{line}\n" for line in lines)


def _shows_a_diff(lines: Lines) -> bool:
    return any(line.startswith(_DIFF_LINES) for line in lines)


def _unfenced(body: Lines) -> Lines:
    """The section without the blank lines around it and without a fence that was never closed."""
    opened = next((number for number, line in enumerate(body) if _OPENING.fullmatch(line)), None)
    if opened is not None and _shows_a_diff(body[opened:]):
        body = body[opened + 1 :]
    filled = [number for number, line in enumerate(body) if line not in ("", "\r")]
    if not filled:
        return []
    kept = body[filled[0] : filled[-1] + 1]
    spare = body[filled[-1] + 1 :]
    # Empty lines of context may stand for lines with one blank: as many as the last hunk lacks are its own.
    lacks = patch.lacking("".join(f"{line.removesuffix(chr(13))}\n" for line in kept))
    return kept + spare[:lacks]
