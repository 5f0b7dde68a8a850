"""The resident agent of a user: one prompt at a time, each a job of the engine, in sessions that go on."""

import asyncio
import json
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from quarterdeck.core import queue, registry
from quarterdeck.core.context import Core
from quarterdeck.domain import answer_schema
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Conflict, Invalid, NotFound
from quarterdeck.domain.features import FEATURES, Feature, require
from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import Job, Repo, Session
from quarterdeck.domain.sessions import new_session_id
from quarterdeck.events import Event
from quarterdeck.store import admission, artifacts, jobs, log
from quarterdeck.store import projects as project_rows
from quarterdeck.store import sessions as session_rows
from quarterdeck.store.tasks import project_exists
from quarterdeck.store.tx import Tx

KIND = "prompt"
BUSY = "claude process is already busy"
URI = "mcp://agent/status"
RUNS = 100
MESSAGES, RESULT = "messages.json", "result.txt"
_SHOWN, _LAST = 4000, 200
_GONE_SECONDS = 5.0
_TOLD = 100
_LOOKED = 5
_DIGITS = 9
_EVENTS = {"job.queued": "Queued", "job.started": "Started", "job.progress": "At work"}
# What a user has not who never asked anything.
_UNKNOWN = (
    "last_tool_name",
    "last_message",
    "total_cost_usd",
    "run_cost_usd",
    "session_id",
    "run_id",
    "agent",
    "token_usage",
)
_STATUS = {"SUCCEEDED": "completed", "FAILED": "error", "EXPIRED": "error", "CANCELED": "stopped"}


class Busy(Conflict):
    """The user's agent has a prompt already."""

    code = "busy"


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt as it was asked for. `resume` is a flag, or itself the id of a session. `live` says that
    somebody hears it while it is said."""

    message: str
    session_id: str | None = None
    resume: bool | str = False
    go_on: bool = False
    fork: bool = False
    agent: str | None = None
    effort: str | None = None
    max_budget_usd: float | None = None
    json_schema: str | None = None
    project_id: str | None = None
    model: str | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt and how far it is; `seen` holds the counts of a run that goes on."""

    job: Job
    session: Session | None
    seen: dict[str, Any]
    session_cost_usd: float | None

    @property
    def status(self) -> str:
        return _STATUS.get(self.job.state, "busy")

    @property
    def session_id(self) -> str | None:
        """The agent's own id of the session; ours where it has none."""
        return None if self.session is None else self.session.agent_session_id or self.session.id


async def start(core: Core, caller: Caller, ask: Ask) -> Run:
    """Queue a prompt. Refused while another of the same user is queued or runs."""
    agent, subagent = _agent(core, ask)
    _check(agent, ask, subagent)
    schema = answer_schema.checked(ask.json_schema)

    def body(tx: Tx) -> Run:
        jobs.hold_key(tx, KIND, "")
        running = jobs.newest(tx, KIND, 1)
        if running and running[0].state in LIVE:
            raise Busy(BUSY, hint="wait for it, or call stop")
        if ask.project_id is not None and not project_exists(tx, ask.project_id):
            raise NotFound(f"project {ask.project_id} not found", field="project_id")
        how, session = _session(tx, agent, ask)
        place = _place(tx, session) or core.place
        if place != core.place and not admission.staffed(tx, place):
            raise Conflict(
                f"session {session.agent_session_id or session.id} is kept by a core that does not run",
                field="session_id",
                hint="start that core, or begin a new session",
            )
        spec = {
            "message": ask.message,
            "how": how,
            "subagent": subagent,
            "effort": ask.effort,
            "max_budget_usd": ask.max_budget_usd,
            "json_schema": schema,
            "model": ask.model,
            "live": ask.live,
        }
        job = queue.submit(
            tx,
            kind=KIND,
            spec=spec,
            agent=agent.id,
            project_id=ask.project_id,
            session_id=session.id,
            place=place,
        )
        return Run(job, session, {}, None)

    return await core.db.tx(caller, body)


