"""Settings: every key by file and by environment, and refusals that name the key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from quarterdeck.config import SHORT, Settings, keys, load
from quarterdeck.domain.errors import Invalid

# Of each key: a value that is not its default, as TOML and as an environment variable write it.
EVERY_KEY: dict[str, tuple[Any, str, str]] = {
    "server.admin_secret": ("s3cret", '"s3cret"', "s3cret"),
    "server.allowed_hosts": (
        ["a.example", "b.example"],
        '["a.example", "b.example"]',
        "a.example, b.example",
    ),
    "server.allowed_origins": (["https://a.example"], '["https://a.example"]', '["https://a.example"]'),
    "server.max_body_bytes": (2048, "2048", "2048"),
    "server.rate_limit_per_minute": (0, "0", "0"),
    "server.session_idle_seconds": (1, "1", "1"),
    "server.web_secret": ("w" * 32, f'"{"w" * 32}"', "w" * 32),
    "database.url": ("postgresql://u:p@h/d", '"postgresql://u:p@h/d"', "postgresql://u:p@h/d"),
    "search.provider": ("off", '"off"', "off"),
    "search.openai_api_key": ("sk-x", '"sk-x"', "sk-x"),
    "search.openai_base_url": ("http://127.0.0.1:1/v1", '"http://127.0.0.1:1/v1"', "http://127.0.0.1:1/v1"),
    "content.default_provider": ("openai", '"openai"', "openai"),
    "content.claude_model": ("claude-x", '"claude-x"', "claude-x"),
    "content.gemini_model": ("gemini-x", '"gemini-x"', "gemini-x"),
    "content.openai_model": ("gpt-x", '"gpt-x"', "gpt-x"),
    "content.anthropic_base_url": ("http://127.0.0.1:1", '"http://127.0.0.1:1"', "http://127.0.0.1:1"),
    "content.google_base_url": ("http://127.0.0.1:2", '"http://127.0.0.1:2"', "http://127.0.0.1:2"),
    "content.openai_base_url": ("http://127.0.0.1:3/v1", '"http://127.0.0.1:3/v1"', "http://127.0.0.1:3/v1"),
    "content.timeout_seconds": (1.5, "1.5", "1.5"),
    "content.retries": (0, "0", "0"),
    "content.batch_dir": (Path("some/batches"), '"some/batches"', "some/batches"),
    "plans.session_idle_hours": (0.5, "0.5", "0.5"),
    "breaker.threshold": (2, "2", "2"),
    "breaker.window_seconds": (0.5, "0.5", "0.5"),
    "breaker.reset_seconds": (0.25, "0.25", "0.25"),
    "worker.concurrency": (7, "7", "7"),
    "worker.heartbeat_seconds": (0.5, "0.5", "0.5"),
    "worker.lease_seconds": (2.5, "2.5", "2.5"),
    "worker.max_attempts": (5, "5", "5"),
    "worker.grace_seconds": (0.5, "0.5", "0.5"),
    "worker.acceptance_seconds": (60.5, "60.5", "60.5"),
    "worker.gate_seconds": (60.5, "60.5", "60.5"),
    "worker.log_cap_bytes": (65_536, "65536", "65536"),
    "worker.pass_env": (["A", "B"], '["A", "B"]', "A,B"),
    "worker.sandbox": ("required", '"required"', "required"),
    "worker.sandbox_network": ("isolated", '"isolated"', "isolated"),
    "worker.sandbox_hosts": (
        ["a.example", "127.0.0.1:1"],
        '["a.example", "127.0.0.1:1"]',
        "a.example,127.0.0.1:1",
    ),
    "defaults.worker_agent": ("bot", '"bot"', "bot"),
    "defaults.relay_agent": ("bot", '"bot"', "bot"),
    "defaults.prompt_agent": ("bot", '"bot"', "bot"),
    "defaults.review_agent": ("bot", '"bot"', "bot"),
    "general.auto_review": (False, "false", "false"),
    "general.auto_approve": (True, "true", "true"),
    "general.require_review_approval": (True, "true", "true"),
    "general.serialize_merges": (False, "false", "false"),
    "general.push_after_merge": (True, "true", "true"),
    "general.default_base_branch": ("trunk", '"trunk"', "trunk"),
    "general.auto_sync_base_branch": (False, "false", "false"),
    "general.worktree_base_ref_strategy": ("local", '"local"', "local"),
    "general.default_pair_terminal_backend": ("cursor", '"cursor"', "cursor"),
    **{
        f"general.default_model_{name}": ("m", '"m"', "m")
        for name in ("claude", "opencode", "codex", "gemini", "kimi", "copilot")
    },
    "general.tasks_wait_default_timeout_seconds": (7, "7", "7"),
    "general.tasks_wait_max_timeout_seconds": (8, "8", "8"),
    "ui.skip_pair_instructions": (True, "true", "true"),
    "relay.local_roots": (["/a", "/b"], '["/a", "/b"]', "/a,/b"),
    "relay.max_queued": (1, "1", "1"),
    "relay.default_timeout_seconds": (60, "60", "60"),
    "relay.webhook_secret": ("s", '"s"', "s"),
    "relay.webhook_private": (True, "true", "true"),
    "relay.mirror_idle_days": (0.5, "0.5", "0.5"),
    "relay.pull_requests": ("all", '"all"', "all"),
    "log.level": ("debug", '"debug"', "debug"),
    "log.format": ("json", '"json"', "json"),
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("QUARTERDECK_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quarterdeck.toml"


def value_of(settings: Settings, key: str) -> Any:
    section, _, name = key.partition(".")
    value = getattr(getattr(settings, section), name)
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def as_toml(key: str, value: str) -> str:
    section, _, name = key.partition(".")
    return f"[{section}]\n{name} = {value}\n"


def as_variable(key: str) -> str:
    return f"QUARTERDECK_{key.replace('.', '__')}".upper()


def refusal(file: Path) -> Invalid:
    with pytest.raises(Invalid) as refused:
        load(file)
    return refused.value


def test_no_key_is_missing_here() -> None:
    assert set(EVERY_KEY) == set(keys())


def test_without_a_file_every_key_has_its_default(file: Path) -> None:
    settings = load(file)
    assert settings == Settings()
    assert all(value_of(settings, key) != value for key, (value, _, _) in EVERY_KEY.items())
    assert not file.exists()


@pytest.mark.parametrize("key", EVERY_KEY)
def test_key_is_read_from_the_file(file: Path, key: str) -> None:
    value, written, _ = EVERY_KEY[key]
    file.write_text(as_toml(key, written))
    settings = load(file)
    assert value_of(settings, key) == value
    assert all(
        value_of(settings, other) == value_of(Settings(), other) for other in EVERY_KEY if other != key
    )


@pytest.mark.parametrize("key", EVERY_KEY)
@pytest.mark.parametrize("upper", [True, False])
def test_environment_variable_beats_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, key: str, upper: bool
) -> None:
    value, _, exported = EVERY_KEY[key]
    default = value_of(Settings(), key)
    if default is not None:
        file.write_text(as_toml(key, json.dumps(default)))
    variable = as_variable(key)
    monkeypatch.setenv(variable if upper else variable.lower(), exported)
    assert value_of(load(file), key) == value


def test_file_and_environment_share_a_section(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[server]\nmax_body_bytes = 2048\nrate_limit_per_minute = 7\n")
    monkeypatch.setenv("QUARTERDECK_SERVER__RATE_LIMIT_PER_MINUTE", "8")
    settings = load(file)
    assert (settings.server.max_body_bytes, settings.server.rate_limit_per_minute) == (2048, 8)


@pytest.mark.parametrize("variable", SHORT)
def test_short_variable_beats_the_file_and_the_long_one_beats_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    key = ".".join(SHORT[variable])
    file.write_text(as_toml(key, '"from-the-file"'))
    assert value_of(load(file), key) == "from-the-file"
    monkeypatch.setenv(variable, "short")
    assert value_of(load(file), key) == "short"
    monkeypatch.setenv(as_variable(key), "long")
    assert value_of(load(file), key) == "long"


def test_database_of_the_command_line_beats_everything(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARTERDECK_DATABASE_URL", "postgresql://env/d")
    given = load(file, database_url="postgresql://given/d")
    assert value_of(given, "database.url") == "postgresql://given/d"


@pytest.mark.parametrize(
    ("written", "key", "meant"),
    [
        ("[server]\nadmin_secrt = 'x'", "server.admin_secrt", "server.admin_secret"),
        ("[server]\nrate_limit = 5", "server.rate_limit", "server.rate_limit_per_minute"),
        ("[databse]\nurl = 'x'", "databse", "database"),
        ("[log]\nlevels = 'info'", "log.levels", "log.level"),
        ("[agent.x]\nname = 'x'", "agent", "agents"),
    ],
)
def test_unknown_key_is_refused_with_what_was_meant(file: Path, written: str, key: str, meant: str) -> None:
    file.write_text(written)
    refused = refusal(file)
    assert refused.field == key and key in refused.message
    assert refused.hint == f"did you mean {meant}?"


def test_unknown_key_that_resembles_nothing_gets_no_suggestion(file: Path) -> None:
    file.write_text("zzzzzz = 1")
    assert refusal(file).hint is None


def test_unknown_variable_of_a_section_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARTERDECK_SERVER__ADMIN_SECRT", "x")
    assert refusal(file).hint == "did you mean server.admin_secret?"


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("worker.sandbox_network", '"closed"'),
        ("worker.sandbox_hosts", '["*.example"]'),
        ("worker.sandbox_hosts", '["https://a.example"]'),
        ("server.max_body_bytes", "1023"),
        ("server.max_body_bytes", '"lots"'),
        ("server.rate_limit_per_minute", "-1"),
        ("server.session_idle_seconds", "0"),
        ("server.allowed_hosts", "5"),
        ("server.admin_secret", "5"),
        ("server.web_secret", '"too short"'),
        ("search.provider", '"google"'),
        ("log.level", '"loud"'),
        ("log.format", "true"),
        ("database.url", "[]"),
    ],
)
def test_bad_value_names_its_key(file: Path, key: str, written: str) -> None:
    file.write_text(as_toml(key, written))
    refused = refusal(file)
    assert refused.field == key and key in refused.message


@pytest.mark.parametrize(
    ("variable", "value", "field"),
    [
        ("QUARTERDECK_SERVER__MAX_BODY_BYTES", "lots", "server.max_body_bytes"),
        ("QUARTERDECK_SERVER__ALLOWED_HOSTS", "[broken", "server.allowed_hosts"),
        ("QUARTERDECK_LOG__LEVEL", "", "log.level"),
        ("QUARTERDECK_SERVER", "{broken", "server"),
        ("QUARTERDECK_AGENTS", "broken", "agents"),
        ("QUARTERDECK_LOG", "3", "log"),
    ],
)
def test_bad_variable_names_its_key(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str
) -> None:
    monkeypatch.setenv(variable, value)
    refused = refusal(file)
    assert refused.field == field and field.partition(".")[0] in refused.message.lower()


def test_section_that_is_no_table_is_refused_also_beside_a_short_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("server = 5")
    monkeypatch.setenv("QUARTERDECK_ADMIN_SECRET", "x")
    assert refusal(file).field == "server"


@pytest.mark.parametrize("content", [b"[server", b"server.x = ", b"\xff\xfe", b"x = 1\nx = 2"])
def test_file_that_is_not_toml_is_refused_by_name(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    refused = refusal(file)
    assert refused.field == str(file)
    assert f"{file} is not valid TOML" in refused.message


def test_file_that_cannot_be_read_is_refused_by_name(file: Path) -> None:
    file.mkdir()
    assert f"{file} cannot be read" in refusal(file).message


def test_refusal_and_representation_show_no_secret(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARTERDECK_ADMIN_SECRET", "s3cret")
    monkeypatch.setenv("QUARTERDECK_DATABASE_URL", "postgresql://u:s3cret@h/d")
    monkeypatch.setenv("QUARTERDECK_SEARCH__OPENAI_API_KEY", "s3cret")
    assert "s3cret" not in repr(load(file))
    monkeypatch.setenv("QUARTERDECK_LOG__LEVEL", "loud")
    assert "s3cret" not in repr(refusal(file).args)


def test_empty_short_variables_mean_no_secret_and_the_embedded_database(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in SHORT:
        monkeypatch.setenv(variable, "")
    settings = load(file)
    assert not settings.server.admin_secret and not settings.database.url


def test_agents_add_to_the_registry_and_override_only_what_they_name(file: Path) -> None:
    file.write_text(
        """
        [agents.my-bot]
        name = "My bot"
        adapter = "command"
        command = ["./bot", "--fast"]
        env = { KEY = "value" }
        capabilities = ["code", "git"]
        max_concurrent = 2
        [agents.claude-code]
        cost_tier = "low"
        """
    )
    agents, plain = load(file).registry(), Settings().registry()
    assert list(agents) == [*plain, "my-bot"]
    bot = agents["my-bot"]
    assert (bot.name, bot.adapter, bot.command) == ("My bot", "command", ("./bot", "--fast"))
    assert (bot.env, bot.capabilities, bot.max_concurrent) == ({"KEY": "value"}, ("code", "git"), 2)
    assert agents["claude-code"].cost_tier == "low" != plain["claude-code"].cost_tier
    assert agents["claude-code"].command == plain["claude-code"].command
    assert {name: agent for name, agent in agents.items() if name in plain and name != "claude-code"} == {
        name: agent for name, agent in plain.items() if name != "claude-code"
    }


def test_agents_come_from_the_environment_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('[agents.one]\nname = "One"\n')
    monkeypatch.setenv("QUARTERDECK_AGENTS__TWO", '{"name": "Two", "max_concurrent": 4}')
    agents = load(file).registry()
    assert (agents["one"].name, agents["two"].name, agents["two"].max_concurrent) == ("One", "Two", 4)


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ("[agents.bot]\nadaptor = 'command'", "agents.bot.adaptor"),
        ("[agents.bot]\nmax_concurrent = 0", "agents.bot.max_concurrent"),
        ("[agents]\nbot = 5", "agents.bot"),
    ],
)
def test_bad_agent_is_refused_by_its_field_when_the_settings_are_loaded(
    file: Path, written: str, field: str
) -> None:
    file.write_text(written)
    assert refusal(file).field == field


def test_a_default_that_names_no_agent_that_can_be_run_is_doubted(file: Path) -> None:
    assert load(file).doubts() == []
    file.write_text(
        """
        [defaults]
        worker_agent = "claude"
        relay_agent = "claud-code"
        prompt_agent = "triage-agent"
        review_agent = "bot"
        [agents.bot]
        adapter = "command"
        """
    )
    relay, prompt = load(file).doubts()
    assert "defaults.relay_agent is 'claud-code', but there is no such agent" in relay
    assert "defaults.prompt_agent is 'triage-agent', but it has no adapter" in prompt
    assert relay.endswith("claude-code, bot")
