"""The three model providers over real HTTP to a scripted server: requests, usage, errors, breakers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.config import BreakerSettings
from quarterdeck.core import content
from quarterdeck.core.content import Sums
from quarterdeck.core.context import Core
from quarterdeck.domain.content import KEY_VARIABLES, PROVIDERS, Provider
from quarterdeck.domain.errors import Invalid, QuarterdeckError, RateLimited, Unavailable
from tests.integration.content_core import ANN, BOB, KEYS, content_core, set_keys, until
from tests.model_server import ModelServer, Reply

PRICED = {"claude": 3.0 + 15.0, "gemini": 0.75 + 3.75, "openai": 0.75 + 4.5}
MILLION = 1_000_000


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    set_keys(monkeypatch)


async def refused(core: Core, kind: type[QuarterdeckError], **options: Any) -> QuarterdeckError:
    with pytest.raises(kind) as refusal:
        await content.generate(core, ANN, "Say it", **options)
    said = f"{refusal.value.message} {refusal.value.hint} {refusal.value.data}"
    assert not any(key in said for key in KEYS.values())
    return refusal.value


async def total(core: Core) -> Sums:
    return (await content.usage(core, ANN, "day")).total


@pytest.mark.parametrize("provider", PROVIDERS)
def test_temperature_max_tokens_model_prompt_and_key_arrive(
    server: ModelServer, tmp_path: Path, provider: Provider
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            answer = await content.generate(
                core, ANN, "Say it in one word", provider=provider, temperature=0.3, max_tokens=123
            )
        assert (answer.text, answer.provider) == ("A plain answer.", provider)
        [asked] = server.requests
        assert (asked.provider, asked.prompt) == (provider, "Say it in one word")
        assert (asked.temperature, asked.max_tokens) == (0.3, 123)
        assert asked.model == answer.model == core.providers.model_of(provider)
        key = KEYS[KEY_VARIABLES[provider][0]]
        assert any(key in value for value in asked.headers.values())

    asyncio.run(run())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_model_of_the_config_is_asked_with_the_documented_defaults(
    server: ModelServer, tmp_path: Path, provider: Provider
) -> None:
    async def run() -> None:
        named: dict[str, Any] = {f"{provider}_model": "house-model"}
        async with content_core(tmp_path, server, **named) as core:
            await content.generate(core, ANN, "Say it", provider=provider)
        [asked] = server.requests
        assert (asked.model, asked.temperature, asked.max_tokens) == ("house-model", 0.7, 4000)

    asyncio.run(run())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_usage_is_recorded_with_its_cost_and_unknown_is_not_nothing(
    server: ModelServer, tmp_path: Path, provider: Provider
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            server.script(provider, Reply(input_tokens=7, output_tokens=3, model="house-model"))
            unknown = await content.generate(core, ANN, "Say it", provider=provider)
            assert (unknown.cost_usd, unknown.model) == (None, "house-model")
            assert (await total(core)).known_cost is None
            server.script(provider, Reply(input_tokens=MILLION, output_tokens=MILLION))
            known = await content.generate(core, ANN, "Say it", provider=provider)
            assert known.cost_usd == pytest.approx(PRICED[provider])
            report = await content.usage(core, ANN, "month")
            sums = Sums(2, MILLION + 7, MILLION + 3, PRICED[provider], 1)
            assert report.total == report.by_provider[provider] == report.by_purpose["prompt"] == sums
            assert (await content.usage(core, BOB, "year")).total == Sums()

    asyncio.run(run())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_refused_key_names_its_variable_and_never_the_key(
    server: ModelServer, tmp_path: Path, provider: Provider
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, retries=3) as core:
            key = KEYS[KEY_VARIABLES[provider][0]]
            server.script(provider, Reply(status=401, message=f"Incorrect API key provided: {key}"))
            error = await refused(core, Invalid, provider=provider)
            assert KEY_VARIABLES[provider][0] in error.message
            server.script(provider, Reply(status=400, message=f"bad request with {key} in it"))
            error = await refused(core, Invalid, provider=provider)
            assert error.message == f"{provider} refused the request: bad request with *** in it"
            server.script(provider, Reply(status=404, message="no such model"))
            error = await refused(core, Invalid, provider=provider)
            assert error.hint == f"set content.{provider}_model"
            assert len(server.requests) == 3, "what the provider refused is not tried again"
            assert await total(core) == Sums()

    asyncio.run(run())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_rate_limit_says_when_to_come_back_and_opens_no_breaker(
    server: ModelServer, tmp_path: Path, provider: Provider
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, breaker=BreakerSettings(threshold=2)) as core:
            for _ in range(4):
                server.script(provider, Reply(status=429, headers={"retry-after": "17"}))
                error = await refused(core, RateLimited, provider=provider)
                assert error.data == {"retry_after": 17}
            assert core.providers.breakers[provider].state == "closed"

    asyncio.run(run())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_failures_open_the_breaker_of_their_provider_alone_and_a_trial_closes_it(
    server: ModelServer, tmp_path: Path, provider: Provider
) -> None:
    async def run() -> None:
        breaker = BreakerSettings(threshold=3, reset_seconds=0.4)
        async with content_core(tmp_path, server, breaker=breaker) as core:
            states = core.providers.breakers
            for status in (500, 503, 502):
                server.script(provider, Reply(status=status))
                error = await refused(core, Unavailable, provider=provider)
                assert error.message == f"{provider} failed with HTTP {status}"
            assert {name: states[name].state for name in PROVIDERS} == {
                name: "open" if name == provider else "closed" for name in PROVIDERS
            }
            asked = len(server.requests)
            error = await refused(core, Unavailable, provider=provider)
            assert error.message == "Agentic service temporarily unavailable"
            assert (error.data["provider"], error.data["retry_after"]) == (provider, 1)
            assert len(server.requests) == asked, "an open breaker asks nobody"
            other = next(name for name in PROVIDERS if name != provider)
            assert (await content.generate(core, ANN, "Say it", provider=other)).provider == other

            await asyncio.sleep(0.4)
            server.script(provider, Reply(status=500))
            await refused(core, Unavailable, provider=provider)
            assert states[provider].state == "open"
            await asyncio.sleep(0.4)
            assert (await content.generate(core, ANN, "Say it", provider=provider)).provider == provider
            assert states[provider].state == "closed"

    asyncio.run(run())


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(drop=True), "cannot be reached"),
        (Reply(delay=1.0), "did not answer in time"),
        (Reply(raw=b"<html>a proxy's page</html>"), "gave an answer that cannot be read"),
    ],
)
def test_a_provider_that_cannot_be_heard_is_unavailable(
    server: ModelServer, tmp_path: Path, provider: Provider, reply: Reply, message: str
) -> None:
    async def run() -> None:
        breaker = BreakerSettings(threshold=1)
        async with content_core(tmp_path, server, timeout_seconds=0.5, breaker=breaker) as core:
            server.script(provider, reply)
            error = await refused(core, Unavailable, provider=provider)
            assert error.message == f"{provider} {message}"
            assert core.providers.breakers[provider].state == "open"

    asyncio.run(run())


def test_nobody_listening_is_unavailable(tmp_path: Path) -> None:
    gone = ModelServer()
    gone._server.server_close()

    async def run() -> None:
        async with content_core(tmp_path, gone) as core:
            for provider in PROVIDERS:
                error = await refused(core, Unavailable, provider=provider)
                assert error.message == f"{provider} cannot be reached"

    asyncio.run(run())


def test_a_failure_is_tried_again_and_paid_once(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, retries=1) as core:
            server.script("gemini", Reply(status=503), Reply("second"), Reply(status=500), Reply(status=500))
            assert (await content.generate(core, ANN, "Say it")).text == "second"
            assert (await total(core)).requests == 1
            await refused(core, Unavailable)
            assert len(server.requests) == 4

    asyncio.run(run())


def test_without_any_key_the_error_says_which_variable_to_set(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            error = await refused(core, Invalid)
            assert (error.message, error.field) == (
                "no model provider has a key: set GEMINI_API_KEY",
                "provider",
            )
            assert error.hint is not None
            assert "ANTHROPIC_API_KEY" in error.hint and "OPENAI_API_KEY" in error.hint
            error = await refused(core, Invalid, provider="claude")
            assert error.message == "claude has no key: set ANTHROPIC_API_KEY"
            error = await refused(core, Invalid, provider="gemini")
            assert error.message == "gemini has no key: set GEMINI_API_KEY or GOOGLE_API_KEY"

            # A key is read when it is needed: setting it takes no restart.
            monkeypatch.setenv("OPENAI_API_KEY", KEYS["OPENAI_API_KEY"])
            assert (await content.generate(core, ANN, "Say it")).provider == "openai"
            monkeypatch.setenv("GOOGLE_API_KEY", KEYS["GEMINI_API_KEY"])
            assert (await content.generate(core, ANN, "Say it")).provider == "gemini"

    asyncio.run(run())


def test_a_new_key_is_used_from_the_next_call_on(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            for key in ("the-first-key", "the-second-key"):
                for provider in PROVIDERS:
                    monkeypatch.setenv(KEY_VARIABLES[provider][0], key)
                    await content.generate(core, ANN, "Say it", provider=provider)
                    assert any(key in value for value in server.requests[-1].headers.values())

    asyncio.run(run())


def test_a_paid_answer_without_text_is_recorded_and_refused(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            server.script("claude", Reply("", finish="length"), Reply(""), Reply("cut o", finish="length"))
            error = await refused(core, Invalid, provider="claude")
            assert error.field == "max_tokens"
            await refused(core, Unavailable, provider="claude")
            assert (await content.generate(core, ANN, "Say it", provider="claude")).truncated
            assert (await total(core)).requests == 3

    asyncio.run(run())


def test_text_that_no_store_takes_is_cleaned(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            server.script("openai", Reply("a\0b \ud800 c"))
            assert (await content.generate(core, ANN, "Say it", provider="openai")).text == "ab ? c"

    asyncio.run(run())


def test_claude_takes_no_temperature_above_one(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            await refused(core, Invalid, provider="claude", temperature=1.5)
            await content.generate(core, ANN, "Say it", provider="openai", temperature=1.5)
            assert [asked.provider for asked in server.requests] == ["openai"]

    asyncio.run(run())


def test_what_a_caller_no_longer_waits_for_is_recorded_all_the_same(
    server: ModelServer, tmp_path: Path
) -> None:
    async def run() -> None:
        gate = threading.Event()
        async with content_core(tmp_path, server) as core:
            server.script("gemini", Reply(gate=gate))
            call = asyncio.create_task(content.generate(core, ANN, "Say it"))
            await until(lambda: len(server.requests) == 1)
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
            gate.set()
            await core.settle()
            assert (await total(core)).requests == 1

    asyncio.run(run())


def test_a_core_that_stops_does_not_wait_for_a_slow_provider(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarterdeck.core.models._GRACE_SECONDS", 0.1)

    async def run() -> None:
        gate = threading.Event()
        async with content_core(tmp_path, server) as core:
            server.script("gemini", Reply(gate=gate))
            call = asyncio.create_task(content.generate(core, ANN, "Say it"))
            await until(lambda: len(server.requests) == 1)
        await asyncio.wait([call], timeout=5)
        assert call.cancelled()
        gate.set()

    asyncio.run(run())


def test_starting_a_core_imports_no_provider() -> None:
    source = "import sys, quarterdeck.core.life as _; print([m for m in sys.modules if m in %r])"
    names = ["pydantic_ai", "anthropic", "openai", "google.genai"]
    found = subprocess.run(
        [sys.executable, "-c", source % names], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "[]"
