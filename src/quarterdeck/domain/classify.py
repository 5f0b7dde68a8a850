"""What kind of work a task is, and who can act on it: patterns over its words, no model call.

A category scores 2 for its first mention in the title and 1 for each further one (five count), 1 for each
mention in the description or project name (three count), 4 when one of its verbs opens the title, and 2 when
the project's name speaks for it. Equal scores go to the category that stands first in `ACTIONABILITY`.
"""

from dataclasses import dataclass
from typing import Final

from quarterdeck.domain.routing import KEYWORDS, Lexicon, plain

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


def _words_of(*capabilities: str) -> str:
    return ", ".join(KEYWORDS[capability] for capability in capabilities)


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
        "engineering": _words_of("code", "git", "testing", "deployment", "refactoring", "architecture"),
        "research": _words_of("research", "web-search", "summarization", "data-extraction"),
        "integration": _words_of("api", "integration", "webhooks"),
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
