"""Patches judged by the real git: accepted, in conflict, against the rules, or no patch at all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quarterdeck.domain import contract, patch
from quarterdeck.run.checkout import Checkout, Limits, Verdict, prepare, unchanged, verify_patch
from quarterdeck.run.mirror import CheckoutError
from tests.git_repo import GitRepo
from tests.job_spec import job_spec

T = TypeVar("T")
FILES: dict[str, str | bytes] = {
    "src/a.py": "".join(f"line {number}\n" for number in range(1, 21)),
    "src/windows.txt": b"one\r\ntwo\r\nthree\r\n",
    "src/no-newline": "x",
    "src/größe und mehr.txt": "ä\n",
    "src/old.py": "to be deleted\n",
    "src/huge.txt": "h" * 5000 + "\n",
    "lib/other.py": "outside\n",
}


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    repo = GitRepo(tmp_path_factory.mktemp("verdict") / "source")
    (repo.path / "src").mkdir()
    (repo.path / "src" / "link").symlink_to("a.py")
    repo.commit(FILES)
    return repo


@pytest.fixture(scope="module")
def shared(repo: GitRepo) -> Iterator[Checkout]:
    folder = repo.path.parent
    named = {"type": "local", "path": str(repo.path), "baselineCommit": repo.git("rev-parse", "HEAD")}
    spec = job_spec(named, readPaths=["src"], disallowReformatting=True)
    limits = Limits(file_bytes=1000)
    yield run(prepare(spec, folder / "job", folder / "cache", [repo.path], limits=limits))


@pytest.fixture
def checkout(shared: Checkout) -> Iterator[Checkout]:
    """The checkout, whose folders no verdict may change."""
    before = listing(shared.git_dir)
    yield shared
    assert run(unchanged(shared))
    assert listing(shared.git_dir) == before


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def judged(checkout: Checkout, diff: str) -> Verdict:
    return run(verify_patch(checkout, diff))


def edited(repo: GitRepo, files: dict[str, str | bytes]) -> str:
    repo.write(files)
    return repo.diff()


def test_edit_creation_and_deletion_are_accepted(repo: GitRepo, checkout: Checkout) -> None:
    (repo.path / "src" / "old.py").unlink()
    (repo.path / "src" / "a.py").chmod(0o755)
    diff = edited(
        repo,
        {
            "src/a.py": str(FILES["src/a.py"]).replace("line 7\n", "seven\n"),
            "src/new/file.py": "new\n",
            "src/new/empty.py": "",
            "src/no-newline": "y",
            "src/größe und mehr.txt": "ö\n",
            "src/windows.txt": b"one\r\n2\r\nthree\r\n",
        },
    )
    assert judged(checkout, diff) == Verdict()
    assert judged(checkout, diff).ok


def test_rename_within_the_scope_is_accepted(repo: GitRepo, checkout: Checkout) -> None:
    (repo.path / "src" / "a.py").rename(repo.path / "src" / "b c.py")
    assert "rename to" in (diff := repo.diff())
    assert judged(checkout, diff).ok


def test_file_that_was_too_large_for_the_agent_can_still_be_changed(
    repo: GitRepo, checkout: Checkout
) -> None:
    assert "src/huge.txt" in checkout.left_out
    assert judged(checkout, edited(repo, {"src/huge.txt": "small\n"})).ok


def test_regression_patch_taken_from_an_answer_applies(repo: GitRepo, checkout: Checkout) -> None:
    """The original trimmed the diff's last newline, which git reports as a corrupt patch."""
    diff = edited(repo, {"src/a.py": str(FILES["src/a.py"]) + "line 21\n"})
    answer = f"### TEST_PLAN\nx\n\n### NOTES\ny\n\n### DIFF\n\n{diff.strip()}"
    assert judged(checkout, contract.parse(answer).diff).ok
    assert judged(checkout, diff.strip()).code == "BAD_ARTIFACTS"


