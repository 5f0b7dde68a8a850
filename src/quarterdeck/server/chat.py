"""The resident agent for any client of OpenAI's chat completions: `/v1/chat/completions` and `/v1/models`."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Receive, Scope, Send

from quarterdeck.core import prompts
from quarterdeck.core.context import Core
from quarterdeck.core.prompts import Ask, Run
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Denied, Invalid, NotFound, QuarterdeckError, RateLimited, Unavailable
from quarterdeck.server.http import answer, body_of
from quarterdeck.surfaces.schema import normal

PATHS = ("/v1/chat/completions", "/v1/models")
DEFAULT_MODEL = "quarterdeck"
_ALIVE_SECONDS = 15.0
_STOPPING = "the core is stopping"
_PIECE = 2_000
_MESSAGE = 100_000
_STATUS: dict[type[QuarterdeckError], int] = {
    Invalid: 400,
    NotFound: 404,
    Denied: 403,
    RateLimited: 429,
    prompts.Busy: 429,
    Unavailable: 503,
}


class Part(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class NamedSchema(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    wanted: dict[str, Any] = Field(alias="schema")


class Format(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @property
    def schema_text(self) -> str | None:
        """The JSON Schema that an answer in this format fits."""
        if self.type == "json_object":
            return '{"type": "object"}'
        if self.type == "text":
            return None
        if self.json_schema is None:
            raise Invalid("json_schema is required", field="response_format.json_schema")
        return json.dumps(self.json_schema.wanted)


class Completion(BaseModel):
    """What is honoured of a request; sampling parameters are the agent's own business and passed over."""

    model_config = ConfigDict(extra="ignore")

    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    model: str = DEFAULT_MODEL
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: Literal[1] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    response_format: Format | None = None


class ChatRoutes:
    """Both routes; the caller has passed the gate."""

    def __init__(self, core: Core, max_body: int) -> None:
        self._core = core
        self._max_body = max_body

    async def serve(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not caller.may("operator") or caller.bound:
                raise Denied("chat needs the profile operator and a token without a binding")
            if scope["path"] == PATHS[1] and scope["method"] == "GET":
                await answer(send, 200, {"object": "list", "data": self._models()})
            elif scope["path"] == PATHS[0] and scope["method"] == "POST":
                await self._complete(caller, receive, send)
            else:
                await answer(send, 405, _error("this method is not served here", "method_not_allowed"))
        except QuarterdeckError as error:
            status = next((code for kind, code in _STATUS.items() if type(error) is kind), 500)
            await answer(send, status, _error(error.message, error.code, error.field))

    def _models(self) -> list[dict[str, Any]]:
        names = [DEFAULT_MODEL, *(agent.id for agent in self._core.agents.values() if agent.adapter)]
        return [{"id": name, "object": "model", "created": 0, "owned_by": "quarterdeck"} for name in names]

    async def _complete(self, caller: Caller, receive: Receive, send: Send) -> None:
        body = await body_of(receive, self._max_body)
        if body is None:
            await answer(send, 413, _error("the request body is too large", "too_large"))
            return
        wanted = _parsed(body)
        run = await prompts.start(self._core, caller, self._ask(wanted))
        if wanted.stream:
            await self._stream(caller, run, wanted, send)
            return
        run = await self._ended(caller, run)
        if run.status != "completed":
            await answer(send, 502, _error(run.job.summary or _STOPPING, "run_failed"))
            return
        await answer(
            send, 200, _completion(run, wanted.model, await prompts.text_of(self._core, caller, run))
        )

    def _ask(self, wanted: Completion) -> Ask:
        agent = wanted.model if wanted.model in self._core.agents else None
        model = None if agent or wanted.model == DEFAULT_MODEL else wanted.model
        return Ask(
            _prompt(wanted.messages),
            agent=agent,
            model=model,
            effort=wanted.reasoning_effort,
            json_schema=wanted.response_format.schema_text if wanted.response_format else None,
        )

    async def _ended(self, caller: Caller, run: Run) -> Run:
        with self._core.bus.listen(f"job:{run.job.id}") as listener:
            while (run := await prompts.get(self._core, caller, run.job.id)).status == "busy":
                await listener.within(_ALIVE_SECONDS)
                if listener.closed:
                    break
        return run

    async def _stream(self, caller: Caller, run: Run, wanted: Completion, send: Send) -> None:
        """The answer as server-sent events; comments keep the connection alive while the agent works."""
        fields = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})

        async def say(text: str) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        async def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            shown = {**_head(run, wanted.model, "chat.completion.chunk"), "choices": [choice], **more}
            await say(f"data: {json.dumps(shown)}\n\n")

        await chunk({"role": "assistant", "content": ""})
        with self._core.bus.listen(f"job:{run.job.id}") as listener:
            while (run := await prompts.get(self._core, caller, run.job.id)).status == "busy":
                if not await listener.within(_ALIVE_SECONDS):
                    await say(": at work\n\n")
                if listener.closed:
                    break
        if run.status == "completed":
            text = await prompts.text_of(self._core, caller, run)
            for begin in range(0, len(text), _PIECE):
                await chunk({"content": text[begin : begin + _PIECE]})
            await chunk({}, "stop")
            if (wanted.stream_options or {}).get("include_usage"):
                head = _head(run, wanted.model, "chat.completion.chunk")
                await say(f"data: {json.dumps({**head, 'choices': [], 'usage': _usage(run)})}\n\n")
        else:
            await say(f"data: {json.dumps(_error(run.job.summary or _STOPPING, 'run_failed'))}\n\n")
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _parsed(body: bytes) -> Completion:
    try:
        raw = json.loads(body or b"null")
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raise Invalid("the body must be a JSON object")
    normal(raw)
    try:
        return Completion.model_validate(raw)
    except ValidationError as error:
        # Of the alternatives of a content the last is the list of parts: what it misses says most.
        last = error.errors(include_url=False, include_input=False)[-1]
        where = ".".join(str(part) for part in last["loc"] if part not in ("str", "list[Part]"))
        raise Invalid(f"{where}: {last['msg']}", field=where) from None


def _prompt(messages: list[Message]) -> str:
    """What the agent is told: a single message as it is, a conversation with who said what."""
    if not messages[-1].text.strip():
        raise Invalid("the last message is empty", field="messages")
    texts = [f"[{message.role}]\n{message.text}" for message in messages if message.text]
    prompt = messages[-1].text if len(texts) == 1 else "\n\n".join(texts)
    if len(prompt) > _MESSAGE:
        raise Invalid(f"the messages are longer than {_MESSAGE:,} characters", field="messages")
    return prompt


def _head(run: Run, model: str, kind: str) -> dict[str, Any]:
    created = run.job.created_at // 1_000_000
    return {"id": f"chatcmpl-{run.job.id}", "object": kind, "created": created, "model": model}


def _usage(run: Run) -> dict[str, int]:
    used = (run.job.input_tokens or 0, run.job.output_tokens or 0)
    return {"prompt_tokens": used[0], "completion_tokens": used[1], "total_tokens": sum(used)}


def _completion(run: Run, model: str, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {**_head(run, model, "chat.completion"), "choices": [choice], "usage": _usage(run)}


def _error(message: str, code: str, field: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": code, "code": code, "param": field}}
