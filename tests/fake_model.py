"""A model for real agent programs, on loopback: what it answers is written in the prompt.

A prompt carries `<<SCRIPT [step, …] SCRIPT>>`. The step that is due is the number of answers since the
newest message with a script: one server serves any number of agents, resumed sessions and sub-agents at once.

    {"text": "…"}                          say something
    {"tool": "Write", "input": {…}}        call a tool, with a "namespace" for Codex's MCP; "tools": [{…}, …]
    {"status": 529, "message": "…"}        answer with an error
    "usage": {"input": 100, "output": 20}  what it is said to have cost, beside any of these
    "hold": "name"                         wait until the test releases it, before any of these
    "pause": "name"                        the same in the middle of a text, after its first half (Anthropic)

It speaks Anthropic Messages, OpenAI Responses and Chat Completions, and Gemini, as streams.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from uuid import uuid4

WAIT_SECONDS = 60
_SCRIPT = re.compile(r"<<SCRIPT\s+(.*?)\s+SCRIPT>>", re.DOTALL)

# In a stream: no event, but a name to wait for.
_PAUSE = "pause"

Step = dict[str, Any]
Body = dict[str, Any]
Event = tuple[str | None, Any]


class Turn(NamedTuple):
    """One message of a conversation: who speaks (`user`, `assistant` or `other`), and the words."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived, and the step that answered it; None where no script was in it."""

    path: str
    headers: dict[str, str]
    body: Body
    step: Step | None

    @property
    def text(self) -> str:
        return json.dumps(self.body)


def script(*steps: Step) -> str:
    """A script to put into a prompt; packed when a step holds another, as the prompt of a sub-agent does."""
    written = json.dumps(steps)
    if _SCRIPT.search(written):
        written = f"b64:{base64.b64encode(written.encode()).decode()}"
    return f"<<SCRIPT {written} SCRIPT>>"


class FakeModel:
    """A context manager: serves while the block lasts."""

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self._changed = threading.Condition()
        self._released: set[str] = set()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def about(self, word: str) -> list[Asked]:
        """The scripted requests with this word in them."""
        with self._changed:
            return [asked for asked in self.requests if asked.step is not None and word in asked.text]

    def wait_for(self, word: str, seconds: float = WAIT_SECONDS) -> Asked:
        """The first scripted request with this word, as soon as it has come."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: any(asked.step is not None and word in asked.text for asked in self.requests),
                seconds,
            )
        assert came, f"no request about {word!r} after {seconds} s"
        return self.about(word)[0]

    def release(self, name: str) -> None:
        """Let go of every answer that is held under this name."""
        with self._changed:
            self._released.add(name)
            self._changed.notify_all()

    def take(self, asked: Asked) -> None:
        with self._changed:
            self.requests.append(asked)
            self._changed.notify_all()
        if asked.step and "hold" in asked.step:
            self.hold(asked.step["hold"])

    def hold(self, name: str) -> None:
        """Return when the test has released the name."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._released, WAIT_SECONDS)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An agent that ends drops its connections: that is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def due(turns: list[Turn]) -> Step | None:
    """The step that comes now; None without a script."""
    for number in range(len(turns) - 1, -1, -1):
        scripts = _SCRIPT.findall(turns[number].text) if turns[number].role == "user" else []
        if not scripts:
            continue
        written = scripts[-1]
        if written.startswith("b64:"):
            written = base64.b64decode(written[4:]).decode()
        steps: list[Step] = json.loads(written)
        rest = ["user", *(turn.role for turn in turns[number + 1 :])]
        # Several items of the same answer are one.
        said = sum(after == "assistant" != before for before, after in itertools.pairwise(rest))
        return steps[said] if said < len(steps) else {"text": f"the script has no step {said}"}
    return None


def _calls(step: Step) -> list[Step]:
    return step.get("tools") or ([step] if "tool" in step else [])


def _id(kind: str) -> str:
    return f"{kind}_{uuid4().hex[:20]}"


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


# Anthropic Messages.


def _anthropic_turns(body: Body) -> list[Turn]:
    return [Turn(message["role"], _words(message["content"])) for message in body["messages"]]


