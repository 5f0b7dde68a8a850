"""A scripted model server on loopback, in the wire formats of Anthropic, OpenAI (Chat) and Google."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

WAIT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: a text with its usage, or an error status; `drop` closes the connection instead.

    `gate` holds the answer back until it is set.
    """

    text: str = "A plain answer."
    status: int = 200
    input_tokens: int = 100
    output_tokens: int = 20
    model: str | None = None
    finish: str = "stop"
    message: str = "scripted error"
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    gate: threading.Event | None = None
    drop: bool = False
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived."""

    provider: str
    model: str
    prompt: str
    system: str
    temperature: float | None
    max_tokens: int | None
    headers: dict[str, str]
    body: dict[str, Any]


class ModelServer:
    """Answers from the provider's script while it lasts, then whatever `answer` says. A context manager."""

    def __init__(self, port: int = 0) -> None:
        self.answer: Callable[[Asked], Reply] = lambda asked: Reply()
        self.requests: list[Asked] = []
        self._scripts: dict[str, deque[Reply]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
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

    @property
    def settings(self) -> dict[str, str]:
        """The `[content]` keys that lead every provider here."""
        return {
            "anthropic_base_url": self.url,
            "google_base_url": self.url,
            "openai_base_url": f"{self.url}/v1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables of a core."""
        return {f"QUARTERDECK_CONTENT__{key.upper()}": value for key, value in self.settings.items()}

    def script(self, provider: str, *replies: Reply) -> None:
        with self._changed:
            self._scripts[provider].extend(replies)

    def of(self, provider: str) -> list[Asked]:
        with self._changed:
            return [asked for asked in self.requests if asked.provider == provider]

    def wait_for(self, count: int) -> None:
        """Return when so many requests have arrived."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.requests) >= count, WAIT_SECONDS)
        assert came, f"{len(self.requests)} requests of {count} after {WAIT_SECONDS} s"

    def take(self, asked: Asked) -> Reply:
        with self._changed:
            self.requests.append(asked)
            self._changed.notify_all()
            script = self._scripts[asked.provider]
            reply = script.popleft() if script else None
        return reply or self.answer(asked)


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one write: two would wait for the client's delayed acknowledgement.
        wbufsize = 1 << 16

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked = _asked(self.path.partition("?")[0], body, {k.lower(): v for k, v in self.headers.items()})
            if asked is None:
                self._send(404, b"{}", {})
                return
            reply = server.take(asked)
            time.sleep(reply.delay)
            if reply.gate is not None:
                reply.gate.wait(WAIT_SECONDS)
            if reply.drop:
                self.close_connection = True
                return
            good = reply.status < 400
            shape = _ANSWERS[asked.provider](asked, reply) if good else _ERRORS[asked.provider](reply)
            self._send(reply.status, reply.raw or json.dumps(shape).encode(), reply.headers)

        def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            try:
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                self.close_connection = True

    return Handler


def _asked(path: str, body: dict[str, Any], headers: dict[str, str]) -> Asked | None:
    if path.endswith("/messages"):
        system = "\n".join(part["text"] for part in body.get("system", []))
        prompt = "\n".join(part["text"] for message in body["messages"] for part in message["content"])
        heat, tokens = body.get("temperature"), body["max_tokens"]
        return Asked("claude", body["model"], prompt, system, heat, tokens, headers, body)
    if path.endswith("/chat/completions"):
        said = {message["role"]: message["content"] for message in body["messages"]}
        heat, tokens = body.get("temperature"), body.get("max_completion_tokens")
        return Asked(
            "openai", body["model"], said["user"], said.get("system", ""), heat, tokens, headers, body
        )
    if path.endswith(":generateContent"):
        config = body.get("generationConfig", {})
        prompt = "\n".join(part["text"] for content in body["contents"] for part in content["parts"])
        system = "\n".join(part["text"] for part in body.get("systemInstruction", {}).get("parts", []))
        model = path.rpartition("/")[2].partition(":")[0]
        heat, tokens = config.get("temperature"), config.get("maxOutputTokens")
        return Asked("gemini", model, prompt, system, heat, tokens, headers, body)
    return None


def _claude(asked: Asked, reply: Reply) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": reply.model or asked.model,
        "content": [{"type": "text", "text": reply.text}] if reply.text else [],
        "stop_reason": {"stop": "end_turn", "length": "max_tokens"}[reply.finish],
        "stop_sequence": None,
        "usage": {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens},
    }


def _openai(asked: Asked, reply: Reply) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": reply.model or asked.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply.text},
                "finish_reason": reply.finish,
            }
        ],
        "usage": {
            "prompt_tokens": reply.input_tokens,
            "completion_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
    }


def _gemini(asked: Asked, reply: Reply) -> dict[str, Any]:
    return {
        "candidates": [
            {
                "index": 0,
                "content": {"role": "model", "parts": [{"text": reply.text}] if reply.text else []},
                "finishReason": {"stop": "STOP", "length": "MAX_TOKENS"}[reply.finish],
            }
        ],
        "usageMetadata": {
            "promptTokenCount": reply.input_tokens,
            "candidatesTokenCount": reply.output_tokens,
            "totalTokenCount": reply.input_tokens + reply.output_tokens,
        },
        "modelVersion": reply.model or asked.model,
        "responseId": "response-1",
    }


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}

_ANSWERS = {"claude": _claude, "openai": _openai, "gemini": _gemini}
_ERRORS: dict[str, Callable[[Reply], dict[str, Any]]] = {
    "claude": lambda reply: {
        "type": "error",
        "error": {"type": _KINDS.get(reply.status, "api_error"), "message": reply.message},
    },
    "openai": lambda reply: {
        "error": {
            "type": _KINDS.get(reply.status, "server_error"),
            "message": reply.message,
            "param": None,
            "code": None,
        }
    },
    "gemini": lambda reply: {
        "error": {
            "code": reply.status,
            "status": _STATUSES.get(reply.status, "INTERNAL"),
            "message": reply.message,
        }
    },
}
