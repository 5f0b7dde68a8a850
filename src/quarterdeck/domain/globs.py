"""Glob patterns over the paths of a tree, as they are written in .gitignore files and by JavaScript tools.

`*`, `?` and `[…]` stay within one folder, `**` spans any number of them, `{a,b}` are alternatives. A pattern
without a slash is matched against the file's name in every folder, one with a slash from the root, and one
that ends in a slash takes all below that folder.
"""

import re
from fnmatch import translate
from functools import lru_cache
from typing import Final

# One part of a pattern for each part of a path; None is `**`.
Parts = tuple[re.Pattern[str] | None, ...]

_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_NOTHING: Final = re.compile(r"(?!)")
_MOST_ALTERNATIVES: Final = 64


def matches(pattern: str, path: str) -> bool:
    """Whether the pattern takes this path, which is relative to the root and separated by slashes."""
    names = path.split("/")
    return any(_matches(parts, names) for parts in compiled(pattern))


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> tuple[Parts, ...]:
    """The alternatives of a pattern. Raises ValueError when its braces make too many of them."""
    return tuple(_parts(single) for single in _expanded(pattern))


def _expanded(pattern: str) -> list[str]:
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(done) + len(waiting) > _MOST_ALTERNATIVES:
            raise ValueError(f"has more than {_MOST_ALTERNATIVES} alternatives")
        text = waiting.pop()
        found = _BRACES.search(text)
        if found is None:
            done.append(text)
            continue
        before, after = text[: found.start()], text[found.end() :]
        waiting += [before + choice + after for choice in dict.fromkeys(found[1].split(","))]
    return done


def _parts(pattern: str) -> Parts:
    folder, names = pattern.endswith("/"), [name for name in pattern.split("/") if name not in ("", ".")]
    if "/" not in pattern:
        names.insert(0, "**")
    if folder:
        names.append("**")
    return tuple(None if name == "**" else re.compile(translate(name)) for name in names)


def _matches(parts: Parts, names: list[str]) -> bool:
    """Going back to the last `**` alone is enough, so no pattern takes more than parts times names steps."""
    part = name = mark = 0
    spanning = -1
    while name < len(names):
        wanted = parts[part] if part < len(parts) else _NOTHING
        if wanted is None:
            spanning, mark = part, name
            part += 1
        elif wanted.match(names[name]):
            part += 1
            name += 1
        elif spanning >= 0:
            mark += 1
            part, name = spanning + 1, mark
        else:
            return False
    return all(rest is None for rest in parts[part:])