def _agent(core: Core, ask: Ask) -> tuple[Agent, str | None]:
    """The agent to run, and the sub-agent it is to be: a name that is not in the registry is one of those."""
    usual = core.settings.defaults.prompt_agent
    name = ask.agent or usual
    found, subagent = registry.named(core, name), None
    if found is None and name not in FEATURES:
        found, subagent = registry.named(core, usual), ask.agent
    if found is None or found.adapter is None:
        able = ", ".join(agent.id for agent in core.agents.values() if agent.adapter)
        added = f'; or add [agents.{name}] with adapter = "{name}" to the configuration'
        raise Invalid(
            f"agent {name!r} cannot be run here",
            field="agent",
            hint=f"one of {able}{added if name in FEATURES else ''}",
        )
    return found, subagent


def _check(agent: Agent, ask: Ask, subagent: str | None) -> None:
    """Refuse what contradicts itself, or what the agent's adapter cannot honour."""
    if not ask.message.strip():
        raise Invalid("message must not be empty", field="message")
    if ask.go_on and (ask.session_id or ask.resume):
        raise Invalid("continue takes the newest session: give no other", field="continue")
    if isinstance(ask.resume, str) and ask.session_id not in (None, ask.resume):
        raise Invalid("resume and session_id name two sessions", field="resume")
    if ask.resume is True and ask.session_id is None:
        raise Invalid("resume needs the session_id of a session", field="session_id")
    if ask.fork and not (ask.resume or ask.go_on or ask.session_id):
        raise Invalid("fork_session needs a session to fork", field="fork_session")
    wanted: tuple[tuple[Feature, object], ...] = (
        ("fork", ask.fork),
        ("effort", ask.effort),
        ("budget", ask.max_budget_usd is not None),
        ("schema", ask.json_schema is not None),
        ("subagent", subagent),
        ("model", ask.model),
    )
    for feature, given in wanted:
        if given:
            require(agent, feature)


def _session(tx: Tx, agent: Agent, ask: Ask) -> tuple[str, Session]:
    """Which session a prompt belongs to: an old one, a fork of it, or a new one."""
    given = ask.resume if isinstance(ask.resume, str) else ask.session_id
    found = None
    if ask.go_on:
        found = _latest(tx)
        if found is None:
            raise NotFound("there is no session to continue", field="continue", hint="leave continue out")
    elif given is not None:
        found = session_rows.conversation(tx, given)
        if found is None and (ask.resume or ask.fork):
            raise NotFound(f"session {given} not found", field="session_id")
    if found is None:
        return "new", _opened(tx, agent, ask, own_id=given)
    if found.agent != agent.id:
        raise Invalid(
            f"session {given or found.id} belongs to {found.agent}, not to {agent.id}",
            field="agent",
            hint=f"give agent {found.agent}, or begin a new session",
        )
    require(agent, "resume")
    how = _how(tx, found)
    if ask.fork and how != "resume":
        raise Invalid(f"nothing was said yet in session {given or found.id}", field="fork_session")
    if ask.fork:
        return "fork", _opened(tx, agent, ask, parent=found)
    session_rows.change(tx, found.id, {"active_at": tx.now, "status": "active", "ended_at": None})
    return how, found


def _latest(tx: Tx) -> Session | None:
    """The session of the newest prompt."""
    last = jobs.newest(tx, KIND, 1)
    return session_rows.get(tx, last[0].session_id) if last and last[0].session_id else None


def _place(tx: Tx, session: Session) -> str | None:
    """Where the agent keeps what was said in a session, or in the one that it was forked from."""
    lineage = {session.id, session.parent_id}
    return next((job.place for job in jobs.newest(tx, KIND, RUNS) if job.session_id in lineage), None)


def _how(tx: Tx, session: Session) -> str:
    """How to go on with a session: one that no agent has taken up yet is begun once more."""
    runs = [job for job in jobs.newest(tx, KIND, RUNS) if job.session_id == session.id]
    told = [event for job in runs for event in log.newest_of(tx, job.id, "job.progress", _LOOKED)]
    if not runs or any(event.data.get("agent_session") for event in told):
        return "resume"
    return "fork" if session.parent_id else "new"


