"""Patches: what they change, what git would refuse, and what a spec forbids."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.domain.patch import (
    BadPatch,
    FileChange,
    Hunk,
    check_policy,
    lacking,
    parse,
    reformatted,
    unsafe_path,
)
from tests.job_spec import job_spec

EDIT = """\
diff --git a/src/a.py b/src/a.py
index 1111111..2222222 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,3 +1,4 @@ def f():
 one
-two
+2
+2.5
 three
@@ -10 +11,0 @@
-ten
"""
CREATE = """\
diff --git a/src/new.py b/src/new.py
new file mode 100644
index 0000000..2222222
--- /dev/null
+++ b/src/new.py
@@ -0,0 +1 @@
+x
\\ No newline at end of file
"""
DELETE = """\
diff --git a/src/old.py b/src/old.py
deleted file mode 100755
index 2222222..0000000
--- a/src/old.py
+++ /dev/null
@@ -1 +0,0 @@
-x
"""
RENAME = """\
diff --git a/src/b c.py b/src/d e.py
similarity index 100%
rename from src/b c.py
rename to src/d e.py
"""
BITS = "diff --git a/src/run b/src/run\nold mode 100644\nnew mode 100755\n"
LINK = """\
diff --git a/src/link b/src/link
new file mode 120000
index 0000000..3333333
--- /dev/null
+++ b/src/link
@@ -0,0 +1 @@
+/etc/passwd
\\ No newline at end of file
"""
RELINK = (
    LINK.replace("new file mode 120000\n", "")
    .replace("3333333", "3333333 120000")
    .replace("/dev/null", "a/src/link")
)
MODULE = """\
diff --git a/src/sub b/src/sub
index 1111111..2222222 160000
--- a/src/sub
+++ b/src/sub
@@ -1 +1 @@
-Subproject commit 1111111111111111111111111111111111111111
+Subproject commit 2222222222222222222222222222222222222222
"""
BINARY = """\
diff --git a/src/x.png b/src/x.png
new file mode 100644
index 0000000..4444444
GIT binary patch
literal 4
LcmZQzWMT#Y01f~L

literal 0
HcmV?d00001

