"""`quarterdeck audit`: read the event log, and check that nobody changed it."""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from quarterdeck import paths
from quarterdeck.cli import show
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
    rows = [
        (
            event["event_id"],
            event["occurred_at"][:19],
            event["actor_id"],
            event["capability"],
            event["command_name"],
            event["task_id"] or event["entity_id"] or event["data"].get("target"),
            "" if event["success"] else event["data"].get("code", "failed"),
        )
        for event in found["events"]
    ]
    columns = ("seq", "when", "who", "tool", "what", "on", "refused")
    show.table(columns, rows, "no events", spare=("when", "who", "seq", "what"))
    if found["next_cursor"]:
        show.say(f"more with --cursor {found['next_cursor']}")


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