def _opened(
    tx: Tx, agent: Agent, ask: Ask, *, own_id: str | None = None, parent: Session | None = None
) -> Session:
    """A new session. Its agent's own id is chosen here where the agent takes one."""
    if own_id is not None:
        require(agent, "new_id")
        try:
            own_id = str(uuid.UUID(own_id))
        except ValueError:
            raise NotFound(
                f"session {own_id} not found", field="session_id", hint="a new session's id is a UUID"
            ) from None
    elif parent is None and "new_id" in FEATURES[str(agent.adapter)]:
        own_id = str(uuid.uuid4())
    session = Session(
        id=new_session_id(),
        user_id=tx.caller.user_id,
        kind=KIND,
        agent=agent.id,
        project_id=ask.project_id,
        plan_id=None,
        task_id=None,
        parent_id=parent.id if parent else None,
        status="active",
        context={},
        summary=None,
        handoff=None,
        created_at=tx.now,
        active_at=tx.now,
        ended_at=None,
        agent_session_id=own_id,
    )
    session_rows.add(tx, session)
    return session


async def named(core: Core, caller: Caller, run: Run) -> Run:
    """The run once its session has the agent's own id, or has ended without one."""
    if run.session is None or run.session.agent_session_id or _nameless(core, run.job):
        return run
    with core.bus.listen(f"job:{run.job.id}") as listener:
        while True:
            found = await get(core, caller, run.job.id)
            if found.job.state not in LIVE or (found.session and found.session.agent_session_id):
                return found
            await listener.wait()
            if listener.closed:
                return found


def _nameless(core: Core, job: Job) -> bool:
    """Whether the agent keeps no sessions of its own."""
    agent = core.agents.get(job.agent or "")
    return agent is None or "resume" not in FEATURES.get(agent.adapter or "", frozenset())


async def current(core: Core, caller: Caller) -> Run | None:
    """The caller's newest prompt."""
    return await core.db.read(caller, _newest)


def _newest(tx: Tx) -> Run | None:
    found = jobs.newest(tx, KIND, 1)
    return _run(tx, found[0]) if found else None


async def get(core: Core, caller: Caller, job_id: str) -> Run:
    def body(tx: Tx) -> Run:
        job = jobs.get(tx, job_id)
        if job is None or job.kind != KIND:
            raise NotFound(f"run {job_id} not found", field="run_id")
        return _run(tx, job)

    return await core.db.read(caller, body)


async def runs(core: Core, caller: Caller) -> list[Job]:
    """The caller's last prompts, newest first."""
    return await core.db.read(caller, jobs.newest, KIND, RUNS)


def _run(tx: Tx, job: Job) -> Run:
    session = session_rows.get(tx, job.session_id) if job.session_id else None
    seen = dict((job.result or {}).get("seen") or {})
    if not seen:  # it goes on, or was ended from outside
        told = log.newest_of(tx, job.id, "job.progress", _LOOKED)
        seen = next((dict(each.data) for each in told if "messages" in each.data), {})
    return Run(job, session, seen, _session_cost(tx, job))


def _session_cost(tx: Tx, job: Job) -> float | None:
    """What the session has cost so far, as its agent says, else as its runs add up; None is unknown."""
    told = (job.result or {}).get("session_cost_usd")
    if told is not None:
        return round(float(told), _DIGITS)
    if job.session_id is None:
        return job.cost_usd
    costs = [each for each in jobs.costs_of(tx, job.session_id) if each is not None]
    return round(sum(costs), _DIGITS) if costs else None


async def stop(core: Core, caller: Caller) -> Run | None:
    """End the running prompt and wait until its processes are gone; None when there is none."""

    def body(tx: Tx) -> Job | None:
        found = jobs.newest(tx, KIND, 1)
        return queue.cancel(tx, found[0], "stopped") if found and found[0].state in LIVE else None

    job = await core.db.tx(caller, body)
    if job is None:
        return None
    with suppress(TimeoutError):
        async with asyncio.timeout(_GONE_SECONDS):
            await _kept(core, caller, job.id)
    return await get(core, caller, job.id)


async def _kept(core: Core, caller: Caller, job_id: str) -> None:
    """Until the worker has written down what a stopped run had said: by then its processes are gone."""
    with core.bus.listen(f"job:{job_id}") as listener:
        while await core.db.read(caller, artifacts.get, job_id, MESSAGES) is None and not listener.closed:
            await listener.wait()


async def session_of(core: Core, job: Job) -> Session:
    """The session of a prompt that is being carried out."""
    session = await core.db.read(SYSTEM, session_rows.get, str(job.session_id))
    if session is None:
        raise NotFound(f"session {job.session_id} not found")
    return session


