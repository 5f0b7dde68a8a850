"""How answers look on a terminal: tables, fields, times and states."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 20_000  # more than any row needs
_READABLE = 20  # what a column of words needs
_WHOLE = ("id", "on", "slug")  # columns that are typed again, and so never cut
_COLOURS = {
    "BACKLOG": "dim",
    "IN_PROGRESS": "cyan",
    "REVIEW": "yellow",
    "DONE": "green",
    "QUEUED": "dim",
    "RUNNING": "cyan",
    "STALE": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELED": "magenta",
    "EXPIRED": "red",
}


def console() -> Console:
    """As wide as the terminal; a pipe or a file gets whole rows."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str, *, spare: Sequence[str] = ()
) -> None:
    """Rows below their headings; without any, a line that says so on standard error.

    Where a terminal is too narrow, the columns of `spare` are left out, one after another. One that has no
    room for a whole id and some words beside it gets a cell a line.
    """
    cells = [[cell if isinstance(cell, Text) else Text(_line(cell)) for cell in row] for row in rows]
    if not cells:
        Console(stderr=True, highlight=False).print(empty, style="dim", markup=False)
        return
    out = console()
    whole = [place for place, name in enumerate(columns) if name in _WHOLE]
    longest = max(sum(cell_len(row[place].plain) for place in whole) for row in cells)
    if whole and longest + _READABLE // 2 > out.width:
        for row in cells:
            out.print(*filter(None, row), "", sep="\n", soft_wrap=True)
        return
    made = Table(box=None, header_style="bold", pad_edge=False)
    kept = _fitting(columns, cells, out.width, spare)
    for name in kept:
        made.add_column(name, no_wrap=name in _WHOLE)
    for row in cells:
        made.add_row(*(cell for name, cell in zip(columns, row, strict=True) if name in kept))
    _put(out, made)


def _put(out: Console, made: Table) -> None:
    """Print it; without the blanks at the ends of lines where nobody looks."""
    if out.is_terminal:
        out.print(made)
        return
    with out.capture() as caught:
        out.print(made)
    typer.echo("\n".join(line.rstrip() for line in caught.get().splitlines()))


def _fitting(
    columns: Sequence[str], cells: Sequence[Sequence[Text]], width: int, spare: Sequence[str]
) -> list[str]:
    """The columns that are shown at a width."""
    widest = {
        name: max(cell_len(text) for text in (name, *(row[place].plain for row in cells)))
        for place, name in enumerate(columns)
    }
    needed = {name: size if name in _WHOLE else min(size, _READABLE) for name, size in widest.items()}
    for name in spare:
        if sum(needed.values()) + 2 * len(needed) - 2 <= width:
            break
        del needed[name]
    return list(needed)


def fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """One row a field; what is empty is left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in pairs:
        if value not in (None, "", [], {}):
            grid.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
    _put(console(), grid)


def say(text: str) -> None:
    """A line for people, beside what a script reads."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)


def state(name: str | None) -> Text:
    return Text(name or "", style=_COLOURS.get(name or "", ""))


def ago(moment: str | int | None) -> str:
    """How long ago a time is, ISO 8601 or milliseconds."""
    if moment is None:
        return ""
    then = (
        datetime.fromtimestamp(moment / 1000, UTC)
        if isinstance(moment, int)
        else datetime.fromisoformat(moment)
    )
    return span((datetime.now(UTC) - then).total_seconds()) + " ago"


def span(seconds: float) -> str:
    seconds = max(seconds, 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def money(amount: float | None) -> str:
    return "" if amount is None else f"${amount:.2f}" if amount >= 0.01 or amount == 0 else f"${amount:.4f}"


def _line(value: Any) -> str:
    return " ".join(plain(value).split())


def plain(value: Any) -> str:
    """Text without what would move a terminal's cursor."""
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return "".join(c for c in str("" if value is None else value) if c in "\n\t" or c.isprintable())