def test_regression_corrupt_patch_is_no_conflict(checkout: Checkout) -> None:
    """The original could not tell the two apart."""
    head = "diff --git a/src/a.py b/src/a.py\n--- a/src/a.py\n+++ b/src/a.py\n"
    conflict = f"{head}@@ -1,2 +1,2 @@\n-line one\n+first\n line 2\n"
    corrupt = f"{head}@@ -1,2 +1,3 @@\n-line 1\n+first\n line 2\n"
    assert judged(checkout, conflict) == Verdict(
        "CONFLICT", ("patch failed: src/a.py:1", "src/a.py: patch does not apply")
    )
    assert judged(checkout, corrupt).code == "BAD_ARTIFACTS"


@pytest.mark.parametrize(
    ("diff", "detail"),
    [
        (
            "diff --git a/src/gone b/src/gone\n--- a/src/gone\n+++ b/src/gone\n@@ -1 +1 @@\n-x\n+y\n",
            "src/gone: does not exist in index",
        ),
        (
            "diff --git a/src/a.py b/src/a.py\nnew file mode 100644\n--- /dev/null\n+++ b/src/a.py\n"
            "@@ -0,0 +1 @@\n+x\n",
            "src/a.py: already exists in index",
        ),
        (
            "diff --git a/src/link/x b/src/link/x\nnew file mode 100644\n--- /dev/null\n+++ b/src/link/x\n"
            "@@ -0,0 +1 @@\n+x\n",
            "src/link/x",
        ),
    ],
    ids=["missing file", "existing file", "below a link"],
)
def test_conflict_says_where(checkout: Checkout, diff: str, detail: str) -> None:
    verdict = judged(checkout, diff)
    assert verdict.code == "CONFLICT"
    assert detail in "\n".join(verdict.details)


def test_patch_for_another_state_of_the_file_is_a_conflict(repo: GitRepo, checkout: Checkout) -> None:
    text = str(FILES["src/a.py"])
    repo.commit({"src/a.py": text.replace("line 10\n", "ten\n")})
    diff = edited(repo, {"src/a.py": text.replace("line 10\n", "ten\n").replace("line 11\n", "eleven\n")})
    assert judged(checkout, diff).code == "CONFLICT"


@pytest.mark.parametrize(
    ("diff", "reason"),
    [
        (
            "diff --git a/lib/other.py b/lib/other.py\n--- a/lib/other.py\n+++ b/lib/other.py\n"
            "@@ -1 +1 @@\n-outside\n+x\n",
            "lib/other.py is outside the scope",
        ),
        (
            "diff --git a/src/l b/src/l\nnew file mode 120000\n--- /dev/null\n+++ b/src/l\n@@ -0,0 +1 @@\n"
            "+/etc/passwd\n\\ No newline at end of file\n",
            "src/l is a symbolic link",
        ),
        (
            "diff --git a/src/link b/src/link\nindex 1..2 120000\n--- a/src/link\n+++ b/src/link\n"
            "@@ -1 +1 @@\n-a.py\n\\ No newline at end of file\n+/etc\n\\ No newline at end of file\n",
            "src/link is a symbolic link",
        ),
        (
            "diff --git a/.git/config b/.git/config\nnew file mode 100644\n--- /dev/null\n+++ b/.git/config\n"
            "@@ -0,0 +1 @@\n+x\n",
            ".git/config belongs to git itself",
        ),
        (
            "diff --git a/src/../../x b/src/../../x\nnew file mode 100644\n--- /dev/null\n+++ b/src/../../x\n"
            "@@ -0,0 +1 @@\n+x\n",
            "src/../../x leads out of the tree",
        ),
    ],
    ids=["outside the scope", "new link", "changed link", "git's own", "out of the tree"],
)
def test_forbidden_patch_has_its_reasons(checkout: Checkout, diff: str, reason: str) -> None:
    assert judged(checkout, diff) == Verdict("POLICY", (reason,))


