"""`quarterdeck doctor`: compares what the core knows with git and the disk, and mends it."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from quarterdeck import paths
from quarterdeck.cli.client import Client
from quarterdeck.cli.tokens import AsJson, DataDir

_SECONDS = 600.0


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Mend what drifted.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare tasks, jobs, worktrees, branches and merges with git and the disk; exit code 1 on drift."""
    client = Client(paths.data_dir(data_dir))
    report: dict[str, Any] = client.request("POST" if fix else "GET", "/api/doctor", timeout=_SECONDS)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _show(report)
    if not report["ok"]:
        raise typer.Exit(1)


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for drift in report.get("mended", []):
        console.print(f"[green]mended[/] {drift['kind']}: {escape(drift['what'])}; {escape(drift['fix'])}")
    for drift in report["drift"]:
        when = "the core does so by itself" if drift["automatic"] else "quarterdeck doctor --fix"
        console.print(f"[yellow]drift[/] {drift['kind']}: {escape(drift['what'])}")
        console.print(f"  [dim]fix:[/] {escape(drift['fix'])} ({when})")
    if report["ok"]:
        console.print("everything is as it should be")
