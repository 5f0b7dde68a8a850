"""What the web board is made of, without a server: routes and docs, text, patches, plots."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quarterdeck.server.job_log import Piece
from quarterdeck.server.web import pages, patches, plots
from quarterdeck.server.web.jobs import told
from quarterdeck.server.web.routing import ROUTES, find
from quarterdeck.server.web.show import NAV, ago, lasting, money, number, render
from quarterdeck.server.web.text import linked, seen, terminal

ROOT = Path(__file__).parents[2]
WEB = ROOT / "src" / "quarterdeck" / "server" / "web"
pages.load()


def test_every_page_of_the_menu_is_served_and_documented() -> None:
    documented = (ROOT / "docs" / "web.md").read_text()
    for path, _ in NAV:
        assert isinstance(find("GET", path), tuple), path
        assert f"`{path}`" in documented, path


def test_every_page_that_stands_alone_is_documented() -> None:
    documented = set(re.findall(r"`(/[^`]*)`", (ROOT / "docs" / "web.md").read_text()))
    parts = {"/live", "/board/cards", "/board/conflicts", "/board/more/{column}", "/tasks/new"}
    parts |= {"/tasks/{id}/edit", "/tasks/{id}/diff", "/jobs/{id}/files/{name}", "/jobs/{id}/log"}
    alone = {route.path for route in ROUTES if route.method == "GET"} - parts
    assert alone - documented == set()


def test_whatever_changes_something_needs_more_than_a_viewer() -> None:
    own = {"/tokens", "/tokens/{id}/revoke"}  # of the caller's own rank
    assert {r.path for r in ROUTES if r.method == "POST" and r.least == "viewer"} == own


def test_no_template_says_that_something_is_safe() -> None:
    for file in (WEB / "templates").glob("*.html"):
        text = file.read_text()
        assert "|safe" not in text and "autoescape" not in text, file.name
        assert not re.search(r"<script(?! type=\"module\" src=\"/static/)", text), file.name
        assert not re.search(r"\s(?:style|on\w+)=", text), file.name


def test_every_form_that_changes_something_carries_its_mark() -> None:
    for file in (WEB / "templates").glob("*.html"):
        for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", file.read_text(), re.DOTALL):
            door = 'action="/signout"' in form or 'action="/signin"' in form
            assert door or "{{ mark(csrf) }}" in form, file.name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&#34;&#39;"),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ("data:text/html,x ftp://x", "data:text/html,x ftp://x"),
        ("\u202egnp.exe", "⟨U+202E⟩gnp.exe"),
        ("a\x00b\x1bc\x7f", "a␀b␛c␡"),
        ("a\tb\nc\r\nd", "a\tb\nc\nd"),
    ],
)
def test_text_is_shown_as_it_is(text: str, shown: str) -> None:
    assert linked(text) == shown


def test_a_web_address_becomes_a_link_and_nothing_more() -> None:
    link = linked('see https://a.example/?q=1&b="onx=1 (https://b.example/c).')
    assert re.findall(r'href="([^"]*)"', link) == ["https://a.example/?q=1&amp;b=", "https://b.example/c"]
    assert link.count('rel="noopener noreferrer nofollow"') == 2
    assert "onx=1 (" in link and link.endswith(").")


def test_colours_of_a_terminal_become_classes_and_the_rest_is_left_out() -> None:
    assert terminal("\x1b[1;31mno\x1b[0m <i>") == '<span class="ansi-bold ansi-red">no</span> &lt;i&gt;'
    hostile = "\x1b]8;;javascript:x\x07a\x1b]8;;\x07\x1b[2J\x1b[10;10Hb\x1b]0;title\x1b\\c"
    assert terminal(hostile) == "abc"
    assert terminal("\x1b[38;5;9mx\x1b[97my\x1b[39mz") == 'x<span class="ansi-white">y</span>z'
    assert seen("\ud800") == "?"


PATCH = """diff --git a/a.py b/b.py
similarity index 90%
rename from a.py
rename to b.py
--- a/a.py
+++ b/b.py
@@ -3,5 +3,6 @@ class A:
 same
