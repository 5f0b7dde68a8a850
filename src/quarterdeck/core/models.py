"""Model providers: one call over HTTP to Anthropic, Google or OpenAI, worded errors and recorded usage."""

import asyncio
import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from quarterdeck.config import BreakerSettings, ContentSettings
from quarterdeck.domain.breaker import Breaker
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.content import KEY_VARIABLES, PROVIDERS, Provider
from quarterdeck.domain.errors import Invalid, QuarterdeckError, RateLimited, Unavailable
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import ModelUsage
from quarterdeck.store import content as rows
from quarterdeck.store.tx import Tx

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

    from quarterdeck.core.context import Core

# Given here so that no variable of an SDK's own can lead a key elsewhere.
_BASE_URLS: dict[Provider, str] = {
    "claude": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "openai": "https://api.openai.com/v1",
}
_GRACE_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_RATE_PAUSE_SECONDS = 20.0
# How long a call in the foreground, and one of a batch, waits for a provider that asks for patience.
HASTE = 5.0
PATIENCE = 60.0
# Between attempts to write down what was paid for.
_SHORT_PAUSES = (0.5, 1.0, 2.0)
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

T = TypeVar("T")

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Generated:
    """A model's answer and what it took; a cost of None is unknown."""

    text: str
    provider: Provider
    model: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    truncated: bool = False
    id: str = field(default_factory=new_id)

    def usable(self) -> "Generated":
        """Itself, or an error when the paid answer holds no text."""
        if self.text:
            return self
        if self.truncated:
            raise Invalid(
                f"{self.provider} used up max_tokens before it wrote anything",
                field="max_tokens",
                hint="raise it",
            )
        raise Unavailable(
            f"{self.provider} answered without any text", hint="change the prompt, or try again"
        )