def test_symbolic_link_that_the_patch_does_not_name_as_one_is_refused(checkout: Checkout) -> None:
    """Nothing in this text says that the file is a link; only git knows."""
    text = (
        "--- a/src/link\n+++ b/src/link\n@@ -1 +1 @@\n-a.py\n\\ No newline at end of file\n"
        "+/etc/passwd\n\\ No newline at end of file\n"
    )
    assert patch.check_policy(patch.parse(text), checkout.spec) == []
    assert judged(checkout, text) == Verdict("POLICY", ("src/link is a symbolic link",))


def test_binary_file_is_refused(repo: GitRepo, checkout: Checkout) -> None:
    diff = edited(repo, {"src/x.bin": bytes(range(256))})
    assert judged(checkout, diff) == Verdict("POLICY", ("src/x.bin is binary",))


def test_reformatting_is_refused(repo: GitRepo, checkout: Checkout) -> None:
    diff = edited(repo, {"src/a.py": str(FILES["src/a.py"]).replace("line ", "line  ")})
    assert "src/a.py is reformatted" in judged(checkout, diff).details[0]


@pytest.mark.parametrize(
    "diff",
    [
        "",
        "no diff at all\n",
        "diff --git a/src/n b/src/n\n--- /dev/null\n+++ b/src/n\n@@ -0,0 +1 @@\n+x\n",
        "diff --git a/src/old.py b/src/old.py\n--- a/src/old.py\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-to be deleted\n",
        "--- a/src/old.py\n+++ b/src/old.py\n@@ -1 +1 @@\n-to be deleted\n+to be deleted\n",
        "--- a/src/old.py\n+++ b/src/old.py\n@@ -1 +1 @@\n-to be deleted\n+\ud800\n",
    ],
    ids=["empty", "prose", "new file without mode", "deletion without mode", "no change", "half a character"],
)
def test_what_is_no_patch_is_bad_artifacts(checkout: Checkout, diff: str) -> None:
    verdict = judged(checkout, diff)
    assert verdict.code == "BAD_ARTIFACTS"
    assert verdict.details


def test_parser_and_git_agree_about_odd_names(repo: GitRepo) -> None:
    names = [
        "a b",
        "ä",
        'q"uote',
        "tab\there",
        "back\\slash",
        "new\nline",
        "a => b",
        "x b/x",
        " lead",
        "trail ",
    ]
    repo.commit({f"src/{name}/{name}": "1\n" for name in names})
    repo.write({f"src/{name}/{name}": "2\n" for name in names})
    for name in names:
        (repo.path / f"src/{name}/{name}").chmod(0o755)
    repo.write({f"src/{name}/new": "" for name in names})
    wanted = {f"src/{name}/{name}" for name in names} | {f"src/{name}/new" for name in names}
    assert {path for change in patch.parse(repo.diff()) for path in change.paths} == wanted
    for name in names:
        (repo.path / f"src/{name}/{name}").rename(repo.path / f"src/{name}/moved")
    moved = {(f"src/{name}/{name}", f"src/{name}/moved") for name in names}
    assert {change.paths for change in patch.parse(repo.diff())} == moved


def test_verdict_without_its_baseline_is_an_error_and_not_a_conflict(repo: GitRepo, tmp_path: Path) -> None:
    named = {"type": "local", "path": str(repo.path), "baselineCommit": repo.git("rev-parse", "HEAD")}
    checkout = run(prepare(job_spec(named), tmp_path / "job", tmp_path / "cache", [repo.path]))
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    diff = "--- a/src/old.py\n+++ b/src/old.py\n@@ -1 +1 @@\n-to be deleted\n+x\n"
    with pytest.raises(CheckoutError) as caught:
        judged(checkout, diff)
    assert caught.value.reason == "INTERNAL_ERROR"
