"""What kind of work a task is, and who can act on it: patterns over its words, no model call.

A category scores 2 for its first mention in the title and 1 for each further one (five count), 1 for each
mention in the description or project name (three count), 4 when one of its verbs opens the title, and 2 when
the project's name speaks for it. Equal scores go to the category that stands first in `ACTIONABILITY`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

ACTIONABILITY: Final[dict[str, str]] = {
    "engineering": "agent",
    "research": "agent",
    "content": "hybrid",
    "integration": "agent",
    "personal": "human",
    "goal": "defer",
    "read": "hybrid",
    "unknown": "hybrid",
}

_PROJECT_BOOSTS: Final[dict[str, str]] = {
    "content": "content",
    "calendar": "personal",
    "backlog": "engineering",
    "goal": "goal",
}

# The words of the categories that agents work in, by the capability that they speak for (see `Lexicon`).
ENGINEERING: Final[dict[str, str]] = {
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
}

RESEARCH: Final[dict[str, str]] = {
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
}

INTEGRATION: Final[dict[str, str]] = {
    "api": (
        "rest apis?, restful, api (call|key|request)s?, apis?, http (call|request)s?, graphql, grpc, "
        "endpoints?, curl, openapi, swagger, sdks?, access tokens?"
    ),
    "integration": (
        "*integrat~, integrations?, connectors?, *connect~, sync~, *synchroni[sz]~, third party, zapier, "
        "slack, stripe, hubspot, salesforce, notion, airtable, jira, asana, twilio, shopify, zendesk, crm"
    ),
    "webhooks": "web ?hooks?, callback urls?",
}

_ENDINGS: Final = "(?:e|s|es|ed|ing)?"
_COURTESIES: Final = re.compile(
    r"(?:\[[^\[\]]{0,40}\])?"
    r"\W*(?:(?:please|pls|todo|can|could|you|we|i|should|must|need|want|to|help|me|let'?s)[^\w']\W*){0,6}"
)


def plain(text: str) -> str:
    """Lower case, with one blank for every run of blanks, hyphens and underscores."""
    return " ".join(text.lower().replace("-", " ").replace("_", " ").split())


def opening(title: str) -> str:
    """A `plain` title from its first telling word on, past a [tag] and a "can you please"."""
    return _COURTESIES.sub("", title, count=1)


def whole_words(alternatives: Iterable[str]) -> re.Pattern[str]:
    """A pattern for any of the regex `alternatives`, never inside a longer word."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)")


class Lexicon:
    """Named lists of words, found as whole words in `plain` text by a scan that is linear in the text.

    A list is regex alternatives between commas, each of bounded length and starting with a plain character.
    `~` stands for the endings of a verb; `*` marks one that says what is wanted when it opens a title. The
    first alternative that fits takes the words, so a phrase stands before the word that it starts with.
    """

    def __init__(self, lists: Mapping[str, str]) -> None:
        regexes = {name: re.sub(r"\((?!\?)", "(?:", words) for name, words in lists.items()}
        entries = {name: words.replace("~", _ENDINGS).split(", ") for name, words in regexes.items()}
        verbs = {name: [word[1:] for word in words if word[0] == "*"] for name, words in entries.items()}
        bare = {name: [word.removeprefix("*") for word in words] for name, words in entries.items()}
        # Filed by initial: a word is tried against a few alternatives, not against all of them.
        by_initial: dict[str, list[str]] = {}
        for word in (word for words in bare.values() for word in words):
            by_initial.setdefault(word[0], []).append(word[1:])
        self._scan = whole_words(f"{initial}(?:{'|'.join(rest)})" for initial, rest in by_initial.items())
        self._lists = {name: whole_words(words) for name, words in bare.items()}
        self._verbs = {name: whole_words(words) for name, words in verbs.items() if words}

    def count(self, text: str) -> Counter[str]:
        """How often the words of each list occur in `text`."""
        counts: Counter[str] = Counter()
        for words, times in Counter(self._scan.findall(text)).items():
            counts[next(name for name, pattern in self._lists.items() if pattern.fullmatch(words))] += times
        return counts

    def opener(self, title: str) -> str | None:
        """The list that has the verb which opens `title`."""
        start = opening(title)
        return next((name for name, verbs in self._verbs.items() if verbs.match(start)), None)


