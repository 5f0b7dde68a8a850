"""`quarterdeck plan`: plans in phases, and templates to begin with."""

from typing import Annotated

import typer

from quarterdeck.cli import show
from quarterdeck.cli.complete import plan_slugs
from quarterdeck.cli.desk import AsJson, DataDir, Desk, as_json
from quarterdeck.domain.errors import Invalid

app = typer.Typer(help="List, show and begin plans.", no_args_is_help=True)

Slug = Annotated[str, typer.Argument(help="The plan's slug.", autocompletion=plan_slugs)]


@app.command("list")
def listing(
    status: Annotated[str | None, typer.Option(help="draft, active, completed, archived …")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Show plans, newest first."""
    found = Desk(data_dir).call("plans", "plan_list", status=status)
    if json_:
        as_json(found)
        return
    rows = [
        (plan["slug"], plan["status"], _progress(plan.get("progress")), plan["title"])
        for plan in found["plans"]
    ]
    show.table(("slug", "status", "done", "title"), rows, "no plans; begin with: quarterdeck plan templates")


def _progress(progress: object) -> str:
    if isinstance(progress, dict):
        return f"{progress.get('completed', 0)}/{progress.get('total', 0)}"
    return "" if progress is None else str(progress)


@app.command("show")
def one(slug: Slug, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Show a plan with its phases and tasks."""
    desk = Desk(data_dir)
    if json_:
        as_json(desk.call("plans", "plan_get", slug=slug))
        return
    shown = desk.call("plans", "plan_get", slug=slug, format="markdown")
    typer.echo(shown.get("markdown") or shown.get("content") or shown)


@app.command()
def templates(data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Show the templates a plan can begin with."""
    found = Desk(data_dir).call("plans", "template_list")
    if json_:
        as_json(found)
        return
    rows = [
        (each["slug"], each["name"], ", ".join(_names(each.get("variables")))) for each in found["templates"]
    ]
    show.table(("slug", "name", "variables"), rows, "no templates")


def _names(variables: object) -> list[str]:
    if isinstance(variables, dict):
        return [str(name) for name in variables]
    if isinstance(variables, list):
        return [str(each["name"]) if isinstance(each, dict) else str(each) for each in variables]
    return []


@app.command()
def new(
    template: Annotated[str, typer.Argument(help="The template's slug.")],
    var: Annotated[
        list[str] | None, typer.Option("--var", help="NAME=VALUE; may be given several times.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Another title.")] = None,
    activate: Annotated[bool, typer.Option("--activate", help="Begin at once.")] = False,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Begin a plan from a template and print its slug."""
    variables = dict(_pair(each) for each in var or [])
    made = Desk(data_dir).call(
        "plans",
        "template_create_plan",
        template_slug=template,
        variables=variables,
        title=title,
        activate=activate or None,
    )
    if json_:
        as_json(made)
    else:
        typer.echo(made["plan"]["slug"] if "plan" in made else made["slug"])


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Invalid(f"--var {text} is not NAME=VALUE", field="var")
    return name, value


@app.command()
def proposals(data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Show the plans that were proposed."""
    found = Desk(data_dir).call("board", "proposals_list")
    if json_:
        as_json(found)
        return
    rows = [
        (
            each["proposal_id"],
            each["status"],
            show.ago(each["created_at"]),
            [task["title"] for task in each["tasks"]],
        )
        for each in found["proposals"]
    ]
    show.table(("id", "status", "proposed", "tasks"), rows, "no proposals", spare=("proposed",))


@app.command()
def accept(
    proposal_id: Annotated[str, typer.Argument(help="The proposal's id.")],
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Turn a proposal into a plan with tasks on the board."""
    made = Desk(data_dir).call("board", "proposal_accept", proposal_id=proposal_id)
    if json_:
        as_json(made)
    else:
        typer.echo(made["message"])