-old one
-old two
+new one
+<script>
+new three
 end
diff --git a/x.bin b/x.bin
new file mode 100644
Binary files /dev/null and b/x.bin differ
"""


def test_a_patch_is_put_side_by_side() -> None:
    (renamed, binary), cut = patches.read(PATCH)
    assert (renamed.path, renamed.old_path, renamed.status, cut) == ("b.py", "a.py", "renamed", False)
    assert (renamed.plus, renamed.minus) == (3, 2)
    rows = renamed.hunks[0].rows
    assert [(row.kind, row.old, row.new) for row in rows] == [
        ("same", 3, 3),
        ("both", 4, 4),
        ("both", 5, 5),
        ("new", None, 6),
        ("same", 6, 7),
    ]
    plain = re.sub(r"</?i[^>]*>", "", rows[2].right)
    assert plain == "&lt;script&gt;"
    assert (binary.status, binary.note, binary.hunks) == ("added", "a binary file", [])


@pytest.mark.parametrize(
    "patch", ["", "no patch", "@@ -1 +1 @@\n+x", "diff --git a/x b/x\n@@ broken", "+\n-\n"]
)
def test_what_is_no_patch_breaks_nothing(patch: str) -> None:
    files, _ = patches.read(patch)
    assert all(not file.hunks for file in files)


def test_a_long_patch_is_cut_and_says_so() -> None:
    long = "diff --git a/x b/x\n@@ -0,0 +1,9999 @@\n" + "+line\n" * 9999
    files, cut = patches.read(long)
    assert cut and files[0].plus == 5000


def test_a_plot_names_its_values_and_escapes_its_names() -> None:
    drawn = plots.by_day([0, 1], {"<a>": [1.0, 3.0], "b": [0.0, 1.0]}, "Cost", money)
    assert drawn.count("<rect") == 5  # three bars and two of the legend
    assert "1970-01-02: &lt;a&gt; $3.00" in drawn and "<a>" not in drawn
    assert 'role="img" aria-label="Cost"' in drawn
    empty = plots.by_day([0], {}, "Cost", money)
    assert "<rect" not in empty
    assert plots.by_name([("x" * 40, 2.0), ("y", 0.0)], "Why", number).count("<rect") == 2


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (None, "–"),
        (1_500_000, "1.5 s"),
        (59_000_000, "59 s"),
        (61_000_000, "1 min 1 s"),
        (7_200_000_000, "2 h"),
    ],
)
def test_a_span_of_time_is_said_in_two_units(us: int | None, words: str) -> None:
    assert lasting(us) == words


def test_numbers_are_short() -> None:
    assert [number(value) for value in (None, 9999, 12_300, 4_000_000)] == ["–", "9,999", "12.3k", "4M"]
    assert [money(value) for value in (None, 0.0, 0.0012, 1234.5)] == ["–", "$0.00", "$0.0012", "$1,234.50"]
    assert ago(None) == "never"


def test_the_log_of_a_running_job_has_its_tool_calls_folded_and_runs_nothing() -> None:
    use = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "<img src=x>"}}
    said = {"type": "text", "text": "I <b>look</b> first."}
    line = {"type": "assistant", "session_id": "s", "message": {"role": "assistant", "content": [said, use]}}
    log = f"<script>plain()</script>\nand more\n{json.dumps(line)}\n"
    piece = Piece(log, len(log), ended=False, state="RUNNING", adapter="claude")
    shown = render("log.html", piece=piece, steps=told("claude", log)).decode()
    assert f'data-offset="{len(log)}"' in shown
    assert '<pre class="told">&lt;script&gt;plain()&lt;/script&gt;\nand more</pre>' in shown
    assert '<pre class="told">I &lt;b&gt;look&lt;/b&gt; first.</pre>' in shown
    folded = shown[shown.index("<details>") :]
    assert "<code>Bash</code>" in folded and "&lt;img src=x&gt;" in folded
    assert "<img" not in shown and "<script" not in shown
    assert told("command", log)[0].text.startswith("<script>")
