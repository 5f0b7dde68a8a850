"""OpenCode by `opencode run`: configured by a variable, a stream of JSON events, no result at the end."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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

CONFIG_VARIABLE: Final = "OPENCODE_CONFIG_CONTENT"
QUIET: Final = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}
_READ_ONLY: Final = {
    **dict.fromkeys(("edit", "bash", "task", "external_directory", "webfetch"), "deny"),
}


class OpenCode:
    name = "opencode"
    features = FEATURES["opencode"]
    program: str | None = "opencode"
    helps: Sequence[Sequence[str]] = (("run", "--help"),)

    def launch(
        self, program: Sequence[str], env: Mapping[str, str], assignment: Assignment, flags: Flags = None
    ) -> Launch:
        check(self.name, self.features, assignment)
        need(self.name, flags, "--format", "a stream of events")
        own_home(assignment.home)
        _without_packages(assignment.home / ".config" / "opencode")
        keys = [name for name in env if name.endswith("_API_KEY")]
        login = [] if keys else link_login(assignment.home, "opencode")
        own = {CONFIG_VARIABLE: json.dumps(_config(assignment, env))}
        if assignment.token:
            own[TOKEN_VARIABLE] = assignment.token
        argv = (
            *program,
            *("run", "--pure", "--format", "json"),
            # Without it what would need an answer is refused, and the turn ends with exit code 0.
            *(("--auto",) if flags is None or "--auto" in flags else ()),
            *_session(assignment),
            *_wishes(assignment, flags),
        )
        return Launch(
            argv, {**QUIET, **env, **own}, assignment.prompt.encode("utf-8", "replace"), folders=tuple(login)
        )

    def reader(self, assignment: Assignment) -> "OpenCodeReader":
        return OpenCodeReader(assignment)


def _without_packages(folder: Path) -> None:
    """At its start it would fetch, into each new home, a package for plugins, and it runs without any."""
    lock = folder / "package-lock.json"
    if lock.exists():
        return
    (folder / "node_modules").mkdir(mode=0o700, parents=True, exist_ok=True)
    lock.write_text(json.dumps({"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}))


def _config(assignment: Assignment, env: Mapping[str, str]) -> dict[str, Any]:
    """The agent's own configuration, with our server and what may be done."""
    try:
        config = json.loads(env.get(CONFIG_VARIABLE) or "{}")
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise Invalid(f"{CONFIG_VARIABLE} is not a JSON object.", field="env")
    config |= {"autoupdate": False, "share": "disabled"}
    if assignment.mcp_url:
        bearer = {"Authorization": f"Bearer {{env:{TOKEN_VARIABLE}}}"} if assignment.token else {}
        server = {"type": "remote", "url": assignment.mcp_url, "headers": bearer, "oauth": False}
        config["mcp"] = {MCP_NAME: {**server, "enabled": True}}
    if assignment.mode == "read":
        config["permission"] = _READ_ONLY
    return config


def _session(assignment: Assignment) -> list[str]:
    match assignment.conversation.how:
        case "continue":
            return ["--continue"]
        case "resume":
            return ["--session", str(assignment.conversation.id)]
        case "fork":
            return ["--session", str(assignment.conversation.id), "--fork"]
    return []


def _wishes(assignment: Assignment, flags: Flags) -> list[str]:
    wishes = {
        ("model", "--model"): assignment.model,
        ("subagent", "--agent"): assignment.subagent,
    }
    words = []
    for (feature, flag), value in wishes.items():
        if value is not None:
            need("opencode", flags, flag, feature)
            words.append(f"{flag}={value}")
    return words


class OpenCodeReader(JsonReader):
    """The sum of its steps is the run; it ended well when its last step said so and nothing went wrong."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._session: str | None = None
        self._text: list[str] = []
        self._usage: Usage | None = None
        self._cost: float | None = None
        self._steps = 0
        self._reason: str | None = None
        self._error: str | None = None
        self._denials: dict[str, None] = {}
        self._mcp: str | None = None
        self._voice = Voice(assignment.live)

    def event(self, message: dict[str, Any]) -> Iterable[Step]:
        if self._session is None and message.get("sessionID"):
            self._session = str(message["sessionID"])
            yield Step("session", self._session, data={"session_id": self._session})
        part = message.get("part") or {}
        match message.get("type"):
            case "step_start":
                self._reason = None
            case "text":
                self._voice.pause("\n" if self._text else "\n\n")
                self._text.append(str(part.get("text") or ""))
                yield from self._voice.say(self._text[-1])
                yield Step("text", kept(self._text[-1]))
            case "tool_use":
                self._text = []
                yield from self._tool(part)
            case "step_finish":
                self._steps += 1
                self._reason = str(part.get("reason") or "stop")
                self._count(part)
            case "error":
                problem = message.get("error") or {}
                data = problem.get("data") or {}
                self._error = str(
                    data.get("message") or problem.get("message") or problem.get("name") or "error"
                )
                yield Step("error", short(self._error))

    def _tool(self, part: dict[str, Any]) -> Iterable[Step]:
        name, state, data = str(part.get("tool")), part.get("state") or {}, {"id": part.get("callID")}
        yield Step("tool", kept(json.dumps(state.get("input"), ensure_ascii=False)), tool=name, data=data)
        ok = state.get("status") == "completed"
        said = str((state.get("output") if ok else state.get("error")) or "")
        if ok and name.startswith(f"{MCP_NAME}_"):
            self._mcp = "connected"
        if name == "invalid" and "unavailable tool" in said:
            # What is denied altogether is not even offered.
            self._denials[str((state.get("input") or {}).get("tool"))] = None
        elif not ok and ("rejected permission" in said or "prevents you from using" in said):
            self._denials[name] = None
        yield Step("tool_result", kept(said), data={**data, "ok": ok})

    def _count(self, part: dict[str, Any]) -> None:
        tokens = part.get("tokens") or {}
        cache = tokens.get("cache") or {}
        old = self._usage or Usage()
        self._usage = Usage(
            old.input_tokens + whole(tokens.get("input")),
            old.output_tokens + whole(tokens.get("output")) + whole(tokens.get("reasoning")),
            old.cache_read_tokens + whole(cache.get("read")),
            old.cache_write_tokens + whole(cache.get("write")),
        )
        if isinstance(cost := part.get("cost"), int | float):
            self._cost = (self._cost or 0.0) + float(cost)

    def finish(self, code: int | None, stderr: str) -> Outcome:
        ok, reason, error = True, "completed", None
        if code is None:
            ok, reason, error = False, "stopped", "It was stopped."
        elif self._error is not None:
            ok, reason, error = False, "api_error", short(self._error, 2_000)
        elif self._steps == 0:
            left = unfinished(code, self, stderr, self._session)
            ok, reason, error = False, left.stop_reason, left.error
        elif code != 0:
            ok, reason = False, "exit_code"
            error = f"It ended with exit code {code}. {self.words(stderr)}".strip()
        elif self._reason not in ("stop", None) and not self._text:
            # A refused permission ends the turn in the middle, with exit code 0.
            ok, reason = False, "denied" if self._denials else str(self._reason)
            error = "It ended in the middle of its work."
        return Outcome(
            ok=ok,
            stop_reason=reason,
            session_id=self._session,
            final_text="\n".join(self._text),
            usage=self._usage,
            cost_usd=self._cost,
            turns=self._steps or None,
            denials=tuple(self._denials),
            mcp_status=self._mcp,
            error=error,
        )