def _anthropic(body: Body, step: Step) -> tuple[Body, list[Event]]:
    blocks: list[Body] = [{"type": "text", "text": step["text"]}] if step.get("text") else []
    for call in _calls(step):
        blocks.append(
            {"type": "tool_use", "id": _id("toolu"), "name": call["tool"], "input": call.get("input", {})}
        )
    usage = step.get("usage", {})
    message = {
        "id": _id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": blocks,
        "stop_reason": "tool_use" if _calls(step) else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.get("input", 100),
            "output_tokens": usage.get("output", 20),
            "cache_read_input_tokens": usage.get("cache_read", 0),
            "cache_creation_input_tokens": 0,
        },
    }
    return message, list(_anthropic_events(message, step.get("pause")))


def _anthropic_events(message: Body, pause: str | None = None) -> Iterator[Event]:
    def event(kind: str, **more: Any) -> Event:
        return kind, {"type": kind, **more}

    yield event("message_start", message={**message, "content": [], "stop_reason": None})
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty: Body = {"type": "text", "text": ""}
            middle = len(block["text"]) // 2 if pause else 0
            halves = filter(None, (block["text"][:middle], block["text"][middle:]))
            deltas = [{"type": "text_delta", "text": half} for half in halves]
        else:
            empty = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        yield event("content_block_start", index=index, content_block=empty)
        for number, delta in enumerate(deltas):
            if number:
                yield _PAUSE, pause
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=ending, usage={"output_tokens": message["usage"]["output_tokens"]})
    yield event("message_stop")


# OpenAI Responses.


def _responses_turns(body: Body) -> list[Turn]:
    items = body.get("input", [])
    if isinstance(items, str):
        return [Turn("user", items)]
    turns = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            turns.append(Turn(item.get("role", "other"), _words(item.get("content"))))
        else:
            turns.append(Turn("assistant" if kind.endswith("_call") or kind == "reasoning" else "other", ""))
    return turns


def _responses(body: Body, step: Step) -> tuple[Body, list[Event]]:
    items: list[Body] = []
    if step.get("text"):
        content = [{"type": "output_text", "text": step["text"], "annotations": []}]
        items.append(
            {
                "type": "message",
                "id": _id("msg"),
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    for call in _calls(step):
        item = {
            "type": "function_call",
            "id": _id("fc"),
            "call_id": _id("call"),
            "name": call["tool"],
            "arguments": json.dumps(call.get("input", {})),
        }
        items.append({**item, **({"namespace": call["namespace"]} if "namespace" in call else {})})
    usage = step.get("usage", {})
    tokens, said = usage.get("input", 100), usage.get("output", 20)
    response = {
        "id": _id("resp"),
        "object": "response",
        "created_at": 1_760_000_000,
        "model": body.get("model"),
        "status": "completed",
        "output": items,
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": usage.get("cache_read", 0)},
            "output_tokens": said,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens + said,
        },
    }
    return response, list(_responses_events(response))


def _responses_events(response: Body) -> Iterator[Event]:
    def event(kind: str, **more: Any) -> Event:
        return kind, {"type": kind, **more}

    yield event("response.created", response={**response, "status": "in_progress", "output": []})
    for index, item in enumerate(response["output"]):
        is_text = item["type"] == "message"
        started = {**item, "content": []} if is_text else item
        yield event("response.output_item.added", output_index=index, item=started)
        if is_text:
            where = {"item_id": item["id"], "output_index": index, "content_index": 0}
            yield event("response.output_text.delta", delta=item["content"][0]["text"], **where)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=response)


# OpenAI Chat Completions.


def _chat_turns(body: Body) -> list[Turn]:
    return [Turn(message["role"], _words(message.get("content"))) for message in body["messages"]]


