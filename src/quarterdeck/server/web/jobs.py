"""Jobs: what waits, runs and is over; one job with its log and files. Agents and workers."""

import asyncio
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from quarterdeck.core import registry, runs, trail
from quarterdeck.core.context import Core
from quarterdeck.core.queue import LOG
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import Unavailable
from quarterdeck.domain.jobs import KINDS, LIVE
from quarterdeck.run.adapters import programs
from quarterdeck.run.adapters.base import Step
from quarterdeck.run.adapters.registry import reader_of
from quarterdeck.server import job_log
from quarterdeck.server.web import patches
from quarterdeck.server.web.routing import Answer, Request, go, route
from quarterdeck.server.web.show import page, render

_STATES: Final = ("SUCCEEDED", "FAILED", "CANCELED", "EXPIRED")
_TEXT: Final = 400_000


@route("GET", "/jobs")
async def all_jobs(request: Request) -> Answer:
    filters = {name: value for name in runs.FILTERS if (value := request.asked(name)) is not None}
    found = await runs.overview(request.core, request.caller, filters)
    return page(
        request,
        "jobs.html",
        found=found,
        filters=filters,
        kinds=KINDS,
        states=_STATES,
        agents=list(request.core.agents),
    )


@route("GET", "/jobs/{id}")
async def one_job(request: Request) -> Answer:
    view = await runs.get(request.core, request.caller, request.params["id"])
    log = await _log(request, view)
    steps = await trail.steps(request.core, request.caller, view.job.id)
    return page(
        request, "job.html", view=view, job=view.job, log=log, steps=steps, live=view.job.state in LIVE
    )


async def _log(request: Request, view: runs.JobView) -> str | None:
    if LOG not in view.files:
        return None
    file = await runs.artifact(request.core, request.caller, view.job.id, LOG)
    return file.content[-_TEXT:].decode(errors="replace")


@route("GET", "/jobs/{id}/log")
async def live_log(request: Request) -> Answer:
    """What a job's agent has said since the page asked last, its tool calls folded."""
    asked = request.asked("offset") or ""
    offset = int(asked) if asked.isdecimal() and len(asked) < 16 else None
    found = await job_log.piece(request.core, request.caller, request.params["id"], offset)
    return Answer(render("log.html", piece=found, steps=told(found.adapter, found.text)))


def told(adapter: str | None, text: str) -> list[Step]:
    """Lines of a log as steps; what is no JSON of the agent's stream stays as it is."""
    reader = reader_of(adapter)
    found: list[Step] = []
    for spoken, lines in groupby(text.split("\n"), lambda line: line.startswith("{")):
        if reader is not None and spoken:
            found += [step for line in lines for step in reader.feed(f"{line}\n".encode(errors="replace"))]
        else:
            found.append(Step("text", "\n".join(lines)))
    return [step for step in found if step.text.strip() or step.tool]


@route("GET", "/jobs/{id}/files/{name}")
async def job_file(request: Request) -> Answer:
    """A file that a job left: a patch side by side, other text as it is, anything else to keep."""
    file = await runs.artifact(request.core, request.caller, request.params["id"], request.params["name"])
    if request.asked("raw"):
        # Never as a page of ours, whatever it says it is.
        name = "".join(one for one in file.name if one.isalnum() or one in "._-") or "file"
        headers = [(b"content-disposition", f'attachment; filename="{name}"'.encode())]
        return Answer(file.content, media_type="application/octet-stream", headers=headers)
    text = None if b"\0" in file.content else file.content[:_TEXT].decode(errors="replace")
    is_patch = text is not None and file.name.endswith((".diff", ".patch"))
    changed, cut = patches.read(text) if text is not None and is_patch else ([], False)
    return page(
        request,
        "file.html",
        file=file,
        job_id=request.params["id"],
        text=text,
        changed=changed,
        cut=cut or len(file.content) > _TEXT,
    )


@route("POST", "/jobs/{id}/cancel", "operator")
async def cancel_job(request: Request) -> Answer:
    job = await runs.cancel(request.core, request.caller, request.params["id"])
    return go(request, f"/jobs/{job.id}")


@route("POST", "/jobs/{id}/retry", "operator")
async def retry_job(request: Request) -> Answer:
    job = await runs.retry(request.core, request.caller, request.params["id"])
    return go(request, f"/jobs/{job.id}")


@dataclass(frozen=True, slots=True)
class Program:
    """Where an agent's program is, or why it cannot be run."""

    words: str | None
    version: str | None
    problem: str | None


async def _program(core: Core, agent: Agent) -> Program:
    try:
        found = await programs.find(agent, core.settings)
    except Unavailable as missing:
        return Program(None, None, missing.message)
    return Program(" ".join(found.argv), found.version, None)


@route("GET", "/agents")
async def all_agents(request: Request) -> Answer:
    agents = registry.listing(request.core)
    found = await asyncio.gather(*(_program(request.core, agent) for agent in agents))
    load, workers = await runs.load(request.core, request.caller)
    return page(
        request,
        "agents.html",
        agents=list(zip(agents, found, strict=True)),
        load=load,
        workers=workers,
        beat_us=int(request.core.settings.worker.lease_seconds * 1_000_000),
        concurrency=request.core.settings.worker.concurrency,
    )
