"""Content: the words of briefs, the prompts, and what is checked in a text that came back."""

import itertools
import re
from collections.abc import Sequence
from typing import Final, Literal, get_args

from quarterdeck.domain.records import Brief

Provider = Literal["claude", "gemini", "openai"]
ContentType = Literal["help_article", "blog_post", "landing_page", "social_post"]
BriefStatus = Literal["pending", "queued", "generating", "review", "published", "failed"]
Difficulty = Literal["beginner", "intermediate", "advanced"]
Mode = Literal["draft", "refine", "full"]
Period = Literal["day", "week", "month", "year"]
ItemStatus = Literal["pending", "drafted", "completed", "failed"]

PROVIDERS: Final[tuple[Provider, ...]] = get_args(Provider)
BRIEF_STATUSES: Final[tuple[BriefStatus, ...]] = get_args(BriefStatus)
PERIOD_DAYS: Final[dict[str, int]] = {"day": 1, "week": 7, "month": 30, "year": 365}

# Where each provider's key is read from; the first one set is used.
KEY_VARIABLES: Final[dict[Provider, tuple[str, ...]]] = {
    "claude": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
}

MAX_TOKENS: Final = 4000
WORDS: Final = (600, 1500)
BANNED_WORDS: Final = (
    "best-in-class",
    "cutting-edge",
    "delve",
    "game-changer",
    "game-changing",
    "groundbreaking",
    "harness the power",
    "in today's fast-paced world",
    "leverage",
    "paradigm shift",
    "revolutionize",
    "revolutionise",
    "seamless",
    "seamlessly",
    "state-of-the-art",
    "supercharge",
    "synergy",
    "unleash",
    "unlock the power",
    "utilise",
    "utilize",
    "world-class",
)

SYSTEM: Final = (
    "You are a careful technical writer. You write plain, correct, concrete prose in Markdown and invent "
    "no facts, figures or features. Answer with the text alone: no preface, no closing remark, no code "
    "fence around the whole."
)

_WHAT: Final[dict[str, str]] = {
    "help_article": "a help article that lets a reader finish a task",
    "blog_post": "a blog post",
    "landing_page": "the copy of a landing page",
    "social_post": "a post for social media",
}
_BANNED = re.compile(
    r"(?<![\w-])(" + "|".join(re.escape(word) for word in BANNED_WORDS) + r")(?![\w-])", re.IGNORECASE
)
_FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*[ \t]*$", re.MULTILINE | re.DOTALL)
_WHOLE = re.compile(r"\A\s*(`{3,})(?:markdown|md)?[ \t]*\n(.*)\n\1[ \t]*\s*\Z", re.DOTALL)
_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+\S", re.MULTILINE)
_WORD = re.compile(r"\w[\w'’-]*")


def draft_prompt(brief: Brief) -> str:
    """What a model is asked for a brief's first text."""
    lines = [f"Write {_WHAT.get(brief.content_type, brief.content_type)}.", f"Title: {brief.title}"]
    lines += _given("Service", brief.service)
    lines += _given("About", brief.description)
    lines += _given("Reader's level", brief.difficulty)
    lines += _given("Keywords to use where they fit", ", ".join(brief.keywords))
    lines.append(f"Length: about {brief.target_word_count} words.")
    return "\n".join(lines)


def refine_prompt(brief: Brief, draft: str) -> str:
    """What a model is asked to make of a draft."""
    return (
        "Improve the draft below: correct mistakes, cut what says nothing, keep its structure and facts, and "
        "bring it to the length and level that the brief asks for. Answer with the whole improved text.\n\n"
        f"The brief:\n{draft_prompt(brief)}\n\nThe draft:\n{draft}"
    )


def _given(label: str, value: str | None) -> list[str]:
    return [f"{label}: {value}"] if value else []


def tokens_for(words: int) -> int:
    """Enough output tokens for a text of so many words."""
    return max(MAX_TOKENS, 2 * words + 1000)


def unfenced(text: str) -> str:
    """A text without the code fence that some models put around the whole of it."""
    whole = _WHOLE.match(text)
    return (whole.group(2) if whole else text).strip()


def count_words(text: str) -> int:
    """Words of prose: code blocks do not count."""
    return len(_WORD.findall(_FENCED.sub("", text)))


def problems(text: str, words: tuple[int, int] = WORDS) -> list[str]:
    """What an editor should look at; the text is kept whatever this says."""
    found = []
    prose = _FENCED.sub("", text)
    count = len(_WORD.findall(prose))
    if not words[0] <= count <= words[1]:
        found.append(f"{count} words; {words[0]} to {words[1]} wanted")
    banned = sorted({match.group(1).lower() for match in _BANNED.finditer(prose)})
    if banned:
        found.append(f"banned words: {', '.join(banned)}")
    found += _heading_problems([len(match.group(1)) for match in _HEADING.finditer(prose)])
    return found


def _heading_problems(levels: Sequence[int]) -> list[str]:
    found = []
    if sum(level == 2 for level in levels) < 2:
        found.append("fewer than two section headings (##)")
    if levels.count(1) > 1:
        found.append("more than one title (#)")
    if any(after > before + 1 for before, after in itertools.pairwise(levels)):
        found.append("a heading level is left out")
    return found
