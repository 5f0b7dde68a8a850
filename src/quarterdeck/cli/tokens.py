"""`quarterdeck token`: mint, list and revoke bearer tokens."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from quarterdeck.cli import show
from quarterdeck.cli.desk import AsJson, DataDir, Desk, Row, as_json, part

app = typer.Typer(help="Mint, list and revoke bearer tokens.", no_args_is_help=True)

_PATH = "/profile/mcp/tokens"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the token is for.")],
    profile: Annotated[
        str | None,
        typer.Option(
            help="viewer, planner, pair_worker, operator or maintainer.",
            show_default="operator; pair_worker when it is bound",
        ),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Bind it to a project id.")] = None,
    task: Annotated[str | None, typer.Option(help="Bind it to a task id.")] = None,
    expires_in: Annotated[int | None, typer.Option(help="Seconds until it expires.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Mint a token; it is shown this once."""
    wanted = {
        "name": name,
        "profile": profile or ("pair_worker" if project or task else "operator"),
        "project_id": project,
        "task_id": task,
        "expires_in_s": expires_in,
    }
    minted = Desk(data_dir).request("POST", _PATH, {k: v for k, v in wanted.items() if v is not None})
    if json_:
        as_json(minted)
        return
    typer.echo(minted["token"])
    Console(stderr=True).print(
        f"{minted['name']} ({minted['profile']}, id {minted['id']}): kept nowhere else, store it now",
        style="dim",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@app.command("list")
def listing(data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Show your tokens, newest first; their secrets are not kept."""
    found: list[Row] = Desk(data_dir).get(_PATH)["tokens"]
    if json_:
        as_json(found)
        return
    rows = []
    for token in found:
        bound = token["task_id"] or token["project_id"] or ""
        state = "revoked" if token["revoked_at"] else "expired" if _is_past(token["expires_at"]) else "active"
        times = [(token[key] or "never")[:19] for key in ("created_at", "last_used_at")]
        rows.append((token["id"], token["name"], token["profile"], bound, *times, state))
    columns = ("id", "name", "profile", "bound to", "created", "last used", "state")
    show.table(columns, rows, "no tokens", spare=("created", "last used", "bound to"))


def _is_past(when: str | None) -> bool:
    return when is not None and datetime.fromisoformat(when) <= datetime.now(UTC)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="The id that `token list` shows.")],
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """End a token at once."""
    answer = Desk(data_dir).request("DELETE", f"{_PATH}/{part(token_id)}")
    if json_:
        as_json(answer)
    else:
        typer.echo(f"revoked {token_id}")
