"""Unified diffs as git writes them: what they change, and whether a job's spec allows it.

The parser reads as `git apply -p1` does. It is there to word the reasons; what git makes of the text is
compared with it before a patch is accepted, so a difference between the two is no way around a rule.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from quarterdeck.domain.jobspec import JobSpec

Kind = Literal["modified", "new", "deleted", "renamed", "copied"]

SYMLINK: Final = "120000"
SUBMODULE: Final = "160000"
_FILE_MODES: Final = {"100644", "100755"}

# A file counts as reformatted from so many lines on, when they are more than this share of its changed lines.
_REFORMATTED_LINES: Final = 3
_REFORMATTED_SHARE: Final = 0.5

_HUNK: Final = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_EXTENDED: Final = re.compile(
    r"(old mode|new mode|deleted file mode|new file mode|copy from|copy to|rename from|rename to|rename old"
    r"|rename new|similarity index|dissimilarity index|index) (.*)"
)
_MOVES: Final[tuple[tuple[str, Kind], ...]] = (("rename", "renamed"), ("copy", "copied"))
_OLDER_WORDS: Final = {"rename old": "rename from", "rename new": "rename to"}
# Two of the longest paths that a system takes; every blank of the line is tried as the place between them.
_LONGEST_NAMES: Final = 10_000
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPE: Final = re.compile(rb"\\([abtnvfr\"\\]|[0-3][0-7]{2})")
_ESCAPED: Final = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_BLANKS: Final = re.compile(r"\s+")


class BadPatch(ValueError):
    """The text is no patch that git would read."""


class CutShort(BadPatch):
    """The text ends within a hunk, which lacks so many lines of the old and of the new file."""

    def __init__(self, message: str, old: int, new: int) -> None:
        super().__init__(message)
        self.old = old
        self.new = new


@dataclass(frozen=True, slots=True)
class Hunk:
    """One run of lines, each with its sign; an empty line stands for an empty line of context."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a patch does to one file. `old_path` is None for a new file, `new_path` for a deleted one."""

    old_path: str | None
    new_path: str | None
    kind: Kind
    old_mode: str | None = None
    new_mode: str | None = None
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that it touches, each once."""
        return tuple(dict.fromkeys(path for path in (self.old_path, self.new_path) if path is not None))

    @property
    def symlink(self) -> bool:
        return SYMLINK in (self.old_mode, self.new_mode)

    @property
    def submodule(self) -> bool:
        return SUBMODULE in (self.old_mode, self.new_mode)


def parse(diff: str) -> list[FileChange]:
    """The changes of a patch, in its order. Raises BadPatch when there are none or one is malformed."""
    changes = list(_Reader(diff).changes())
    if not changes:
        raise BadPatch("the text holds no change of a file")
    return changes


def lacking(diff: str) -> int:
    """How many lines of context the last hunk lacks at the end of the text."""
    try:
        parse(diff)
    except CutShort as short:
        return short.old if short.old == short.new else 0
    except BadPatch:
        pass
    return 0


class _Reader:
    """Walks over the lines of a patch. Text between the changes is passed over, as git does."""

    def __init__(self, diff: str) -> None:
        # Not splitlines(): a form feed or a lone carriage return is content.
        self.lines = diff.split("\n")
        if self.lines[-1] == "":
            self.lines.pop()
        self.at = 0

    def changes(self) -> Iterator[FileChange]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git "):
                yield self._git_change()
            elif line.startswith("--- ") and self._peek(1).startswith("+++ ") and _HUNK.match(self._peek(2)):
                yield self._plain_change()
            elif _HUNK.match(line):
                raise BadPatch(f"line {self.at + 1}: a hunk without the header of its file")
            else:
                self.at += 1

    def _peek(self, ahead: int = 0) -> str:
        return self.lines[self.at + ahead] if self.at + ahead < len(self.lines) else ""

    def _git_change(self) -> FileChange:
        header = self.at + 1
        name = _common_name(self._peek().removeprefix("diff --git "))
        self.at += 1
        extended: dict[str, str] = {}
        while found := _EXTENDED.fullmatch(self._peek()):
            extended[_OLDER_WORDS.get(found[1], found[1])] = found[2]
            self.at += 1
        old_name = new_name = name
        if self._peek().startswith("--- ") and self._peek(1).startswith("+++ "):
            old_name, new_name = self._names()
        binary = self._skip_binary()
        hunks = tuple(self._hunks())
        binary = binary or _has_nul(hunks)
        kind: Kind = "modified"
        if "new file mode" in extended:
            kind, old_name, new_name = "new", None, new_name or name
        elif "deleted file mode" in extended:
            kind, old_name, new_name = "deleted", old_name or name, None
        for verb, moved in _MOVES:
            if f"{verb} from" in extended and f"{verb} to" in extended:
                kind = moved
                old_name, new_name = _unquoted(extended[f"{verb} from"]), _unquoted(extended[f"{verb} to"])
        if not (old_name or new_name):
            raise BadPatch(f"line {header}: the header does not name its file")
        if kind == "modified" and not (old_name and new_name):
            # Without it git takes /dev/null for a file of that name.
            line = "deleted file mode" if old_name else "new file mode"
            raise BadPatch(f"line {header}: the header lacks its '{line}' line")
        if not (hunks or binary or extended.keys() - {"index", "similarity index", "dissimilarity index"}):
            raise BadPatch(f"line {header}: a header without a change")
        old_mode, new_mode = _modes(extended)
        return FileChange(old_name, new_name, kind, old_mode, new_mode, binary, hunks)

    def _plain_change(self) -> FileChange:
        header = self.at + 1
        old_name, new_name = self._names()
        hunks = tuple(self._hunks())
        if old_name is None and new_name is None:
            raise BadPatch(f"line {header}: the header does not name its file")
        kind: Kind = "new" if old_name is None else "deleted" if new_name is None else "modified"
        return FileChange(old_name, new_name, kind, binary=_has_nul(hunks), hunks=hunks)

    def _names(self) -> tuple[str | None, str | None]:
        old, new = (_stripped(self._peek(ahead)[4:], self.at + ahead + 1) for ahead in (0, 1))
        self.at += 2
        return old, new

    def _skip_binary(self) -> bool:
        line = self._peek()
        if line.startswith("Binary files ") and line.endswith(" differ"):
            self.at += 1
            return True
        if line != "GIT binary patch":
            return False
        # Its lines hold no blank at their start, so the next header ends it.
        while self.at < len(self.lines) and not self._peek().startswith("diff --git "):
            self.at += 1
        return True

    def _hunks(self) -> Iterator[Hunk]:
        while found := _HUNK.match(self._peek()):
            header = self.at + 1
            old_start, old, new_start, new = (1 if text is None else int(text) for text in found.groups())
            first = self.at + 1
            self.at = first
            self._skip_lines(header, old, new)
            yield Hunk(old_start, old, new_start, new, tuple(self.lines[first : self.at]))

    def _skip_lines(self, header: int, old: int, new: int) -> None:
        while old or new:
            if self.at == len(self.lines):
                raise CutShort(f"the hunk at line {header} ends before its last line", old, new)
            sign = self._peek()[:1]
            old -= sign in ("", " ", "-")
            new -= sign in ("", " ", "+")
            if sign not in ("", " ", "-", "+", "\\") or old < 0 or new < 0:
                raise BadPatch(f"line {self.at + 1} does not fit into the hunk at line {header}")
            self.at += 1
        if self._peek().startswith("\\ "):
            self.at += 1


def _has_nul(hunks: Iterable[Hunk]) -> bool:
    """Whether git would call this content binary."""
    return any("\x00" in line for hunk in hunks for line in hunk.lines)


def _modes(extended: dict[str, str]) -> tuple[str | None, str | None]:
    """The modes before and after; those of an `index` line hold for both."""
    both = extended.get("index", "").partition(" ")[2].strip() or None
    old = extended.get("old mode") or extended.get("deleted file mode")
    new = extended.get("new mode") or extended.get("new file mode")
    if "new file mode" in extended or "deleted file mode" in extended:
        return (old and old.strip(), new and new.strip())
    return (old.strip() if old else both, new.strip() if new else both)


def _common_name(names: str) -> str | None:
    """The path that both names of a `diff --git` line lead to; None when they differ, as in a rename."""
    pairs: Iterable[tuple[str, str]] = ()
    if len(names) > _LONGEST_NAMES:
        return None
    if names.startswith('"'):
        end = _QUOTED.match(names)
        pairs = [(end[0], names[end.end() :].strip())] if end else []
    elif names.endswith('"') and ' "' in names:
        at = names.index(' "')
        pairs = [(names[:at], names[at + 1 :])]
    else:
        pairs = ((names[: found.start()], names[found.end() :]) for found in re.finditer(" ", names))
    for old, new in pairs:
        path = _unquoted(old).partition("/")[2]
        if path and path == _unquoted(new).partition("/")[2]:
            return path
    return None


def _stripped(name: str, line: int) -> str | None:
    """The path of a `---` or `+++` line without its first folder; None for /dev/null."""
    if name.startswith('"'):
        end = _QUOTED.match(name)
        name = _unquoted(end[0]) if end else name
    else:
        name = name.partition("\t")[0]
    if name == "/dev/null":
        return None
    folder, slash, path = name.partition("/")
    if not slash or not path:
        raise BadPatch(f"line {line}: the path {folder!r} lacks its a/ or b/ prefix")
    return path


def _unquoted(name: str) -> str:
    """A path as it is, from the form in which git writes one with special characters."""
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):
        return name
    raw = name[1:-1].encode("utf-8", "surrogateescape")

    def plain(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([_ESCAPED[code[0]] if len(code) == 1 else int(code, 8)])

    return _ESCAPE.sub(plain, raw).decode("utf-8", "surrogateescape")


def check_policy(changes: Iterable[FileChange], spec: JobSpec) -> list[str]:
    """Why the spec does not allow these changes: a sentence for each reason, none when it does.

    A change of the executable bit is allowed.
    """
    reasons: list[str] = []
    for change in changes:
        name = change.new_path or change.old_path or ""
        for path in change.paths:
            if (problem := unsafe_path(path)) is not None:
                reasons.append(f"{path} {problem}")
            elif not spec.scope.contains(path):
                reasons.append(f"{path} is outside the scope")
        if change.symlink:
            reasons.append(f"{name} is a symbolic link")
        elif change.submodule:
            reasons.append(f"{name} is a submodule")
        elif unknown := {change.old_mode, change.new_mode} - _FILE_MODES - {None}:
            reasons.append(f"{name} has the mode {' and '.join(sorted(filter(None, unknown)))}")
        if change.binary:
            reasons.append(f"{name} is binary")
        if spec.scope.disallow_reformatting and reformatted(change):
            reasons.append(f"{name} is reformatted: most of its changed lines differ only in white space")
    return list(dict.fromkeys(reasons))


def unsafe_path(path: str) -> str | None:
    """Why no patch may touch this path, whatever the scope; None when one may."""
    parts = path.split("/")
    if path.startswith("/") or re.match(r"[A-Za-z]:[\\/]", path):
        return "is an absolute path"
    if ".." in parts:
        return "leads out of the tree"
    if "" in parts or "." in parts or "\x00" in path:
        return "is not a plain path"
    # As git itself, also where a file system ignores case, trailing dots or blanks, or has short names.
    if any(part.rstrip(". ").lower() in (".git", "git~1") for part in parts):
        return "belongs to git itself"
    if path.lower() == ".gitmodules":
        return "declares submodules"
    return None


def reformatted(change: FileChange) -> bool:
    """Whether a file was reformatted: at least 3 lines, and more than half of those that changed, differ only
    in white space. Lines that a real change beside them shifts by one common indent do not count.
    """
    if change.kind not in ("modified", "renamed"):
        return False
    changed = formatting = 0
    for hunk in change.hunks:
        for removed, added in _blocks(hunk):
            changed += max(len(removed), len(added))
            formatting += _formatting(removed, added)
    return formatting >= _REFORMATTED_LINES and formatting > changed * _REFORMATTED_SHARE


def _blocks(hunk: Hunk) -> Iterator[tuple[list[str], list[str]]]:
    """The runs of removed and added lines between lines of context, without their signs."""
    removed: list[str] = []
    added: list[str] = []
    for line in (*hunk.lines, " "):
        match line[:1]:
            case "-":
                removed.append(line[1:])
            case "+":
                added.append(line[1:])
            case "\\":
                pass
            case _:
                if removed or added:
                    yield removed, added
                removed, added = [], []


def _formatting(removed: Sequence[str], added: Sequence[str]) -> int:
    """How many lines of a block differ only in white space."""
    if _squeezed("".join(removed)) == _squeezed("".join(added)):
        return max(len(removed), len(added))
    waiting: dict[str, list[str]] = {}
    for line in reversed(added):
        waiting.setdefault(_squeezed(line), []).append(line)
    shifts: Counter[tuple[bool, int]] = Counter()
    for old in removed:
        same = waiting.get(_squeezed(old))
        if same and (new := same.pop()) != old:
            shifts[old.strip() == new.strip(), _indent(new) - _indent(old)] += 1
    indented = len(shifts) == 1 and all(inner_same and shift for inner_same, shift in shifts)
    return 0 if indented else shifts.total()


def _squeezed(text: str) -> str:
    return _BLANKS.sub("", text)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
