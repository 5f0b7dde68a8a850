"""The resident agent for any client of OpenAI's chat completions: `/v1/chat/completions` and `/v1/models`."""

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

from starlette.types import Receive, Scope, Send

from quarterdeck.core import audit, prompts
from quarterdeck.core.context import Core
from quarterdeck.core.limits import RateLimit
from quarterdeck.core.prompts import Ask, Run
from quarterdeck.core.speech import Ear
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import (
    Conflict,
    Denied,
    Invalid,
    NotFound,
    QuarterdeckError,
    RateLimited,
    Unavailable,
)
from quarterdeck.domain.features import FEATURES
from quarterdeck.server import sse
from quarterdeck.server.completions import (
    DEFAULT_MODEL,
    Completion,
    completion,
    head,
    parsed,
    unsaid,
    usage,
)
from quarterdeck.server.http import Headers, answer, body_of, openai_error

PATHS = ("/v1/chat/completions", "/v1/models")
_ALIVE_SECONDS = 15.0
_PIECE = 2_000
# A run costs: that it failed is no reason to run it once more unasked, as OpenAI's clients would.
_ENOUGH = (b"x-should-retry", b"false")
_STATUS: dict[type[QuarterdeckError], int] = {
    Invalid: 400,
    NotFound: 404,
    Denied: 403,
    prompts.Busy: 429,
    Conflict: 409,
    RateLimited: 429,
    Unavailable: 503,
}
# What a prompt calls by another name than a request.
_FIELDS = {
    "agent": "model",
    "effort": "reasoning_effort",
    "json_schema": "response_format.json_schema",
    "schema": "response_format.json_schema",
    "message": "messages",
}


class _Ended(Exception):
    """A run that did not end well: the status, the code and the reason."""

    def __init__(self, run: Run) -> None:
        over = run.status != "busy"
        self.message = (run.job.summary or "the run failed") if over else "the core is stopping"
        self.status, self.code = (502, "run_failed") if over else (503, Unavailable.code)

    @property
    def body(self) -> dict[str, Any]:
        return openai_error(self.status, self.message, self.code)


