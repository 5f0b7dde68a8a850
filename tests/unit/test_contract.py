"""The output contract: whatever form an agent's answer has, its diff comes back byte for byte."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.domain import patch
from quarterdeck.domain.contract import BadArtifacts, Sections, out_md, parse

DIFF = """\
diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1,5 +1,6 @@
 # Title
-### NOTES
+### DIFF
 ### TEST_PLAN
 ```sh
+```
 end
"""
ANSWER = f"""\
I looked around first.

### DIFF

```diff
{DIFF}```

### TEST_PLAN

Run `make test`.

### NOTES

None.
"""


def test_answer_is_taken_apart() -> None:
    assert parse(ANSWER) == Sections(diff=DIFF, test_plan="Run `make test`.", notes="None.")


def test_out_md_holds_the_plan_and_the_notes() -> None:
    assert out_md(parse(ANSWER)) == "# Test Plan\n\nRun `make test`.\n\n# Notes\n\nNone.\n"


def test_regression_final_newline_of_the_diff_is_restored() -> None:
    """The original trimmed it away, and git called every patch corrupt."""
    text = f"### TEST_PLAN\nx\n### NOTES\ny\n### DIFF\n{DIFF}".rstrip("\n")
    assert parse(text).diff == DIFF
    assert patch.parse(parse(text).diff)


def test_regression_last_line_of_context_is_not_trimmed_away() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-x\n+y\n \n"
    assert parse(f"### DIFF\n{diff}### TEST_PLAN\nx\n### NOTES\ny").diff == diff


def test_regression_fence_is_stripped_whichever_agent_wrote_it() -> None:
    """One of the original's parsers left the fence in the diff, the other knew only ```diff."""
    for fence, info in (("```", "diff"), ("```", ""), ("````", "patch"), ("~~~", " text ")):
        text = ANSWER.replace("```diff\n", f"{fence}{info}\n").replace(f"{DIFF}```", f"{DIFF}{fence}")
        assert parse(text).diff == DIFF


def test_regression_unreadable_answer_is_bad_artifacts() -> None:
    """The original reported it as a crash of the executor."""
    with pytest.raises(BadArtifacts):
        parse("Sorry, I could not do it.")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["DIFF is missing", "TEST_PLAN is missing", "NOTES is missing"]),
        (ANSWER.replace("### NOTES", "### Remarks"), ["NOTES is missing"]),
        (ANSWER.replace("None.", "  "), ["NOTES is empty"]),
        (ANSWER.replace(DIFF, "\n"), ["DIFF is empty"]),
        (ANSWER.replace(DIFF, ""), ["DIFF is empty"]),
        (ANSWER.replace("### DIFF\n\n", "## DIFF\n\n"), ["DIFF is missing"]),
        (ANSWER.replace("### DIFF\n\n", "### DIFF of it\n\n"), ["DIFF is missing"]),
        (ANSWER.replace("### TEST_PLAN\n\n", "  ### TEST_PLAN\n\n"), ["TEST_PLAN is missing"]),
    ],
)
def test_missing_or_empty_section_is_named(text: str, problems: list[str]) -> None:
    with pytest.raises(BadArtifacts) as caught:
        parse(text)
    assert list(caught.value.problems) == [f"the section ### {problem}" for problem in problems]


@pytest.mark.parametrize(
    "heading",
    ["### diff", "### Diff:", "###  DIFF ", "### DIFF ###", "###\tDIFF :", "### DIFF\r"],
)
def test_heading_may_be_written_in_other_ways(heading: str) -> None:
    assert parse(ANSWER.replace("\n### DIFF\n", f"\n{heading}\n")).diff == DIFF


@pytest.mark.parametrize("heading", ["### test_plan", "### Test Plan", "### TEST-PLAN:"])
def test_test_plan_may_be_spelt_in_other_ways(heading: str) -> None:
    assert parse(ANSWER.replace("### TEST_PLAN\n\n", f"{heading}\n\n")).test_plan == "Run `make test`."


def test_of_repeated_headings_the_last_with_text_wins() -> None:
    draft = ANSWER.replace("None.", "A draft.").replace("+### DIFF", "+### draft")
    assert parse(f"{draft}\nOn second thoughts:\n\n{ANSWER}") == parse(ANSWER)
    assert parse(f"{ANSWER}\n### NOTES\n\n### DIFF\n") == parse(ANSWER)


def test_instructions_quoted_before_the_answer_do_no_harm() -> None:
    quoted = "### DIFF\n```diff\n<your diff>\n```\n### TEST_PLAN\n<plan>\n### NOTES\n<notes>\n"
    assert parse(quoted + ANSWER) == parse(ANSWER)


def test_fences_and_headings_within_the_notes_stay_there() -> None:
    notes = "#### Detail\n\n```sh\ngit apply\n### DIFF\n```\n\n### Risks\n\nfew"
    assert parse(ANSWER.replace("None.", notes)) == Sections(DIFF, "Run `make test`.", notes)


def test_prose_around_the_fence_is_left_out_of_the_diff() -> None:
    text = ANSWER.replace("```diff", "Here it is:\n\n```diff").replace(
        f"{DIFF}```", f"{DIFF}```\n\nApply it with:\n\n```sh\ngit apply x\n```\n"
    )
    assert parse(text).diff == DIFF


