"""The session tools of the plans dialect: log, hand off, resume, replay, continue."""

from typing import Annotated

from pydantic import AliasChoices, Field

from quarterdeck.core import sessions
from quarterdeck.domain.ids import iso
from quarterdeck.domain.records import Artifact, LogEntry
from quarterdeck.domain.sessions import ArtifactAction, EndStatus, EntryType, Replay, SessionStatus
from quarterdeck.surfaces.plans import Note, Slug
from quarterdeck.surfaces.schema import Args, Id, Label, Object, Row, Text
from quarterdeck.surfaces.table import Call, tool

Lines = Annotated[list[Annotated[str, Field(min_length=1, max_length=2000)]], Field(max_length=100)]


class SessionStart(Args):
    agent_type: Label
    plan_slug: Slug | None = None
    context: Object | None = None


@tool("write", "pair_worker", binds=("plan_slug",))
async def session_start(call: Call, a: SessionStart) -> Row:
    """Start a work session. agent_type: opus, sonnet, haiku or an agent id."""
    shown = await sessions.start(
        call.core, call.caller, agent=a.agent_type, plan_slug=a.plan_slug, context=a.context
    )
    return {"success": True, "session": session_row(shown)}


class OneSession(Args):
    session_id: Id


class SessionEnd(OneSession):
    status: EndStatus
    summary: Text | None = None


@tool("write", "pair_worker", binds=("session_id",))
async def session_end(call: Call, a: SessionEnd) -> Row:
    """End a session with a status and summary."""
    shown = await sessions.end(call.core, call.caller, a.session_id, a.status, a.summary)
    return {"success": True, "session": session_row(shown)}


class SessionLog(OneSession):
    message: Note
    type: EntryType = "info"
    data: Object | None = None


@tool("write", "pair_worker", binds=("session_id",))
async def session_log(call: Call, a: SessionLog) -> Row:
    """Add a log entry to an active session."""
    entry = await sessions.log(call.core, call.caller, a.session_id, a.message, kind=a.type, data=a.data)
    return {"success": True, "session_id": a.session_id, "entry": entry_row(entry)}


class SessionHandoff(OneSession):
    summary: Note
    next_steps: Lines | None = None
    blockers: Lines | None = None
    context_for_next: Object | None = None


@tool("write", "pair_worker", binds=("session_id",))
async def session_handoff(call: Call, a: SessionHandoff) -> Row:
    """Pause a session and leave word for the next agent."""
    shown = await sessions.hand_off(
        call.core,
        call.caller,
        a.session_id,
        summary=a.summary,
        next_steps=a.next_steps or (),
        blockers=a.blockers or (),
        context_for_next=a.context_for_next,
    )
    return {"success": True, "session": session_row(shown), "handoff_context": shown[0].handoff}


@tool("write", "pair_worker", binds=("session_id",))
async def session_resume(call: Call, a: OneSession) -> Row:
    """Resume a paused session."""
    shown = await sessions.resume(call.core, call.caller, a.session_id)
    return {"success": True, "session": session_row(shown), "handoff_context": shown[0].handoff}


@tool("read", "viewer", binds=("session_id",))
async def session_replay(call: Call, a: OneSession) -> Row:
    """What a session did, for whoever goes on with it."""
    replay = await sessions.replay(call.core, call.caller, a.session_id)
    return {"success": True, "replay_context": replay_row(replay)}


class SessionContinue(Args):
    session_id: Id = Field(validation_alias=AliasChoices("session_id", "previous_session_id"))
    agent_type: Label | None = None


@tool("write", "pair_worker", binds=("session_id",))
async def session_continue(call: Call, a: SessionContinue) -> Row:
    """Start a new session that carries on an older one."""
    shown, replay = await sessions.go_on(call.core, call.caller, a.session_id, a.agent_type)
    return {
        "success": True,
        "session": session_row(shown),
        "continued_from": a.session_id,
        "handoff_context": replay.session.handoff,
        "replay_context": replay_row(replay),
    }


class SessionArtifact(OneSession):
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    action: ArtifactAction
    metadata: Object | None = None
    description: Text | None = None


@tool("write", "pair_worker", binds=("session_id",))
async def session_artifact(call: Call, a: SessionArtifact) -> Row:
    """Record a file that the session touched."""
    details = a.metadata if a.description is None else {**(a.metadata or {}), "description": a.description}
    artifact = await sessions.add_artifact(call.core, call.caller, a.session_id, a.path, a.action, details)
    return {"success": True, "session_id": a.session_id, "artifact": artifact_row(artifact)}


class SessionList(Args):
    plan_slug: Slug | None = None
    status: SessionStatus | None = None
    limit: int = 20


@tool("read", "viewer", binds=("plan_slug",))
async def session_list(call: Call, a: SessionList) -> Row:
    """Work sessions, newest first. limit 1-100."""
    found = await sessions.listing(
        call.core, call.caller, plan_slug=a.plan_slug, status=a.status, limit=a.limit
    )
    rows = [session_row(shown) for shown in found]
    return {"success": True, "sessions": rows, "count": len(rows)}


def session_row(shown: sessions.Shown) -> Row:
    session, plan = shown
    return {
        "session_id": session.id,
        "agent_type": session.agent,
        "plan": plan,
        "status": session.status,
        "summary": session.summary,
        "context": session.context,
        "parent_session_id": session.parent_id,
        "started_at": iso(session.created_at),
        "last_active_at": iso(session.active_at),
        "ended_at": iso(session.ended_at),
    }


def entry_row(entry: LogEntry) -> Row:
    return {
        "type": entry.type,
        "message": entry.message,
        "data": entry.data,
        "timestamp": iso(entry.created_at),
    }


def artifact_row(artifact: Artifact) -> Row:
    return {
        "path": artifact.path,
        "action": artifact.action,
        "metadata": artifact.metadata,
        "timestamp": iso(artifact.created_at),
    }


def replay_row(replay: Replay) -> Row:
    return {
        "session_id": replay.session.id,
        "parent_session_id": replay.session.parent_id,
        "progress_summary": replay.progress_summary,
        "last_checkpoint": entry_row(replay.last_checkpoint) if replay.last_checkpoint else None,
        "decisions": [entry_row(entry) for entry in replay.decisions],
        "errors": [entry_row(entry) for entry in replay.errors],
        "artifacts": [artifact_row(artifact) for artifact in replay.artifacts],
        "handoff": replay.session.handoff,
        "context": replay.session.context,
    }


TOOLS = (
    session_start,
    session_end,
    session_log,
    session_handoff,
    session_resume,
    session_replay,
    session_continue,
    session_artifact,
    session_list,
)
