"""`quarterdeck agents`: which agents there are, and which of them can be run here."""

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from quarterdeck import config, paths
from quarterdeck.cli import show
from quarterdeck.config import Settings
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import Unavailable
from quarterdeck.run.adapters.programs import find, locate
from quarterdeck.run.adapters.registry import adapter_of


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of an agent's program. `answers` None: it was not asked."""

    program: str | None = None
    version: str | None = None
    answers: bool | None = None
    problem: str | None = None
    hint: str | None = None


def agents(
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where everything is kept.")] = None,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", help="A quarterdeck.toml elsewhere.", exists=True, dir_okay=False),
    ] = None,
    probe: Annotated[bool, typer.Option(help="Ask each program for its version and flags.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the agents: whether each is installed, its version and whether it answers. Needs no core."""
    settings = config.load(config_file or paths.data_dir(data_dir) / "quarterdeck.toml")
    found = asyncio.run(_look_at_all(settings, probe))
    if as_json:
        typer.echo(json.dumps([_row(agent, seen, settings) for agent, seen in found]))
        return
    rows = [
        (
            *(agent.id, agent.name, agent.adapter or "–", _word(seen.program is not None)),
            *(seen.version or "–", _word(seen.answers), agent.max_concurrent or settings.worker.concurrency),
            seen.program or seen.problem or "",
        )
        for agent, seen in found
    ]
    columns = ("id", "name", "adapter", "installed", "version", "answers", "at once", "program")
    show.table(columns, rows, "no agents", spare=("name", "at once"))
    for doubt in settings.doubts():
        show.say(f"warning: {doubt}")


async def _look_at_all(settings: Settings, probe: bool) -> list[tuple[Agent, Seen]]:
    listed = list(settings.registry().values())
    return list(zip(listed, await asyncio.gather(*(_look(a, settings, probe) for a in listed)), strict=True))


async def _look(agent: Agent, settings: Settings, probe: bool) -> Seen:
    try:
        program = (await asyncio.to_thread(locate, agent, settings))[0]
    except Unavailable as error:
        return Seen(problem=error.message, hint=error.hint)
    adapter = adapter_of(agent)
    if not probe or adapter is None or not adapter.helps:
        return Seen(program)
    try:
        found = await find(agent, settings)
    except Unavailable as error:
        return Seen(program, answers=False, problem=error.message, hint=error.hint)
    return Seen(program, found.version, answers=True)


def _row(agent: Agent, seen: Seen, settings: Settings) -> dict[str, object]:
    adapter = adapter_of(agent)
    return {
        "id": agent.id,
        "name": agent.name,
        "adapter": agent.adapter,
        "model": agent.model,
        "max_concurrent": agent.max_concurrent or settings.worker.concurrency,
        "features": sorted(adapter.features) if adapter else [],
        "installed": seen.program is not None,
        **asdict(seen),
    }


def _word(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"
