"""`quarterdeck review`: look at what an agent did, and decide."""

import sys
from typing import Annotated

import typer
from rich.syntax import Syntax

from quarterdeck.cli import show
from quarterdeck.cli.complete import task_ids
from quarterdeck.cli.desk import AsJson, DataDir, Desk, Row, as_json, part

app = typer.Typer(help="See the diff; approve, reject, rebase or merge.", no_args_is_help=True)

TaskId = Annotated[str, typer.Argument(help="The task's id.", autocompletion=task_ids)]


@app.command()
def diff(
    task_id: TaskId,
    stat: Annotated[
        bool, typer.Option("--stat", help="Only the files and how much of them changed.")
    ] = False,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Show what a task's branch changes."""
    found = Desk(data_dir).get(f"/api/tasks/{part(task_id)}/diff")
    if json_:
        as_json(found)
        return
    for repo in found["repos"]:
        if stat or not repo["patch"]:
            rows = [(file["insertions"], file["deletions"], file["path"]) for file in repo["files"]]
            show.table(("+", "-", repo["name"]), rows, f"{repo['name']}: nothing changed")
        elif sys.stdout.isatty():
            show.console().print(Syntax(repo["patch"], "diff", theme="ansi_dark", background_color="default"))
        else:
            typer.echo(repo["patch"], nl=False)
        if repo.get("truncated"):
            show.say(f"{repo['name']}: the patch is longer; see it with git")


@app.command()
def request(
    task_id: TaskId,
    summary: Annotated[str, typer.Option(help="What was done.")] = "",
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Ask for a review."""
    answer = Desk(data_dir).call("board", "request_review", task_id=task_id, summary=summary)
    _told(answer, json_)


def _review(data_dir: DataDir, json_: bool, task_id: str, action: str, **more: str | None) -> None:
    _told(_decided(Desk(data_dir), task_id, action, **more), json_)


def _decided(desk: Desk, task_id: str, action: str, **more: str | None) -> Row:
    if action in ("merge", "rebase"):  # a gate takes as long as it takes
        answer: Row = desk.call_long(f"{action} …", "board", "review", task_id=task_id, action=action, **more)
    else:
        answer = desk.call("board", "review", task_id=task_id, action=action, **more)
    return answer


@app.command()
def approve(
    task_id: TaskId,
    feedback: Annotated[str | None, typer.Option(help="A word with it.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Approve the work; it stays in REVIEW until it is merged."""
    _review(data_dir, json_, task_id, "approve", feedback=feedback)


@app.command()
def reject(
    task_id: TaskId,
    feedback: Annotated[str, typer.Option(help="What is to be done differently; the next run gets it.")] = "",
    to: Annotated[str | None, typer.Option(help="reopen or backlog.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Send the work back."""
    _review(data_dir, json_, task_id, "reject", feedback=feedback, rejection_action=to)


@app.command()
def rebase(task_id: TaskId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Put the task's branch on the newest state of its target."""
    _review(data_dir, json_, task_id, "rebase")


@app.command()
def merge(
    task_id: TaskId,
    strategy: Annotated[str | None, typer.Option(help="squash, merge or rebase.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Merge the work into its target branch; worktree and branch are gone afterwards."""
    _review(data_dir, json_, task_id, "merge", strategy=strategy)


def _told(answer: Row, json_: bool) -> None:
    if json_:
        as_json(answer)
    else:
        typer.echo(answer["message"])
