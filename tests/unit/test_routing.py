"""Routing: the agent that a person would expect, worded as documented, whatever the text."""

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.domain.agents import BUILTIN, Agent, registry
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.routing import KEYWORDS, Routing, route
from quarterdeck.domain.states import PRIORITIES

EXPECTED = {
    "claude-code": [
        "Fix stage-2 retrieval regression in the API",
        "Fix login crash on Safari",
        "Implement OAuth login for the web app",
        "Refactor the payment module and remove dead code",
        "Write unit tests for the date parser",
        "Write integration tests for the webhook handler",
        "Deploy the new release to staging",
        "Rebase the feature branch and resolve merge conflicts",
        "Add dark mode toggle to the settings page",
        "Add pagination to the orders endpoint",
        "Add Kotlin support",
        "Add email notifications",
        "CI pipeline fails on main",
        "Design the architecture for multi-tenant billing",
        "Please can you fix the broken build?",
        "Discord bot crashes with a stack trace in the message parser",
        "Fix the webhook integration with the Stripe API",
        "Investigate memory leak in the worker",
        "Extract method from the scheduler and rename it",
        "fix_flaky test_user_login",
    ],
    "research-agent": [
        "Research vector databases and compare pricing",
        "Compare Postgres and SQLite for our queue",
        "Summarize the latest papers on agent memory",
        "Summarize the pull requests merged this week",
        "Create a summary of the Q3 incident reports",
        "Find out which competitors support SSO",
        "Extract line items from PDF invoices",
        "Could you look up the current exchange rates",
        "Investigate why churn went up in May",
    ],
    "triage-agent": [
        "Triage new GitHub issues",
        "Classify incoming support tickets by severity",
        "Prioritize the backlog for next sprint",
        "Label and assign untriaged tickets",
    ],
    "api-agent": [
        "Call the Stripe API and list failed charges",
        "Sync HubSpot contacts to Salesforce",
        "Set up a webhook from GitHub to Slack",
        "Connect Notion to Zapier",
    ],
    "openclaw-discord": [
        "Reply to the question in the Discord server",
        "Announce the release in Discord",
        "Welcome new members in the community chat",
        "Add Bob to the Discord server",
        "Moderate the community server and answer FAQs",
    ],
}


def routed(
    title: str, description: str | None = None, priority: str = "medium", agents: tuple[Agent, ...] = BUILTIN
) -> Routing:
    return route(title, description, priority, None, agents)


@pytest.mark.parametrize(
    ("title", "agent_id"), [(title, agent_id) for agent_id, titles in EXPECTED.items() for title in titles]
)
def test_a_realistic_title_goes_where_a_person_would_send_it(title: str, agent_id: str) -> None:
    assert routed(title).agent.id == agent_id


def test_the_answer_is_worded_as_documented() -> None:
    routing = route(
        "Fix stage-2 retrieval regression in the API", "Reproduce the bug first.", "high", "chat", BUILTIN
    )
    assert routing.agent.id == "claude-code"
    assert routing.model == "claude-opus-4-7"
    assert routing.reasoning == (
        "Detected capabilities: code(3), api(1). Best match: Claude Code (score 47). "
        "Model: claude-opus-4-7. Priority: high. Source: chat"
    )
    assert routing.confidence == 0.76
    assert routing.alternates == ({"agent_id": "api-agent", "confidence": 0.46, "reason": "Score 13: api"},)


@pytest.mark.parametrize("source", [None, ""])
def test_the_source_is_left_out_when_not_set(source: str | None) -> None:
    reasoning = route("Fix the bug", None, "medium", source, BUILTIN).reasoning
    assert reasoning.endswith("Model: claude-opus-4-7. Priority: medium")


@pytest.mark.parametrize(
    "title", ["", "   ", "Plan the team offsite", "Decode the telegram", "買い物", "!!!"]
)
def test_nothing_detected_falls_back_to_triage_with_low_confidence(title: str) -> None:
    routing = routed(title)
    assert routing.agent.id == "triage-agent"
    assert routing.confidence == 0.1
    assert routing.alternates == ()
    assert routing.reasoning == (
        "Detected capabilities: none. Best match: Triage Agent (score 0). "
        "Model: claude-haiku-4-5. Priority: medium"
    )