_CATEGORIES: Final = Lexicon(
    {
        # Before engineering, whose "release" would take the first word of "release notes".
        "content": (
            "blog posts?, blogs?, posts?, articles?, newsletters?, tweets, linkedin, copywriting, "
            "marketing copy, website copy, landing page copy, ad copy, *draft(ed|ing)?, drafts, write ups?, "
            "*write about, *write (an? |the |our )?(blog|post|article|newsletter|essay)s?, *tweet, "
            "headlines?, podcasts?, youtube, videos?, social media, captions?, press releases?, "
            "release notes, case stud(y|ies), e ?books?, seo, content, publish~, editorials?, slides, "
            "slide decks?, presentations?, *proofread(ing)?, tutorials?"
        ),
        "engineering": ", ".join(ENGINEERING.values()),
        "research": ", ".join(RESEARCH.values()),
        "integration": ", ".join(INTEGRATION.values()),
        "personal": (
            "*book (an? |the |my |our )?(flight|hotel|table|appointment|ticket|trip|train|room)s?, "
            "*schedule (an? |the |my )?(dentist|doctor|call|meeting|appointment|lunch|dinner)s?, *buy, "
            "groceries, grocery, shopping, dentist, doctor, vet, appointments?, check ?up, mom, mum, dad, "
            "wife, husband, kids, family, friends?, birthdays?, anniversary, gifts?, presents, vacations?, "
            "holidays?, flights?, hotels?, trips?, travel, passports?, visa application, rent, bills, "
            "insurance, tax returns?, tax(es)?, bank, gym, workouts?, haircut, laundry, dinner, lunch, "
            "pick up, drop off, renew, *pay, calendar, meetings?, *interview, interviews, 1:1, one on one, "
            "pharmacy, prescriptions?, personal, errands?, plumber, landlord, rsvp, car, apartment, garden, "
            "dog"
        ),
        "goal": (
            r"goals?, okrs?, kpis?, objectives?, milestones?, roadmaps?, north star, long ?term, this year, "
            r"next year, by (the )?end of (the )?(year|quarter), end of (the )?year, by year ?end, "
            r"by 20\d\d, new year, bucket list, resolutions?, habits?, *learn(ing)?, *become, *achieve, "
            r"*reach(?! out), *grow, marathon, *lose weight, *lose \d{1,3} ?(kg|kilos|pounds|lbs), someday, "
            r"aspirations?, ambitions?, career, fluent"
        ),
        "read": (
            "*read(?! (only|receipts?|replicas?|write|access|permissions?|timeouts?|models?)), *re ?read, "
            "reading list, reading, *skim, books?, chapters?, bookmark(s|ed)?, *catch up on, essays?, "
            "*watch (an? |the |this |that )?(talks?|lectures?|webinars?|keynotes?|courses?)"
        ),
    }
)

_TITLE_POINTS: Final = 2
_FURTHER_POINTS: Final = 1
_TITLE_MENTIONS: Final = 5
_OTHER_POINTS: Final = 1
_OTHER_MENTIONS: Final = 3
_OPENER_POINTS: Final = 4
_PROJECT_POINTS: Final = 2
_CERTAIN: Final = 10
_RUNNERS_UP: Final = 3


@dataclass(frozen=True, slots=True)
class Classification:
    """The best-fit category, the handler bucket it maps to, how sure, and the scores that decided."""

    category: str
    actionability: str
    confidence: float
    reason: str


def classify(title: str, description: str | None = None, project: str | None = None) -> Classification:
    """The category that the words of the task speak for; `unknown` when none do."""
    scores = _scores(plain(title), plain(description or ""), plain(project or ""))
    if not scores:
        return Classification("unknown", ACTIONABILITY["unknown"], 0.0, "no pattern matched")
    # The sort is stable, so ties keep the order of the categories.
    (category, score), *others = sorted(scores.items(), key=lambda item: -item[1])
    also = ", ".join(f"{name}({points})" for name, points in others[:_RUNNERS_UP])
    return Classification(
        category=category,
        actionability=ACTIONABILITY[category],
        confidence=min(1.0, score / _CERTAIN),
        reason=f"{category}({score}), also: {also}" if also else f"{category}({score})",
    )


def _scores(title: str, description: str, project: str) -> dict[str, int]:
    """The points of each category that has any, in the order that breaks ties."""
    in_title = _CATEGORIES.count(title)
    in_others = _CATEGORIES.count(description) + _CATEGORIES.count(project)
    opener = _CATEGORIES.opener(title)
    boosted = {category for word, category in _PROJECT_BOOSTS.items() if word in project}

    def points(category: str) -> int:
        titled = min(in_title[category], _TITLE_MENTIONS)
        return (
            (_TITLE_POINTS + _FURTHER_POINTS * (titled - 1) if titled else 0)
            + _OTHER_POINTS * min(in_others[category], _OTHER_MENTIONS)
            + _OPENER_POINTS * (category == opener)
            + _PROJECT_POINTS * (category in boosted)
        )

    return {category: score for category in ACTIONABILITY if (score := points(category))}
