"""The agent dialect: one resident agent per user, with prompt, status, stop and result."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from quarterdeck.core import prompts
from quarterdeck.core.context import Core
from quarterdeck.core.prompts import URI, Ask, Run
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.domain.ids import iso
from quarterdeck.events import Event
from quarterdeck.surfaces.resources import Content, Notice, ResourceError, Resources, Template
from quarterdeck.surfaces.schema import Args, Id, Label, Row, Some, Text
from quarterdeck.surfaces.table import Call, Surface, encode, tool

_ALIVE_SECONDS = 15.0


class RunFailed(QuarterdeckError):
    """A blocking prompt whose run did not end well."""

    code = "run_failed"


class Prompt(Args):
    message: Some
    blocking: bool = False
    session_id: Label | None = None
    resume: bool | Label | None = None
    go_on: bool | None = Field(default=None, alias="continue")
    fork_session: bool | None = None
    agent: Label | None = None
    effort: Literal["low", "medium", "high"] | None = None
    max_budget_usd: Annotated[float, Field(gt=0)] | None = None
    json_schema: Text | None = None
    project_id: Id | None = None


@tool("write", "operator", streams=True)
async def prompt(call: Call, a: Prompt) -> Row:
    """Give your agent a task. Answers at once unless blocking; one prompt at a time."""
    ask = Ask(
        message=a.message,
        session_id=a.session_id,
        resume=a.resume or False,
        go_on=bool(a.go_on),
        fork=bool(a.fork_session),
        agent=a.agent,
        effort=a.effort,
        max_budget_usd=a.max_budget_usd,
        json_schema=a.json_schema,
        project_id=a.project_id,
    )
    run = await prompts.start(call.core, call.caller, ask)
    if not a.blocking:
        if call.later is not None:
            call.core.spawn(ended(replace(call, progress=call.later), run))
        run = await prompts.named(call.core, call.caller, run)
        return {"status": "started", "session_id": run.session_id, "run_id": run.job.id}
    run = await ended(call, run)
    return answered(run, await prompts.text_of(call.core, call.caller, run))


async def ended(call: Call, run: Run) -> Run:
    """The run when it is over; what happens meanwhile goes out as progress."""
    told = 0
    with call.core.bus.listen(f"job:{run.job.id}") as listener:
        while True:
            run = await prompts.get(call.core, call.caller, run.job.id)
            if run.status != "busy" or listener.closed:
                return run
            words = [prompts.worded(event) for event in await listener.within(_ALIVE_SECONDS)]
            for line in words or ["at work"]:
                told += 1
                if call.progress is not None:
                    await call.progress(told, None, line)


def answered(run: Run, text: str) -> Row:
    """The answer of a blocking prompt; a run that failed is an error of the call."""
    shown = prompts.shown(run)
    if run.status != "completed":
        raise RunFailed(
            run.job.summary or "the core is stopping",
            hint="result has all it said",
            status=run.status,
            session_id=run.session_id,
            run_id=run.job.id,
        )
    kept = ("message_count", "total_cost_usd", "run_cost_usd", "session_id", "run_id", "token_usage")
    more = {"structured_output": shown["structured_output"]} if "structured_output" in shown else {}
    return {"result": text, **{name: shown[name] for name in kept}, **more}


class Nothing(Args):
    pass


@tool("read", "viewer")
async def status(call: Call, a: Nothing) -> Row:
    """What your agent does: status, counts, last tool and message, cost, and the result once completed."""
    return prompts.shown(await prompts.current(call.core, call.caller))


@tool("write", "operator")
async def stop(call: Call, a: Nothing) -> Row:
    """End the running prompt and all its processes."""
    run = await prompts.stop(call.core, call.caller)
    if run is None:
        now = prompts.shown(await prompts.current(call.core, call.caller))
        return {"status": now["status"], "stopped": False, "message": "nothing is running"}
    return {
        "status": run.status,
        "stopped": True,
        "message": "the agent was stopped",
        "session_id": run.session_id,
        "run_id": run.job.id,
    }


class Result(Args):
    run_id: Id | None = None


@tool("read", "viewer")
async def result(call: Call, a: Result) -> Row:
    """The whole text and messages of the last run, or of run_id."""
    found = await prompts.transcript(call.core, call.caller, a.run_id)
    if found is None:
        return {"result_text": "", "messages": [], **prompts.shown(None)}
    run = found.run
    fields = prompts.shown(run)
    kept = ("status", "tool_call_count", "total_cost_usd", "run_cost_usd", "session_id", "run_id", "agent")
    return {
        "result_text": found.text,
        "messages": found.messages,
        "message_count": len(found.messages) or fields["message_count"],
        **{name: fields[name] for name in kept},
        "token_usage": fields["token_usage"],
        "denials": list((run.job.result or {}).get("denials") or ()),
        "error": fields.get("error"),
        "started_at": iso(run.job.started_at),
        "finished_at": iso(run.job.finished_at),
    }


def _word(error: QuarterdeckError) -> dict[str, Any]:
    body = {"error": error.message, "code": error.code, "field": error.field, "hint": error.hint}
    return {name: value for name, value in body.items() if value is not None} | error.data


async def _read(core: Core, caller: Caller, uri: str) -> Content:
    if uri != URI or caller.bound:
        raise ResourceError(f"there is no resource {uri}", code="RESOURCE_NOT_FOUND", uri=uri)
    return Content(URI, "application/json", encode(prompts.shown(await prompts.current(core, caller))))


async def _visible(core: Core, caller: Caller, uri: str) -> bool:
    return uri == URI and not caller.bound


async def _notices(core: Core, event: Event) -> list[Notice]:
    if event.noun != "job" or event.data.get("job_kind") != prompts.KIND:
        return []
    told = {"runId": event.entity_id, "state": event.data.get("state"), "message": prompts.worded(event)}
    params = {"uri": URI, **told}
    return [Notice(URI, "notifications/resources/updated", params, user_id=event.user_id)]


SURFACE = Surface(
    name="agent",
    server_name="quarterdeck-agent",
    instructions=(
        "Your own agent: prompt it, watch status or mcp://agent/status, read result. One prompt at a time."
    ),
    tools={each.name: each for each in (prompt, status, stop, result)},
    word=_word,
    resources=(
        Resources(
            scheme="mcp://agent/",
            templates=(Template(URI, "agent-status", "What your agent does now.", "application/json"),),
            read=_read,
            visible=_visible,
            notices=_notices,
        ),
    ),
)
