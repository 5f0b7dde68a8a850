"""Codex by `codex exec`: configured by words alone, a stream of JSON events on stdout."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

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

_COUNTED: Final = ("input_tokens", "cached_input_tokens", "output_tokens")
_LEDGER: Final = "codex-usage.json"


class Codex:
    name = "codex"
    features = FEATURES["codex"]
    program: str | None = "codex"
    helps: Sequence[Sequence[str]] = (("exec", "--help"),)

    def launch(
        self, program: Sequence[str], env: Mapping[str, str], assignment: Assignment, flags: Flags = None
    ) -> Launch:
        check(self.name, self.features, assignment)
        own_home(assignment.home)
        own = _temporary(assignment.home, env)
        if env.get("OPENAI_API_KEY") and not env.get("CODEX_API_KEY"):
            own["CODEX_API_KEY"] = env["OPENAI_API_KEY"]
        keyed = env.get("CODEX_API_KEY") or env.get("OPENAI_API_KEY")
        login = [] if keyed else link_login(assignment.home, "codex")
        if assignment.token:
            own[TOKEN_VARIABLE] = assignment.token
        argv = (
            *program,
            *("exec", *_session(assignment, flags)),
            *("--json", "--skip-git-repo-check"),
            # Its plugins look outside at each start, and hold up the end for seconds.
            *(("--disable", "plugins") if flags is None or "--disable" in flags else ()),
            *(("--ignore-user-config",) if flags is None or "--ignore-user-config" in flags else ()),
            *_schema(assignment, flags),
            *(word for setting in _settings(program, assignment, env) for word in ("-c", setting)),
            "-",
        )
        return Launch(
            argv, {**env, **own}, assignment.prompt.encode("utf-8", "replace"), folders=tuple(login)
        )

    def reader(self, assignment: Assignment) -> "CodexReader":
        return CodexReader(assignment)


def _temporary(home: Path, env: Mapping[str, str]) -> dict[str, str]:
    """It keeps the helper of its sandbox in its home, but not where that is below the temporary folder."""
    shared = Path(env.get("TMPDIR") or "/tmp").resolve()  # noqa: S108 - only compared with
    if shared not in home.resolve().parents:
        return {}
    own = home / "tmp"
    own.mkdir(mode=0o700, exist_ok=True)
    return {"TMPDIR": str(own)}


def _session(assignment: Assignment, flags: Flags) -> list[str]:
    how, session = assignment.conversation.how, assignment.conversation.id
    if how == "new":
        return []
    command = "fork" if how == "fork" else "resume"
    need("codex", flags, command, how)
    return [command, "--last"] if how == "continue" else [command, str(session)]


def _schema(assignment: Assignment, flags: Flags) -> list[str]:
    if assignment.json_schema is None:
        return []
    need("codex", flags, "--output-schema", "schema")
    written = json.dumps(assignment.json_schema)
    file = assignment.home / f"schema-{hashlib.sha256(written.encode()).hexdigest()[:16]}.json"
    file.write_text(written)
    return ["--output-schema", str(file)]


def _settings(program: Sequence[str], assignment: Assignment, env: Mapping[str, str]) -> Iterable[str]:
    """Its configuration, as TOML values; JSON strings are TOML strings."""
    sandbox = "workspace-write" if assignment.mode == "edit" else "read-only"
    if assignment.sandboxed:
        # Its own is bubblewrap too, and may not make another namespace within ours: every command would fail.
        sandbox = "danger-full-access"
    # Where its sandbox cannot run at all, as in some containers, the row may say so; never for reading.
    if assignment.mode == "read" or not any("sandbox_mode" in word for word in program):
        yield f'sandbox_mode="{sandbox}"'
    yield 'approval_policy="never"'
    yield "analytics.enabled=false"
    yield "check_for_update_on_startup=false"
    if assignment.model:
        yield f"model={json.dumps(assignment.model)}"
    if assignment.effort:
        yield f'model_reasoning_effort="{assignment.effort}"'
    if env.get("OPENAI_BASE_URL"):
        # A provider of its own: at OpenAI's address it speaks WebSockets first, which few gateways know.
        url = json.dumps(env["OPENAI_BASE_URL"])
        yield f'model_provider="{MCP_NAME}"'
        yield (
            f"model_providers.{MCP_NAME}="
            f'{{name="OpenAI",base_url={url},wire_api="responses",env_key="CODEX_API_KEY"}}'
        )
    if assignment.mcp_url:
        # Required, else a server that refuses the token is missing without a word; approved, else every call
        # is refused where nobody can be asked.
        bearer = f',bearer_token_env_var="{TOKEN_VARIABLE}"' if assignment.token else ""
        url = json.dumps(assignment.mcp_url)
        yield (
            f"mcp_servers.{MCP_NAME}="
            f'{{url={url}{bearer},required=true,default_tools_approval_mode="approve",tool_timeout_sec=3600}}'
        )


class CodexReader(JsonReader):
    """Usage is counted over the whole thread: what earlier runs of this home had is taken off."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._session: str | None = None
        self._text = ""
        self._total: dict[str, int] | None = None
        self._failed: str | None = None
        self._problem: str | None = None
        self._turns = 0
        self._completed = False
        self._denials: dict[str, None] = {}
        self._mcp: str | None = None
        self._voice = Voice(assignment.live)

    def event(self, message: dict[str, Any]) -> Iterable[Step]:
        kind = message.get("type")
        match kind:
            case "thread.started":
                self._session = message.get("thread_id")
                yield Step("session", self._session or "", data={"session_id": self._session})
            case "turn.completed":
                self._turns += 1
                self._completed, self._failed = True, None
                if isinstance(usage := message.get("usage"), dict):
                    self._total = {name: whole(usage.get(name)) for name in _COUNTED}
            case "turn.failed":
                self._failed = str((message.get("error") or {}).get("message") or "the turn failed")
                yield Step("error", short(self._failed))
            case "error":
                # Also said of a connection that is tried again: only the end of the turn decides.
                self._problem = str(message.get("message") or "")
                yield Step("notice", short(self._problem))
            case "item.started" | "item.completed" | "item.updated":
                yield from self._item(str(kind), message["item"])

    def _item(self, kind: str, item: dict[str, Any]) -> Iterable[Step]:
        ended, data = kind == "item.completed", {"id": item.get("id")}
        if item.get("status") == "declined":
            self._denials[str(item.get("type"))] = None
        match item.get("type"):
            case "agent_message" if ended:
                self._text = str(item.get("text") or "")
                self._voice.pause()
                yield from self._voice.say(self._text)
                yield Step("text", kept(self._text))
            case "command_execution":
                if kind == "item.started":
                    yield Step("tool", kept(str(item.get("command"))), tool="shell", data=data)
                elif ended:
                    done = {**data, "ok": item.get("exit_code") == 0}
                    yield Step("tool_result", kept(str(item.get("aggregated_output") or "")), data=done)
            case "mcp_tool_call":
                name = f"{item.get('server')}.{item.get('tool')}"
                if item.get("server") == MCP_NAME:
                    self._mcp = "connected"
                if kind == "item.started":
                    yield Step("tool", kept(json.dumps(item.get("arguments"))), tool=name, data=data)
                elif ended:
                    said = item.get("error") or item.get("result")
                    done = {**data, "ok": item.get("status") == "completed"}
                    yield Step("tool_result", kept(json.dumps(said, ensure_ascii=False)), data=done)
            case "file_change" if ended:
                paths = ", ".join(str(change.get("path")) for change in item.get("changes") or [])
                yield Step("tool", kept(paths), tool="file_change", data=data)
            case "error" if ended:
                yield Step("notice", short(str(item.get("message"))))

    def finish(self, code: int | None, stderr: str) -> Outcome:
        said = self.words(stderr)
        if "mcp" in said.lower() and MCP_NAME in said and code not in (0, None):
            self._mcp = "failed"
        if not self._completed and not self._failed:
            left = unfinished(code, self, stderr, self._session)
            reason = "mcp_failed" if self._mcp == "failed" else left.stop_reason
            # Of many lines the last that is marked says it best.
            marked = [line for line in said.splitlines() if line.startswith("Error: ")]
            error = self._problem or (short(marked[-1], 500) if marked else left.error)
            return Outcome(False, reason, self._session, error=error, mcp_status=self._mcp)
        ok, reason, error = True, "completed", None
        if code is None:
            ok, reason, error = False, "stopped", "It was stopped."
        elif self._failed is not None:
            ok, reason, error = False, "api_error", short(self._failed, 2_000)
        elif code != 0:
            ok, reason, error = False, "exit_code", f"It ended with exit code {code}. {said}".strip()
        structured = None
        if self.assignment.json_schema is not None:
            with suppress(ValueError):
                structured = json.loads(self._text)
            if ok and structured is None:
                ok, reason = False, "schema_missed"
                error = "It ended without the structured output that was asked for."
        mcp = self._mcp or ("connected" if self.assignment.mcp_url else None)
        return Outcome(
            ok=ok,
            stop_reason=reason,
            session_id=self._session,
            final_text=self._text,
            structured=structured,
            usage=self._own_usage(),
            turns=self._turns,
            denials=tuple(self._denials),
            mcp_status=mcp,
            error=error,
        )

    def _own_usage(self) -> Usage | None:
        if self._total is None or self._session is None:
            return None
        conversation = self.assignment.conversation
        base = _Ledger(self.assignment.home).charge(
            self._session,
            self._total,
            origin=conversation.id if conversation.how == "fork" else self._session,
            new=conversation.how == "new",
            run=self.assignment.job_id,
        )
        if base is None:
            return None
        own = {name: max(0, self._total[name] - whole(base.get(name))) for name in _COUNTED}
        cached = own["cached_input_tokens"]
        return Usage(max(0, own["input_tokens"] - cached), own["output_tokens"], cached)


class _Ledger:
    """What each thread of a home had used by the end of its last run, in a small file of the home."""

    def __init__(self, home: Path) -> None:
        self._file = home / _LEDGER

    def charge(
        self, thread: str, total: dict[str, int], *, origin: str | None, new: bool, run: str | None
    ) -> dict[str, int] | None:
        """What the thread had used before this run; None when nobody knows. Notes what it has used now.

        A run whose output is read a second time, after a crash, gets the same answer.
        """
        known = self._read()
        last = known.get(thread)
        if last and last.get("after") == total and last.get("run") == run and run is not None:
            before = last.get("before")
        else:
            earlier = known.get(origin or "")
            before = {} if new else earlier.get("after") if earlier else None
            known[thread] = {"before": before, "after": total, "run": run}
            with suppress(OSError):
                self._file.write_text(json.dumps(known))
        return before if isinstance(before, dict) else None

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            known = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return (
            {name: row for name, row in known.items() if isinstance(row, dict)}
            if isinstance(known, dict)
            else {}
        )
