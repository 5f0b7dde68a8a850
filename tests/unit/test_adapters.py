"""From an assignment to a command line: what each adapter asks for, refuses, and never gives away."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.config import Settings
from quarterdeck.domain.agents import ADAPTERS as NAMES
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import Invalid, Unavailable
from quarterdeck.run.adapters import programs
from quarterdeck.run.adapters.base import Assignment, Conversation, Launch
from quarterdeck.run.adapters.registry import ADAPTERS, adapter_of, model_of

TOKEN = "mcp_a-token-of-this-job-alone"
URL = "http://127.0.0.1:7411/mcp"
SESSION = "11111111-1111-4111-8111-111111111111"


def launch(name: str, root: Path, **wanted: Any) -> Launch:
    flags = wanted.pop("flags", None)
    env = wanted.pop("env", {"PATH": "/usr/bin"})
    given = {"prompt": "Do it.", "cwd": root, "home": root / "home", "mcp_url": URL, "token": TOKEN, **wanted}
    return ADAPTERS[name].launch([f"/opt/{name}"], env, Assignment(**given), flags)


def test_every_adapter_of_the_configuration_exists() -> None:
    assert tuple(ADAPTERS) == NAMES
    assert [adapter_of(Agent("a", "a", adapter=name)) for name in NAMES] == list(ADAPTERS.values())
    assert adapter_of(Agent("a", "a")) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["edit", "read"])
def test_the_token_is_in_the_environment_and_never_in_the_command_line(
    name: str, mode: str, tmp_path: Path
) -> None:
    started = launch(name, tmp_path, mode=mode)
    assert not any(TOKEN in word for word in started.argv)
    assert started.env["QUARTERDECK_TOKEN"] == TOKEN
    assert TOKEN not in repr(started)
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN in text for text in written)


def test_claude_speaks_in_parts_where_somebody_listens_and_it_can(tmp_path: Path) -> None:
    partial = "--include-partial-messages"
    known = frozenset({"--strict-mcp-config", partial})
    assert partial in launch("claude", tmp_path, live=True, flags=known).argv
    assert partial not in launch("claude", tmp_path, flags=known).argv
    assert partial not in launch("claude", tmp_path, live=True, flags=known - {partial}).argv


@pytest.mark.parametrize("name", [name for name in NAMES if name != "acp"])
def test_the_prompt_comes_by_stdin(name: str, tmp_path: Path) -> None:
    started = launch(name, tmp_path, prompt="--help me, \N{SNOWMAN}")
    assert started.stdin == "--help me, \N{SNOWMAN}".encode()
    assert not any("help me" in word for word in started.argv)
    assert not started.interactive


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_that_is_no_text_is_replaced_where_it_is_not(name: str, tmp_path: Path) -> None:
    started = launch(name, tmp_path, prompt="half \ud800 a pair")
    assert name == "acp" or started.stdin == b"half ? a pair"


@pytest.mark.parametrize("name", NAMES)
def test_what_an_adapter_cannot_do_is_refused_by_name(name: str, tmp_path: Path) -> None:
    asked: dict[str, dict[str, Any]] = {
        "effort": {"effort": "low"},
        "budget": {"max_budget_usd": 1.0},
        "schema": {"json_schema": {"type": "object"}},
        "subagent": {"subagent": "reviewer"},
        "new_id": {"conversation": Conversation("new", SESSION)},
        "resume": {"conversation": Conversation("resume", SESSION)},
        "continue": {"conversation": Conversation("continue")},
        "fork": {"conversation": Conversation("fork", SESSION)},
        "model": {"model": "some-model"},
    }
    for feature, wanted in asked.items():
        if feature in ADAPTERS[name].features:
            assert launch(name, tmp_path, **wanted).argv
        else:
            with pytest.raises(Invalid, match=f"{name} cannot .*{feature}"):
                launch(name, tmp_path, **wanted)


@pytest.mark.parametrize("session", ["", "--dangerously", "a b", "../x", "x" * 300])
def test_what_is_no_session_is_refused(session: str, tmp_path: Path) -> None:
    for name in ("claude", "codex", "gemini", "opencode", "acp"):
        with pytest.raises(Invalid):
            launch(name, tmp_path, conversation=Conversation("resume", session))


def test_a_flag_that_the_installed_version_lacks_is_named(tmp_path: Path) -> None:
    known = frozenset({"--strict-mcp-config"})
    with pytest.raises(Invalid, match=r"claude has no --effort, which effort needs"):
        launch("claude", tmp_path, flags=known, effort="low")
    with pytest.raises(Invalid, match="codex has no fork"):
        launch("codex", tmp_path, flags=frozenset({"resume"}), conversation=Conversation("fork", SESSION))
    assert launch("claude", tmp_path, flags=known).argv


def test_claude_gets_our_server_alone_and_a_name_for_the_token(tmp_path: Path) -> None:
    argv = list(launch("claude", tmp_path).argv)
    assert "--strict-mcp-config" in argv
    config = json.loads(argv[argv.index("--mcp-config") + 1])
    server = {"type": "http", "url": URL, "headers": {"Authorization": "Bearer ${QUARTERDECK_TOKEN}"}}
    assert config == {"mcpServers": {"quarterdeck": server}}
    assert argv[argv.index("--allowedTools") + 1] == "mcp__quarterdeck"
    assert "--mcp-config" not in launch("claude", tmp_path, mcp_url=None).argv


def test_claude_may_do_everything_or_only_read(tmp_path: Path) -> None:
    editing, reading = launch("claude", tmp_path), launch("claude", tmp_path, mode="read")
    assert "bypassPermissions" in editing.argv
    assert ("IS_SANDBOX" in editing.env) == (os.geteuid() == 0)
    assert "dontAsk" in reading.argv
    allowed = reading.argv[list(reading.argv).index("--allowedTools") + 1].split(",")
    assert "Read" in allowed
    assert not {"Write", "Edit", "Bash"} & set(allowed)


def test_claude_does_not_try_for_minutes_unless_its_row_says_so(tmp_path: Path) -> None:
    assert launch("claude", tmp_path).env["CLAUDE_CODE_MAX_RETRIES"] == "4"
    own = {"CLAUDE_CODE_MAX_RETRIES": "9", "DISABLE_AUTOUPDATER": "0"}
    started = launch("claude", tmp_path, env=own)
    assert own.items() <= started.env.items()
    assert started.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"


def test_claude_is_told_its_wishes(tmp_path: Path) -> None:
    argv = launch(
        "claude",
        tmp_path,
        **{"model": "-m", "effort": "high", "max_budget_usd": 0.5, "subagent": "reviewer"},
        json_schema={"type": "object"},
    ).argv
    for word in ("--model=-m", "--effort=high", "--max-budget-usd=0.5", "--agent=reviewer"):
        assert word in argv
    assert '--json-schema={"type": "object"}' in argv


@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        (Conversation(), []),
        (Conversation("new", SESSION), ["--session-id", SESSION]),
        (Conversation("resume", SESSION), ["--resume", SESSION]),
        (Conversation("continue"), ["--continue"]),
        (Conversation("fork", SESSION), ["--resume", SESSION, "--fork-session"]),
    ],
)
def test_claude_takes_up_a_session(conversation: Conversation, words: list[str], tmp_path: Path) -> None:
    argv = launch("claude", tmp_path, conversation=conversation).argv
    sessions = ("--session-id", "--resume", "--continue", "--fork-session", SESSION)
    assert [word for word in argv if word in sessions] == words


def test_codex_has_a_sandbox_and_a_server_that_it_must_reach(tmp_path: Path) -> None:
    argv = launch("codex", tmp_path).argv
    assert argv[:2] == ("/opt/codex", "exec")
    assert argv[-1] == "-"
    assert 'sandbox_mode="workspace-write"' in argv
    server = next(word for word in argv if word.startswith("mcp_servers.quarterdeck="))
    for part in (
        'bearer_token_env_var="QUARTERDECK_TOKEN"',
        "required=true",
        'default_tools_approval_mode="approve"',
    ):
        assert part in server
    assert argv[argv.index("--disable") + 1] == "plugins"
    assert 'sandbox_mode="read-only"' in launch("codex", tmp_path, mode="read").argv
    inside = launch("codex", tmp_path, mode="read", sandboxed=True)
    assert 'sandbox_mode="danger-full-access"' in inside.argv


def test_the_row_of_codex_may_choose_its_sandbox_but_not_for_reading(tmp_path: Path) -> None:
    program = ["/opt/codex", "-c", 'sandbox_mode="danger-full-access"']
    for mode, expected in (("edit", []), ("read", ['sandbox_mode="read-only"'])):
        given = Assignment("Do it.", tmp_path, tmp_path / "home", mode=mode)  # type: ignore[arg-type]
        argv = ADAPTERS["codex"].launch(program, {}, given).argv
        assert [word for word in argv[3:] if "sandbox_mode" in word] == expected


def test_codex_uses_a_key_and_an_address_of_openai(tmp_path: Path) -> None:
    env = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": "http://gateway/v1"}
    started = launch("codex", tmp_path, env=env)
    assert started.env["CODEX_API_KEY"] == "a-key"
    assert not any("a-key" in word for word in started.argv)
    provider = next(word for word in started.argv if word.startswith("model_providers."))
    assert 'base_url="http://gateway/v1"' in provider


def test_codex_keeps_its_helper_when_its_home_is_below_the_temporary_folder(tmp_path: Path) -> None:
    started = launch("codex", tmp_path, env={"TMPDIR": str(tmp_path)})
    assert Path(started.env["TMPDIR"]).parent == tmp_path / "home"
    elsewhere = launch("codex", tmp_path, env={"TMPDIR": "/nowhere"})
    assert elsewhere.env["TMPDIR"] == "/nowhere"


def test_gemini_finds_its_settings_in_its_home(tmp_path: Path) -> None:
    started = launch("gemini", tmp_path, env={"GEMINI_API_KEY": "k"})
    settings = json.loads((tmp_path / "home/.gemini/settings.json").read_text())
    assert settings["security"]["auth"]["selectedType"] == "gemini-api-key"
    assert settings["privacy"]["usageStatisticsEnabled"] is False
    assert settings["mcpServers"]["quarterdeck"] == {
        "httpUrl": URL,
        "headers": {"Authorization": "Bearer $QUARTERDECK_TOKEN"},
        "trust": True,
    }
    assert started.env["GEMINI_CLI_NO_RELAUNCH"] == "true"
    assert started.env["GEMINI_CLI_TRUST_WORKSPACE"] == "true"
    assert "yolo" in started.argv
    assert "yolo" not in launch("gemini", tmp_path, mode="read").argv
    assert "--model=--yolo" in launch("gemini", tmp_path, mode="read", model="--yolo").argv


def test_opencode_finds_nothing_to_install_in_a_new_home_and_keeps_what_is_there(tmp_path: Path) -> None:
    launch("opencode", tmp_path)
    [lock] = tmp_path.rglob("package-lock.json")
    assert "@opencode-ai/plugin" in json.loads(lock.read_text())["packages"][""]["dependencies"]
    assert (lock.parent / "node_modules").is_dir()
    lock.write_text("{}")
    launch("opencode", tmp_path)
    assert lock.read_text() == "{}"


def test_opencode_keeps_the_configuration_of_its_row(tmp_path: Path) -> None:
    own = {"OPENCODE_CONFIG_CONTENT": '{"model": "a/b", "mcp": {"other": {}}}'}
    started = launch("opencode", tmp_path, env=own, mode="read")
    config = json.loads(started.env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == "a/b"
    assert list(config["mcp"]) == ["quarterdeck"]
    assert config["permission"]["edit"] == config["permission"]["bash"] == "deny"
    assert {"--pure", "--auto"} <= set(started.argv)
    with pytest.raises(Invalid, match="OPENCODE_CONFIG_CONTENT"):
        launch("opencode", tmp_path, env={"OPENCODE_CONFIG_CONTENT": "[]"})


def test_a_command_is_told_of_its_job_and_nothing_more(tmp_path: Path) -> None:
    started = launch("command", tmp_path, task_id="t", job_id="job_1", model="m")
    assert started.argv == ("/opt/command",)
    assert started.env == {
        "PATH": "/usr/bin",
        "QUARTERDECK_MCP_URL": URL,
        "QUARTERDECK_TOKEN": TOKEN,
        "QUARTERDECK_TASK_ID": "t",
        "QUARTERDECK_JOB_ID": "job_1",
        "QUARTERDECK_MODEL": "m",
    }
    assert "QUARTERDECK_TASK_ID" not in launch("command", tmp_path).env


def test_the_login_of_the_user_is_linked_where_no_key_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user"
    (user / ".claude").mkdir(parents=True)
    (user / ".claude" / ".credentials.json").write_text("{}")
    monkeypatch.setenv("HOME", str(user))
    keyed = launch("claude", tmp_path, env={"ANTHROPIC_API_KEY": "k"}, home=tmp_path / "keyed")
    assert keyed.folders == ()
    assert not (tmp_path / "keyed" / ".claude").exists()
    for name in ("claude", "claude", "acp"):
        given = Assignment("Do it.", tmp_path, tmp_path / "linked")
        linked = ADAPTERS[name].launch(["/opt/claude-agent"], {}, given)
        assert linked.folders == (user / ".claude/.credentials.json",)
        assert (tmp_path / "linked/.claude/.credentials.json").readlink() == linked.folders[0]


def test_the_model_of_a_row_goes_to_a_program_that_may_know_it() -> None:
    assert model_of(Agent("a", "a", adapter="claude")) == "claude-sonnet-4-6"
    assert model_of(Agent("a", "a", adapter="codex")) is None
    assert model_of(Agent("a", "a", adapter="codex", model="gpt-5.5")) == "gpt-5.5"
    assert model_of(Agent("a", "a", adapter="codex"), "o9") == "o9"


# The environment.


def test_an_agent_sees_the_few_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    given = {
        "PATH": "/bin",
        "HOME": "/somebody",
        "ANTHROPIC_API_KEY": "a",
        "OPENAI_API_KEY": "o",
        "AWS_SECRET_ACCESS_KEY": "s",
        "QUARTERDECK_ADMIN_SECRET": "q",
        "GITHUB_TOKEN": "g",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    claude = programs.environment(Agent("a", "a", adapter="claude"), Settings(), tmp_path)
    assert claude == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "HOME": str(tmp_path),
        "ANTHROPIC_API_KEY": "a",
    }
    codex = programs.environment(Agent("a", "a", adapter="codex"), Settings(), tmp_path)
    assert codex.keys() - claude.keys() == {"OPENAI_API_KEY"}
    assert "ANTHROPIC_API_KEY" not in codex
    command = programs.environment(Agent("a", "a", adapter="command"), Settings(), tmp_path)
    assert command.keys() == {"PATH", "LANG", "TERM", "HOME"}
    acp = Agent("a", "a", adapter="acp", command=("/x/claude-agent-acp",))
    assert programs.environment(acp, Settings(), tmp_path) == claude


def test_the_configuration_adds_variables_and_its_row_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "g")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of the core")
    settings = Settings(worker={"pass_env": ["GITHUB_TOKEN", "NOT_SET"]})  # type: ignore[arg-type]
    agent = Agent("a", "a", adapter="claude", env={"ANTHROPIC_API_KEY": "own", "HOME": "/own"})
    env = programs.environment(agent, settings, tmp_path)
    assert env["GITHUB_TOKEN"] == "g"
    assert (env["ANTHROPIC_API_KEY"], env["HOME"]) == ("own", "/own")
    assert "NOT_SET" not in env


def test_the_keys_of_a_cloud_go_along_only_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    plain = programs.environment(Agent("a", "a", adapter="claude"), Settings(), tmp_path)
    assert "AWS_SECRET_ACCESS_KEY" not in plain
    row = Agent("a", "a", adapter="claude", env={"CLAUDE_CODE_USE_BEDROCK": "1"})
    assert programs.environment(row, Settings(), tmp_path)["AWS_SECRET_ACCESS_KEY"] == "s"


def test_a_proxy_does_not_stand_between_an_agent_and_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "example.org")
    env = programs.environment(Agent("a", "a", adapter="claude"), Settings(), tmp_path)
    assert env["HTTPS_PROXY"] == "http://proxy:3128"
    assert env["NO_PROXY"].split(",") == ["example.org", "127.0.0.1", "localhost", "::1"]


# Programs.


def program(path: Path, code: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -IS\nimport os, sys\n{code}\n")
    path.chmod(0o755)
    return str(path)


def find(agent: Agent) -> programs.Found:
    return asyncio.run(programs.find(agent, Settings()))


ANSWERS = """
with open(os.path.dirname(__file__) + "/asked", "a") as asked:
    asked.write(" ".join(sys.argv[1:]) + "\\n")