"""
DIFFER = (
    "diff --git a/src/x.png b/src/x.png\nindex 1..2 100644\nBinary files a/src/x.png and b/src/x.png differ\n"
)


def reasons(diff: str, **scope: Any) -> list[str]:
    return check_policy(parse(diff), job_spec(**scope))


def edit_of(path: str, removed: list[str], added: list[str]) -> str:
    """A diff that replaces these lines, with one line of context on each side."""
    lines = [" before", *(f"-{line}" for line in removed), *(f"+{line}" for line in added), " after"]
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return f"{head}@@ -1,{len(removed) + 2} +1,{len(added) + 2} @@\n" + "\n".join(lines) + "\n"


def test_edit_is_read_with_its_hunks() -> None:
    [change] = parse(EDIT)
    assert change == FileChange(
        old_path="src/a.py",
        new_path="src/a.py",
        kind="modified",
        old_mode="100644",
        new_mode="100644",
        hunks=(
            Hunk(1, 3, 1, 4, (" one", "-two", "+2", "+2.5", " three")),
            Hunk(10, 1, 11, 0, ("-ten",)),
        ),
    )
    assert change.paths == ("src/a.py",)


@pytest.mark.parametrize(
    ("diff", "kind", "old", "new", "modes"),
    [
        (CREATE, "new", None, "src/new.py", (None, "100644")),
        (DELETE, "deleted", "src/old.py", None, ("100755", None)),
        (RENAME, "renamed", "src/b c.py", "src/d e.py", (None, None)),
        (RENAME.replace("rename", "copy"), "copied", "src/b c.py", "src/d e.py", (None, None)),
        (RENAME.replace("rename from", "rename old"), "renamed", "src/b c.py", "src/d e.py", (None, None)),
        (BITS, "modified", "src/run", "src/run", ("100644", "100755")),
        (LINK, "new", None, "src/link", (None, "120000")),
        (RELINK, "modified", "src/link", "src/link", ("120000", "120000")),
        (MODULE, "modified", "src/sub", "src/sub", ("160000", "160000")),
        (BINARY, "new", None, "src/x.png", (None, "100644")),
        (DIFFER, "modified", "src/x.png", "src/x.png", ("100644", "100644")),
    ],
)
def test_kind_paths_and_modes_are_read(
    diff: str, kind: str, old: str | None, new: str | None, modes: tuple[str | None, str | None]
) -> None:
    [change] = parse(diff)
    assert (change.kind, change.old_path, change.new_path) == (kind, old, new)
    assert (change.old_mode, change.new_mode) == modes
    assert change.binary == (diff in (BINARY, DIFFER))
    assert change.symlink == (diff in (LINK, RELINK))
    assert change.submodule == (diff == MODULE)


def test_changes_come_in_the_order_of_the_patch() -> None:
    text = "".join([EDIT, BINARY, CREATE, BITS, DELETE, RENAME])
    assert [change.kind for change in parse(text)] == [
        *("modified", "new", "new", "modified", "deleted", "renamed")
    ]


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("a b.txt", "a b.txt"),
        ("a b/a b.txt", "a b/a b.txt"),
        ('"\\303\\244.txt"', "ä.txt"),
        ('"tab\\there.txt"', "tab\there.txt"),
        ('"quote\\"d \\\\.txt"', 'quote"d \\.txt'),
        ('"bell\\a\\001.txt"', "bell\a\x01.txt"),
        ("größe.txt", "größe.txt"),
    ],
)
def test_odd_names_are_read(written: str, path: str) -> None:
    def name(side: str) -> str:
        return f'"{side}/{written[1:]}' if written.startswith('"') else f"{side}/{written}"

    header = f"diff --git {name('a')} {name('b')}\n"
    only_bits = f"{header}old mode 100644\nnew mode 100755\n"
    tab = "\t" if " " in written else ""
    edit = f"{header}--- {name('a')}{tab}\n+++ {name('b')}{tab}\n@@ -1 +1 @@\n-x\n+y\n"
    assert parse(only_bits)[0].paths == (path,)
    assert parse(edit)[0].paths == (path,)


def test_plain_diff_without_git_headers_is_read() -> None:
    text = "--- a/x.c\t2024-01-01 00:00:00\n+++ b/x.c\t2024-01-02\n@@ -1 +1 @@\n-x\n+y\n"
    assert parse(text)[0].paths == ("x.c",)


def test_second_file_cannot_hide_behind_the_first_hunk() -> None:
    hidden = "--- a/secret\n+++ b/secret\n@@ -0,0 +1 @@\n+q\n"
    assert reasons(EDIT + hidden) == ["secret is outside the scope"]


def test_lines_of_a_hunk_that_look_like_headers_are_content() -> None:
    diff = edit_of(
        "src/x.sql", ["-- a/comment"], ["++ b/comment", "@@ -1 +1 @@", "### NOTES", "diff --git a b"]
    )
    assert len(parse(diff)) == 1
    assert parse(diff)[0].hunks[0].lines[1] == "--- a/comment"


def test_text_around_the_changes_is_passed_over() -> None:
    text = f"From 123\nSubject: x\n---\n src/a.py | 2 +-\n\n{EDIT}\nprose\n{CREATE}-- \n2.39\n"
    assert [change.kind for change in parse(text)] == ["modified", "new"]


def test_empty_line_of_context_may_lack_its_blank() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n-x\n+y\n\n z\n"
    assert parse(text)[0].hunks[0].lines == ("-x", "+y", "", " z")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no change"),
        ("I changed nothing.\n", "no change"),
        ("@@ -1 +1 @@\n-x\n+y\n", "without the header"),
        (EDIT.removesuffix("-ten\n"), "ends before its last line"),
        (EDIT.replace(" three\n", ""), "does not fit"),
        (EDIT.replace("-1,3 +1,4", "-1,3 +1,3"), "does not fit"),
        (EDIT.replace(" one", "one"), "does not fit"),
        ("diff --git a/x b/x\nindex 1..2 100644\n", "without a change"),
        ("diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", "does not name its file"),
        ("diff --git x x\n--- x\n+++ x\n@@ -1 +1 @@\n-x\n+y\n", "prefix"),
        (CREATE.replace("new file mode 100644\n", ""), "lacks its 'new file mode' line"),
        (DELETE.replace("deleted file mode 100755\n", ""), "lacks its 'deleted file mode' line"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-x\n+y\n", "does not name its file"),
    ],
)
def test_what_git_cannot_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadPatch, match=words):
        parse(text)


@given(
    st.lists(st.sampled_from([*EDIT.splitlines(), *BINARY.splitlines(), *RENAME.splitlines(), "", "\r", '"']))
)
def test_any_lines_are_read_or_refused(lines: list[str]) -> None:
    with contextlib.suppress(BadPatch):
        assert parse("\n".join(lines))


def test_hostile_header_takes_no_time() -> None:
    began = time.perf_counter()
    with pytest.raises(BadPatch):
        parse(f"diff --git {'a ' * 200_000}\n" * 3 + "old mode 100644\n")
    assert time.perf_counter() - began < 2


def test_lines_that_a_cut_hunk_lacks_are_counted() -> None:
    cut = "--- a/x\n+++ b/x\n@@ -1,4 +1,4 @@\n-x\n+y\n z\n"
    assert lacking(cut) == 2
    assert lacking(f"{cut}\n\n") == 0
    assert lacking(cut.replace("+y\n", "")) == 0
    assert lacking("no patch") == 0


def test_change_within_the_scope_is_allowed() -> None:
    assert reasons(EDIT + CREATE + DELETE + RENAME) == []


def test_executable_bit_may_change() -> None:
    assert reasons(BITS) == []


@pytest.mark.parametrize(
    ("diff", "reason"),
    [
        (LINK, "src/link is a symbolic link"),
        (RELINK, "src/link is a symbolic link"),
        (MODULE, "src/sub is a submodule"),
        (BINARY, "src/x.png is binary"),
        (DIFFER, "src/x.png is binary"),
        (EDIT.replace("+2.5", "+2\x005"), "src/a.py is binary"),
        (BITS.replace("100755", "104755"), "src/run has the mode 104755"),
        (EDIT.replace("src/", "lib/"), "lib/a.py is outside the scope"),
        (RENAME.replace("to src/", "to lib/"), "lib/d e.py is outside the scope"),
        (RENAME.replace("from src/", "from lib/"), "lib/b c.py is outside the scope"),
        (RENAME.replace("rename", "copy").replace("from src", "from lib"), "lib/b c.py is outside the scope"),
    ],
)
def test_forbidden_change_has_its_reason(diff: str, reason: str) -> None:
    assert reasons(diff) == [reason]


def test_globs_narrow_the_scope() -> None:
    assert reasons(EDIT, fileGlobs=["**/*.py"]) == []
    assert reasons(EDIT, fileGlobs=["**/*.ts"]) == ["src/a.py is outside the scope"]
    assert reasons(EDIT, fileGlobs=["**/*.ts"], readPaths=["src/a.py"]) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/etc/passwd", "absolute"),
        ("C:/x", "absolute"),
        ("../x", "out of the tree"),
        ("src/../../x", "out of the tree"),
        (".git/hooks/pre-commit", "belongs to git"),
        ("src/.GIT/config", "belongs to git"),
        ("src/.git. /config", "belongs to git"),
        ("git~1/config", "belongs to git"),
        (".gitmodules", "submodules"),
        ("src//x", "not a plain path"),
        ("src/./x", "not a plain path"),
    ],
)
def test_path_that_no_scope_allows_is_refused(path: str, words: str) -> None:
    assert words in str(unsafe_path(path))
    assert words in "".join(reasons(EDIT.replace("src/a.py", path), readPaths=["."]))


@pytest.mark.parametrize(
    "path", ["a", "src/a.py", ".github/x.yml", ".gitignore", "a..b", "src/.gitkeep", "git"]
)
def test_plain_path_is_no_danger(path: str) -> None:
    assert unsafe_path(path) is None


LOOP = ["for x in y:", "    a(x)", "    b(x)", "    c(x)"]


@pytest.mark.parametrize(
    ("removed", "added"),
    [
        (LOOP, [line.replace("    ", "\t") for line in LOOP]),
        (LOOP, [f"{line}\r" for line in LOOP]),
        (LOOP, [f"{line}  " for line in LOOP]),
        (["f(a, b, c)"], ["f(", "  a,", "  b,", "  c)"]),
        (["if(a){", "  x();", "}"], ["if (a)", "{", "    x ();", "}"]),
        ([], ["", "", ""]),
        ([*LOOP, "d()"], [*(line.replace("(", " ( ") for line in LOOP), "e()"]),
    ],
)
def test_reformatting_is_found_and_refused_only_when_disallowed(removed: list[str], added: list[str]) -> None:
    diff = edit_of("src/a.py", removed, added)
    assert reformatted(parse(diff)[0])
    assert "reformatted" in reasons(diff, disallowReformatting=True)[0]
    assert reasons(diff) == []


@pytest.mark.parametrize(
    ("removed", "added"),
    [
        (["return x"], ["return y"]),
        # A block that moves inwards below a new condition is no reformatting.
        (LOOP, ["if z:", *(f"    {line}" for line in LOOP)]),
        # A fix of an indent alone, as Python knows it.
        (["        return x"], ["    return x"]),
        # Some white space beside more work.
        (["a = 1 ", "b()", "c()", "d()"], ["a = 1", "e()", "f()", "g()"]),
        (["a", "b"], ["b", "a"]),
    ],
)
def test_real_change_is_no_reformatting(removed: list[str], added: list[str]) -> None:
    assert reasons(edit_of("src/a.py", removed, added), disallowReformatting=True) == []


def test_new_file_is_never_reformatted() -> None:
    assert not reformatted(parse(CREATE)[0])