class Providers:
    """The three providers: their keys, breakers and one HTTP client. Lives on the event loop."""

    def __init__(self, settings: ContentSettings, breaker: BreakerSettings) -> None:
        self._settings = settings
        self._making = threading.Lock()
        self._http: httpx2.AsyncClient | None = None
        self._built: dict[Provider, tuple[str, Model[Any]]] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self.breakers: dict[Provider, Breaker] = {
            provider: Breaker(breaker.threshold, breaker.window_seconds, breaker.reset_seconds)
            for provider in PROVIDERS
        }

    def configured(self, provider: Provider) -> bool:
        return _key(provider) is not None

    def model_of(self, provider: Provider) -> str:
        name: str = getattr(self._settings, f"{provider}_model")
        return name

    def choose(self, named: Provider | None, preferred: Provider | None = None) -> Provider:
        """The provider that was named, else the preferred one, else any that has a key."""
        wanted = preferred or self._settings.default_provider
        if named is not None:
            _needed_key(named)
            return named
        for provider in (wanted, *PROVIDERS):
            if self.configured(provider):
                return provider
        ways = ", ".join(KEY_VARIABLES[provider][0] for provider in PROVIDERS if provider != wanted)
        raise Invalid(
            f"no model provider has a key: set {KEY_VARIABLES[wanted][0]}",
            field="provider",
            hint=f"or one of {ways}, in the environment of the core",
        )

    def check(self, provider: Provider) -> None:
        """Refuse at once what the provider's breaker would refuse."""
        with _explained(provider):
            self.breakers[provider].check()

    async def ask(
        self,
        provider: Provider,
        prompt: str,
        *,
        system: str | None = None,
        temperature: float = 0.7,
        max_tokens: int = 4000,
        patience: float = HASTE,
    ) -> Generated:
        """One answer. What a provider cannot help is tried again as often as `content.retries` says."""
        if provider == "claude" and temperature > 1:
            raise Invalid("claude takes a temperature of 0 to 1", field="config.temperature")
        task = asyncio.current_task()
        if task is not None:
            self._calls.add(task)
        try:
            for left in range(self._settings.retries, -1, -1):
                try:
                    return await self._attempt(provider, prompt, system, temperature, max_tokens)
                except (RateLimited, Unavailable) as error:
                    pause = _pause(error)
                    if not left or pause > patience or self.breakers[provider].state != "closed":
                        raise
                    logger.warning("model.retried", provider=provider, error=error.message, pause=pause)
                    await asyncio.sleep(pause)
            raise AssertionError("unreachable")
        finally:
            if task is not None:
                self._calls.discard(task)

    async def _attempt(
        self, provider: Provider, prompt: str, system: str | None, temperature: float, max_tokens: int
    ) -> Generated:
        key = _needed_key(provider)
        breaker = self.breakers[provider]
        with _explained(provider):
            breaker.enter()
        built_for, model = self._built.get(provider) or (None, None)
        if model is None or built_for != key:
            # Importing a provider's SDK and building its client take long enough to be felt on the loop.
            model = await asyncio.to_thread(self._model, provider, key)
            self._built[provider] = (key, model)
        try:
            answer = await _request(
                model,
                prompt,
                system,
                {
                    "temperature": temperature,
                    "max_tokens": max_tokens,
                    # Thinking would use up max_tokens before the text begins.
                    "thinking": False,
                    "max_retries": 0,
                    "request_timeout": self._settings.timeout_seconds,
                },
            )
        except Exception as error:
            worded = _worded(error, provider, self.model_of(provider), key)
            if worded is None:
                raise
            if isinstance(worded, Unavailable):
                breaker.failed()
            else:
                breaker.succeeded()
            # The cause may hold the request: it is not for a log.
            raise worded from None
        breaker.succeeded()
        return _generated(answer, provider, self.model_of(provider))

    def _model(self, provider: Provider, key: str) -> "Model[Any]":
        try:
            import httpx2

            build = _builder(provider)
        except ImportError as missing:
            raise Unavailable(
                "content generation needs the content extra",
                field="provider",
                hint="pip install 'quarterdeck[content]'",
            ) from missing
        with self._making:
            if self._http is None:
                seconds = self._settings.timeout_seconds
                self._http = httpx2.AsyncClient(timeout=httpx2.Timeout(seconds, connect=min(seconds, 10.0)))
        urls = {
            "claude": self._settings.anthropic_base_url,
            "gemini": self._settings.google_base_url,
            "openai": self._settings.openai_base_url,
        }
        return build(self.model_of(provider), key, urls[provider] or _BASE_URLS[provider], self._http)

    async def close(self) -> None:
        """Give the calls under way a moment, then end them."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=_GRACE_SECONDS)
        for call in list(self._calls):
            call.cancel()
        if self._http is not None:
            await self._http.aclose()


async def generate(
    core: "Core",
    caller: Caller,
    provider: Provider,
    prompt: str,
    *,
    system: str | None = None,
    temperature: float = 0.7,
    max_tokens: int = 4000,
    purpose: str,
    brief_id: str | None = None,
) -> Generated:
    """One answer, its usage recorded; goes on to the end even if the caller stops waiting, for it is paid."""

    async def paid() -> Generated:
        answer = await core.providers.ask(
            provider, prompt, system=system, temperature=temperature, max_tokens=max_tokens
        )
        await keep(
            core,
            caller,
            lambda tx: record(tx, answer, purpose=purpose, brief_id=brief_id),
            pauses=_SHORT_PAUSES,
        )
        return answer.usable()

    return await asyncio.shield(core.spawn(paid()))


async def keep(
    core: "Core", caller: Caller, body: Callable[[Tx], T], *, pauses: Sequence[float] = _PAUSES
) -> T:
    """Write down what was paid for, trying again while the database is away; the body may run twice."""
    for pause in pauses:
        try:
            return await core.db.tx(caller, body)
        except Unavailable as error:
            logger.warning("job.kept_back", error=error.message, pause=pause)
            await asyncio.sleep(pause)
    return await core.db.tx(caller, body)


def record(
    tx: Tx, answer: Generated, *, purpose: str, brief_id: str | None = None, user_id: str | None = None
) -> None:
    """Write the usage of one answer, once, in the transaction that keeps the answer."""
    usage = ModelUsage(
        id=answer.id,
        user_id=user_id or tx.caller.user_id,
        provider=answer.provider,
        model=answer.model,
        purpose=purpose,
        brief_id=brief_id,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        cost_usd=answer.cost_usd,
        created_at=tx.now,
    )
    if rows.add_usage(tx, usage):
        tx.emit(
            "usage.recorded",
            usage.id,
            user_id=usage.user_id,
            provider=usage.provider,
            model=usage.model,
            purpose=purpose,
            tokens=usage.input_tokens + usage.output_tokens,
            cost_usd=usage.cost_usd,
        )


@contextlib.contextmanager
def _explained(provider: Provider) -> Iterator[None]:
    """Say in a breaker's refusal whose it is."""
    try:
        yield
    except Unavailable as error:
        error.data["provider"] = provider
        error.hint = f"{provider} failed repeatedly; it is tried again in {error.data['retry_after']} s"
        raise


