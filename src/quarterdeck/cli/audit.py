"""`quarterdeck audit`: read the event log, and check that nobody changed it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quarterdeck import paths
from quarterdeck.cli.client import Client

app = typer.Typer(help="Read the event log, and check that nobody changed it.", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where everything is kept.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def tail(
    limit: Annotated[int, typer.Option(help="How many events, 1 to 200.")] = 50,
    capability: Annotated[str | None, typer.Option(help="Only those of a tool.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only those of an actor.")] = None,
    task: Annotated[str | None, typer.Option(help="Only those of a task.")] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only what failed or was refused.")] = False,
    cursor: Annotated[str | None, typer.Option(help="Go on where an earlier answer ended.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what was done or refused, newest first."""
    wanted = {"limit": limit, "capability": capability, "actor": actor, "task_id": task, "cursor": cursor}
    given = {key: value for key, value in wanted.items() if value is not None}
    query = urlencode(given | ({"ok": "false"} if refused else {}))
    found: dict[str, Any] = Client(paths.data_dir(data_dir)).request("GET", f"/api/audit?{query}")
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("seq", "when", "who", "tool", "what", "on", "", box=None)
    for event in found["events"]:
        table.add_row(
            str(event["event_id"]),
            event["occurred_at"][:19],
            escape(event["actor_id"]),
            escape(event["capability"] or ""),
            event["command_name"],
            escape(event["task_id"] or event["entity_id"] or ""),
            "" if event["success"] else str(event["data"].get("code", "failed")),
        )
    # Cut to a terminal's width, but whole for a pipe or a file.
    Console(width=None if sys.stdout.isatty() else 400).print(table)


@app.command()
def verify(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Compute every hash of the log anew; exit code 1 names the first event that was changed."""
    found: dict[str, Any] = Client(paths.data_dir(data_dir)).request("GET", "/api/audit/verify", timeout=600)
    if as_json:
        typer.echo(json.dumps(found))
    elif found["ok"]:
        typer.echo(f"{found['checked']} events, unbroken; the last hash is {found['tip']}")
    else:
        typer.echo(f"event {found['broken']} was changed or removed; the {found['checked']} before it hold")
    if not found["ok"]:
        raise typer.Exit(1)
