"""Claude Code by its print mode: the prompt on stdin, a stream of JSON events on stdout."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
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
    texts,
    unfinished,
    whole,
)

# What the agent's row sets in `env` wins over these.
QUIET: Final = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    # By default it tries a refused key or an overloaded model again for more than 90 seconds.
    "CLAUDE_CODE_MAX_RETRIES": "4",
    # How long it waits for an MCP server at its start, in milliseconds.
    "MCP_TIMEOUT": "20000",
}
_KEYS: Final = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
)
_PARTIAL: Final = "--include-partial-messages"
_READING: Final = ("Read", "Grep", "Glob", "LS", "NotebookRead", "TodoWrite", "Task", "Agent", "Skill")


class Claude:
    name = "claude"
    features = FEATURES["claude"]
    program: str | None = "claude"
    helps: Sequence[Sequence[str]] = (("--help",),)

    def launch(
        self, program: Sequence[str], env: Mapping[str, str], assignment: Assignment, flags: Flags = None
    ) -> Launch:
        check(self.name, self.features, assignment)
        own_home(assignment.home)
        # Its notes and sockets belong to the home too, and not to a folder that all of them share.
        temporary = assignment.home / "tmp"
        temporary.mkdir(mode=0o700, exist_ok=True)
        own = {**QUIET, "CLAUDE_CODE_TMPDIR": str(temporary)}
        if os.geteuid() == 0:
            # As root it refuses to run without asking, unless it is told that its surroundings are its own.
            own["IS_SANDBOX"] = "1"
        keyed = any(env.get(key) for key in _KEYS)
        login = [] if keyed else link_login(assignment.home, "claude")
        argv = (
            *program,
            *("-p", "--output-format", "stream-json", "--verbose"),
            *_live(assignment, flags),
            *_permissions(assignment, flags),
            *_server(assignment, flags),
            *_session(assignment, flags),
            *_wishes(assignment, flags),
        )
        token = {TOKEN_VARIABLE: assignment.token} if assignment.token else {}
        return Launch(
            argv, {**own, **env, **token}, assignment.prompt.encode("utf-8", "replace"), folders=tuple(login)
        )

    def reader(self, assignment: Assignment) -> "ClaudeReader":
        return ClaudeReader(assignment)


def _permissions(assignment: Assignment, flags: Flags) -> list[str]:
    if assignment.mode == "edit":
        return ["--permission-mode", "bypassPermissions"]
    # Reading is allowed by name, all else is denied without a question; what the repository's own settings
    # would allow does not count.
    need("claude", flags, "--setting-sources", "reading")
    return ["--permission-mode", "dontAsk", "--setting-sources", "user"]


def _live(assignment: Assignment, flags: Flags) -> list[str]:
    """Word for word where it can; an older version tells of whole messages."""
    known = flags is None or _PARTIAL in flags
    return [_PARTIAL] if assignment.live and known else []


def _server(assignment: Assignment, flags: Flags) -> list[str]:
    """Our MCP server alone, whatever the repository or the user has configured. No secret is in it."""
    need("claude", flags, "--strict-mcp-config", "mcp")
    words = ["--strict-mcp-config"]
    allowed = list(_READING) if assignment.mode == "read" else []
    if assignment.mcp_url:
        headers = {"Authorization": f"Bearer ${{{TOKEN_VARIABLE}}}"} if assignment.token else {}
        server = {"type": "http", "url": assignment.mcp_url, "headers": headers}
        words += ["--mcp-config", json.dumps({"mcpServers": {MCP_NAME: server}})]
        allowed.append(f"mcp__{MCP_NAME}")
    return [*words, "--allowedTools", ",".join(allowed)] if allowed else words


def _session(assignment: Assignment, flags: Flags) -> list[str]:
    conversation = assignment.conversation
    match conversation.how:
        case "new" if conversation.id is None:
            return []
        case "new":
            need("claude", flags, "--session-id", "new_id")
            try:
                return ["--session-id", str(UUID(conversation.id))]
            except ValueError:
                raise Invalid("A session of Claude Code has a UUID.", field="session_id") from None
        case "continue":
            return ["--continue"]
        case "fork":
            need("claude", flags, "--fork-session", "fork")
            return ["--resume", str(conversation.id), "--fork-session"]
        case "resume":
            return ["--resume", str(conversation.id)]


def _wishes(assignment: Assignment, flags: Flags) -> list[str]:
    schema, budget = assignment.json_schema, assignment.max_budget_usd
    wishes: dict[tuple[str, str], str | None] = {
        ("model", "--model"): assignment.model,
        ("effort", "--effort"): assignment.effort,
        ("budget", "--max-budget-usd"): None if budget is None else f"{budget:g}",
        ("schema", "--json-schema"): None if schema is None else json.dumps(schema),
        ("subagent", "--agent"): assignment.subagent,
    }
    words = []
    for (feature, flag), value in wishes.items():
        if value is not None:
            need("claude", flags, flag, feature)
            # In one word: a value that begins with a dash is no flag.
            words.append(f"{flag}={value}")
    return words


class ClaudeReader(JsonReader):
    """`init` and `result` may come several times, as sub-agents go on in the background: the last counts."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._session: str | None = None
        self._mcp: str | None = None
        self._result: dict[str, Any] | None = None
        self._usage: Usage | None = None
        self._cost: float | None = None
        self._denials: dict[str, None] = {}
        self._turns: int | None = None
        self._structured: Any = None
        self._voice = Voice(assignment.live)
        self._heard: set[str] = set()

    def event(self, message: dict[str, Any]) -> Iterable[Step]:
        match message.get("type"):
            case "system":
                return self._system(message)
            case "assistant" | "user":
                return [*self._spoken(message), *_said(message)]
            case "stream_event" if not message.get("parent_tool_use_id"):
                return self._piece(message["event"])
            case "result":
                return self._ended(message)
        return ()

    def _piece(self, event: dict[str, Any]) -> list[Step]:
        """A part of a message that is being said; the words of sub-agents are not the answer."""
        match event.get("type"):
            case "message_start":
                self._heard.add(str(event["message"].get("id")))
            case "content_block_start":
                self._voice.pause()
            case "content_block_delta" if event["delta"].get("type") == "text_delta":
                return self._voice.say(str(event["delta"].get("text") or ""))
        return []

    def _spoken(self, message: dict[str, Any]) -> list[Step]:
        """The words of a message that did not come in parts. Its own words on an error are no answer."""
        said = message["message"]
        content = said.get("content")
        if (
            message["type"] != "assistant"
            or message.get("parent_tool_use_id")
            or said.get("model") == "<synthetic>"
            or said.get("id") in self._heard
            or not isinstance(content, list)
        ):
            return []
        steps = []
        for block in content:
            if block.get("type") == "text":
                self._voice.pause()
                steps += self._voice.say(str(block.get("text") or ""))
        return steps

    def _system(self, message: dict[str, Any]) -> list[Step]:
        match message.get("subtype"):
            case "init":
                first = self._session is None
                self._session = message.get("session_id") or self._session
                for server in message.get("mcp_servers") or []:
                    if server.get("name") == MCP_NAME:
                        self._mcp = server.get("status")
                kept = ("model", "cwd", "permissionMode", "claude_code_version")
                data = {"session_id": self._session, **{name: message.get(name) for name in kept}}
                steps = [Step("session", self._session or "", data=data)] if first else []
                if self._mcp not in (None, "connected", "pending"):
                    steps.append(Step("notice", f"the MCP server of Quarterdeck is {self._mcp}"))
                return steps
            case "api_retry":
                tried = f"{message.get('attempt')} of {message.get('max_retries')}"
                why = message.get("error") or message.get("error_status") or ""
                return [Step("notice", f"the model did not answer, attempt {tried}: {why}".rstrip(": "))]
            case "permission_denied":
                tool = str(message.get("tool_name") or "a tool")
                self._denials[tool] = None
                return [Step("notice", f"denied: {tool}", tool=tool)]
        return []

    def _ended(self, message: dict[str, Any]) -> list[Step]:
        first = self._result is None
        self._result = message
        self._session = message.get("session_id") or self._session
        self._turns = (self._turns or 0) + whole(message.get("num_turns"))
        for denial in message.get("permission_denials") or []:
            self._denials[str(denial.get("tool_name"))] = None
        if message.get("structured_output") is not None:
            self._structured = message["structured_output"]
        self._count(message, first)
        return []

    def _count(self, message: dict[str, Any], first: bool) -> None:
        """What this run took. The totals of a resumed session hold earlier runs as well."""
        models = message.get("model_usage_since_last_result")
        if isinstance(models, dict):
            used = list(models.values())
            added = Usage(
                sum(whole(each.get("inputTokens")) for each in used),
                sum(whole(each.get("outputTokens")) for each in used),
                sum(whole(each.get("cacheReadInputTokens")) for each in used),
                sum(whole(each.get("cacheCreationInputTokens")) for each in used),
            )
            self._usage = _sum(self._usage, added)
            self._cost = (self._cost or 0.0) + sum(float(each.get("costUSD") or 0) for each in used)
            return
        usage = message.get("usage")
        if isinstance(usage, dict):
            own = Usage(
                whole(usage.get("input_tokens")),
                whole(usage.get("output_tokens")),
                whole(usage.get("cache_read_input_tokens")),
                whole(usage.get("cache_creation_input_tokens")),
            )
            self._usage = _sum(self._usage, own)
        if self.assignment.conversation.how == "new":
            self._cost = _number(message.get("total_cost_usd"))

    def finish(self, code: int | None, stderr: str) -> Outcome:
        result = self._result
        if result is None:
            return unfinished(code, self, stderr, self._session)
        reason = _reason(result)
        text = result["result"] if isinstance(result.get("result"), str) else ""
        ok = reason == "completed" and not result.get("is_error") and code == 0
        error = None
        if code is None:
            reason, error = "stopped", "It was stopped."
        elif not ok:
            said = "; ".join(str(each) for each in result.get("errors") or []) or text or self.words(stderr)
            error = short(said or f"It ended with exit code {code}.", 2_000)
            reason = "exit_code" if reason == "completed" else reason
        elif self.assignment.json_schema is not None and self._structured is None:
            ok, reason = False, "schema_missed"
            error = "It ended without the structured output that was asked for."
        return Outcome(
            ok=ok,
            stop_reason=reason,
            session_id=self._session,
            final_text=text,
            structured=self._structured,
            usage=self._usage,
            cost_usd=self._cost,
            session_cost_usd=_number(result.get("total_cost_usd")),
            turns=self._turns,
            denials=tuple(self._denials),
            mcp_status=self._mcp,
            error=error,
        )