def _key(provider: Provider) -> str | None:
    found = (os.environ.get(name, "").strip() for name in KEY_VARIABLES[provider])
    return next(filter(None, found), None)


def _needed_key(provider: Provider) -> str:
    key = _key(provider)
    if key is None:
        names = KEY_VARIABLES[provider]
        raise Invalid(
            f"{provider} has no key: set {' or '.join(names)}",
            field="provider",
            hint="in the environment of the core, or name another provider",
        )
    return key


def _pause(error: QuarterdeckError) -> float:
    """How long to wait before the next attempt."""
    if isinstance(error, RateLimited):
        return float(error.data.get("retry_after") or _RATE_PAUSE_SECONDS)
    return _PAUSE_SECONDS


def _builder(provider: Provider) -> "Callable[[str, str, str, httpx2.AsyncClient], Model[Any]]":
    """How a provider's model is made; imports its SDK."""
    if provider == "claude":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return lambda name, key, url, http: AnthropicModel(
            name, provider=AnthropicProvider(api_key=key, base_url=url, http_client=http)
        )
    if provider == "gemini":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        return lambda name, key, url, http: GoogleModel(
            name, provider=GoogleProvider(api_key=key, base_url=url, http_client=http)
        )
    # Chat Completions rather than Responses: every server that speaks OpenAI's language has it.
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return lambda name, key, url, http: OpenAIChatModel(
        name, provider=OpenAIProvider(api_key=key, base_url=url, http_client=http)
    )


async def _request(model: "Model[Any]", prompt: str, system: str | None, settings: Any) -> Any:
    from pydantic_ai.direct import model_request
    from pydantic_ai.messages import ModelRequest

    return await model_request(
        model,
        [ModelRequest.user_text_prompt(prompt, instructions=system)],
        model_settings=settings,
        instrument=False,
    )


def _generated(answer: Any, provider: Provider, model: str) -> Generated:
    text = (answer.text or "").replace("\0", "")
    usage = answer.usage
    return Generated(
        # Half a surrogate pair, which JSON can carry, no store takes.
        text=text.encode("utf-8", "replace").decode().strip(),
        provider=provider,
        model=answer.model_name or model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=_cost(answer),
        truncated=answer.finish_reason == "length",
    )


def _cost(answer: Any) -> float | None:
    """The price by the published list, or None when the model or its usage is not known."""
    try:
        return float(answer.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None


def _worded(error: Exception, provider: Provider, model: str, key: str) -> QuarterdeckError | None:
    """A provider's failure in our own words, without the key; None for what is not the provider's."""
    from pydantic_ai import exceptions as errors

    if isinstance(error, errors.ModelRateLimitError):
        limited = RateLimited(f"{provider} limits the rate of calls", hint="try again later")
        if error.retry_after:
            limited.data["retry_after"] = math.ceil(error.retry_after)
        return limited
    if isinstance(error, errors.ModelAuthenticationError):
        names = " or ".join(KEY_VARIABLES[provider])
        return Invalid(f"{provider} refused the key in {names}", field="provider", hint="check the key")
    if isinstance(error, errors.ModelNotFoundError):
        return Invalid(
            f"{provider} has no model {model}", field="provider", hint=f"set content.{provider}_model"
        )
    if isinstance(error, errors.ModelQuotaExceededError):
        return Invalid(f"the account at {provider} has no credit left", field="provider")
    if isinstance(error, errors.ModelRequestRejectedError):
        return Invalid(f"{provider} refused the request: {_said(error, key)}", field="prompt")
    if isinstance(error, errors.ModelRequestTimeout | errors.ModelTimeoutError):
        return Unavailable(f"{provider} did not answer in time", provider=provider)
    if isinstance(error, errors.ModelConnectionError):
        return Unavailable(f"{provider} cannot be reached", provider=provider)
    if isinstance(error, errors.ModelHTTPError):
        return Unavailable(f"{provider} failed with HTTP {error.status_code}", provider=provider)
    if isinstance(error, errors.AgentRunError):
        return Unavailable(f"{provider} gave an answer that cannot be read", provider=provider)
    return None


def _said(error: Any, key: str) -> str:
    """What the provider says is wrong with a request."""
    body = error.body
    inner = body.get("error", body) if isinstance(body, dict) else body
    said = inner.get("message", inner) if isinstance(inner, dict) else inner
    return str(said).replace(key, "***")[:300] if said else "no reason given"