def test_blocks_for_several_files_are_joined() -> None:
    other = DIFF.replace("README", "OTHER")
    text = ANSWER.replace(f"{DIFF}```", f"{DIFF}```\n\nand\n\n```\n{other}```")
    assert parse(text).diff == DIFF + other


def test_unfenced_diff_beside_a_fenced_command_is_taken() -> None:
    text = ANSWER.replace(f"```diff\n{DIFF}```", f"{DIFF}\n```sh\ngit apply x\n```")
    assert parse(text).diff.startswith(DIFF)
    assert [change.paths for change in patch.parse(parse(text).diff)] == [("README.md",)]


def test_fence_that_is_never_closed_hides_no_section() -> None:
    open_fence = ANSWER.replace(f"{DIFF}```", DIFF)
    assert parse(open_fence).diff == DIFF
    closed_later = open_fence.replace("None.", "```sh\nmake\n```")
    assert parse(closed_later).notes == "```sh\nmake\n```"
    assert parse(closed_later).diff == DIFF
    assert parse(f"```\nlog\n{ANSWER}") == parse(ANSWER)


def test_answer_in_one_large_fence_is_read() -> None:
    assert parse(f"```markdown\n{ANSWER}```\n").diff == DIFF


def test_carriage_returns_of_the_way_are_taken_off_but_not_those_of_the_content() -> None:
    windows = DIFF.replace("end\n", "end\r\n")
    text = ANSWER.replace(DIFF, windows)
    assert parse(text).diff == windows
    assert parse(text.replace("\n", "\r\n")).diff == windows
    assert parse(text.replace("\n", "\r\n")).notes == "None."


def test_long_answer_with_many_open_fences_takes_no_time() -> None:
    began = time.perf_counter()
    text = "".join(f"{'`' * (3 + number % 50)}x{number}\n" for number in range(30_000))
    assert parse(text + ANSWER).diff == DIFF
    assert parse(f"### NOTES{' ' * 100_000}x\n{'`' * 100_000}x\n{ANSWER}").diff == DIFF
    assert time.perf_counter() - began < 5


# Any patch, in any of the forms that are taken.

contents = st.sampled_from(
    [
        *("", " ", "x", "### NOTES", "### DIFF", "```", "````diff", "~~~", "@@ -1 +1 @@", "-- a/x", "++ b/x"),
        *(
            "\r",
            "y\r",
            "\tz ",
            "\x0c",
            "\u2028",
            "größe",
            "diff --git a/x b/x",
            "\\ No newline at end of file",
        ),
    ]
)
signed = st.tuples(st.sampled_from(" +-"), contents)


@st.composite
def diffs(draw: st.DrawFn) -> str:
    """A patch of one or two files, each with one or two hunks."""
    bare_context = draw(st.booleans())
    text = ""
    for name in draw(st.sampled_from([["x"], ["a b", "größe"], ["README.md"]])):
        text += f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n"
        for start in range(1, draw(st.integers(2, 3))):
            lines = draw(st.lists(signed, min_size=1, max_size=8))
            old = sum(sign != "+" for sign, _ in lines)
            new = sum(sign != "-" for sign, _ in lines)
            text += f"@@ -{start * 100},{old} +{start * 100},{new} @@\n"
            for sign, content in lines:
                text += f"{'' if bare_context and (sign, content) == (' ', '') else sign}{content}\n"
        if draw(st.booleans()):
            text += "\\ No newline at end of file\n"
    return text


@st.composite
def answers(draw: st.DrawFn, diff: str) -> str:
    """The patch in an answer of any accepted form."""
    fence = draw(st.sampled_from(["", "```", "````", "~~~", "``````"]))
    info = draw(st.sampled_from(["", "diff", " diff", "patch", "text title=x"]))
    gap = "\n" * draw(st.integers(0, 2))
    body = f"{gap}{fence}{info}\n{diff}{fence}\n{gap}" if fence else f"{gap}{diff}{gap}"
    colon = draw(st.sampled_from(["", ":"]))
    plan = draw(st.sampled_from(["run it", "```sh\nmake\n```", "1. a\n\n2. b"]))
    notes = draw(st.sampled_from(["none", "~~~\n### DIFF\n~~~", "#### more\n\n### Other\n\ntext"]))
    sections = {"DIFF": body, "TEST_PLAN": f"\n{plan}\n", "NOTES": f"{notes}\n\n"}
    text = draw(st.sampled_from(["", "prose\n", "```\nlog\n```\n\n"]))
    for name in draw(st.permutations(list(sections))):
        heading = draw(st.sampled_from([name, name.lower()]))
        text += f"### {heading}{colon}\n{sections[name]}"
    if draw(st.booleans()):
        text = text.removesuffix("\n")
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_patch_in_any_form_comes_back_byte_for_byte(data: st.DataObject) -> None:
    diff = data.draw(diffs())
    assert patch.parse(diff)
    sections = parse(data.draw(answers(diff)))
    assert sections.diff == diff


pieces = [
    "### DIFF",
    "### TEST_PLAN",
    "### NOTES",
    "```",
    "```diff",
    "~~~~",
    "text",
    "",
    "\r",
    "@@ -1 +1 @@",
    "-x",
]


@given(st.lists(st.sampled_from(pieces)))
def test_any_text_is_read_or_refused(lines: list[str]) -> None:
    try:
        sections = parse("\n".join(lines))
    except BadArtifacts as error:
        assert error.problems
    else:
        assert sections.diff.endswith("\n")