class ChatRoutes:
    """All below `/v1`; the caller has passed the gate."""

    def __init__(self, core: Core, max_body: int, limit: RateLimit) -> None:
        self._core = core
        self._max_body = max_body
        self._limit = limit

    async def serve(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"].rstrip("/"), scope["method"]
        caller = replace(caller, tool="chat.completions")
        allowed = "POST" if path == PATHS[0] else "GET"
        known = path in PATHS or path.startswith(f"{PATHS[1]}/")
        try:
            self._limit.take(caller)
            if not caller.may("operator") or caller.bound:
                raise Denied("chat needs the profile operator and a token without a binding")
            if not known:
                raise NotFound(f"{path[:200]} is not served here", hint=f"there are {' and '.join(PATHS)}")
            if method != allowed:
                body = openai_error(405, f"{method} is not served here", "method_not_allowed")
                await answer(send, 405, body, [(b"allow", allowed.encode())])
            elif allowed == "GET":
                await answer(send, 200, self._models(path.removeprefix(PATHS[1]).strip("/")))
            else:
                await self._complete(caller, receive, send)
        except QuarterdeckError as error:
            if allowed == "POST":
                audit.refused(self._core, caller, error)
            await _refuse(send, error)

    def _models(self, wanted: str) -> dict[str, Any]:
        """All that `model` may be, or the one that was asked for."""
        names = [DEFAULT_MODEL, *(agent.id for agent in self._core.agents.values() if agent.adapter)]
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "quarterdeck"} for name in names]
        if not wanted:
            return {"object": "list", "data": rows}
        found = [row for row in rows if row["id"] == wanted]
        if not found:
            raise NotFound(f"there is no model {wanted[:100]!r}", field="model", hint=", ".join(names))
        return found[0]

    async def _complete(self, caller: Caller, receive: Receive, send: Send) -> None:
        body = await body_of(receive, self._max_body)
        if body is None:
            await answer(send, 413, openai_error(413, "the request body is too large", "too_large"))
            return
        wanted = parsed(body)
        ask = self._ask(wanted)
        if wanted.stream:
            # First, so that nothing of what the run says is missed.
            with self._core.speech.listen(caller.user_id) as ear:
                run = await prompts.start(self._core, caller, ask)
                await sse.while_there(receive, self._tell(caller, run, ear, _Pen(run, wanted, send)))
            return
        try:
            run = await self._ended(caller, await prompts.start(self._core, caller, ask))
            await answer(send, 200, completion(run, wanted.model, await self._text(caller, run)))
        except _Ended as ended:
            await answer(send, ended.status, ended.body, [_ENOUGH])

    def _ask(self, wanted: Completion) -> Ask:
        agent = wanted.model if wanted.model in {*self._core.agents, *FEATURES} else None
        schema = wanted.schema_text
        return Ask(
            wanted.prompt,
            agent=agent,
            model=None if agent or wanted.model == DEFAULT_MODEL else wanted.model,
            effort=wanted.reasoning_effort,
            json_schema=schema,
            # Where a schema is given, only what fits it is the answer.
            live=wanted.stream and schema is None,
        )

    async def _ended(self, caller: Caller, run: Run) -> Run:
        """The run when it is over, or when the core is about to be."""
        with self._core.bus.listen(f"job:{run.job.id}") as listener:
            while (run := await prompts.get(self._core, caller, run.job.id)).status == "busy":
                await listener.within(_ALIVE_SECONDS)
                if listener.closed:
                    break
        return run

    async def _text(self, caller: Caller, run: Run) -> str:
        """The answer of a run; raises `_Ended` when there is none."""
        if run.status != "completed":
            raise _Ended(run)
        result = run.job.result or {}
        if "structured_output" in result:
            return json.dumps(result["structured_output"], ensure_ascii=False)
        return await prompts.text_of(self._core, caller, run)

    async def _tell(self, caller: Caller, run: Run, ear: Ear, pen: "_Pen") -> None:
        """Answer in pieces until the run is over; it goes on when the client has left."""
        await pen.begin()
        ended = asyncio.create_task(self._ended(caller, run))
        ended.add_done_callback(lambda _: ear.wake())
        try:
            over = False
            while not over:
                # Asked before reading: what was said until then is there.
                over = ended.done()
                piece = ear.rest(run.job.id) if over else await ear.within(run.job.id, _ALIVE_SECONDS)
                await pen.say(piece)
                if not piece and not ended.done():
                    await pen.alive()
            run = await ended
            await pen.say(unsaid(pen.said, await self._text(caller, run)))
            await pen.stop(run)
        except _Ended as failed:
            await pen.fail(failed.body)
        except QuarterdeckError as error:
            await pen.fail(openai_error(_status(error), error.message, error.code))
        finally:
            ended.cancel()


class _Pen:
    """Writes one completion as server-sent events."""

    def __init__(self, run: Run, wanted: Completion, send: Send) -> None:
        self._head = head(run, wanted.model, "chat.completion.chunk")
        self._counts = wanted.stream_options.include_usage
        self._send = send
        self._said: list[str] = []

    @property
    def said(self) -> str:
        return "".join(self._said)

    async def begin(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
        await self._chunk({"role": "assistant", "content": ""})

    async def say(self, text: str) -> None:
        self._said.append(text)
        for begin in range(0, len(text), _PIECE):
            await self._chunk({"content": text[begin : begin + _PIECE]})

    async def alive(self) -> None:
        await self._write(": at work\n\n")

    async def stop(self, run: Run) -> None:
        await self._chunk({}, "stop")
        if self._counts:
            await self._data({**self._head, "choices": [], "usage": usage(run)})
        await self._write("data: [DONE]\n\n", more=False)

    async def fail(self, body: dict[str, Any]) -> None:
        await self._data(body)
        await self._write("data: [DONE]\n\n", more=False)

    async def _chunk(self, delta: dict[str, str], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        counted = {"usage": None} if self._counts else {}
        await self._data({**self._head, "choices": [choice], **counted})

    async def _data(self, shown: dict[str, Any]) -> None:
        await self._write(f"data: {json.dumps(shown)}\n\n")

    async def _write(self, text: str, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": more})


def _status(error: QuarterdeckError) -> int:
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


async def _refuse(send: Send, error: QuarterdeckError) -> None:
    status, headers = _status(error), Headers()
    if "retry_after" in error.data:
        headers.append((b"retry-after", str(math.ceil(error.data["retry_after"])).encode()))
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    field = _FIELDS.get(error.field or "", error.field)
    await answer(send, status, openai_error(status, message, error.code, field), headers)