_SUBTYPES: Final = {"error_max_turns": "max_turns", "error_max_budget_usd": "budget_exhausted"}


def _reason(result: dict[str, Any]) -> str:
    """How it ended. The subtype alone says `success` on a refused key or an overloaded model, too."""
    subtype = str(result.get("subtype") or "")
    terminal = result.get("terminal_reason")
    if terminal and terminal != "completed":
        return str(terminal)
    if subtype in _SUBTYPES:
        return _SUBTYPES[subtype]
    if result.get("api_error_status"):
        return "api_error"
    if result.get("is_error") or subtype.startswith("error"):
        return "error"
    return "completed"


def _said(message: dict[str, Any]) -> Iterable[Step]:
    content = message["message"].get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    inner = {"parent": message["parent_tool_use_id"]} if message.get("parent_tool_use_id") else {}
    for block in content or []:
        match block.get("type"):
            case "text" if message["type"] == "assistant" and block.get("text"):
                yield Step("text", kept(block["text"]), data=inner)
            case "tool_use":
                given = kept(json.dumps(block.get("input", {}), ensure_ascii=False))
                yield Step("tool", given, tool=str(block.get("name")), data={**inner, "id": block.get("id")})
            case "tool_result":
                data = {**inner, "id": block.get("tool_use_id"), "ok": not block.get("is_error")}
                yield Step("tool_result", kept(texts(block.get("content"))), data=data)


def _sum(one: Usage | None, other: Usage) -> Usage:
    if one is None:
        return other
    return Usage(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cache_read_tokens + other.cache_read_tokens,
        one.cache_write_tokens + other.cache_write_tokens,
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
