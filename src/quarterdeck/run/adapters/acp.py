"""Any agent that speaks the Agent Client Protocol: JSON-RPC, a message a line, over stdin and stdout.

We are the client. Files and terminals are not offered: an agent has its own, inside its sandbox.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from quarterdeck import __version__
from quarterdeck.domain.features import FEATURES
from quarterdeck.run.adapters import claude, gemini, opencode
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
)
from quarterdeck.run.adapters.streams import (
    LOGINS,
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

_PROTOCOL: Final = 1
_QUIET: Final = {**claude.QUIET, **gemini.QUIET, **opencode.QUIET}
_READING: Final = ("read", "search", "fetch", "think")
# Modes in which an agent changes nothing by itself, by the names that agents have for them; the last only
# where there is none in which it asks.
_READ_MODES: Final = ("read-only", "readonly", "default", "plan")
_SET_OPTION: Final = "session/set_config_option"
_AUTH_REQUIRED: Final = -32000
_UNKNOWN_METHOD: Final = -32601
_STOPS: Final = {
    "end_turn": "completed",
    "max_tokens": "max_tokens",
    "max_turn_requests": "max_turns",
    "refusal": "refused",
    "cancelled": "cancelled",
}


class Acp:
    name = "acp"
    features = FEATURES["acp"]
    program: str | None = None
    helps: Sequence[Sequence[str]] = ()

    def launch(
        self, program: Sequence[str], env: Mapping[str, str], assignment: Assignment, flags: Flags = None
    ) -> Launch:
        check(self.name, self.features, assignment)
        own_home(assignment.home)
        own = dict(_QUIET)
        if os.geteuid() == 0:
            own["IS_SANDBOX"] = "1"
        token = {TOKEN_VARIABLE: assignment.token} if assignment.token else {}
        first = AcpReader(assignment).greeting()
        names = " ".join(Path(word).name for word in program[:2])
        keyed = any(name.endswith(("_API_KEY", "_AUTH_TOKEN", "_OAUTH_TOKEN")) for name in env)
        known = [] if keyed else [name for name in LOGINS if name in names]
        login = [path for name in known for path in link_login(assignment.home, name)]
        return Launch(tuple(program), {**own, **env, **token}, first, interactive=True, folders=tuple(login))

    def reader(self, assignment: Assignment) -> "AcpReader":
        return AcpReader(assignment)


class AcpReader(JsonReader):
    """One prompt in one session: greet, open the session, choose model and mode, ask, and see it through.

    Our requests have the numbers 1, 2, 3, … in this order, so that a recorded stream can be read once more.
    """

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._out: list[dict[str, Any]] = []
        self._answers: dict[int, Callable[[dict[str, Any]], Iterable[Step]]] = {1: self._greeted}
        self._failures: dict[int, str] = {1: "initialize"}
        self._next = 2
        self._capabilities: dict[str, Any] = {}
        self._ways_in: list[str] = []
        self._session: str | None = None
        self._choices: list[tuple[str, dict[str, Any]]] = []
        self._asking = False
        self._done = False
        self._stop: str | None = None
        self._error: str | None = None
        self._said: list[str] = []
        self._line: list[str] = []
        self._usage: Usage | None = None
        self._cost: float | None = None
        self._denials: dict[str, None] = {}
        self._tools: dict[str, str] = {}
        self._mcp: str | None = None
        self._voice = Voice(assignment.live)

    def greeting(self) -> bytes:
        """The first request; it is part of the launch."""
        params = {
            "protocolVersion": _PROTOCOL,
            "clientCapabilities": {
                "fs": {"readTextFile": False, "writeTextFile": False},
                "terminal": False,
            },
            "clientInfo": {"name": MCP_NAME, "title": "Quarterdeck", "version": __version__},
        }
        return _line({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})

    def outgoing(self) -> bytes:
        out, self._out = self._out, []
        return b"".join(map(_line, out))

    @property
    def finished(self) -> bool:
        return self._done

    def cancel(self) -> None:
        """Ask it to end the turn; it answers with the stop reason `cancelled`."""
        if self._asking and not self._done:
            self._notify("session/cancel", {"sessionId": self._session})

    # What comes in.

    def event(self, message: dict[str, Any]) -> Iterable[Step]:
        if "method" in message:
            params = message.get("params") or {}
            if "id" in message:
                return self._asked(message["id"], str(message["method"]), params)
            if message["method"] == "session/update" and self._asking:
                return self._update(params.get("update") or {})
            return ()
        number = message.get("id")
        answer = self._answers.pop(number, None) if isinstance(number, int) else None
        if answer is None or number is None:
            return ()
        what = self._failures.pop(number)
        if "error" in message:
            return self._refused(what, message.get("error") or {})
        return answer(message.get("result") or {})

    def _asked(self, number: Any, method: str, params: dict[str, Any]) -> list[Step]:
        """A request of the agent's: a permission, or something that we do not offer."""
        if method != "session/request_permission":
            error = {"code": _UNKNOWN_METHOD, "message": f"{method} is not offered"}
            self._out.append({"jsonrpc": "2.0", "id": number, "error": error})
            return []
        call = params.get("toolCall") or {}
        title = str(call.get("title") or call.get("toolCallId") or "a tool")
        allowed = self.assignment.mode == "edit" or _reads(call)
        kinds = ("allow_once", "allow_always") if allowed else ("reject_once", "reject_always")
        options = {each.get("kind"): each.get("optionId") for each in params.get("options") or []}
        chosen = next((options[kind] for kind in kinds if kind in options), None)
        outcome = {"outcome": "selected", "optionId": chosen} if chosen else {"outcome": "cancelled"}
        self._out.append({"jsonrpc": "2.0", "id": number, "result": {"outcome": outcome}})
        steps = self._tool(call)
        if not allowed:
            self._denials[title] = None
            steps.append(Step("notice", f"denied: {short(title, 200)}", tool=title))
        return steps

    def _tool(self, call: dict[str, Any]) -> list[Step]:
        """A tool is told of once: some agents announce it, others only ask whether they may."""
        number = str(call.get("toolCallId"))
        if number in self._tools:
            return []
        name = self._tools[number] = short(str(call.get("title") or call.get("kind") or "tool"), 200)
        given = json.dumps(call.get("rawInput") or {}, ensure_ascii=False)
        steps = [*self._flush(), Step("tool", kept(given), tool=name, data={"id": number})]
        self._said = []
        self._voice.pause()
        return steps

    def _greeted(self, result: dict[str, Any]) -> Iterable[Step]:
        self._capabilities = result.get("agentCapabilities") or {}
        self._ways_in = [str(each.get("id")) for each in result.get("authMethods") or []]
        self._open()
        return ()

    def _open(self) -> None:
        conversation = self.assignment.conversation
        params: dict[str, Any] = {"cwd": str(self.assignment.cwd), "mcpServers": self._servers()}
        if conversation.how == "new":
            self._request("session/new", params, self._opened)
            return
        offered = self._capabilities.get("sessionCapabilities") or {}
        method = None
        if conversation.how == "fork":
            method = "session/fork" if offered.get("fork") is not None else None
        elif offered.get("resume") is not None:
            method = "session/resume"
        elif self._capabilities.get("loadSession"):
            method = "session/load"
        if method is None:
            self._end("unsupported", f"This agent cannot {conversation.how} a session.")
            return
        if conversation.how == "resume":
            self._session = conversation.id
        self._request(method, {**params, "sessionId": conversation.id}, self._opened)

    def _servers(self) -> list[dict[str, Any]]:
        if not self.assignment.mcp_url:
            return []
        if not (self._capabilities.get("mcpCapabilities") or {}).get("http"):
            self._mcp = "unsupported"
            return []
        bearer = {"name": "Authorization", "value": f"Bearer {self.assignment.token}"}
        headers = [bearer] if self.assignment.token else []
        return [{"type": "http", "name": MCP_NAME, "url": self.assignment.mcp_url, "headers": headers}]

    def _opened(self, result: dict[str, Any]) -> Iterable[Step]:
        self._session = result.get("sessionId") or self._session
        if self.assignment.mode == "read":
            self._choose_mode(result)
        if self.assignment.model:
            self._choose_model(result, self.assignment.model)
        self._go_on({})
        yield Step("session", self._session or "", data={"session_id": self._session})

    def _choose_mode(self, result: dict[str, Any]) -> None:
        """A careful mode, by either of the two ways in which agents offer theirs."""
        modes = [str(each.get("id")) for each in (result.get("modes") or {}).get("availableModes") or []]
        mode = next((name for name in _READ_MODES if name in modes), None)
        if mode:
            self._choices.append(("session/set_mode", {"modeId": mode}))
            return
        for option in result.get("configOptions") or []:
            values = [str(each.get("value")) for each in option.get("options") or []]
            mode = next((name for name in _READ_MODES if name in values), None)
            if option.get("category") == "mode" and mode:
                self._choices.append((_SET_OPTION, {"configId": option.get("id"), "value": mode}))
                return

    def _choose_model(self, result: dict[str, Any], model: str) -> None:
        options = [each for each in result.get("configOptions") or [] if each.get("category") == "model"]
        if options:
            chosen = {"configId": options[0].get("id"), "value": model}
            self._choices.append((_SET_OPTION, chosen))
        elif result.get("models"):
            self._choices.append(("session/set_model", {"modelId": model}))
        else:
            self._end("unsupported", f"This agent does not offer the model {model}.")

    def _go_on(self, _: dict[str, Any]) -> Iterable[Step]:
        """The next choice, each when the one before has been made; then the prompt."""
        if self._done:
            return ()
        if self._choices:
            method, params = self._choices.pop(0)
            self._request(method, {"sessionId": self._session, **params}, self._go_on)
        else:
            prompt = [{"type": "text", "text": self.assignment.prompt}]
            self._asking = True
            self._request("session/prompt", {"sessionId": self._session, "prompt": prompt}, self._answered)
        return ()

    def _update(self, update: dict[str, Any]) -> Iterable[Step]:
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            yield from self._spoke(texts(update.get("content")))
            return
        match kind:
            case "tool_call":
                yield from self._tool(update)
            case "tool_call_update" if update.get("status") in ("completed", "failed"):
                ok = update["status"] == "completed"
                number = str(update.get("toolCallId"))
                # One that could not even begin is told of by its failure alone.
                yield from self._tool(update)
                if ok and MCP_NAME in self._tools.get(number, ""):
                    self._mcp = "connected"
                data = {"id": number, "ok": ok}
                yield Step("tool_result", kept(texts(update.get("content"))), data=data)
            case "usage_update":
                cost = update.get("cost") or {}
                if cost.get("currency", "USD") == "USD" and isinstance(cost.get("amount"), int | float):
                    self._cost = float(cost["amount"])

    def _spoke(self, text: str) -> Iterable[Step]:
        """Words come in small pieces: people are told of whole lines."""
        self._said.append(text)
        yield from self._voice.say(text)
        self._line.append(text)
        if "\n" in text:
            yield from self._flush()

    def _flush(self) -> Iterable[Step]:
        line, self._line = "".join(self._line).strip(), []
        if line:
            yield Step("text", kept(line))

    def _answered(self, result: dict[str, Any]) -> Iterable[Step]:
        yield from self._flush()
        self._usage = _usage(result)
        stop = str(result.get("stopReason") or "")
        self._end(_STOPS.get(stop, stop or "error"), None if stop == "end_turn" else f"It ended: {stop}.")

    def _refused(self, what: str, error: dict[str, Any]) -> Iterable[Step]:
        code, message = error.get("code"), str(error.get("message") or "refused")
        if what == "session/set_mode":
            self._go_on({})
            return
        if what.startswith("session/set_"):
            self._end("unsupported", f"This agent refuses a choice of model or mode: {message}")
            return
        if code == _AUTH_REQUIRED and what != "authenticate" and self._ways_in and not self._asking:
            ways, self._ways_in = self._ways_in, []
            method = next((way for way in ways if "key" in way.lower()), ways[0])
            self._request("authenticate", {"methodId": method}, self._let_in)
            return
        detail = error.get("data")
        if isinstance(detail, dict):
            detail = detail.get("details") or detail.get("message")
        said = f"{message}: {detail}" if isinstance(detail, str) and detail not in message else message
        self._end("api_error" if what == "session/prompt" else "error", f"{what}: {short(said, 1_500)}")
        yield Step("error", short(said))

    def _let_in(self, _: dict[str, Any]) -> Iterable[Step]:
        self._open()
        return ()

    # What goes out.

    def _request(
        self, method: str, params: dict[str, Any], then: Callable[[dict[str, Any]], Iterable[Step]]
    ) -> None:
        self._answers[self._next], self._failures[self._next] = then, method
        self._out.append({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        self._next += 1

    def _notify(self, method: str, params: dict[str, Any]) -> None:
        self._out.append({"jsonrpc": "2.0", "method": method, "params": params})

    def _end(self, stop: str, error: str | None) -> None:
        if not self._done:
            self._done, self._stop, self._error = True, stop, error

    def finish(self, code: int | None, stderr: str) -> Outcome:
        """The answer to the prompt decides: how the process ended afterwards says nothing."""
        if self._stop is None:
            left = unfinished(code, self, stderr, self._session)
            stop, error = left.stop_reason, left.error
        else:
            stop, error = self._stop, self._error
        known = self.assignment.conversation.how == "new"
        return Outcome(
            ok=stop == "completed",
            stop_reason=stop,
            session_id=self._session,
            final_text="".join(self._said).strip(),
            usage=self._usage,
            # What an agent reports is the session's: of a resumed one this run's share is not known.
            cost_usd=self._cost if known else None,
            session_cost_usd=self._cost,
            denials=tuple(self._denials),
            mcp_status=self._mcp,
            error=error,
        )


def _reads(call: dict[str, Any]) -> bool:
    """Whether a tool is harmless: it says that it reads, or it is one of ours."""
    return call.get("kind") in _READING or MCP_NAME in str(call.get("title") or "")


def _usage(result: dict[str, Any]) -> Usage | None:
    usage = result.get("usage")
    if isinstance(usage, dict):
        return Usage(
            whole(usage.get("inputTokens")),
            whole(usage.get("outputTokens")) + whole(usage.get("thoughtTokens")),
            whole(usage.get("cachedReadTokens")),
            whole(usage.get("cachedWriteTokens")),
        )
    # Gemini CLI.
    quota = ((result.get("_meta") or {}).get("quota") or {}).get("token_count")
    if isinstance(quota, dict):
        return Usage(whole(quota.get("input_tokens")), whole(quota.get("output_tokens")))
    return None


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
