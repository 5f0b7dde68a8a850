"""`quarterdeck doctor`: compares what the core knows with git and the disk, and mends it."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quarterdeck.cli.desk import AsJson, DataDir, Desk, Row, as_json

_SECONDS = 600.0


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Mend what drifted.")] = False,
    json_: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare tasks, jobs, worktrees, branches and merges with git and the disk; exit code 1 on drift."""
    report: Row = Desk(data_dir).request("POST" if fix else "GET", "/api/doctor", timeout=_SECONDS)
    if json_:
        as_json(report)
    else:
        _show(report)
    if not report["ok"]:
        raise typer.Exit(1)


def _show(report: Row) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for drift in report.get("mended", []):
        console.print(f"[green]mended[/] {drift['kind']}: {escape(drift['what'])}; {escape(drift['fix'])}")
    for drift in report["drift"]:
        when = "the core does so by itself" if drift["automatic"] else "quarterdeck doctor --fix"
        console.print(f"[yellow]drift[/] {drift['kind']}: {escape(drift['what'])}")
        console.print(f"  [dim]fix:[/] {escape(drift['fix'])} ({when})")
    for warning in report["warnings"]:
        console.print(f"[yellow]warning[/] {escape(warning)}")
    if report["ok"] and not report["warnings"]:
        console.print("everything is as it should be")
