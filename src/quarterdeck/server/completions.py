"""OpenAI's chat completions in words: what a request may hold, and how an answer looks."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quarterdeck.core.prompts import Run
from quarterdeck.domain.errors import Invalid
from quarterdeck.surfaces.schema import normal

DEFAULT_MODEL = "quarterdeck"
_MESSAGE = 100_000
# How a model is to sample, and what only an account at OpenAI has a use for: clients send it unasked.
PASSED_OVER = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "max_tokens"),
        *("max_completion_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("user", "safety_identifier", "metadata", "store", "service_tier", "prediction"),
        *("parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention"),
    )
)

# Of these only a value that asks for nothing is taken.
_REFUSED = frozenset(
    (
        *("n", "tools", "functions", "tool_choice", "function_call"),
        *("stop", "logprobs", "top_logprobs", "modalities"),
    )
)

Empty = Annotated[list[Any], Field(max_length=0)]


class Part(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


class Function(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str = ""


class ToolCall(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: str = ""
    function: Function


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            said = "\n".join(part.text for part in self.content)
        else:
            said = self.content or ""
        calls = [
            f"(called {call.function.name} {call.id} with {call.function.arguments})"
            for call in self.tool_calls or ()
        ]
        return "\n".join(filter(None, (said, *calls)))

    @property
    def speaker(self) -> str:
        return " ".join(filter(None, (self.role, self.name, self.tool_call_id)))


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


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False


class Completion(BaseModel):
    """What is honoured of a request."""

    model_config = ConfigDict(extra="forbid")

    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    model: Annotated[str, Field(min_length=1, max_length=200)] = DEFAULT_MODEL
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    response_format: Format | None = None
    n: Literal[1] = 1
    tools: Empty = []
    functions: Empty = []
    tool_choice: Literal["none", "auto"] = "none"
    function_call: Literal["none", "auto"] = "none"
    stop: Empty = []
    logprobs: Literal[False] = False
    top_logprobs: Literal[0] = 0
    modalities: list[Literal["text"]] = ["text"]

    @property
    def schema_text(self) -> str | None:
        return self.response_format.schema_text if self.response_format else None

    @property
    def prompt(self) -> str:
        """What the agent is told: a single message as it is, a conversation with who said what."""
        messages = self.messages
        if not messages[-1].text.strip():
            raise Invalid("the last message is empty", field="messages")
        texts = [f"[{message.speaker}]\n{message.text}" for message in messages if message.text]
        prompt = messages[-1].text if len(texts) == 1 else "\n\n".join(texts)
        if len(prompt) > _MESSAGE:
            raise Invalid(f"the messages are longer than {_MESSAGE:,} characters", field="messages")
        return prompt


def parsed(body: bytes) -> Completion:
    """The request in a body; Invalid names what is wrong, or is not honoured here."""
    try:
        raw = json.loads(body or b"null")
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raise Invalid("the body must be a JSON object")
    normal(raw)
    given = {name: value for name, value in raw.items() if value is not None and name not in PASSED_OVER}
    try:
        return Completion.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        # Of the alternatives of a content the last is the list of parts: what it misses says most.
        first = [each for each in errors if each["loc"][:2] == errors[0]["loc"][:2]][-1]
        where = ".".join(str(part) for part in first["loc"] if part not in ("str", "list[Part]"))[:200]
        foreign = first["type"] == "extra_forbidden" or first["loc"][0] in _REFUSED
        said = "the agent cannot honour it" if foreign else first["msg"]
        raise Invalid(f"{where}: {said}", field=where) from None


def head(run: Run, model: str, kind: str) -> dict[str, Any]:
    created = run.job.created_at // 1_000_000
    return {"id": f"chatcmpl-{run.job.id}", "object": kind, "created": created, "model": model}


def usage(run: Run) -> dict[str, Any]:
    """The tokens of a run as OpenAI counts them: the prompt's hold those that came from a cache."""
    told = (run.job.result or {}).get("token_usage") or {}
    cached = told.get("cache_read_input_tokens") or 0
    asked = (run.job.input_tokens or 0) + cached + (told.get("cache_creation_input_tokens") or 0)
    answered = run.job.output_tokens or 0
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def completion(run: Run, model: str, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {**head(run, model, "chat.completion"), "choices": [choice], "usage": usage(run)}


def unsaid(said: str, text: str) -> str:
    """What is left to say, so that what was said ends with the answer."""
    if said.rstrip().endswith(text.rstrip()):
        return ""
    return f"\n\n{text}" if said.strip() else text
