"""The model of each tier, as documented."""

import pytest

from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.models import TIERS, select_model


def test_the_documented_answer_for_balanced_is_exact() -> None:
    assert select_model("balanced", "summarize a research run") == {
        "tier": "balanced",
        "model": "claude-sonnet-4-6",
        "context": "summarize a research run",
        "guidance": "Best for: general tasks, API calls, research, conversation. Cost-tier: Sonnet.",
    }


@pytest.mark.parametrize(
    ("tier", "model", "family"),
    [
        ("fast", "claude-haiku-4-5", "Haiku"),
        ("balanced", "claude-sonnet-4-6", "Sonnet"),
        ("powerful", "claude-opus-4-7", "Opus"),
    ],
)
def test_each_tier_names_its_model_and_its_guidance(tier: str, model: str, family: str) -> None:
    answer = select_model(tier, None)
    assert (answer["tier"], answer["model"], answer["context"]) == (tier, model, None)
    guidance = answer["guidance"] or ""
    assert guidance.startswith("Best for: ")
    assert guidance.endswith(f". Cost-tier: {family}.")


def test_there_are_three_tiers() -> None:
    assert TIERS == ("fast", "balanced", "powerful")


@pytest.mark.parametrize("context", ["", "use the powerful one", "fast"])
def test_the_context_is_echoed_and_does_not_sway_the_choice(context: str) -> None:
    answer = select_model("balanced", context)
    assert answer["context"] == context
    assert answer["model"] == "claude-sonnet-4-6"


@pytest.mark.parametrize("tier", ["", "turbo", "Balanced", "balanced "])
def test_an_unknown_tier_is_refused_with_the_three_in_the_hint(tier: str) -> None:
    with pytest.raises(Invalid) as refusal:
        select_model(tier)
    assert refusal.value.field == "tier"
    assert refusal.value.hint == "Use one of: fast, balanced, powerful"