def _chat(body: Body, step: Step) -> tuple[Body, list[Event]]:
    calls = [
        {
            "index": index,
            "id": _id("call"),
            "type": "function",
            "function": {"name": call["tool"], "arguments": json.dumps(call.get("input", {}))},
        }
        for index, call in enumerate(_calls(step))
    ]
    message = {"role": "assistant", "content": step.get("text"), **({"tool_calls": calls} if calls else {})}
    finish = "tool_calls" if calls else "stop"
    usage = step.get("usage", {})
    tokens, said = usage.get("input", 100), usage.get("output", 20)
    counted = {"prompt_tokens": tokens, "completion_tokens": said, "total_tokens": tokens + said}
    base = {"id": _id("chatcmpl"), "created": 1_760_000_000, "model": body.get("model")}
    chunk = {**base, "object": "chat.completion.chunk"}
    completion = {
        **base,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": counted,
    }
    events: list[Event] = [
        (None, {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}),
        (None, {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": counted}),
        (None, "[DONE]"),
    ]
    return completion, events


# Gemini.


def _gemini_turns(body: Body) -> list[Turn]:
    turns = []
    for content in body.get("contents", []):
        parts = content.get("parts", [])
        is_result = any("functionResponse" in part for part in parts)
        role = "assistant" if content.get("role") == "model" else "other" if is_result else "user"
        turns.append(Turn(role, _words(parts)))
    return turns


def _gemini(body: Body, step: Step) -> tuple[Body, list[Event]]:
    parts: list[Body] = [{"text": step["text"]}] if step.get("text") else []
    parts += [
        {"functionCall": {"name": call["tool"], "args": call.get("input", {})}} for call in _calls(step)
    ]
    usage = step.get("usage", {})
    tokens, said = usage.get("input", 100), usage.get("output", 20)
    response = {
        "candidates": [
            {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0},
        ],
        "usageMetadata": {
            "promptTokenCount": tokens,
            "candidatesTokenCount": said,
            "totalTokenCount": tokens + said,
        },
        "modelVersion": "fake",
        "responseId": _id("r"),
    }
    return response, [(None, response)]


class Format(NamedTuple):
    turns: Callable[[Body], list[Turn]]
    answer: Callable[[Body, Step], tuple[Body, list[Event]]]


_FORMATS = {
    "/messages": Format(_anthropic_turns, _anthropic),
    "/responses": Format(_responses_turns, _responses),
    "/chat/completions": Format(_chat_turns, _chat),
    "enerateContent": Format(_gemini_turns, _gemini),
}
# Which model, who speaks next: what Gemini asks its model beside the conversation.
_ROUTED = {
    "reasoning": "scripted",
    "model_choice": "flash",
    "next_speaker": "user",
    "complexity_reasoning": "scripted",
    "complexity_score": 1,
}


def _step(way: Format, body: Body) -> tuple[Step | None, Step]:
    """The scripted step, if any, and what is answered."""
    config = body.get("generationConfig", {})
    if config.get("responseSchema") or config.get("responseJsonSchema"):
        return None, {"text": json.dumps(_ROUTED)}
    # Titles and summaries are asked for without tools, with the same prompt.
    scripted = due(way.turns(body)) if body.get("tools") else None
    return scripted, scripted or {"text": "a plain answer"}


def _handler(model: FakeModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._json(200, {})

        def do_GET(self) -> None:
            self._json(200, {"object": "list", "data": [], "models": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
            path = self.path.partition("?")[0]
            way = next((found for end, found in _FORMATS.items() if path.endswith(end)), None)
            if path.endswith(("/count_tokens", ":countTokens")):
                self._json(200, {"input_tokens": 42, "totalTokens": 42})
            elif way is None:
                self._json(404, {"error": {"type": "not_found_error", "message": path}})
            else:
                self._answer(path, way, body)

        def _answer(self, path: str, way: Format, body: Body) -> None:
            scripted, step = _step(way, body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            model.take(Asked(path, headers, body, scripted))
            if "status" in step:
                message = step.get("message", "scripted error")
                error = {"type": "api_error", "code": step["status"], "message": message}
                self._json(step["status"], {"type": "error", "error": error})
                return
            whole, events = way.answer(body, step)
            if body.get("stream") or "streamGenerateContent" in path:
                self._stream(events)
            else:
                self._json(200, whole)

        def _json(self, status: int, value: Body) -> None:
            self._send(
                status, "application/json", b"" if self.command == "HEAD" else json.dumps(value).encode()
            )

        def _stream(self, events: list[Event]) -> None:
            parts: list[list[str]] = [[]]
            names: list[str] = []
            for name, data in events:
                if name == _PAUSE:
                    names.append(data)
                    parts.append([])
                    continue
                said = data if isinstance(data, str) else json.dumps(data)
                parts[-1].append((f"event: {name}\n" if name else "") + f"data: {said}\n\n")
            self._send(200, "text/event-stream", *("".join(part).encode() for part in parts), pauses=names)

        def _send(self, status: int, kind: str, *parts: bytes, pauses: Sequence[str] = ()) -> None:
            try:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(sum(map(len, parts))))
                self.end_headers()
                self.wfile.write(parts[0])
                for name, part in zip(pauses, parts[1:], strict=True):
                    model.hold(name)
                    self.wfile.write(part)
            except OSError:
                self.close_connection = True  # the agent was ended

    return Handler