def test_the_fallback_is_triage_even_where_another_agent_is_as_cheap() -> None:
    agents = registry({"a-bot": {"cost_tier": "low"}})
    assert routed("anything", agents=tuple(agents.values())).agent.id == "triage-agent"


def test_without_a_triage_agent_the_fallback_is_the_cheapest_then_the_first_by_id() -> None:
    agents = (
        Agent(id="dear", name="Dear", cost_tier="high"),
        Agent(id="b", name="B", cost_tier="low"),
        Agent(id="a", name="A", cost_tier="low"),
    )
    assert routed("anything", agents=agents).agent.id == "a"


@pytest.mark.parametrize("word", ["decode", "encoder", "prefix", "latest", "legit", "capital", "codeine"])
def test_a_keyword_inside_a_longer_word_is_not_detected(word: str) -> None:
    assert "Detected capabilities: none" in routed(word).reasoning


@pytest.mark.parametrize(
    "word", ["fix", "fixes", "Fixed", "FIXING", "bug", "bugs", "bug-fix", "bugfixes", "_code_", "(coding)"]
)
def test_inflections_case_and_punctuation_do_not_hide_a_keyword(word: str) -> None:
    assert "Detected capabilities: code(1)" in routed(f"the {word}!").reasoning


@pytest.mark.parametrize("spelling", ["web search", "web-search", "web_search", "Web \n Search"])
def test_a_phrase_is_found_with_blanks_hyphens_or_underscores_between(spelling: str) -> None:
    assert "Detected capabilities: web-search(1)" in routed(f"one {spelling}").reasoning


@pytest.mark.parametrize("prefix", ["", "Please ", "Can you please ", "We need to ", "[urgent] ", "TODO: "])
def test_courtesies_and_tags_before_the_opening_verb_change_nothing(prefix: str) -> None:
    plain = routed("summarize the bug reports")
    assert routed(prefix + "summarize the bug reports").reasoning == plain.reasoning


def test_the_title_outweighs_a_long_description_that_wanders() -> None:
    description = "It touches the code, the tests, the build, the repo and every release branch. " * 20
    assert routed("Research pricing of managed queues", description).agent.id == "research-agent"


def test_a_word_repeated_over_and_over_stops_counting() -> None:
    assert routed("bug " * 4).confidence < routed("bug " * 5).confidence == routed("bug " * 500).confidence


def test_a_description_alone_is_enough_to_route() -> None:
    assert routed("Next steps", "Reply to the thread in our Discord").agent.id == "openclaw-discord"


@pytest.mark.parametrize(
    ("priority", "winner"),
    [("low", "cheap"), ("medium", "dear"), ("high", "dear"), ("urgent", "dear"), ("whenever", "dear")],
)
def test_priority_decides_between_equally_able_agents_of_different_cost(priority: str, winner: str) -> None:
    agents = (
        Agent(id="cheap", name="Cheap", capabilities=("code",), cost_tier="low"),
        Agent(id="dear", name="Dear", capabilities=("code",), cost_tier="high"),
    )
    assert routed("Fix the bug", priority=priority, agents=agents).agent.id == winner


@pytest.mark.parametrize("priority", PRIORITIES)
def test_the_cost_bias_never_beats_a_capability_that_fits(priority: str) -> None:
    assert routed("Research note-taking apps", priority=priority).agent.id == "research-agent"
    assert routed("Fix the bug", priority=priority).agent.id == "claude-code"


def test_equal_score_and_cost_go_to_the_id_that_sorts_first() -> None:
    agents = tuple(Agent(id=name, name=name, capabilities=("code",)) for name in ("zeta", "alpha", "mid"))
    routing = routed("Fix the bug", agents=agents)
    assert routing.agent.id == "alpha"
    assert [alternate["agent_id"] for alternate in routing.alternates] == ["mid", "zeta"]