print("3.4.5 (Something)" if "--version" in sys.argv else "  --effort <level>  how hard\\n  resume  go on")
"""


def test_a_program_is_asked_once_for_each_build_of_it(tmp_path: Path) -> None:
    path = program(tmp_path / "claude", ANSWERS)
    agent = Agent("a", "a", adapter="claude", command=(path,))
    first = find(agent)
    assert first.version == "3.4.5"
    assert first.flags == frozenset({"--effort", "resume"})
    assert tmp_path in first.folders
    assert find(agent) == first
    assert (tmp_path / "asked").read_text().splitlines() == ["--version", "--help"]
    program(tmp_path / "claude", ANSWERS.replace("3.4.5", "3.4.16"))
    assert find(agent).version == "3.4.16"


def test_a_program_that_fails_once_is_asked_again(tmp_path: Path) -> None:
    once = """
mark = os.path.dirname(__file__) + "/tried"
if not os.path.exists(mark):
    open(mark, "w")
    sys.exit(3)
"""
    path = program(tmp_path / "claude", once + ANSWERS)
    assert find(Agent("a", "a", adapter="claude", command=(path,))).version == "3.4.5"


def test_a_program_that_does_not_answer_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Agent("a", "a", adapter="claude", command=(program(tmp_path / "broken", "sys.exit(4)"),))
    with pytest.raises(Unavailable, match="exit code 4"):
        find(broken)
    monkeypatch.setattr(programs, "PROBE_SECONDS", 0.2)
    hung = program(tmp_path / "hung", "import time; time.sleep(300)")
    with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
        find(Agent("a", "a", adapter="claude", command=(hung,)))


def test_a_program_is_asked_in_an_empty_home_without_our_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUARTERDECK_ADMIN_SECRET", "a-secret")
    said = "assert not os.listdir(os.environ['HOME']) and 'QUARTERDECK_ADMIN_SECRET' not in os.environ"
    assert find(Agent("a", "a", adapter="claude", command=(program(tmp_path / "claude", said + ANSWERS),)))


def test_a_command_is_looked_for_and_never_asked(tmp_path: Path) -> None:
    path = program(tmp_path / "bot", "open(os.path.dirname(__file__) + '/ran', 'w')")
    found = find(Agent("a", "a", adapter="command", command=(path, "--fast")))
    assert found == programs.Found((path, "--fast"), None, None, found.folders)
    assert not (tmp_path / "ran").exists()
    assert Path(path) in found.folders, "a sandbox may have to show it without its folder"
    on_path = Agent("a", "a", adapter="command", command=("bot",), env={"PATH": str(tmp_path)})
    assert find(on_path).argv == (path,)


@pytest.mark.parametrize(
    ("agent", "hint"),
    [
        (Agent("bot", "b", adapter="command", command=("no-such-program",)), "agents.bot.command"),
        (Agent("bot", "b", adapter="command"), "agents.bot.command"),
        (Agent("bot", "b"), "agents.bot.adapter"),
    ],
)
def test_what_cannot_be_run_is_told_with_what_to_do(agent: Agent, hint: str) -> None:
    with pytest.raises(Unavailable) as refused:
        find(agent)
    assert hint in (refused.value.hint or "")


def test_the_native_program_behind_an_npm_shim_is_started(tmp_path: Path) -> None:
    modules = tmp_path / "lib/node_modules"
    program(modules / "@openai/codex/bin/codex.js", "sys.exit(9)")
    natives = [modules / f"@openai/codex-linux-{cpu}/vendor/any/bin/codex" for cpu in ("x64", "arm64")]
    for native in natives:
        program(native, ANSWERS)
    shim = tmp_path / "bin/codex"
    shim.parent.mkdir()
    shim.symlink_to(modules / "@openai/codex/bin/codex.js")
    found = find(Agent("a", "a", adapter="codex", command=(str(shim),)))
    assert Path(found.argv[0]) in natives
    assert modules in found.folders
