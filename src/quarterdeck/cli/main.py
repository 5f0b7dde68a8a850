"""`quarterdeck` and `qd`: the commands, and how an error is shown."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer.exceptions import TyperException

from quarterdeck import __version__, config, paths
from quarterdeck.cli import (
    audit,
    connect,
    doctor,
    errors,
    jobs,
    plans,
    projects,
    reviews,
    sessions,
    tasks,
    tokens,
)
from quarterdeck.cli.agents import agents
from quarterdeck.cli.connect import claude_line
from quarterdeck.domain.errors import QuarterdeckError

app = typer.Typer(
    name="quarterdeck",
    help="A self-hosted control plane for AI coding agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for name, commands in {
    "task": tasks.app,
    "project": projects.app,
    "plan": plans.app,
    "job": jobs.app,
    "session": sessions.app,
    "review": reviews.app,
    "token": tokens.app,
    "audit": audit.app,
}.items():
    app.add_typer(commands, name=name)
for command in (agents, jobs.logs, jobs.wait, connect.connect, doctor.doctor):
    app.command()(command)

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where everything is kept.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A quarterdeck.toml elsewhere.", exists=True, dir_okay=False)
]


def run() -> None:
    """Run the command line; an error of ours is told with a next step, never as a traceback."""
    scripted = errors.wants_json(sys.argv[1:])
    try:
        sys.exit(app(standalone_mode=not scripted))
    except QuarterdeckError as error:
        (errors.tell_as_json if scripted else errors.tell)(error)
        sys.exit(1)
    except TyperException as error:
        errors.tell_as_json(error)
        sys.exit(error.exit_code)
    except OSError as error:
        # What is still to be written must not be complained about once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):  # whoever reads us has seen enough
            sys.exit(141)
        problem = QuarterdeckError(str(error))
        (errors.tell_as_json if scripted else errors.tell)(problem)
        sys.exit(1)


def _version(shown: bool) -> None:
    if shown:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def up(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 picks a free one.")] = 7411,
    data_dir: DataDir = None,
    database: Annotated[
        str | None, typer.Option(help="postgresql://… instead of the embedded default.")
    ] = None,
    config_file: ConfigFile = None,
) -> None:
    """Run the core: MCP, REST and everything behind them in one process."""
    from quarterdeck.server.logs import configure
    from quarterdeck.server.up import serve

    directory = paths.data_dir(data_dir)
    settings = config.load(config_file or directory / "quarterdeck.toml", database_url=database)
    configure(settings.log.level, settings.log.format)
    serve(settings, directory, host, port, lambda url, entry: _announce(url, entry, directory))


def _announce(url: str, entry: str, directory: Path) -> None:
    """Say where it is, with a link that signs in once, and a line for Claude Code."""
    console = Console(stderr=True)
    console.print(f"[bold]Quarterdeck {__version__}[/] is up at [bold]{url}[/]", highlight=False)
    link = f"{url}/signin?code={entry}"
    console.print(f"  board    {link}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"  data     {directory}", highlight=False, soft_wrap=True, markup=False)
    line = claude_line(url, paths.token_file(directory))
    console.print(f"  connect  {line}", highlight=False, soft_wrap=True, markup=False)


@app.command()
def worker(
    database: Annotated[str | None, typer.Option(help="The core's postgresql://… database.")] = None,
    mcp_url: Annotated[str | None, typer.Option(help="The core's address, for the agents here.")] = None,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
) -> None:
    """Run relay jobs of a core elsewhere: one more host for agents."""
    from quarterdeck.cli.worker import serve
    from quarterdeck.server.logs import configure

    directory = paths.data_dir(data_dir)
    settings = config.load(config_file or directory / "quarterdeck.toml", database_url=database)
    configure(settings.log.level, settings.log.format)
    serve(settings, directory, mcp_url)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def mcp() -> None:
    """Serve MCP over stdio: a thin bridge to the running core. See `quarterdeck mcp --help`."""
    from quarterdeck import bridge

    bridge.main(sys.argv[2:])


@app.command()
def demo(
    exit_: Annotated[bool, typer.Option("--exit", help="End when the story is told.")] = False,
) -> None:
    """Show the main job end to end on the embedded default: no key, no agent, nothing to configure."""
    from quarterdeck.cli.demo import tell

    tell(stay=not exit_)
