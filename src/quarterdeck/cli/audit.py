"""`quarterdeck audit`: read the event log, and check that nobody changed it."""

from typing import Annotated

import typer

from quarterdeck.cli import show
from quarterdeck.cli.desk import AsJson, DataDir, Desk, Row, as_json

app = typer.Typer(help="Read the event log, and check that nobody changed it.", no_args_is_help=True)


@app.command()
def tail(
    limit: Annotated[int, typer.Option(help="How many events, 1 to 200.")] = 50,
    capability: Annotated[str | None, typer.Option(help="Only those of a tool.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only those of an actor.")] = None,
    task: Annotated[str | None, typer.Option(help="Only those of a task.")] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only what failed or was refused.")] = False,
    cursor: Annotated[str | None, typer.Option(help="Go on where an earlier answer ended.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Show what was done or refused, newest first."""
    found: Row = Desk(data_dir).get(
        "/api/audit",
        limit=limit,
        capability=capability,
        actor=actor,
        task_id=task,
        cursor=cursor,
        ok="false" if refused else None,
    )
    if json_:
        as_json(found)
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
def verify(data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Compute every hash of the log anew; exit code 1 names the first event that was changed."""
    found: Row = Desk(data_dir).request("GET", "/api/audit/verify", timeout=600)
    if json_:
        as_json(found)
    elif found["ok"]:
        typer.echo(f"{found['checked']} events, unbroken; the last hash is {found['tip']}")
    else:
        typer.echo(f"event {found['broken']} was changed or removed; the {found['checked']} before it hold")
    if not found["ok"]:
        raise typer.Exit(1)
