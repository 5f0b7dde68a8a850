"""Gemini CLI without a terminal: settings in its home, a stream of JSON events on stdout."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.features import FEATURES
from quarterdeck.run.adapters.base import (
    MCP_NAME,
    TOKEN_VARIABLE,
    Assignment,
    Flags,
    Launch,
    Outcome,
    Step,
    Usage,
    check,
    need,
)
from quarterdeck.run.adapters.streams import (
    JsonReader,
    Voice,
    kept,
    link_login,
    own_home,
    short,
    unfinished,
    whole,
)

QUIET: Final = {
    # Without it a second process does the work, and signals do not reach it.
    "GEMINI_CLI_NO_RELAUNCH": "true",
    # A folder that it was not told to trust ends the run.
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
}


class Gemini:
    name = "gemini"
    features = FEATURES["gemini"]
    program: str | None = "gemini"
    helps: Sequence[Sequence[str]] = (("--help",),)

    def launch(
        self, program: Sequence[str], env: Mapping[str, str], assignment: Assignment, flags: Flags = None
    ) -> Launch:
        check(self.name, self.features, assignment)
        need(self.name, flags, "--output-format", "a stream of events")
        login = configure(assignment, env)
        token = {TOKEN_VARIABLE: assignment.token} if assignment.token else {}
        argv = (
            *program,
            *("--output-format", "stream-json"),
            # With nobody to ask, `default` has no tool that writes; `plan` would have no MCP either.
            *("--approval-mode", "yolo" if assignment.mode == "edit" else "default"),
            # In one word: a value that begins with a dash is no flag.
            *((f"--model={assignment.model}",) if assignment.model else ()),
            *_session(assignment, flags),
            # Says that nobody is there; the prompt itself comes by stdin.
            *("--prompt", " "),
        )
        return Launch(
            argv,
            {**QUIET, **env, **token},
            assignment.prompt.encode("utf-8", "replace"),
            folders=tuple(login),
        )

    def reader(self, assignment: Assignment) -> "GeminiReader":
        return GeminiReader(assignment)


def configure(assignment: Assignment, env: Mapping[str, str]) -> list[Path]:
    """Write its settings into the home, without a secret; gives back what a sandbox has to bind."""
    own_home(assignment.home)
    auth, login = "gemini-api-key", list[Path]()
    if env.get("GOOGLE_GENAI_USE_VERTEXAI"):
        auth = "vertex-ai"
    elif not (env.get("GEMINI_API_KEY") or env.get("GOOGLE_API_KEY")):
        login = link_login(assignment.home, "gemini")
        auth = "oauth-personal" if login else auth
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": auth}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "maxAttempts": 4},
    }
    if assignment.mcp_url:
        headers = {"Authorization": f"Bearer ${TOKEN_VARIABLE}"} if assignment.token else {}
        server = {"httpUrl": assignment.mcp_url, "headers": headers, "trust": True}
        settings["mcpServers"] = {MCP_NAME: server}
        settings["mcp"] = {"allowed": [MCP_NAME]}
    folder = assignment.home / ".gemini"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings))
    return login


def _session(assignment: Assignment, flags: Flags) -> list[str]:
    how, session = assignment.conversation.how, assignment.conversation.id
    if how == "continue":
        return ["--resume", "latest"]
    if session is None:
        return []
    try:
        session = str(UUID(session))
    except ValueError:
        raise Invalid("A session of Gemini CLI has a UUID.", field="session_id") from None
    if how == "resume":
        return ["--resume", session]
    need("gemini", flags, "--session-id", "new_id")
    return ["--session-id", session]


class GeminiReader(JsonReader):
    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._session: str | None = None
        self._text: list[str] = []
        self._result: dict[str, Any] | None = None
        self._error: str | None = None
        self._denials: dict[str, None] = {}
        self._tools: dict[str, str] = {}
        self._voice = Voice(assignment.live)

    def event(self, message: dict[str, Any]) -> Iterable[Step]:
        match message.get("type"):
            case "init":
                self._session = message.get("session_id")
                data = {"session_id": self._session, "model": message.get("model")}
                yield Step("session", self._session or "", data=data)
            case "message" if message.get("role") == "assistant":
                said = str(message.get("content") or "")
                # The last answer is the final text; a tool in between begins a new one.
                self._text.append(said)
                yield from self._voice.say(said)
                yield Step("text", kept(said))
            case "tool_use":
                self._text = []
                self._voice.pause()
                name, number = str(message.get("tool_name")), str(message.get("tool_id"))
                self._tools[number] = name
                given = json.dumps(message.get("parameters", {}), ensure_ascii=False)
                yield Step("tool", kept(given), tool=name, data={"id": number})
            case "tool_result":
                yield from self._tool_ended(message)
            case "error":
                self._error = str(message.get("message") or "")
                yield Step("notice", short(self._error))
            case "result":
                self._result = message

    def _tool_ended(self, message: dict[str, Any]) -> Iterable[Step]:
        number, ok = str(message.get("tool_id")), message.get("status") == "success"
        problem = message.get("error") or {}
        said = str(message.get("output") or problem.get("message") or "")
        # What is not allowed is not even offered.
        unknown = self.assignment.mode == "read" and "not found" in said
        if not ok and (unknown or "denied" in f"{problem.get('type')} {said}".lower()):
            self._denials[self._tools.get(number, number)] = None
        yield Step("tool_result", kept(said), data={"id": number, "ok": ok})

    def finish(self, code: int | None, stderr: str) -> Outcome:
        result = self._result
        if result is None:
            left = unfinished(code, self, stderr, self._session)
            return Outcome(False, left.stop_reason, self._session, error=self._error or left.error)
        ok, reason, error = True, "completed", None
        if code is None:
            ok, reason, error = False, "stopped", "It was stopped."
        elif result.get("status") != "success" or code != 0:
            problem = result.get("error") or {}
            said = str(problem.get("message") or self._error or self.words(stderr))
            ok, reason = False, _reason(str(problem.get("type") or ""), code)
            error = short(said or f"It ended with exit code {code}.", 2_000)
        return Outcome(
            ok=ok,
            stop_reason=reason,
            session_id=self._session,
            final_text="".join(self._text),
            usage=_usage(result.get("stats")),
            denials=tuple(self._denials),
            mcp_status=self._mcp_status(stderr),
            error=error,
        )

    def _mcp_status(self, stderr: str) -> str | None:
        """A server that refuses is told of on stderr alone, without a name; ours is the only one."""
        if not self.assignment.mcp_url:
            return None
        return "failed" if "MCP issues detected" in stderr else "connected"


def _reason(kind: str, code: int) -> str:
    if "MaxSession" in kind or "MaxTurns" in kind or code == 53:
        return "max_turns"
    return "exit_code" if not kind and code else "api_error"


def _usage(stats: Any) -> Usage | None:
    if not isinstance(stats, dict):
        return None
    cached = whole(stats.get("cached"))
    read = whole(stats.get("input_tokens"))
    return Usage(max(0, read - cached), whole(stats.get("output_tokens")), cached)
