"""One attempt with real processes: what the agent gets, what is kept of it, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from quarterdeck.domain.errors import Conflict, Invalid
from quarterdeck.run import attempts
from quarterdeck.run.attempts import Attempt, Chunk, Containment, Exit, Spec, clean, probe, read, transcript
from tests.attempts import UNRULY, UNRULY_PROCESSES, Worker, carriers, python, run, said, spec, token, until

ECHO = "import sys; print('ready', flush=True); print('got', sys.stdin.readline(), end='', flush=True)"


@pytest.fixture(scope="module")
def containment() -> Containment:
    return run(probe)


@pytest.fixture(params=["best", "plain"])
def namespace(request: pytest.FixtureRequest, containment: Containment) -> bool:
    """Both ways to contain an agent; where there are no namespaces the best is the plain one."""
    return request.param == "best" and containment.namespace


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_is_left_below_us() -> Iterator[None]:
    """No child of ours stays, not even as a zombie."""
    before = set(psutil.Process().children())
    yield
    until(lambda: set(psutil.Process().children()) <= before)


def outcome(folder: Path, given: Spec) -> Exit:
    async def body() -> Exit:
        return await (await Attempt.start(folder, given)).wait()

    return run(body)


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(0)", 0), ("raise SystemExit(7)", 7)])
def test_exit_code_is_the_agents_own(tmp_path: Path, namespace: bool, code: str, expected: int) -> None:
    before = time.time_ns() // 1000
    ended = outcome(tmp_path / "a", spec(python(code), tmp_path, namespace=namespace))
    assert (ended.reason, ended.code, ended.signal, ended.error) == ("exited", expected, None, None)
    assert ended.started_at is not None
    assert before <= ended.started_at <= ended.ended_at <= time.time_ns() // 1000
    assert not ended.left


def test_death_by_signal_is_told_from_an_exit(tmp_path: Path, namespace: bool) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"
    ended = outcome(tmp_path / "a", spec(python(code), tmp_path, namespace=namespace))
    assert (ended.reason, ended.code, ended.signal) == ("exited", None, signal.SIGABRT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"argv": ["no-such-program"]}, "cannot run no-such-program: No such file or directory"),
        ({"cwd": Path("/nowhere")}, "cannot work in /nowhere: No such file or directory"),
        ({"stdin": Path("/nowhere")}, "cannot read /nowhere: No such file or directory"),
    ],
)
def test_agent_that_cannot_be_started_says_why(
    tmp_path: Path, namespace: bool, change: dict[str, Any], words: str
) -> None:
    fields = {"argv": ["true"], "cwd": tmp_path, "env": {}, "lease_seconds": 9, "namespace": namespace}
    ended = outcome(tmp_path / "a", Spec(**{**fields, **change}))
    assert (ended.reason, ended.code, ended.signal, ended.error) == ("unstarted", None, None, words)
    assert not (tmp_path / "a" / "attempt.json").exists()


def test_prompt_arrives_on_stdin(tmp_path: Path, namespace: bool) -> None:
    prompt = "Fix it — größer\n" * 10_000
    (tmp_path / "prompt").write_text(prompt, encoding="utf-8")
    given = spec(["cat"], tmp_path, stdin=tmp_path / "prompt", namespace=namespace)
    assert outcome(tmp_path / "a", given).code == 0
    assert transcript(tmp_path / "a", "stdout").decode() == prompt


def test_without_a_prompt_stdin_is_empty(tmp_path: Path) -> None:
    assert outcome(tmp_path / "a", spec(["cat"], tmp_path)).code == 0
    assert transcript(tmp_path / "a") == b""


def test_environment_is_what_was_given_and_the_attempts_mark(tmp_path: Path, namespace: bool) -> None:
    given = {"PATH": os.environ["PATH"], "NAME": "läuft", "EMPTY": "", "LINES": "a\nb"}
    assert outcome(tmp_path / "a", spec(["env", "-0"], tmp_path, env=given, namespace=namespace)).code == 0
    pairs = transcript(tmp_path / "a", "stdout").decode().split("\0")[:-1]
    found = dict(pair.split("=", 1) for pair in pairs)
    mark = json.loads((tmp_path / "a" / "identity.json").read_text())["secret"]
    assert found == {**given, "QUARTERDECK_ATTEMPT": mark}


def test_agent_starts_with_default_signals_its_own_session_and_no_stray_descriptors(
    tmp_path: Path, namespace: bool
) -> None:
    code = (
        "import os, json\n"
        "lines = [line.split(':') for line in open('/proc/self/status')]\n"
        "masks = {name: int(mask, 16) for name, mask in lines if name in ('SigBlk', 'SigIgn')}\n"
        "files = sorted(map(int, os.listdir('/proc/self/fd')))\n"
        "print(json.dumps([masks, os.getsid(0) == os.getpid(), files]))"
    )
    outcome(tmp_path / "a", spec(python(code), tmp_path, namespace=namespace))
    masks, leads_a_session, files = json.loads(transcript(tmp_path / "a"))
    # Python itself ignores SIGPIPE and SIGXFSZ, the C library keeps 32 and 33; number 3 is the listing.
    ours = sum(1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ, 32, 33))
    assert (masks["SigBlk"], masks["SigIgn"] & ~ours, leads_a_session, files) == (0, 0, True, [0, 1, 2, 3])


def test_outputs_are_kept_apart_and_together(tmp_path: Path, namespace: bool) -> None:
    code = "import os; os.write(1, b'one\\n'); os.write(2, b'two\\n')"
    ended = outcome(tmp_path / "a", spec(python(code), tmp_path, namespace=namespace))
    assert transcript(tmp_path / "a", "stdout") == b"one\n"
    assert transcript(tmp_path / "a", "stderr") == b"two\n"
    assert sorted(transcript(tmp_path / "a").splitlines()) == [b"one", b"two"]
    assert {name: (kept.bytes, kept.cut) for name, kept in ended.outputs.items()} == {
        "log": (8, False),
        "stdout": (4, False),
        "stderr": (4, False),
    }


def test_output_over_the_cap_keeps_head_and_tail(tmp_path: Path, namespace: bool) -> None:
    cap = 64 * 1024
    code = "for n in range(100_000): print('line', n)"
    given = spec(python(code), tmp_path, log_cap_bytes=cap, stdout_cap_bytes=cap * 4, namespace=namespace)
    ended = outcome(tmp_path / "a", given)
    whole = b"".join(b"line %d\n" % n for n in range(100_000))
    for stream, limit in (("log", cap), ("stdout", cap * 4)):
        text, kept = transcript(tmp_path / "a", stream), ended.outputs[stream]  # type: ignore[arg-type]
        head, marker, tail = text.partition(b"\n[... %d bytes cut ...]\n" % (len(whole) - kept.kept))
        assert marker
        assert head == whole[: limit // 2]
        assert whole.endswith(tail)
        assert limit // 4 <= len(tail) <= limit // 2
        assert (kept.bytes, kept.kept, kept.cut) == (len(whole), len(head) + len(tail), True)
        assert sum(path.stat().st_size for path in (tmp_path / "a").glob(f"{stream}*")) <= limit


def test_full_disk_cuts_the_output_and_not_the_agent(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log").symlink_to("/dev/full")
    ended = outcome(tmp_path / "a", spec(["echo", "hello"], tmp_path))
    assert (ended.reason, ended.code) == ("exited", 0)
    assert ended.outputs["log"].cut
    assert ended.outputs["log"].kept == 0
    assert transcript(tmp_path / "a", "stdout") == b"hello\n"


def test_output_is_followed_while_the_agent_runs(tmp_path: Path, namespace: bool, loop: str) -> None:
    fifo = tmp_path / "stdin"
    os.mkfifo(fifo)
    feed = os.open(fifo, os.O_RDWR)

    async def body() -> list[bytes]:
        attempt = await Attempt.start(
            tmp_path / "a", spec(python(ECHO), tmp_path, stdin=fifo, namespace=namespace)
        )
        seen: list[bytes] = []
        async for chunk in attempt.follow(stream="stdout"):
            # The agent goes on only now: so what came so far was seen while it ran.
            if not seen:
                os.write(feed, b"a question\n")
            seen.append(chunk.data)
        assert (await attempt.wait()).code == 0
        return seen

    try:
        seen = run(body, loop)
    finally:
        os.close(feed)
    assert seen[0] == b"ready\n"
    assert b"".join(seen) == b"ready\ngot a question\n"


def test_several_follow_from_where_they_like(tmp_path: Path) -> None:
    text = b"".join(b"%06d\n" % n for n in range(20_000))

    async def follow(attempt: Attempt, offset: int) -> bytes:
        return b"".join([chunk.data async for chunk in attempt.follow(offset)])

    async def body() -> None:
        attempt = await Attempt.start(
            tmp_path / "a", spec(python("for n in range(20_000): print(f'{n:06d}')"), tmp_path)
        )
        early = await asyncio.gather(*(follow(attempt, offset) for offset in (0, 7, 70_000, 140_000)))
        await attempt.wait()
        assert early == [text, text[7:], text[70_000:], b""]
        assert await follow(attempt, 139_993) == b"019999\n"

    run(body)


def test_follower_is_told_how_much_was_cut(tmp_path: Path) -> None:
    code = "for n in range(10_000): print(f'{n:06d}')"
    ended = outcome(tmp_path / "a", spec(python(code), tmp_path, log_cap_bytes=4096))
    head = read(tmp_path / "a")
    assert (head.offset, head.skipped, len(head.data)) == (0, 0, 2048)
    tail = read(tmp_path / "a", offset=head.end)
    assert tail.skipped == tail.offset - 2048 == ended.outputs["log"].bytes - ended.outputs["log"].kept
    last = read(tmp_path / "a", offset=tail.end)
    assert read(tmp_path / "a", offset=max(last.end, tail.end)) == Chunk(70_000, b"")


def test_deadline_ends_it(tmp_path: Path, namespace: bool) -> None:
    given = spec(["sleep", "60"], tmp_path, deadline_seconds=0.3, namespace=namespace)
    began = time.monotonic()
    ended = outcome(tmp_path / "a", given)
    assert (ended.reason, ended.signal) == ("deadline", signal.SIGTERM)
    assert 0.3 <= time.monotonic() - began < 5


def test_cancelled_agent_may_clean_up(tmp_path: Path, namespace: bool, loop: str) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('tidied') or 5))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )

    async def body() -> Exit:
        attempt = await Attempt.start(tmp_path / "a", spec(python(code), tmp_path, namespace=namespace))
        await said(attempt, b"ready")
        attempt.cancel()
        return await attempt.wait()

    ended = run(body, loop)
    assert (ended.reason, ended.code) == ("cancelled", 5)
    assert transcript(tmp_path / "a") == b"ready\ntidied\n"


def test_everything_of_a_cancelled_agent_goes(tmp_path: Path, namespace: bool) -> None:
    mark = token()

    async def body() -> tuple[Exit, float]:
        attempt = await Attempt.start(
            tmp_path / "a", spec(python(UNRULY, mark), tmp_path, namespace=namespace)
        )
        await said(attempt, b"ready")
        until(lambda: len(carriers(mark)) == UNRULY_PROCESSES)
        began = time.monotonic()
        attempt.cancel()
        return await attempt.wait(), time.monotonic() - began

    ended, seconds = run(body)
    assert carriers(mark) == []
    assert (ended.reason, ended.signal, ended.left) == ("cancelled", signal.SIGTERM, False)
    assert 2 <= seconds < 5


def test_what_an_agent_leaves_behind_goes_after_it(tmp_path: Path, namespace: bool) -> None:
    mark = token()
    ended = outcome(tmp_path / "a", spec(python(UNRULY, mark, "3"), tmp_path, namespace=namespace))
    assert (ended.reason, ended.code, ended.left) == ("exited", 3, False)
    assert b"ready" in transcript(tmp_path / "a")
    assert carriers(mark) == []


def test_stopped_processes_end_as_well(tmp_path: Path, namespace: bool) -> None:
    code = "import os, signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"

    async def body() -> tuple[Exit, float]:
        attempt = await Attempt.start(tmp_path / "a", spec(python(code), tmp_path, namespace=namespace))
        await said(attempt, b"ready")
        began = time.monotonic()
        attempt.cancel()
        return await attempt.wait(), time.monotonic() - began

    ended, seconds = run(body)
    assert (ended.reason, ended.signal) == ("cancelled", signal.SIGTERM)
    assert seconds < 2


def test_lease_lapses_without_renewal_and_holds_with_it(tmp_path: Path, namespace: bool) -> None:
    async def body() -> tuple[Exit, Exit]:
        given = spec(["sleep", "60"], tmp_path, lease_seconds=1.5, namespace=namespace)
        kept = await Attempt.start(tmp_path / "kept", given)
        lapsed = await Attempt.start(tmp_path / "lapsed", given)
        lapsing = asyncio.create_task(lapsed.wait())
        while not lapsing.done():
            kept.renew()
            await asyncio.wait([lapsing], timeout=0.1)
        kept.cancel()
        return await lapsing, await kept.wait()

    lapsed, kept = run(body)
    assert (lapsed.reason, kept.reason) == ("lease", "cancelled")


def test_two_attempts_do_not_touch_each_other(tmp_path: Path, namespace: bool, loop: str) -> None:
    fifo = tmp_path / "stdin"
    os.mkfifo(fifo)
    feed = os.open(fifo, os.O_RDWR)

    async def body() -> tuple[Exit, Exit]:
        given = spec(python(ECHO), tmp_path, stdin=fifo, namespace=namespace)
        one, two = await asyncio.gather(*(Attempt.start(tmp_path / name, given) for name in ("one", "two")))
        await asyncio.gather(said(one, b"ready"), said(two, b"ready"))
        one.cancel()
        first = await one.wait()
        os.write(feed, b"still here\n")
        await said(two, b"got still here")
        return first, await two.wait()

    try:
        first, second = run(body, loop)
    finally:
        os.close(feed)
    assert (first.reason, second.reason, second.code) == ("cancelled", "exited", 0)


def test_other_children_of_the_loop_keep_their_exit_codes(tmp_path: Path, loop: str) -> None:
    async def child(code: int) -> int:
        process = await asyncio.create_subprocess_exec("sh", "-c", f"exit {code}")
        return await process.wait()

    async def agent(code: int) -> int | None:
        given = spec(["sh", "-c", f"(sleep 300 &) ; exit {code}"], tmp_path)
        return (await (await Attempt.start(tmp_path / str(code), given)).wait()).code

    async def body() -> list[int | None]:
        codes = range(1, 13)
        return await asyncio.gather(*(agent(n) if n % 4 == 0 else child(n) for n in codes))

    assert run(body, loop) == list(range(1, 13))


def test_closing_it_is_the_end_of_the_lifeline(tmp_path: Path, namespace: bool) -> None:
    async def body() -> Exit:
        attempt = await Attempt.start(tmp_path / "a", spec(["sleep", "60"], tmp_path, namespace=namespace))
        return await attempt.close()

    assert run(body).reason == "lifeline"


def test_agent_ends_with_the_loop_that_started_it(tmp_path: Path, loop: str) -> None:
    mark = token()
    threads = threading.active_count()

    async def body() -> None:
        attempt = await Attempt.start(tmp_path / "a", spec(["sleep", mark], tmp_path))
        assert attempt.identity is not None

    run(body, loop)
    until(lambda: (tmp_path / "a" / "exit.json").exists())
    assert carriers(mark) == []
    assert json.loads((tmp_path / "a" / "exit.json").read_text())["reason"] == "lifeline"
    until(lambda: threading.active_count() <= threads)


def test_folder_is_private_and_keeps_no_secrets(tmp_path: Path) -> None:
    given = spec(["sleep", "60"], tmp_path, env={"PATH": os.environ["PATH"], "API_KEY": "hush-hush"})

    async def body() -> None:
        attempt = await Attempt.start(tmp_path / "a", given)
        files = list((tmp_path / "a").iterdir())
        assert {"identity.json", "log", "stdout", "stderr"} <= {path.name for path in files}
        assert not any(b"hush-hush" in path.read_bytes() for path in files)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files if path.stat().st_size} == {0}
        with pytest.raises(Conflict):
            clean(tmp_path / "a")
        await attempt.close()

    run(body)
    with pytest.raises(Conflict):
        outcome(tmp_path / "a", given)
    clean(tmp_path / "a")
    clean(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"argv": []},
        {"argv": [""]},
        {"argv": ["echo", "a\0b"]},
        {"argv": ["echo", "\ud800"]},
        {"env": {"A": "a\0b"}},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"env": {"QUARTERDECK_ATTEMPT": "mine"}},
        {"lease_seconds": 0},
        {"deadline_seconds": -1},
        {"deadline_seconds": float("nan")},
        {"grace_seconds": float("inf")},
        {"log_cap_bytes": 4095},
    ],
)
def test_what_cannot_be_run_is_refused_at_once(tmp_path: Path, change: dict[str, Any]) -> None:
    fields = {"argv": ["true"], "cwd": tmp_path, "env": {}, "lease_seconds": 9}
    with pytest.raises(Invalid):
        outcome(tmp_path / "a", Spec(**{**fields, **change}))
    assert not (tmp_path / "a").exists()


def test_probe_tells_what_an_attempt_then_gets(tmp_path: Path, containment: Containment) -> None:
    assert containment.reason
    code = "import os; print(os.getpid(), os.readlink('/proc/self'))"
    outcome(tmp_path / "a", spec(python(code), tmp_path))
    pid, seen = transcript(tmp_path / "a").split()
    assert pid == seen
    assert (int(pid) < 10) == containment.namespace


def test_user_namespace_serves_who_may_not_make_one_directly(
    tmp_path: Path, containment: Containment
) -> None:
    mark = token()
    with Worker(tmp_path / "a", python(UNRULY, mark), without_admin=True) as worker:
        worker.says(b"ready")
        identity = worker.record("identity")
        assert identity is not None
        # Where not even that is allowed, the agent runs without and the record says why.
        assert identity["namespace"] == ("user" if containment.namespace else None)
        assert bool(identity["refused"]) != containment.namespace
        os.kill(worker.supervisor, signal.SIGKILL)
        assert json.loads(worker.line())["reason"] == "lost"
    assert carriers(mark) == []


def test_supervisor_imports_little_so_that_its_start_stays_cheap() -> None:
    slow = {"asyncio", "dataclasses", "inspect", "pathlib", "subprocess", "typing"}
    code = "import sys; sys.path.append(sys.argv[1]); import quarterdeck.run.supervisor; print(*sys.modules)"
    source = str(attempts.SUPERVISOR.parents[2])
    modules = set(subprocess.check_output(python(code, source), text=True).split())
    assert modules & slow == set()
    assert {name.split(".")[0] for name in modules} - sys.stdlib_module_names <= {"__main__", "quarterdeck"}
