"""Settings: `quarterdeck.toml`, the environment, defaults. docs/configuration.md describes every key."""

import difflib
import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from quarterdeck.domain import hosts
from quarterdeck.domain.agents import Agent, named, registry
from quarterdeck.domain.content import Provider
from quarterdeck.domain.errors import Invalid

# The short names of common keys, beside QUARTERDECK_<SECTION>__<KEY>.
SHORT = {
    "QUARTERDECK_DATABASE_URL": ("database", "url"),
    "QUARTERDECK_ADMIN_SECRET": ("server", "admin_secret"),
}


def _listed(value: Any) -> Any:
    """A list as it is; in an environment variable it is JSON or has commas between its entries."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _hosts(entries: list[str]) -> list[str]:
    for entry in entries:
        hosts.parse(entry)
    return entries


Names = Annotated[list[str], NoDecode, BeforeValidator(_listed)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Section):
    admin_secret: SecretStr | None = None
    allowed_hosts: Names = []
    allowed_origins: Names = []
    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    rate_limit_per_minute: Annotated[int, Field(ge=0)] = 6000
    session_idle_seconds: Annotated[int, Field(ge=1)] = 86_400
    # Long, since whoever has a cookie may try to guess it.
    web_secret: Annotated[SecretStr, Field(min_length=32)] | None = None


class DatabaseSettings(_Section):
    url: SecretStr | None = None


class SearchSettings(_Section):
    provider: Literal["auto", "local", "openai", "off"] = "auto"
    openai_api_key: SecretStr | None = None
    openai_base_url: str = "https://api.openai.com/v1"


class ContentSettings(_Section):
    """Keys come from the environment alone: see docs/content.md."""

    default_provider: Provider = "gemini"
    claude_model: str = "claude-sonnet-4-6"
    gemini_model: str = "gemini-3.6-flash"
    openai_model: str = "gpt-5.4-mini"
    anthropic_base_url: str | None = None
    google_base_url: str | None = None
    openai_base_url: str | None = None
    timeout_seconds: Annotated[float, Field(gt=0)] = 300.0
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    batch_dir: Path | None = None


class BreakerSettings(_Section):
    threshold: Annotated[int, Field(ge=1)] = 5
    window_seconds: Annotated[float, Field(gt=0)] = 120.0
    reset_seconds: Annotated[float, Field(gt=0)] = 60.0

    @property
    def limits(self) -> tuple[int, float, float]:
        return self.threshold, self.window_seconds, self.reset_seconds


class PlanSettings(_Section):
    session_idle_hours: Annotated[float, Field(gt=0)] = 24.0


class WorkerSettings(_Section):
    concurrency: Annotated[int, Field(ge=0, le=64)] = 3
    heartbeat_seconds: Annotated[float, Field(gt=0)] = 15.0
    lease_seconds: Annotated[float, Field(gt=0)] = 60.0
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    grace_seconds: Annotated[float, Field(gt=0)] = 2.0
    log_cap_bytes: Annotated[int, Field(ge=65_536)] = 4 * 1024 * 1024
    acceptance_seconds: Annotated[float, Field(gt=0)] = 1800.0
    gate_seconds: Annotated[float, Field(gt=0)] = 900.0
    # Names of the core's own environment that agents get: provider keys and base URLs beside the usual ones.
    pass_env: Names = []
    sandbox: Literal["auto", "required", "off"] = "auto"
    sandbox_network: Literal["open", "isolated"] = "open"
    sandbox_hosts: Annotated[Names, AfterValidator(_hosts)] = []


class DefaultSettings(_Section):
    worker_agent: str = "claude-code"
    relay_agent: str = "claude-code"
    prompt_agent: str = "claude-code"
    review_agent: str | None = None


WaitSeconds = Annotated[int, Field(ge=1, le=3600)]
BaseRef = Literal["remote", "local_if_ahead", "local"]
Terminal = Literal["tmux", "vscode", "cursor"]


class GeneralSettings(_Section):
    """How the board works; `settings_update` beats what stands here."""

    auto_review: bool = True
    auto_approve: bool = False
    require_review_approval: bool = False
    serialize_merges: bool = True
    push_after_merge: bool = False
    default_base_branch: Annotated[str, Field(min_length=1, max_length=200)] = "main"
    auto_sync_base_branch: bool = True
    worktree_base_ref_strategy: BaseRef = "remote"
    default_pair_terminal_backend: Terminal = "tmux"
    default_model_claude: str | None = None
    default_model_opencode: str | None = None
    default_model_codex: str | None = None
    default_model_gemini: str | None = None
    default_model_kimi: str | None = None
    default_model_copilot: str | None = None
    tasks_wait_default_timeout_seconds: WaitSeconds = 900
    tasks_wait_max_timeout_seconds: WaitSeconds = 900


class UiSettings(_Section):
    skip_pair_instructions: bool = False


class RelaySettings(_Section):
    local_roots: Names | None = None
    max_queued: Annotated[int, Field(ge=0)] = 100
    default_timeout_seconds: Annotated[int, Field(ge=1)] = 1800
    webhook_secret: SecretStr | None = None
    webhook_private: bool = False
    mirror_idle_days: Annotated[float, Field(gt=0)] = 30.0
    pull_requests: Literal["local", "all"] = "local"


class LogSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Settings(BaseSettings):
    """What is in force. An environment variable beats the file, which beats the default."""

    model_config = SettingsConfigDict(
        env_prefix="QUARTERDECK_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    server: ServerSettings = Field(default_factory=ServerSettings)
    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    search: SearchSettings = Field(default_factory=SearchSettings)
    content: ContentSettings = Field(default_factory=ContentSettings)
    breaker: BreakerSettings = Field(default_factory=BreakerSettings)
    plans: PlanSettings = Field(default_factory=PlanSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    defaults: DefaultSettings = Field(default_factory=DefaultSettings)
    general: GeneralSettings = Field(default_factory=GeneralSettings)
    ui: UiSettings = Field(default_factory=UiSettings)
    relay: RelaySettings = Field(default_factory=RelaySettings)
    log: LogSettings = Field(default_factory=LogSettings)
    agents: dict[str, dict[str, Any]] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings

    def registry(self) -> dict[str, Agent]:
        """The five agents of the registry with the config's additions."""
        return registry(self.agents)

    def doubts(self) -> list[str]:
        """What is allowed and will not work: a default that names no agent, or one that cannot be run."""
        agents = self.registry()
        able = ", ".join(agent.id for agent in agents.values() if agent.adapter)
        found = []
        for key, name in self.defaults.model_dump().items():
            agent = None if name is None else named(agents, name)
            if name is not None and (agent is None or agent.adapter is None):
                why = "there is no such agent" if agent is None else "it has no adapter"
                found.append(f"defaults.{key} is {name!r}, but {why}; those that can be run: {able}")
        return found


