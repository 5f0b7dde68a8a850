"""Which agent should take a task: a keyword score of capabilities, no model call.

A capability scores 10 for its first mention in the title and 5 for each further one (five count), 2 for each
mention in the description (three count), and 25 when one of its verbs opens the title, as that says what is
wanted. An agent's score is the sum over its capabilities, plus a bias by cost tier unless the priority is
medium. Equal scores go to the higher cost tier, the more capable agent being the safer guess, then to the id
that sorts first.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypedDict

from quarterdeck.domain.agents import COST_TIERS, Agent
from quarterdeck.domain.classify import (
    ENGINEERING,
    INTEGRATION,
    RESEARCH,
    Lexicon,
    opening,
    plain,
    whole_words,
)
from quarterdeck.domain.errors import Invalid

# The words of each capability, in the notation of `Lexicon`.
KEYWORDS: Final[dict[str, str]] = {
    **ENGINEERING,
    **RESEARCH,
    **INTEGRATION,
    "triage": (
        "*triag~, untriaged, inbox(es)?, incoming, backlogs?, intake, issues?, tickets?, duplicates?, "
        "*groom~, assign~"
    ),
    "classification": "*classif(y|ies|ied|ying), classifications?, *categori[sz]~, label(s|l?ed|l?ing)?",
    "prioritization": "*prioriti[sz]~, prioriti[sz]ation, rank~, severit(y|ies), urgency",
    "discord": "discord, guilds?, slash commands?, openclaw, *moderat~, moderat(ion|ors?)",
    "conversation": (
        "conversations?, conversational, chatt?~, *repl(y|ies|ied|ying), *respond~, *answer~, *greet~, "
        "*talk~ (to|with), welcom~, messag~, dms?, communit(y|ies), faqs?"
    ),
    "announcements": "*announc~, announcements?, notif(y|ies|ied|ying), broadcast~, *remind~, reminders?",
}
_CAPABILITIES: Final = Lexicon(KEYWORDS)
# Verbs of any software task: they speak for code, but more softly than a word of its own list.
_GENERIC: Final = re.compile(
    r"(?:add|update|create|remove|support|enable|disable|handle|upgrade|bump|improve)\b"
)

_TITLE_POINTS: Final = 10
_FURTHER_POINTS: Final = 5
_TITLE_MENTIONS: Final = 5
_DESCRIPTION_POINTS: Final = 2
_DESCRIPTION_MENTIONS: Final = 3
_OPENER_POINTS: Final = 25
_GENERIC_POINTS: Final = 4
_HALF_SURE: Final = 15
_FALLBACK_CONFIDENCE: Final = 0.1
_FALLBACK_AGENT: Final = "triage-agent"
_ALTERNATES: Final = 3

_CHEAP_FIRST: Final = {"low": 5, "medium": 3, "high": 0}
_DEAR_FIRST: Final = {"low": 0, "medium": 3, "high": 5}
_BIAS: Final[dict[str, dict[str, int]]] = {"low": _CHEAP_FIRST, "high": _DEAR_FIRST, "urgent": _DEAR_FIRST}


class Alternate(TypedDict):
    """A runner-up: its id, its confidence and the capabilities that it matched."""

    agent_id: str
    confidence: float
    reason: str


@dataclass(frozen=True, slots=True)
class Routing:
    """The chosen agent and its model, how sure the router is, why, and up to three runners-up."""

    agent: Agent
    model: str
    confidence: float
    reasoning: str
    alternates: tuple[Alternate, ...]


@dataclass(frozen=True, slots=True)
class _Evidence:
    mentions: int
    points: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    agent: Agent
    score: int
    matched: tuple[str, ...]

    @property
    def confidence(self) -> float:
        return round(self.score / (self.score + _HALF_SURE), 2) if self.matched else _FALLBACK_CONFIDENCE


def route(
    title: str, description: str | None, priority: str, source_channel: str | None, agents: Iterable[Agent]
) -> Routing:
    """The agent that fits the task best; the triage agent, with low confidence, when no capability shows."""
    offers = [(agent, _offered(agent)) for agent in agents]
    if not offers:
        raise Invalid("No agent to route to", hint="Register at least one agent", field="agents")
    found = _evidence(
        plain(title), plain(description or ""), set().union(*(offered for _, offered in offers))
    )
    bias = _BIAS.get(priority, {})
    candidates = [
        _Candidate(agent, sum(found[name].points for name in matched) + bias.get(agent.cost_tier, 0), matched)
        for agent, offered in offers
        if (matched := tuple(name for name in found if name in offered))
    ]
    candidates.sort(key=lambda each: (-each.score, -COST_TIERS.index(each.agent.cost_tier), each.agent.id))
    best, *others = candidates or [_Candidate(_fallback(agent for agent, _ in offers), 0, ())]
    detected = ", ".join(f"{name}({evidence.mentions})" for name, evidence in found.items()) or "none"
    source = f". Source: {source_channel}" if source_channel else ""
    return Routing(
        agent=best.agent,
        model=best.agent.model,
        confidence=best.confidence,
        reasoning=f"Detected capabilities: {detected}. Best match: {best.agent.name} (score {best.score}). "
        f"Model: {best.agent.model}. Priority: {priority}{source}",
        alternates=tuple(
            Alternate(
                agent_id=other.agent.id,
                confidence=other.confidence,
                reason=f"Score {other.score}: {', '.join(other.matched)}",
            )
            for other in others[:_ALTERNATES]
        ),
    )


def _offered(agent: Agent) -> set[str]:
    """The agent's capabilities in one spelling: `plain`, with hyphens between the words."""
    return {plain(name).replace(" ", "-") for name in agent.capabilities} - {""}


@lru_cache(maxsize=256)
def _named(capability: str) -> re.Pattern[str]:
    """A capability without a word list is found by its own name, singular or plural."""
    return whole_words([" ".join(re.escape(part) for part in capability.split("-")) + "s?"])


def _count(text: str, capabilities: set[str]) -> Counter[str]:
    counts = _CAPABILITIES.count(text)
    counts.update({name: len(_named(name).findall(text)) for name in capabilities - KEYWORDS.keys()})
    return Counter({name: counts[name] for name in capabilities})


def _evidence(title: str, description: str, capabilities: set[str]) -> dict[str, _Evidence]:
    """What the text says about each capability it mentions, most mentioned first, then by name."""
    in_title, in_description = _count(title, capabilities), _count(description, capabilities)
    opener = _CAPABILITIES.opener(title)
    generic = Counter({"code"} & capabilities if _GENERIC.match(opening(title)) else ())
    mentions = in_title + in_description + generic

    def points(name: str) -> int:
        titled = min(in_title[name], _TITLE_MENTIONS)
        return (
            (_TITLE_POINTS + _FURTHER_POINTS * (titled - 1) if titled else 0)
            + _DESCRIPTION_POINTS * min(in_description[name], _DESCRIPTION_MENTIONS)
            + _OPENER_POINTS * (name == opener)
            + _GENERIC_POINTS * generic[name]
        )

    ranked = sorted(mentions, key=lambda name: (-mentions[name], name))
    return {name: _Evidence(mentions[name], points(name)) for name in ranked}


def _fallback(agents: Iterable[Agent]) -> Agent:
    """The triage agent; where there is none, the cheapest, then the id that sorts first."""
    return min(agents, key=lambda a: (a.id != _FALLBACK_AGENT, COST_TIERS.index(a.cost_tier), a.id))
