"""The model of each complexity tier."""

from typing import Final

from quarterdeck.domain.errors import Invalid

HAIKU: Final = "claude-haiku-4-5"
SONNET: Final = "claude-sonnet-4-6"
OPUS: Final = "claude-opus-4-7"

_TIERS: Final[dict[str, tuple[str, str]]] = {
    "fast": (HAIKU, "Best for: triage, classification, extraction, short replies. Cost-tier: Haiku."),
    "balanced": (SONNET, "Best for: general tasks, API calls, research, conversation. Cost-tier: Sonnet."),
    "powerful": (
        OPUS,
        "Best for: complex coding, architecture, refactoring, deep reasoning. Cost-tier: Opus.",
    ),
}

TIERS: Final[tuple[str, ...]] = tuple(_TIERS)


def select_model(tier: str, context: str | None = None) -> dict[str, str | None]:
    """The model id and usage guidance of `tier`; `context` is echoed and never sways the choice."""
    if tier not in _TIERS:
        raise Invalid(f"Unknown tier '{tier}'", hint=f"Use one of: {', '.join(TIERS)}", field="tier")
    model, guidance = _TIERS[tier]
    return {"tier": tier, "model": model, "context": context, "guidance": guidance}
