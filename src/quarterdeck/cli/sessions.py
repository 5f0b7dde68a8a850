"""`quarterdeck session`: sit down with an agent in a task's worktree."""

import os
import shlex
import sys
from typing import Annotated

import typer

from quarterdeck.cli import show
from quarterdeck.cli.complete import task_ids
from quarterdeck.cli.desk import AsJson, DataDir, Desk, as_json
from quarterdeck.domain.errors import Invalid

app = typer.Typer(help="Create, attach to and end PAIR sessions.", no_args_is_help=True)

TaskId = Annotated[str, typer.Argument(help="The task's id.", autocompletion=task_ids)]


@app.command()
def create(task_id: TaskId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Start a session, or find the one that runs, and say how to attach."""
    made = Desk(data_dir).call("board", "sessions_create", task_id=task_id)
    if json_:
        as_json(made)
        return
    show.say(f"{made['session_name']} in {made['worktree_path']}")
    typer.echo(made["primary_command"])


@app.command()
def attach(task_id: TaskId, data_dir: DataDir = None) -> None:
    """Start or find the session and attach this terminal to it."""
    if not sys.stdout.isatty():
        raise Invalid("attach needs a terminal", hint="use: quarterdeck session create")
    words = shlex.split(Desk(data_dir).call("board", "sessions_create", task_id=task_id)["primary_command"])
    os.environ.pop("TMUX", None)  # ours is another server: from within a tmux it may be attached to as well
    os.execvp(words[0], words)  # noqa: S606


@app.command()
def status(task_id: TaskId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Say whether a task has a session, and how one that died has ended."""
    found = Desk(data_dir).call("board", "sessions_exists", task_id=task_id)
    if json_:
        as_json(found)
    elif found["exists"]:
        typer.echo(f"{found['session_name']} runs")
    elif found["session_name"] is None:
        typer.echo("no session")
    else:
        code = found["exit_code"]
        typer.echo(f"{found['session_name']} has died{'' if code is None else f' with exit code {code}'}")
        if found["last_output"]:
            show.say(found["last_output"])


@app.command()
def kill(task_id: TaskId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """End a session; the worktree stays."""
    made = Desk(data_dir).call("board", "sessions_kill", task_id=task_id)
    if json_:
        as_json(made)
    else:
        typer.echo(made["message"])


@app.command("list")
def listing(
    plan: Annotated[str | None, typer.Option(help="A plan's slug.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Show work sessions, newest first."""
    found = Desk(data_dir).call("plans", "session_list", plan_slug=plan)
    if json_:
        as_json(found)
        return
    rows = [
        (each["session_id"], each["agent_type"], show.state(each["status"]), each["plan"] or "")
        for each in found["sessions"]
    ]
    show.table(("id", "agent", "status", "plan"), rows, "no work sessions")
