"""The batch specification file and the quality gate."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.domain.batch import MAX_ARTICLES, BatchSpec, checked_batch_id, parse
from quarterdeck.domain.content import count_words, problems, unfenced
from quarterdeck.domain.errors import Invalid

SPEC = """# Getting started

**Service:** Pagehost
**Category:** First steps
**Priority:** high

Some words about the batch, with code that is no part of it:

```python
SERVICE_NAME: "not yaml"
```

```yaml
SERVICE_NAME: Pagehost
SERVICE_URL: https://pagehost.example
VERSION: 3.10
```

### Article 1: Creating a page

Notes for people.

```yaml
SLUG: creating-a-page
TITLE: Creating a page on {{ SERVICE_NAME }}
OUTLINE:
  - What a page is
  - Steps:
      - Choose a name
      - Publish
DIFFICULTY: beginner
PRIMARY_KEYWORD: create a page
SECONDARY_KEYWORDS: [page, "{{SERVICE_NAME}} page"]
```

### Article 2: Deleting a page

```yaml
SLUG: deleting_a_page
OUTLINE: |
  - Before you begin
  - Steps
```
"""


def article(body: str, number: int = 1) -> str:
    return f"### Article {number}: A title\n\n```yaml\n{body}\n```\n"


def wrong(text: str) -> str:
    with pytest.raises(Invalid) as refusal:
        parse("b", text)
    assert refusal.value.field == "batch_id"
    return refusal.value.message


def test_facts_variables_and_articles_are_found() -> None:
    spec = parse("start", SPEC)
    assert (spec.batch_id, spec.service, spec.category, spec.priority) == (
        "start",
        "Pagehost",
        "First steps",
        "high",
    )
    assert spec.variables == {
        "SERVICE_NAME": "Pagehost",
        "SERVICE_URL": "https://pagehost.example",
        "VERSION": "3.10",
    }
    first, second = spec.articles
    assert (first.number, first.line, first.slug, first.title, first.difficulty, first.primary_keyword) == (
        1,
        19,
        "creating-a-page",
        "Creating a page on Pagehost",
        "beginner",
        "create a page",
    )
    assert (second.slug, second.title, second.difficulty) == ("deleting_a_page", "Deleting a page", None)


def test_a_prompt_holds_everything_the_file_says() -> None:
    spec = parse("start", SPEC)
    prompt = spec.prompt(spec.articles[0])
    for said in (
        "Title: Creating a page on Pagehost",
        "Service: Pagehost",
        "Category: First steps",
        "Reader's level: beginner",
        "Primary keyword: create a page",
        "SECONDARY_KEYWORDS: page, Pagehost page",
        "- What a page is\n- Steps\n  - Choose a name\n  - Publish",
        "- SERVICE_URL: https://pagehost.example",
        "- VERSION: 3.10",
        "600 to 1500 words",
        "leverage",
    ):
        assert said in prompt
    assert "{{" not in prompt
    assert "- Before you begin\n- Steps" in spec.prompt(spec.articles[1])


def test_facts_may_share_a_line_and_may_be_missing() -> None:
    spec = parse("b", "**Service:** A B  **Priority:** low\n" + article("SLUG: x"))
    assert (spec.service, spec.category, spec.priority) == ("A B", None, "low")
    assert parse("b", article("SLUG: x")).variables == {}


def test_an_unknown_variable_stays_as_it_is() -> None:
    spec = parse("b", article("SLUG: x\nTITLE: About {{ NOBODY }}"))
    assert spec.articles[0].title == "About {{ NOBODY }}"


def test_windows_lines_a_byte_order_mark_and_longer_fences_are_read() -> None:
    text = "\ufeff" + SPEC.replace("```yaml\nSLUG: c", "````yml\nSLUG: c").replace(
        "page]\n```", "page]\n````"
    )
    spec = parse("start", text.replace('page"]\n```', 'page"]\n````').replace("\n", "\r\n"))
    assert [found.slug for found in spec.articles] == ["creating-a-page", "deleting_a_page"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("just words", "line 1: no article"),
        ("### Article 1: A\n", "line 1: article 1 has no yaml block"),
        ("\n\n### Article 7: A\n\n## Next part\n\n```yaml\nSLUG: x\n```\n", "line 3: article 7 has no yaml"),
        (article("TITLE: no slug"), "line 4: article 1 needs a SLUG"),
        (article("SLUG: ../../etc/passwd"), "line 4: article 1 needs a SLUG"),
        (article("SLUG: a b"), "line 4: article 1 needs a SLUG"),
        ("### Article 1\n```yaml\nSLUG: x\n```\n", "line 3: article 1 needs a TITLE"),
        (article("SLUG: x") + article("SLUG: X", 2), "line 9: SLUG X is taken"),
        (article("SLUG: x\nSLUG: y"), "line 5, column 1: not valid yaml: SLUG comes twice"),
        (article("SLUG: x\nA: b: c"), "line 5, column 5: not valid yaml"),
        (article("- a\n- b"), "line 4: the yaml block must be keys with values"),
        (article("SLUG: &a x\nB: *a"), "line 5, column 4: not valid yaml: an alias"),
        (article("SLUG: x") + "```yaml\nSLUG: y\n```\n", "line 7: article 1 has a second yaml block"),
        ("### Article 1: A\n```yaml\nSLUG: x\n", "line 2: a code block that is never closed"),
        ("one\ntwo \0\n" + article("SLUG: x"), "line 2: a NUL character"),
        (
            "```yaml\nSERVICE_NAME: a\n```\n```yaml\nSERVICE_NAME: b\n```\n" + article("SLUG: x"),
            "line 5: a second block of variables",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    assert wrong(text).startswith(message)


def test_there_may_be_many_articles_but_not_any_number() -> None:
    many = "".join(article(f"SLUG: a-{n}", n) for n in range(MAX_ARTICLES))
    assert len(parse("b", many).articles) == MAX_ARTICLES
    assert "more than 500 articles" in wrong(many + article("SLUG: one-more"))


@given(st.text(st.sampled_from("#*`yaml\n: -[]{}&*!|>SLUGArticle 1\0\t'\""), max_size=300))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for candidate in (text, article(text), f"{text}\n{article('SLUG: x')}"):
        try:
            assert isinstance(parse("b", candidate), BatchSpec)
        except Invalid as refusal:
            assert refusal.message.startswith("line ")


@pytest.mark.parametrize("batch_id", ["a", "Batch_1-x", "0" * 100])
def test_a_name_is_a_batch_id(batch_id: str) -> None:
    assert checked_batch_id(batch_id) == batch_id


@pytest.mark.parametrize(
    "batch_id", ["", "a/b", "../a", "a.md", ".", "-a", "a\n", "0" * 101, "ä", "a b", "a\\b"]
)
def test_a_path_is_no_batch_id(batch_id: str) -> None:
    with pytest.raises(Invalid) as refusal:
        checked_batch_id(batch_id)
    assert refusal.value.field == "batch_id"


GOOD = "# Title\n\n" + "plain words " * 350 + "\n\n## One\n\ntext\n\n### Deeper\n\n## Two\n\ntext\n"


def test_a_good_text_has_no_problems() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("## A\n\n## B\n\nshort", "words; 600 to 1500 wanted"),
        (GOOD + "word " * 1000, "words; 600 to 1500 wanted"),
        (
            GOOD + "We leverage a seamless, Cutting-Edge tool.",
            "banned words: cutting-edge, leverage, seamless",
        ),
        (GOOD.replace("## Two", "Two"), "fewer than two section headings (##)"),
        (GOOD + "\n# Another\n", "more than one title (#)"),
        (GOOD.replace("### Deeper", "#### Deeper"), "a heading level is left out"),
    ],
)
def test_each_problem_is_reported(text: str, problem: str) -> None:
    assert any(problem in found for found in problems(text))


def test_code_counts_neither_as_words_nor_as_headings() -> None:
    code = "```sh\n# not a heading\nleverage " + "word " * 2000 + "\n```\n"
    assert problems(GOOD + code) == []
    assert count_words("one two\n" + code) == 2


def test_a_part_of_a_word_is_not_banned() -> None:
    assert problems(GOOD + "A leveraged buyout of seamlessness.") == []


def test_a_fence_around_the_whole_answer_is_taken_off() -> None:
    assert unfenced("```markdown\n# A\n\ntext\n```\n") == "# A\n\ntext"
    assert unfenced("  # A\n\n```sh\nls\n```\n") == "# A\n\n```sh\nls\n```"


def test_the_example_of_the_documentation_is_a_batch() -> None:
    page = (Path(__file__).parents[2] / "docs" / "content.md").read_text()
    shown = page.partition("### The file\n")[2].partition("\n- Service")[0]
    spec = parse("first-steps", textwrap.dedent(shown))
    assert [found.slug for found in spec.articles] == ["create-a-page", "delete-a-page"]
    assert (spec.service, spec.articles[0].title) == ("Pagehost", "Creating a page on Pagehost")
