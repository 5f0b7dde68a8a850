"""`quarterdeck project`: repositories that are worked on together."""

from pathlib import Path
from typing import Annotated

import typer

from quarterdeck.cli import show
from quarterdeck.cli.complete import project_ids
from quarterdeck.cli.desk import AsJson, DataDir, Desk, as_json

app = typer.Typer(help="Create, list and open projects.", no_args_is_help=True)

ProjectId = Annotated[str, typer.Argument(help="The project's id.", autocompletion=project_ids)]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    repo: Annotated[
        list[Path] | None, typer.Option("--repo", help="A git repository; may be given several times.")
    ] = None,
    description: Annotated[str | None, typer.Option(help="What it is about.")] = None,
    acceptance_command: Annotated[
        str | None, typer.Option(help="Run after an agent's work; its exit code decides.")
    ] = None,
    gate_command: Annotated[str | None, typer.Option(help="Run on a merge's result before it lands.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Create a project, open it and print its id."""
    desk = Desk(data_dir)
    made = desk.call(
        "board",
        "projects_create",
        name=name,
        description=description,
        repo_paths=_paths(repo),
        acceptance_command=acceptance_command,
        gate_command=gate_command,
    )
    desk.call("board", "projects_open", project_id=made["project_id"])
    if json_:
        as_json(made)
    else:
        typer.echo(made["project_id"])


@app.command()
def update(
    project_id: ProjectId,
    name: Annotated[str | None, typer.Option(help="What it is called.")] = None,
    repo: Annotated[list[Path] | None, typer.Option("--repo", help="Another git repository.")] = None,
    description: Annotated[str | None, typer.Option(help="What it is about.")] = None,
    acceptance_command: Annotated[str | None, typer.Option(help="Another one, or '' for none.")] = None,
    gate_command: Annotated[str | None, typer.Option(help="Another one, or '' for none.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Change a project, or add repositories to it."""
    changed = Desk(data_dir).call(
        "board",
        "projects_update",
        project_id=project_id,
        name=name,
        description=description,
        repo_paths=_paths(repo) or None,
        acceptance_command=acceptance_command,
        gate_command=gate_command,
    )
    if json_:
        as_json(changed)
    else:
        typer.echo(changed["message"])


def _paths(repos: list[Path] | None) -> list[str]:
    return [str(path.expanduser().absolute()) for path in repos or []]


@app.command("list")
def listing(
    limit: Annotated[int, typer.Option(help="How many at most.")] = 50,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Show your projects."""
    found = Desk(data_dir).call("board", "projects_list", limit=limit)
    if json_:
        as_json(found)
        return
    rows = [
        (
            each["project_id"],
            each["name"],
            "open" if each["active"] else "",
            each.get("description") or "",
        )
        for each in found["projects"]
    ]
    show.table(
        ("id", "name", "state", "description"),
        rows,
        "no projects; make one with: quarterdeck project create NAME --repo .",
    )


@app.command("open")
def open_(project_id: ProjectId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Make it the project of the tasks you create."""
    made = Desk(data_dir).call("board", "projects_open", project_id=project_id)
    if json_:
        as_json(made)
    else:
        typer.echo(f"opened {made['name']}")


@app.command()
def repos(project_id: ProjectId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Show the repositories of a project."""
    found = Desk(data_dir).call("board", "repos_list", project_id=project_id)
    if json_:
        as_json(found)
        return
    rows = [(each["repo_id"], each["name"], each["path"]) for each in found["repos"]]
    show.table(("id", "name", "path"), rows, "the project has no repositories")
