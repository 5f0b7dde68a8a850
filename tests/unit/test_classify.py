"""Classification: the category that a person would expect, worded as documented, whatever the text."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.domain.classify import ACTIONABILITY, Classification, classify

EXPECTED = {
    "engineering": [
        "Fix login bug",
        "Refactor the payment module",
        "Add CSV export to the reports page",
        "Deploy v2 to production",
        "Write unit tests for the parser",
        "Publish package to PyPI",
        "Fix content-type header bug",
        "Set up read replicas for Postgres",
        "Renew SSL certificate",
        "Implement push notifications",
        "Fix the webhook integration with the Stripe API",
    ],
    "research": [
        "Research vector databases",
        "Compare pricing of three CRM tools",
        "Investigate why churn went up",
        "Summarize meeting notes from Monday",
        "Learn about CRDTs",
    ],
    "content": [
        "Write blog post about our API migration",
        "Draft the June newsletter",
        "Prepare slides for the all-hands",
        "Write release notes for 1.4",
        "Tweet about the launch",
    ],
    "integration": [
        "Connect Slack to Asana",
        "Sync Google Calendar with Notion",
        "Set up webhook from Stripe to HubSpot",
        "Integrate Twilio for SMS",
    ],
    "personal": [
        "Buy groceries for dinner",
        "Call mom about her birthday",
        "Book a flight to Lisbon",
        "Schedule dentist appointment",
        "Renew passport",
        "Pay rent",
        "File tax return",
    ],
    "goal": [
        "Learn Spanish this year",
        "Run a marathon by end of year",
        "Lose 5 kg",
        "Grow MRR to $50k by the end of the year",
        "Reach 1000 GitHub stars by 2027",
        "Define OKRs for Q3",
    ],
    "read": [
        "Read 'Designing Data-Intensive Applications'",
        "Finish reading chapter 4",
        "Read article on CRDTs",
        "Watch the keynote from PyCon",
    ],
    "unknown": ["Thing", "asdf qwerty", "Reach out to Sarah", "", "   ", "買い物", "decode prefixes"],
}


@pytest.mark.parametrize(
    ("title", "category"), [(title, category) for category, titles in EXPECTED.items() for title in titles]
)
def test_a_realistic_title_lands_where_a_person_would_put_it(title: str, category: str) -> None:
    assert classify(title).category == category


@pytest.mark.parametrize(
    ("category", "actionability"),
    [
        ("engineering", "agent"),
        ("research", "agent"),
        ("integration", "agent"),
        ("personal", "human"),
        ("content", "hybrid"),
        ("read", "hybrid"),
        ("unknown", "hybrid"),
        ("goal", "defer"),
    ],
)
def test_each_category_maps_to_its_documented_bucket(category: str, actionability: str) -> None:
    assert classify(EXPECTED[category][0]).actionability == actionability
    assert ACTIONABILITY[category] == actionability


def test_nothing_matched_is_unknown_without_confidence() -> None:
    assert classify("Thing", "whatever", "misc") == Classification(
        "unknown", "hybrid", 0.0, "no pattern matched"
    )


def test_the_reason_shows_the_winner_then_the_runners_up_by_score() -> None:
    assert classify("Fix it", "compare the alternatives, then post it") == Classification(
        "engineering", "agent", 0.6, "engineering(6), also: research(2), content(1)"
    )


def test_a_winner_alone_has_no_runners_up() -> None:
    assert classify("Fix it") == Classification("engineering", "agent", 0.6, "engineering(6)")


def test_at_most_three_runners_up_are_shown() -> None:
    reason = classify("Fix it", "research, blog, webhook, groceries, goals, chapters").reason
    assert reason == "engineering(6), also: research(1), content(1), integration(1)"


@pytest.mark.parametrize(
    ("project", "category"),
    [
        ("Content", "content"),
        ("Family calendar", "personal"),
        ("Product Backlog", "engineering"),
        ("2027-goals", "goal"),
    ],
)
def test_a_telling_project_name_decides_where_the_words_do_not(project: str, category: str) -> None:
    assert classify("Next thing").category == "unknown"
    assert classify("Next thing", None, project).category == category


@pytest.mark.parametrize(
    ("project", "reason"),
    [
        ("contentment", "content(2)"),
        ("Calendars", "personal(2)"),
        ("backlog-2027", "engineering(2)"),
        ("goalkeeping", "goal(2)"),
    ],
)
def test_a_project_name_that_merely_contains_a_telling_word_boosts_its_category(
    project: str, reason: str
) -> None:
    assert classify("Next thing", None, project).reason == reason


@pytest.mark.parametrize(
    ("title", "project", "alone", "in_project"),
    [
        ("The API blog", "content", "content", "content"),
        ("A podcast and a bug", "content", "engineering", "content"),
        ("Search results for flights", "calendar", "research", "personal"),
        ("Competitors and the roadmap", "goals", "research", "goal"),
        ("Newsletter form", "backlog", "engineering", "engineering"),
    ],
)
def test_a_project_name_breaks_a_tie(title: str, project: str, alone: str, in_project: str) -> None:
    assert classify(title).category == alone
    assert classify(title, None, project).category == in_project


def test_a_project_name_does_not_overrule_a_clear_title() -> None:
    assert classify("Fix login bug", None, "Content calendar").category == "engineering"


def test_the_description_and_the_project_are_part_of_the_matched_text() -> None:
    assert classify("Next", "Connect Slack to Asana").category == "integration"
    assert classify("Next", None, "Slack connectors").category == "integration"


def test_the_title_outweighs_a_long_description_that_wanders() -> None:
    description = "It mentions the bug, the code, the tests and the release. " * 50
    assert classify("Draft the newsletter", description).category == "content"


def test_confidence_rises_with_the_score_and_stops_at_one() -> None:
    once, more = classify("the bug"), classify("the bug in the code")
    assert 0 < once.confidence < more.confidence
    assert classify("Fix bug code test deploy git " * 99, "bug code test " * 99, "backlog").confidence == 1.0


def test_a_word_repeated_over_and_over_stops_counting() -> None:
    assert classify("bug " * 4).confidence < classify("bug " * 5).confidence
    assert classify("bug " * 5) == classify("bug " * 500)


telling = st.sampled_from(
    ["fix", "bug", "research", "blog", "webhook", "buy", "goal", "read", "the", "content"]
)
texts = st.one_of(st.text(), st.lists(telling, max_size=30).map(" ".join))


@settings(deadline=None)
@given(texts, st.none() | texts, st.none() | texts)
def test_any_text_is_classified_consistently_with_its_reason(
    title: str, description: str | None, project: str | None
) -> None:
    result = classify(title, description, project)
    assert result.actionability == ACTIONABILITY[result.category]
    assert 0 <= result.confidence <= 1
    if result.category == "unknown":
        assert result.reason == "no pattern matched"
        return
    shown = [(name, int(score)) for name, score in re.findall(r"(\w+)\((\d+)\)", result.reason)]
    scores = [score for _, score in shown]
    assert shown[0][0] == result.category
    assert result.confidence == min(1.0, scores[0] / 10)
    assert scores == sorted(scores, reverse=True)
    assert len(shown) <= 4


@pytest.mark.parametrize(
    "unit",
    ["a", "a ", "-", " ", "fix ", "ci ", "re-", "by the end of the ", "book an ", "lose 1", "!", "🎉 ", "İ"],
)
def test_a_megabyte_of_any_content_is_classified_well_under_a_second(unit: str) -> None:
    title = unit * (1_000_000 // len(unit))
    started = time.process_time()
    classify(title)
    assert time.process_time() - started < 1