def load(file: Path, *, database_url: str | None = None) -> Settings:
    """The settings of a file that may be absent, and of the environment. Raises Invalid naming the key.

    A `database_url` from the command line beats both.
    """
    values = _read(file)
    for variable, (section, key) in SHORT.items():
        if variable in os.environ and f"QUARTERDECK_{section}__{key}".upper() not in os.environ:
            table = values.setdefault(section, {})
            if isinstance(table, dict):  # else it is refused below, by its name
                table[key] = os.environ[variable]
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _worded(error) from None
    except SettingsError as error:
        section = str(error).split('"')[1]  # as in: error parsing value for field "agents" from …
        raise Invalid(f"QUARTERDECK_{section.upper()} is not valid JSON", field=section) from None
    settings.registry()
    if database_url is not None:
        settings = settings.model_copy(update={"database": DatabaseSettings(url=SecretStr(database_url))})
    return settings


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not valid TOML: {error}", field=str(file)) from error
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}", field=str(file)) from error


def keys() -> list[str]:
    """Every config key, dotted; the documentation is checked against it."""
    found = []
    for section, field in Settings.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, _Section):
            found += [f"{section}.{key}" for key in inner.model_fields]
    return found


def _worded(error: ValidationError) -> Invalid:
    first = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] != "extra_forbidden":
        return Invalid(f"config key {key}: {first['msg']}", field=key)
    near = difflib.get_close_matches(key, [*keys(), *Settings.model_fields], n=1)
    return Invalid(
        f"there is no config key {key}", field=key, hint=f"did you mean {near[0]}?" if near else None
    )