def test_alternates_are_at_most_three_ordered_by_score_and_say_what_matched() -> None:
    routing = routed("Fix webhook replies in Discord, then triage the tickets and research the trends")
    scores = [int(re.findall(r"^Score (\d+): ", alternate["reason"])[0]) for alternate in routing.alternates]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert {
        "agent_id": "openclaw-discord",
        "confidence": 0.57,
        "reason": "Score 20: conversation, discord",
    } in (routing.alternates)


@pytest.mark.parametrize(
    "title",
    ["Make a data-viz of sales", "some Data Viz", "data_viz please", "two data vizs", "rewrite it in c++"],
)
def test_a_capability_that_only_the_configuration_knows_is_found_by_its_name(title: str) -> None:
    agents = registry({"plotter": {"capabilities": ["Data_Viz", "C++"], "cost_tier": "high"}})
    routing = routed(title, agents=(agents["plotter"], agents["triage-agent"]))
    assert routing.agent.id == "plotter"


def test_a_configured_spelling_of_a_known_capability_uses_its_word_list() -> None:
    agent = registry({"scout": {"capabilities": ["Web Search"]}})["scout"]
    assert "web-search(1)" in routed("Look up the weather", agents=(agent,)).reasoning


@pytest.mark.parametrize("capability", ["", " ", "-", "(", "a|b", "[", ".*"])
def test_an_odd_capability_name_neither_breaks_nor_matches_everything(capability: str) -> None:
    agent = Agent(id="odd", name="Odd", capabilities=(capability,))
    assert "Detected capabilities: none" in routed("Fix the bug", agents=(agent,)).reasoning


def test_every_builtin_capability_has_a_word_list_that_finds_its_own_name() -> None:
    for agent in BUILTIN:
        for capability in agent.capabilities:
            assert capability in KEYWORDS
            assert f"{capability}(1)" in routed(f"about {capability}").reasoning


def test_no_agents_at_all_is_refused() -> None:
    with pytest.raises(Invalid) as refusal:
        route("Fix the bug", None, "high", None, [])
    assert refusal.value.field == "agents"


telling = st.sampled_from(
    ["fix", "bug", "API", "research", "Discord", "triage", "tests", "add", "webhook", "?"]
)
texts = st.one_of(st.text(), st.lists(telling, max_size=30).map(" ".join))


@settings(deadline=None)
@given(texts, st.none() | texts, st.sampled_from(PRIORITIES) | st.text(), st.none() | st.text())
def test_any_text_is_routed_with_a_confidence_between_0_and_1(
    title: str, description: str | None, priority: str, source: str | None
) -> None:
    routing = route(title, description, priority, source, BUILTIN)
    confidences = [routing.confidence, *(each["confidence"] for each in routing.alternates)]
    assert all(0 < confidence < 1 for confidence in confidences)
    assert confidences == sorted(confidences, reverse=True)
    assert routing.model == routing.agent.model
    assert routing.agent.id not in {each["agent_id"] for each in routing.alternates}


@settings(deadline=None)
@given(texts, st.sampled_from(PRIORITIES), st.permutations(BUILTIN))
def test_the_order_of_the_agents_does_not_change_the_answer(
    title: str, priority: str, agents: list[Agent]
) -> None:
    assert route(title, title, priority, None, agents) == route(title, title, priority, None, BUILTIN)


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a ",
        "-",
        " ",
        "fix ",
        "ci ",
        "re-",
        "web ",
        "summarizatio ",
        "please ",
        "!",
        "🎉 ",
        "İ",
        "\u200b",
    ],
)
def test_a_megabyte_of_any_content_is_routed_well_under_a_second(unit: str) -> None:
    title = unit * (1_000_000 // len(unit))
    started = time.process_time()
    route(title, None, "high", None, BUILTIN)
    assert time.process_time() - started < 1


def test_a_megabyte_of_random_words_is_routed_well_under_a_second() -> None:
    words = random.Random(7).choices(
        [*"abcdefghij", "web", "roll", "integration", "message", "key", "rate"], k=300_000
    )
    started = time.process_time()
    route(" ".join(words), None, "high", None, BUILTIN)
    assert time.process_time() - started < 1
