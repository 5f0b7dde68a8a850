"""How an error is shown: a line with a next step for people, one JSON object for scripts."""

import json
import re
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.markup import escape
from typer.exceptions import TyperException

from quarterdeck.cli import show
from quarterdeck.cli.mcp_client import Refusal
from quarterdeck.domain.errors import QuarterdeckError

USAGE = "usage_error"
# What a hint of the core calls by the name of a tool, as it is typed here.
_COMMANDS = {
    "projects_list": "quarterdeck project list",
    "proposals_list": "quarterdeck plan proposals",
    "plan_list": "quarterdeck plan list",
    "session_list": "quarterdeck session list",
    "jobs_list": "quarterdeck job list",
    "list your tasks": "quarterdeck task list",
    "the tool's input schema": "the command's --help",
}
_NAMED = re.compile("|".join(_COMMANDS))


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON: known before it is parsed, for it may be what is wrong."""
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options


def tell(error: QuarterdeckError) -> None:
    """For people."""
    if output := error.data.get("gate_output"):
        show.say(show.plain(str(output).rstrip()))
    code = f" ({error.code})" if isinstance(error, Refusal) else ""
    console = Console(stderr=True)
    console.print(f"[bold red]error:[/] {escape(error.message)}{code}", highlight=False, soft_wrap=True)
    if hint := _hint(error):
        console.print(f"  [dim]hint:[/] {escape(hint)}", highlight=False, soft_wrap=True)


def _hint(error: QuarterdeckError) -> str | None:
    return error.hint and _NAMED.sub(lambda found: _COMMANDS[found[0]], error.hint)


def tell_as_json(error: QuarterdeckError | TyperException) -> None:
    """For scripts: always the same five keys, on standard error, where no result is ever written."""
    if isinstance(error, QuarterdeckError):
        told = {"error": error.message, "code": error.code, "field": error.field, "hint": _hint(error)}
        details = error.data
    else:
        # What the parser refused; mostly it knows the command and the parameter.
        context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
        told = {
            "error": error.format_message(),
            "code": USAGE,
            "field": parameter.name if parameter else None,
            "hint": f"{context.command_path} --help" if context else None,
        }
        details = {}
    typer.echo(json.dumps({**told, "details": details}, ensure_ascii=False), err=True)
