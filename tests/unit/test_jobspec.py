"""The JobSpec: every field of the document, what is refused and where, and the prompt made of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.jobspec import (
    JobSpec,
    Tree,
    fingerprint,
    parse_spec,
    prompt_for,
    without_secrets,
)

SHA = "7fd1a60b01f91b314f59955a4e4d4e80d8edf11d"
Row = dict[str, Any]
# The example of the document, word for word.
EXAMPLE: Row = {
    "repo": {
        "type": "git",
        "url": "https://github.com/facebook/react.git",
        "baseBranch": "main",
        "baselineCommit": SHA,
    },
    "task": {
        "title": "Add TypeScript strict mode",
        "description": "Enable strict mode in tsconfig.json and fix type errors",
        "acceptance": ["tsconfig.json has strict: true", "All TypeScript files compile without errors"],
    },
    "scope": {
        "readPaths": ["src/", "tsconfig.json"],
        "fileGlobs": ["**/*.ts", "**/*.tsx"],
        "disallowReformatting": False,
    },
    "outputContract": ["DIFF", "TEST_PLAN", "NOTES"],
    "execution": {
        "preferredModel": "gpt-4",
        "sandbox": "read-only",
        "askPolicy": "untrusted",
        "priority": "P1",
        "ttlS": 1800,
    },
    "idempotencyKey": "react-strict-mode-v1",
}
GONE = object()


def changed(path: str, value: Any) -> Row:
    """The example with one field set, or taken out."""
    spec = copy.deepcopy(EXAMPLE)
    *parents, name = path.split(".")
    part = spec
    for parent in parents:
        part = part.setdefault(parent, {})
    if value is GONE:
        del part[name]
    else:
        part[name] = value
    return spec


def refusal(value: Any, **flags: bool) -> Invalid:
    with pytest.raises(Invalid) as caught:
        parse_spec(value, **flags)
    return caught.value


def test_the_example_of_the_document_is_taken() -> None:
    spec = parse_spec(EXAMPLE)
    assert (spec.repo.baseline_commit, spec.execution.ttl_s, spec.scope.file_globs) == (
        SHA,
        1800,
        ("**/*.ts", "**/*.tsx"),
    )
    assert spec.context is None
    assert spec.notify is None


def test_every_optional_field_is_taken() -> None:
    full = copy.deepcopy(EXAMPLE)
    full["context"] = {
        "dirTreeDigest": "src/",
        "keySignatures": ["f(x: int) -> int"],
        "codeSnippets": [{"path": "src/a.ts", "from": 3, "to": 3}],
    }
    full["execution"]["timeoutS"] = 0.5
    full["notify"] = {"enablePr": True, "webhook": "https://example.org/hook?x=1"}
    spec = parse_spec(full)
    assert spec.context is not None
    assert spec.notify is not None
    assert (spec.context.code_snippets[0].first, spec.context.code_snippets[0].last) == (3, 3)
    assert (spec.execution.timeout_s, spec.notify.enable_pr) == (0.5, True)


def test_stored_spec_comes_back_as_it_was() -> None:
    spec = parse_spec(changed("repo.url", "file:///srv/a.git"), allow_file=True)
    assert JobSpec.load(spec.dump()) == spec
    assert json.loads(spec.dump())["repo"]["baselineCommit"] == SHA


@pytest.mark.parametrize(
    "field",
    [
        *("repo", "repo.type", "repo.url", "repo.baseBranch", "repo.baselineCommit"),
        *("task", "task.title", "task.description", "task.acceptance"),
        *("scope", "scope.readPaths", "scope.disallowReformatting", "outputContract"),
        *("execution", "execution.preferredModel", "execution.sandbox", "execution.askPolicy"),
        *("execution.priority", "execution.ttlS", "idempotencyKey"),
    ],
)
def test_required_field_is_missed_by_its_path(field: str) -> None:
    error = refusal(changed(field, GONE))
    assert error.field == f"spec.{field}"
    assert "is required" in error.message
    assert "errors" not in error.data


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("repo.type", "svn", "must be 'git' or 'local'"),
        ("repo.type", "local", "is required"),
        ("repo.url", 7, "must be a string"),
        ("repo.url", "", "is required"),
        ("repo.baselineCommit", SHA[:39], "40 hexadecimal digits"),
        ("repo.baselineCommit", SHA + "0", "40 hexadecimal digits"),
        ("repo.baselineCommit", SHA[:39] + "g", "40 hexadecimal digits"),
        ("repo.baselineCommit", SHA[:39] + "\n", "40 hexadecimal digits"),
        ("repo.baselineCommit", "HEAD", "40 hexadecimal digits"),
        ("repo.baseBranch", "", "must not be empty"),
        ("repo.baseBranch", "--upload-pack=x", "not the name of a branch"),
        ("repo.baseBranch", "a..b", "not the name of a branch"),
        ("repo.baseBranch", "a b", "not the name of a branch"),
        ("repo.baseBranch", "main:refs/heads/x", "not the name of a branch"),
        ("repo.baseBranch", "x.lock", "not the name of a branch"),
        ("task.title", "", "must not be empty"),
        ("task.title", "x" * 201, "longer than 200"),
        ("task.description", "x" * 10_001, "longer than 10000"),
        ("task.acceptance", "one", "must be an array"),
        ("scope.readPaths", "src", "must be an array"),
        ("scope.disallowReformatting", "no", "must be true or false"),
        ("scope.disallowReformatting", 1, "must be true or false"),
        ("outputContract", ["DIFF", "NOTES", "TEST_PLAN"], "must be exactly"),
        ("outputContract", ["DIFF", "TEST_PLAN"], "must be exactly"),
        ("outputContract", ["DIFF", "TEST_PLAN", "NOTES", "NOTES"], "must be exactly"),
        ("outputContract", "DIFF", "must be an array"),
        ("execution.sandbox", "danger-full-access", "must be 'read-only'"),
        ("execution.askPolicy", "never", "must be 'untrusted'"),
        ("execution.priority", "P3", "must be 'P0', 'P1' or 'P2'"),
        ("execution.priority", "p0", "must be 'P0', 'P1' or 'P2'"),
        ("execution.ttlS", 0, "must be more than 0"),
        ("execution.ttlS", "1800", "must be a number"),
        ("execution.ttlS", True, "must be a number"),
        ("execution.ttlS", float("nan"), "must be a finite number"),
        ("execution.ttlS", float("inf"), "must be a finite number"),
        ("execution.ttlS", 1e9, "must be at most 2592000"),
        ("execution.timeoutS", -1, "must be more than 0"),
        ("execution.preferredModel", "--dangerous", "not the name of a model"),
        ("execution.preferredModel", "a\nb", "not the name of a model"),
        ("idempotencyKey", "", "must not be empty"),
        ("idempotencyKey", "a\x00b", "NUL"),
        ("idempotencyKey", "a\ud800", "surrogate"),
        ("notify.webhook", "ftp://example.org", "http or https"),
        ("notify.webhook", "https://user:pw@example.org", "http or https"),
        ("notify.enablePr", "yes", "must be true or false"),
        ("context.dirTreeDigest", 5, "must be a string"),
        ("task.labels", [], "not a field"),
        ("sandbox", "none", "not a field"),
        ("repo.baseline_commit", SHA, "not a field"),
    ],
)
def test_wrong_value_is_refused_by_its_path(field: str, value: Any, words: str) -> None:
    spec = changed(field, value)
    wanted = {"repo.type": "repo.path"}.get(field, field) if value == "local" else field
    error = refusal(spec)
    assert error.field == f"spec.{wanted}"
    assert words in error.message
    assert error.code == "validation_error"


def test_limits_themselves_are_taken() -> None:
    spec = changed("task.title", "x" * 200)
    spec["task"]["description"] = "x" * 10_000
    assert parse_spec(spec).task.title == "x" * 200


def test_further_errors_are_listed() -> None:
    spec = changed("repo.baselineCommit", "HEAD")
    spec["task"]["title"] = ""
    spec["scope"]["readPaths"] = ["ok", "../x"]
    error = refusal(spec)
    assert error.field == "spec.repo.baselineCommit"
    assert error.data["errors"] == [
        {"field": "spec.task.title", "error": "must not be empty"},
        {"field": "spec.scope.readPaths[1]", "error": "must not contain '..'"},
    ]


@pytest.mark.parametrize("value", [None, [], "spec", 7])
def test_what_is_no_object_is_refused(value: Any) -> None:
    error = refusal(value)
    assert (error.field, error.message) == ("spec", "spec must be an object")


@pytest.mark.parametrize("field", ["readPaths", "fileGlobs"])
@pytest.mark.parametrize(
    "path",
    [
        *("/etc", "..", "../x", "a/../../b", "a\\..\\b", "-rf", "a\x00b", "a\nb", ""),
        *("C:/x", "C:x", "\\\\host\\share", "\\x"),
    ],
)
def test_path_out_of_the_tree_is_refused(field: str, path: str) -> None:
    assert refusal(changed(f"scope.{field}", [path])).field == f"spec.scope.{field}[0]"


def test_snippets_are_checked_like_paths_and_end_after_they_begin() -> None:
    backwards = [{"path": "a", "from": 5, "to": 4}]
    assert refusal(changed("context.codeSnippets", backwards)).field == "spec.context.codeSnippets[0].to"
    outside = [{"path": "/etc/passwd", "from": 1, "to": 4}]
    assert refusal(changed("context.codeSnippets", outside)).field == "spec.context.codeSnippets[0].path"
    half = [{"path": "a", "from": 1.5, "to": 4}]
    assert refusal(changed("context.codeSnippets", half)).field == "spec.context.codeSnippets[0].from"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.git",
        "https://user:token@example.org:8443/a b.git",
        "ssh://git@example.org:22/a.git",
        "git://example.org/a.git",
        "git@example.org:group/a.git",
        "deploy.bot@host-1:~/a.git",
    ],
)
def test_remote_url_is_taken(url: str) -> None:
    assert parse_spec(changed("repo.url", url)).repo.url == url


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c 'touch /tmp/x'",
        "ext::sh -c a@b:c",
        "--upload-pack=touch x",
        "-oProxyCommand=x@host:path",
        "git@-oProxyCommand=x:path",
        "git@host:-x",
        "git@host::x",
        "ssh://-oProxyCommand=x/path",
        "ssh://git@-oProxyCommand=x/path",
        "http://example.org/a.git",
        "HTTPS://example.org/a.git",
        "ftp://example.org/a.git",
        "fd::7",
        "/srv/a.git",
        "../a.git",
        "https:///a.git",
        "https://example.org/a\n.git",
        "file:///srv/a.git",
    ],
)
def test_dangerous_url_is_refused(url: str) -> None:
    assert refusal(changed("repo.url", url)).field == "spec.repo.url"


def test_file_url_is_taken_only_when_the_caller_allows_it() -> None:
    spec = changed("repo.url", "file:///srv/a.git")
    assert "file URL" in refusal(spec).message
    assert parse_spec(spec, allow_file=True).repo.url == "file:///srv/a.git"
    assert refusal(changed("repo.url", "ext::x"), allow_file=True).field == "spec.repo.url"


@pytest.mark.parametrize("path", ["relative/repo", "", "/srv/../etc", "/srv/a\x00", "/srv/a\nb"])
def test_local_path_must_be_absolute(path: str) -> None:
    repo = {"type": "local", "path": path, "baseBranch": "main", "baselineCommit": SHA}
    assert refusal(changed("repo", repo)).field == "spec.repo.path"


def test_local_repository_needs_no_url() -> None:
    repo = {"type": "local", "path": "/srv/a", "baseBranch": "main", "baselineCommit": SHA.upper()}
    assert parse_spec(changed("repo", repo)).repo.baseline_commit == SHA


def test_fingerprint_does_not_depend_on_the_order_of_names_or_the_case_of_the_commit() -> None:
    backwards = {name: EXAMPLE[name] for name in reversed(EXAMPLE)}
    upper = changed("repo.baselineCommit", SHA.upper())
    whole = changed("execution.ttlS", 1800.0)
    absent = changed("notify", None)
    prints = {fingerprint(parse_spec(spec)) for spec in (EXAMPLE, backwards, upper, whole, absent)}
    assert len(prints) == 1
    assert len(prints.pop()) == 64


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repo.baseBranch", "next"),
        ("task.title", "Other"),
        ("task.acceptance", []),
        ("scope.fileGlobs", []),
        ("execution.priority", "P0"),
        ("notify.enablePr", True),
        ("context.dirTreeDigest", "x"),
    ],
)
def test_fingerprint_tells_specs_apart(field: str, value: Any) -> None:
    assert fingerprint(parse_spec(changed(field, value))) != fingerprint(parse_spec(EXAMPLE))


def test_scope_of_the_example_holds_its_file_and_the_matching_ones_below_its_folder() -> None:
    scope = parse_spec(EXAMPLE).scope
    inside = ["tsconfig.json", "src/a.ts", "src/deep/b.tsx"]
    outside = ["src/c.js", "lib/a.ts", "srcs/a.ts", "x/tsconfig.json"]
    assert [path for path in (*inside, *outside) if scope.contains(path)] == inside


@pytest.mark.parametrize("roots", [[], ["."], ["./"], ["src", "."]])
def test_no_path_or_a_dot_means_the_whole_tree(roots: list[str]) -> None:
    scope = parse_spec(changed("scope.readPaths", roots)).scope
    assert scope.contains("a.ts")
    assert not scope.contains("a.js")


def test_read_paths_are_compared_by_whole_names() -> None:
    spec = changed("scope.readPaths", ["./a//b/"])
    spec["scope"].pop("fileGlobs")
    scope = parse_spec(spec).scope
    assert scope.contains("a/b/c")
    assert not scope.contains("a/bc")
    assert not scope.contains("a")


def test_prompt_says_all_that_the_spec_says() -> None:
    full = changed("context.codeSnippets", [{"path": "src/a.ts", "from": 2, "to": 3}])
    full["context"] |= {"dirTreeDigest": "the digest", "keySignatures": ["f(x)"]}
    full["scope"]["disallowReformatting"] = True
    prompt = prompt_for(parse_spec(full), Tree(("src/a.ts", "tsconfig.json"), ("two\nthree\n",)))
    for words in (
        *("Add TypeScript strict mode", "Enable strict mode in", "1. tsconfig.json has", "2. All Type"),
        *(
            SHA,
            "branch main",
            "Its files (2):",
            "src/a.ts\ntsconfig.json",
            "`src`, `tsconfig.json`",
            "`**/*.tsx`",
        ),
        *("No reformatting", "the digest", "f(x)", "src/a.ts, lines 2 to 3", "two\nthree\n"),
        *("### DIFF", "### TEST_PLAN", "### NOTES"),
    ):
        assert words in prompt
    assert prompt == prompt_for(parse_spec(full), Tree(("src/a.ts", "tsconfig.json"), ("two\nthree\n",)))


def test_prompt_names_no_secret_of_the_url() -> None:
    assert "token" not in prompt_for(parse_spec(changed("repo.url", "https://u:token@example.org/a")))


def test_prompt_leaves_out_what_the_spec_leaves_out() -> None:
    spec = changed("task.acceptance", [])
    spec["scope"].pop("fileGlobs")
    prompt = prompt_for(parse_spec(spec))
    for words in (
        "Done when",
        "match:",
        "Overview",
        "Signatures",
        "Look here",
        "No reformatting",
        "Its files",
    ):
        assert words not in prompt


def test_long_listing_of_files_is_cut() -> None:
    prompt = prompt_for(parse_spec(EXAMPLE), Tree(tuple(f"src/{number}.ts" for number in range(777))))
    assert "Its files (777):" in prompt
    assert "… and 277 more" in prompt
    assert "src/500.ts" not in prompt


def test_fences_of_quoted_code_do_not_end_its_block() -> None:
    snippet = [{"path": "README.md", "from": 1, "to": 3}]
    prompt = prompt_for(
        parse_spec(changed("context.codeSnippets", snippet)), Tree((), ("````sh\nmake\n````\n",))
    )
    assert "\n`````\n````sh\nmake\n````\n`````\n" in prompt


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@example.org/a.git", "https://example.org/a.git"),
        ("https://tok@example.org/a.git?access_token=x#y", "https://example.org/a.git"),
        ("unable to access 'https://u:p@ss@h/r/': 403", "unable to access 'https://h/r/': 403"),
        ("git@example.org:a.git", "git@example.org:a.git"),
        ("is this so? yes", "is this so? yes"),
    ],
)
def test_secrets_of_urls_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from(
    [*EXAMPLE, *(f"{part}.{name}" for part in ("repo", "scope") for name in EXAMPLE[part])]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fields, values)
def test_any_value_is_taken_or_refused_in_our_words(field: str, value: Any) -> None:
    try:
        spec = parse_spec(changed(field, value))
    except Invalid as error:
        assert error.field is not None
        assert error.field.startswith("spec")
        assert "Input should" not in error.message
        assert all("Input should" not in further["error"] for further in error.data.get("errors", []))
    else:
        assert JobSpec.load(spec.dump()) == spec
