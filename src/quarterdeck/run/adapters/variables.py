"""Which variables of the core's own environment an agent gets: few, by name, keys where they belong."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from quarterdeck.config import Settings
from quarterdeck.domain.agents import Agent

PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
ALWAYS: Final = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "TMPDIR", *PROXIES, "NO_PROXY", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("GIT_SSL_CAINFO", "CODEX_CA_CERTIFICATE"),
)
_DEFAULTS: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
_LOOPBACK: Final = "127.0.0.1,localhost,::1"
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)

_AWS: Final = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *(
        "AWS_PROFILE",
        "AWS_BEARER_TOKEN_BEDROCK",
        "ANTHROPIC_BEDROCK_BASE_URL",
        "CLAUDE_CODE_SKIP_BEDROCK_AUTH",
    ),
)
_GOOGLE_CLOUD: Final = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "claude": (
        *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN"),
        *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL"),
        *("ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_CUSTOM_HEADERS"),
        *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
        *("CLAUDE_CODE_MAX_RETRIES", "CLAUDE_CODE_MAX_OUTPUT_TOKENS"),
    ),
    "codex": (
        *("OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "OPENAI_ORGANIZATION", "OPENAI_PROJECT"),
    ),
    "gemini": (
        *("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"),
        *("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GEMINI_MODEL", "GOOGLE_CLOUD_PROJECT"),
    ),
    "opencode": (
        *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"),
        *("OPENROUTER_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY", "DEEPSEEK_API_KEY", "XAI_API_KEY"),
        *("OPENCODE_API_KEY", "OPENCODE_CONFIG_CONTENT"),
    ),
    "acp": (),
    "command": (),
}
# A cloud's own keys open more than a model: they go along only where the agent is told to use that cloud.
CLOUDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "CLAUDE_CODE_USE_BEDROCK": ("claude", _AWS),
    "CLAUDE_CODE_USE_VERTEX": (
        "claude",
        (
            *("ANTHROPIC_VERTEX_PROJECT_ID", "ANTHROPIC_VERTEX_BASE_URL", "CLOUD_ML_REGION"),
            *("CLAUDE_CODE_SKIP_VERTEX_AUTH", *_GOOGLE_CLOUD),
        ),
    ),
    "CLAUDE_CODE_USE_FOUNDRY": (
        "claude",
        ("ANTHROPIC_FOUNDRY_API_KEY", "ANTHROPIC_FOUNDRY_BASE_URL", "ANTHROPIC_FOUNDRY_RESOURCE"),
    ),
    "GOOGLE_GENAI_USE_VERTEXAI": ("gemini", _GOOGLE_CLOUD),
}


def environment(agent: Agent, settings: Settings, home: Path) -> dict[str, str]:
    """All that an agent sees: the host's few, its provider's keys, `worker.pass_env`, its own row last."""
    whose = family(agent)
    names = [*ALWAYS, *KEYS.get(whose, ()), *settings.worker.pass_env]
    for switch, (adapter, more) in CLOUDS.items():
        if adapter == whose and (agent.env.get(switch) or os.environ.get(switch)):
            names += more
    env = _DEFAULTS | _present(names)
    if any(name in env for name in PROXIES):
        # The core itself is reached without the proxy.
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, (env.get(name), _LOOPBACK)))
    return {**env, "HOME": str(home), **agent.env}


def _present(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def secrets(env: Mapping[str, str]) -> set[str]:
    """What looks like a secret in an environment: to be kept out of logs, events and errors."""
    return {value for name, value in env.items() if _SECRET.search(name) and len(value) >= 8}


def family(agent: Agent) -> str:
    """Whose keys it may have; an ACP agent is known by the name of its program."""
    if agent.adapter != "acp" or not agent.command:
        return agent.adapter or ""
    words = " ".join(Path(word).name for word in agent.command[:2])
    return next((name for name in ("claude", "codex", "gemini", "opencode") if name in words), "acp")
