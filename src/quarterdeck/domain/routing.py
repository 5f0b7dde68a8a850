"""Which agent should take a task: a keyword score of capabilities, no model call.

A capability scores 10 for its first mention in the title and 5 for each further one, 2 for each mention in
the description (five of either count), and 25 when one of its verbs opens the title, as that says what is
wanted. An agent's score is the sum over its capabilities, plus a bias by cost tier unless the priority is
medium. Equal scores go to the higher cost tier, the more capable agent being the safer guess, then to the id
that sorts first.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypedDict

from quarterdeck.domain.agents import COST_TIERS, Agent
from quarterdeck.domain.errors import Invalid

# The words of each capability, in the notation of `Lexicon`.
KEYWORDS: Final[dict[str, str]] = {
    "code": (
        "code[sd]?, coding, codebases?, bug ?fix(es)?, bugs?, hot ?fix(es)?, *fix~, feat, features?, "
        "*debugg?~, *implement~, implementations?, *build~, built, *develop~, *patch~, crash~, regressions?, "
        "error messages?, errors?, exceptions?, typos?, tracebacks?, stack ?traces?, memory leaks?, "
        "race conditions?, deadlocks?, vulnerabilit(y|ies), functions?, modules?, components?, algorithms?, "
        "parsers?, librar(y|ies), packages?, pypi, npm, plugins?, scripts?, cli, front ?ends?, back ?ends?, "
        "ui, ux, css, html, layouts?, buttons?, drop ?downs?, modals?, forms?, dashboards?, widgets?, "
        "toggles?, side ?bars?, settings page, home ?pages?, landing pages?, web ?pages?, log ?in, sign ?up, "
        "oauth, dark mode, pagination, csv (ex|im)ports?, pdf exports?, file uploads?, retr(y|ies), cach~, "
        "time ?outs?, rate limit(s|er|ing)?, logging, lint(s|er|ers|ing)?, type hints?, dependenc(y|ies), "
        "sql, databases?, postgres, sqlite, schemas?, *migrat~, migrations?, slow quer(y|ies), readme, "
        "docstrings?, changelog, python, javascript, typescript, rust, golang, java, kotlin, swift, react, "
        "vue, django"
    ),
    "git": (
        "git, github, gitlab, repos?, repositor(y|ies), commit messages?, commits?, committed, branch(es)?, "
        "merge conflicts?, *merg~, *rebas~, *cherry pick~, *bisect, pull requests?, prs?, worktrees?"
    ),
    "testing": (
        "unit test(s|ing)?, integration test(s|ing)?, load test(s|ing)?, *test~, e2e, coverage, flaky, "
        "flakes, pytest, jest, playwright, fixtures?, qa"
    ),
    "deployment": (
        "*deploy~, deployments?, releas~, roll ?outs?, *roll(ed|ing)? ?back, ci, cd, pipelines?, "
        "docker ?files?, docker, containers?, containeri[sz]e, kubernetes, k8s, helm, terraform, staging, "
        "production, infra, infrastructure, ssl, tls, certificates?"
    ),
    "refactoring": (
        "*refactor~, clean(ed|ing)? ?up, *rewrit~, *simplif(y|ies|ied|ying), *dedup(e|licate)?, "
        "tech(nical)? debt, dead code, *renam~, *moderni[sz]~, *restructur~, *decoupl~, *optimi[sz]~, "
        "optimi[sz]ations?, legacy, *extract (method|function|class|module|component|interface)s?"
    ),
    "architecture": (
        "*architect, architects?, architectur(e|es|al), system design, technical design, design docs?, "
        "adrs?, rfcs?, scalable, scalability, micro ?services?, monoliths?, data models?, event sourcing, "
        "message (queues?|brokers?|bus), multi ?tenan(t|cy)"
    ),
    "research": (
        "*research~, investigat~, investigations?, *find out, explor~, *compar~, comparisons?, *evaluat~, "
        "evaluations?, analy[sz]~, analys[ei]s, *survey, surveys, competitors?, competitive, market, "
        "literature, papers?, stud(y|ies), state of the art, pros and cons, trade ?offs?, alternatives, "
        "best practices?, trends?, *learn about, look(ing)? into, feasibility, deep dives?, white ?papers?"
    ),
    "web-search": "web search(es)?, search~, *look(ed|ing)? ?up, *brows~, *crawl~",
    "summarization": (
        "summar(y|ies), *summari[sz]~, summari[sz]ation, digests?, *recap, recaps, tl;?dr, *condense, "
        "key points?, key takeaways, takeaways, overviews?, meeting notes, transcripts?"
    ),
    "data-extraction": (
        "data extraction, *extract~, extraction, *scrap(e|es|ed|ing), pars~, gather~, collect~, data ?sets?, "
        "invoices?"
    ),
    "triage": (
        "*triag~, untriaged, inbox(es)?, incoming, backlogs?, intake, issues?, tickets?, duplicates?, "
        "*groom~, assign~"
    ),
    "classification": ("*classif(y|ies|ied|ying), classifications?, *categori[sz]~, label(s|l?ed|l?ing)?"),
    "prioritization": "*prioriti[sz]~, prioriti[sz]ation, rank~, severit(y|ies), urgency",
    "api": (
        "rest apis?, restful, api (call|key|request)s?, apis?, http (call|request)s?, graphql, grpc, "
        "endpoints?, curl, openapi, swagger, sdks?, access tokens?"
    ),
    "integration": (
        "*integrat~, integrations?, connectors?, *connect~, sync~, *synchroni[sz]~, third party, zapier, "
        "slack, stripe, hubspot, salesforce, notion, airtable, jira, asana, twilio, shopify, zendesk, crm"
    ),
    "webhooks": "web ?hooks?, callback urls?",
    "discord": "discord, guilds?, slash commands?, openclaw, *moderat~, moderat(ion|ors?)",
    "conversation": (
        "conversations?, conversational, chatt?~, *repl(y|ies|ied|ying), *respond~, *answer~, *greet~, "
        "*talk~ (to|with), welcom~, messag~, dms?, communit(y|ies), faqs?"
    ),
    "announcements": "*announc~, announcements?, notif(y|ies|ied|ying), broadcast~, *remind~, reminders?",
}

_TITLE_POINTS: Final = 10
_FURTHER_POINTS: Final = 5
_DESCRIPTION_POINTS: Final = 2
_MENTIONS_THAT_COUNT: Final = 5
_OPENER_POINTS: Final = 25
_GENERIC_POINTS: Final = 4
_HALF_SURE: Final = 15
_FALLBACK_CONFIDENCE: Final = 0.1
_FALLBACK_AGENT: Final = "triage-agent"
_ALTERNATES: Final = 3

_CHEAP_FIRST: Final = {"low": 5, "medium": 3, "high": 0}
_DEAR_FIRST: Final = {"low": 0, "medium": 3, "high": 5}
_BIAS: Final[dict[str, dict[str, int]]] = {"low": _CHEAP_FIRST, "high": _DEAR_FIRST, "urgent": _DEAR_FIRST}

_ENDINGS: Final = "(?:e|s|es|ed|ing)?"
_COURTESIES: Final = re.compile(
    r"\W*(?:(?:please|pls|todo|can|could|you|we|i|should|must|need|want|to|help|me|let'?s)[^\w']\W*){0,6}"
)


def plain(text: str) -> str:
    """Lower case, with one blank for every run of blanks, hyphens and underscores."""
    return " ".join(text.lower().replace("-", " ").replace("_", " ").split())


def _whole_words(alternatives: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)")


def _opens(words: re.Pattern[str], title: str) -> bool:
    """Whether `words` open the title, past brackets and courtesies such as "can you please"."""
    start = _COURTESIES.match(title)
    return bool(words.match(title, start.end() if start else 0))


class Lexicon:
    """Named lists of words, found as whole words in `plain` text by a scan that is linear in the text.

    A list is regex alternatives between commas, each of bounded length and starting with a plain character.
    `~` stands for the endings of a verb; `*` marks one that, as the first word of a title, says what is wanted.
    The first alternative that fits takes the words, so a phrase stands before the word that it starts with.
    """

    def __init__(self, lists: Mapping[str, str]) -> None:
        regexes = {name: re.sub(r"\((?!\?)", "(?:", words) for name, words in lists.items()}
        entries = {name: words.replace("~", _ENDINGS).split(", ") for name, words in regexes.items()}
        verbs = {name: [word[1:] for word in words if word[0] == "*"] for name, words in entries.items()}
        self._verbs = {name: _whole_words(words) for name, words in verbs.items() if words}
        self._lists = {
            name: _whole_words(word.lstrip("*") for word in words) for name, words in entries.items()
        }
        # Filed by initial: a word is tried against a few alternatives, not against all of them.
        by_initial: dict[str, list[str]] = {}
        for word in (word.lstrip("*") for words in entries.values() for word in words):
            by_initial.setdefault(word[0], []).append(word[1:])
        self._scan = _whole_words(f"{initial}(?:{'|'.join(rest)})" for initial, rest in by_initial.items())

    def count(self, text: str) -> Counter[str]:
        """How often the words of each list occur in `text`."""
        counts: Counter[str] = Counter()
        for words, times in Counter(self._scan.findall(text)).items():
            counts[next(name for name, pattern in self._lists.items() if pattern.fullmatch(words))] += times
        return counts

    def opener(self, title: str) -> str | None:
        """The list that has the verb which opens `title`."""
        return next((name for name, verbs in self._verbs.items() if _opens(verbs, title)), None)


_CAPABILITIES: Final = Lexicon(KEYWORDS)
# Verbs of any software task: they speak for code, but more softly than a word of its own list.
_GENERIC: Final = _whole_words(
    ["(?:add|update|create|remove|support|enable|disable|handle|upgrade|bump|improve)"]
)


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
    return _whole_words([" ".join(re.escape(part) for part in capability.split("-")) + "s?"])


def _count(text: str, capabilities: set[str]) -> Counter[str]:
    counts = _CAPABILITIES.count(text)
    counts.update({name: len(_named(name).findall(text)) for name in capabilities - KEYWORDS.keys()})
    return Counter({name: counts[name] for name in capabilities})


def _evidence(title: str, description: str, capabilities: set[str]) -> dict[str, _Evidence]:
    """What the text says about each capability it mentions, most mentioned first, then by name."""
    in_title, in_description = _count(title, capabilities), _count(description, capabilities)
    opener = _CAPABILITIES.opener(title)
    generic = Counter({"code"} & capabilities if _opens(_GENERIC, title) else ())
    mentions = in_title + in_description + generic

    def points(name: str) -> int:
        titled = min(in_title[name], _MENTIONS_THAT_COUNT)
        return (
            (_TITLE_POINTS + _FURTHER_POINTS * (titled - 1) if titled else 0)
            + _DESCRIPTION_POINTS * min(in_description[name], _MENTIONS_THAT_COUNT)
            + _OPENER_POINTS * (name == opener)
            + _GENERIC_POINTS * generic[name]
        )

    ranked = sorted(mentions, key=lambda name: (-mentions[name], name))
    return {name: _Evidence(mentions[name], points(name)) for name in ranked}


def _fallback(agents: Iterable[Agent]) -> Agent:
    """The triage agent; where there is none, the cheapest, then the id that sorts first."""
    return min(agents, key=lambda a: (a.id != _FALLBACK_AGENT, COST_TIERS.index(a.cost_tier), a.id))