async def parent_of(core: Core, session: Session) -> Session | None:
    """The session that this one was forked from."""
    if session.parent_id is None:
        return None
    return await core.db.read(SYSTEM, session_rows.get, session.parent_id)


async def repos_of(core: Core, job: Job) -> list[Repo]:
    """The repositories of the project that a prompt is about."""
    return await core.db.read(SYSTEM, project_rows.repos_of, str(job.project_id))


async def learnt(core: Core, job: Job, own_id: str) -> None:
    """Keep the agent's own id of its session as soon as it is known; fenced as all that a worker writes."""

    def body(tx: Tx) -> None:
        queue.progress(tx, job, step="session", text=f"Session started: {own_id}", agent_session=own_id)
        session_rows.change(tx, str(job.session_id), {"agent_session_id": own_id})

    await core.db.tx(SYSTEM, body)


@dataclass(frozen=True, slots=True)
class Transcript:
    """All that a run said: its result and every message."""

    run: Run
    text: str
    messages: list[dict[str, Any]]


async def transcript(core: Core, caller: Caller, job_id: str | None = None) -> Transcript | None:
    """The whole result of a run, the newest without an id; None when there was none yet."""

    def body(tx: Tx) -> Transcript | None:
        if job_id is None:
            run = _newest(tx)
        else:
            job = jobs.get(tx, job_id)
            if job is None or job.kind != KIND:
                raise NotFound(f"run {job_id} not found", field="run_id")
            run = _run(tx, job)
        if run is None:
            return None
        kept = {name: artifacts.get(tx, run.job.id, name) for name in (MESSAGES, RESULT)}
        messages, text = kept[MESSAGES], kept[RESULT]
        return Transcript(
            run,
            text.content.decode() if text else "",
            json.loads(messages.content) if messages else [],
        )

    return await core.db.read(caller, body)


async def text_of(core: Core, caller: Caller, run: Run) -> str:
    """The whole answer of a run that has ended well."""
    result = run.job.result or {}
    if result.get("text_cut"):
        kept = await core.db.read(caller, artifacts.get, run.job.id, RESULT)
        if kept is not None:
            return kept.content.decode()
    return str(result.get("text") or "")


def worded(event: Event) -> str:
    """A step of a run in the words of a progress message."""
    data = event.data
    text = str(data.get("text") or "")[:_TOLD]
    match data.get("step"):
        case "tool":
            return f"Using tool: {data.get('tool')}"
        case "tool_result":
            return f"Tool answered: {text}"
        case "text":
            return f"Assistant: {text}"
        case "session":
            return text if text.startswith("Session") else f"Session started: {data.get('agent_session')}"
    if data.get("artifact"):
        return "Transcript kept"
    if event.kind == "job.finished":
        return "Task completed" if data.get("state") == "SUCCEEDED" else f"Task ended: {data.get('summary')}"
    return text or _EVENTS.get(event.kind, event.kind)


def shown(run: Run | None) -> dict[str, Any]:
    """A run as `status` and the resource show it."""
    if run is None:
        return {"status": "idle", "message_count": 0, "tool_call_count": 0, **dict.fromkeys(_UNKNOWN)}
    job, seen, result = run.job, run.seen, run.job.result or {}
    fields: dict[str, Any] = {
        "status": run.status,
        "message_count": seen.get("messages") or 0,
        "tool_call_count": seen.get("tool_calls") or 0,
        "last_tool_name": seen.get("last_tool"),
        "last_message": (seen.get("last_message") or "")[:_LAST] or None,
        "total_cost_usd": run.session_cost_usd,
        "run_cost_usd": job.cost_usd,
        "session_id": run.session_id,
        "run_id": job.id,
        "agent": job.agent,
        "token_usage": result.get("token_usage"),
    }
    if run.status == "completed":
        text = str(result.get("text") or "")
        fields |= {"result": text[:_SHOWN], "result_cut": len(text) > _SHOWN or bool(result.get("text_cut"))}
        if "structured_output" in result:
            fields["structured_output"] = result["structured_output"]
    if run.status in ("error", "stopped"):
        fields["error"] = job.summary
    return fields
