"""`python -m bench [name …] [--json]`: run benchmarks and show them."""

import argparse
import json

from rich.console import Console
from rich.table import Table as Shown

from bench.measures import BENCHMARKS, Cell, Options, Table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--json", action="store_true", help="machine-readable, on stdout")
    parser.add_argument("--rounds", type=int, default=Options.rounds, help="how often each is measured")
    parser.add_argument("--concurrency", type=int, default=Options.concurrency, help="requests in flight")
    parser.add_argument("--postgres", action="store_true", help="also measure writes on PostgreSQL")
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHMARKS.keys():
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    options = Options(given.rounds, given.concurrency, given.postgres)
    tables: list[Table] = []
    progress = Console(stderr=True)
    for name in given.names or BENCHMARKS:
        with progress.status(f"measuring {name} …"):
            found = list(BENCHMARKS[name](options))
        tables += found
        if not given.json:
            for table in found:
                _show(table)
    if given.json:
        print(json.dumps([table.as_json() for table in tables], indent=2))


def _show(table: Table) -> None:
    shown = Shown(title=table.title, caption=table.note, title_justify="left", caption_justify="left")
    for column in table.columns:
        shown.add_column(column, justify="right")
    for row in table.rows:
        shown.add_row(*map(_worded, row))
    Console().print(shown)


def _worded(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if cell >= 100 else f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


if __name__ == "__main__":
    main()
