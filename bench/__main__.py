"""`python -m bench [name …] [--json]`: measure, and show it."""

import argparse
import json

from rich.console import Console
from rich.table import Table as Shown

from bench.jobs import jobs
from bench.measures import BENCHMARKS as MEASURES
from bench.measures import Cell, Options, Table
from quarterdeck.server.logs import configure

BENCHMARKS = {**MEASURES, "jobs": jobs}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="How much Quarterdeck costs.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--json", action="store_true", help="machine-readable, on stdout")
    parser.add_argument("--rounds", type=int, default=Options.rounds, help="how often each is measured")
    parser.add_argument("--concurrency", type=int, default=Options.concurrency, help="requests in flight")
    parser.add_argument("--postgres", action="store_true", help="measure writes on PostgreSQL, too")
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHMARKS.keys():
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    configure("error", "text")
    options, tables = Options(given.rounds, given.concurrency, given.postgres), list[Table]()
    for name in given.names or BENCHMARKS:
        with Console(stderr=True).status(f"measuring {name} …"):
            tables.append(BENCHMARKS[name](options))
        if not given.json:
            _show(tables[-1])
    if given.json:
        print(json.dumps({table.title: table.as_dicts() for table in tables}, indent=2))


def _show(table: Table) -> None:
    shown = Shown(title=table.title, caption=table.note, title_justify="left", caption_justify="left")
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*map(_worded, row))
    Console().print(shown)


def _worded(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if cell >= 100 else f"{cell:.2f}"
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell


if __name__ == "__main__":
    main()
