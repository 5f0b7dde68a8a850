"""A job's log from any place on: what is kept of it, or what its agent has said on this host so far."""

import asyncio
import codecs
from dataclasses import dataclass
from pathlib import Path

from quarterdeck.core import runs
from quarterdeck.core.context import Core
from quarterdeck.core.queue import LOG
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import Job
from quarterdeck.run import attempts
from quarterdeck.run.adapters.streams import without_pieces
from quarterdeck.run.adapters.variables import environment, secrets
from quarterdeck.server.logs import redact

CHUNK = 262_144


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a log. `offset` is where the next one begins; after the last one of a job, `ended`."""

    text: str
    offset: int
    ended: bool
    state: str
    adapter: str | None


async def piece(core: Core, caller: Caller, job_id: str, offset: int | None, wait: float = 0.0) -> Piece:
    """What the log has from `offset` on, or at its end for None; waits a while for more where there is none.

    Of an agent at work only whole lines are told, without the secrets of its environment.
    """
    end = asyncio.get_running_loop().time() + wait
    with core.bus.listen(f"job:{job_id}") as listener:
        while True:
            view = await runs.get(core, caller, job_id)
            ended = view.job.state not in LIVE
            agent = core.agents.get(view.job.agent or "")
            text, following = await _said(core, caller, view, agent, offset)
            left = end - asyncio.get_running_loop().time()
            if text or ended or left <= 0 or listener.closed:
                adapter = agent.adapter if agent else None  # as far as the configuration still knows it
                return Piece(text, following, ended and not text, view.job.state, adapter)
            await listener.within(left)


async def _said(
    core: Core, caller: Caller, view: runs.JobView, agent: Agent | None, offset: int | None
) -> tuple[str, int]:
    if LOG in view.files:
        kept = (await runs.artifact(core, caller, view.job.id, LOG)).content
        begin = max(len(kept) - CHUNK, 0) if offset is None else offset
        data = _letters(kept[begin : begin + CHUNK])
        return data.decode("utf-8", "replace"), min(begin, len(kept)) + len(data)
    look = _spoken if view.job.spec.get("live") else _live
    data, reached = await asyncio.to_thread(look, _folder(core, view.job), offset)
    text = redact(data.decode("utf-8", "replace"))
    for secret in secrets(environment(agent, core.settings, Path("/"))) if agent and text else ():
        text = text.replace(secret, "[secret]")
    return text, reached


def _folder(core: Core, job: Job) -> Path:
    return core.data_dir / "attempts" / f"{job.id}-{job.attempt}" / "agent"


def _live(folder: Path, offset: int | None) -> tuple[bytes, int]:
    """The whole lines that an agent on this host has said from there on, and where they end.

    Half a secret could not be told from other text; only a line that is longer than a piece is cut.
    """
    try:
        begin = 0
        if offset is None:
            begin = max(_length(folder) - CHUNK, 0)
        chunk = attempts.read(folder, "log", begin if offset is None else offset, CHUNK)
    except OSError:
        return b"", offset or 0
    data, start = chunk.data, chunk.offset
    if begin and (cut := data.find(b"\n") + 1):  # the end of a log begins with a whole line, too
        data, start = data[cut:], start + cut
    whole = data.rfind(b"\n") + 1
    kept = data[:whole] if whole or len(data) < CHUNK else _letters(data)
    return kept, start + len(kept)


def _spoken(folder: Path, offset: int | None) -> tuple[bytes, int]:
    """The same of an agent that is listened to: its log without the pieces, as it will be kept."""
    try:
        said = attempts.transcript(folder)
    except OSError:
        return b"", offset or 0
    shown = without_pieces(said[: said.rfind(b"\n") + 1])
    begin = max(len(shown) - CHUNK, 0) if offset is None else offset
    data = _letters(shown[begin : begin + CHUNK])
    return data, begin + len(data)


def _length(folder: Path) -> int:
    """How much an agent has said so far."""
    reached = 0
    while (chunk := attempts.read(folder, "log", reached)).data:
        reached = chunk.end
    return reached


def _letters(data: bytes) -> bytes:
    """The bytes up to the last whole letter: one that is cut in two waits for its other half."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return data[: len(data) - len(decoder.getstate()[0])]
