"""Webhooks: signed, sent until they arrive, and never to where they must not go."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from quarterdeck.config import RelaySettings, Settings
from quarterdeck.core import life, queue, relay
from quarterdeck.core.context import Core
from quarterdeck.core.queue import Ending, File
from quarterdeck.core.webhooks import Webhooks
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.records import Delivery, Job
from quarterdeck.store import relay as rows
from quarterdeck.store.tx import Tx
from tests.job_spec import job_spec
from tests.store import opened

DOCS = Path(__file__).parents[2] / "docs" / "relay.md"
ADA = Caller("ada", "operator")
SOON = (0.01, 0.01)
SECRET = "the key of these tests"


@dataclass
class Receiver:
    """A server that answers with one status after another, the last one for ever, and keeps what it got."""

    statuses: list[int] = field(default_factory=lambda: [204])
    headers: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/a-secret-path?key=another-secret"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        self.got.append(({"": head[0], **headers}, await reader.readexactly(int(headers["Content-Length"]))))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status:
            writer.write(f"HTTP/1.1 {status} Word\r\n{self.headers}Content-Length: 0\r\n\r\n".encode())
        else:
            await reader.read()
        writer.close()


@asynccontextmanager
async def receiver(*statuses: int, headers: str = "") -> AsyncIterator[Receiver]:
    found = Receiver(list(statuses) or [204], headers)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


@asynccontextmanager
async def core_in(folder: Path, **options: Any) -> AsyncIterator[Core]:
    """A core that sends nothing by itself; webhooks may go to this host unless told otherwise."""
    secret = options.pop("webhook_secret", SecretStr(SECRET))
    settings = Settings(relay=RelaySettings(webhook_secret=secret, **{"webhook_private": True, **options}))
    async with life.opened(settings, folder, serving=False) as core:
        yield core


@asynccontextmanager
async def sending(core: Core, delays: Sequence[float] = SOON, patience: float = 30.0) -> AsyncIterator[None]:
    webhooks = Webhooks(core, delays, patience)
    webhooks.start()
    try:
        yield
    finally:
        await webhooks.close()


async def end_job(core: Core, url: str | None, *, well: bool = False) -> Job:
    """A relay job that asked for a webhook, and that has ended."""
    spec = json.loads(job_spec().dump())
    if url is not None:
        spec["notify"] = {"webhook": url}
    job = await core.db.tx(
        ADA, lambda tx: queue.submit(tx, kind="relay", spec=spec, agent="x", timeout_s=60, ttl_s=60)
    )
    if not well:
        return await core.db.tx(ADA, queue.cancel, job, "not needed") or job

    def finish(tx: Tx) -> Job:
        claimed = queue.claim(tx, ["relay"], "worker", 60, None)
        assert claimed is not None
        files = [File("patch.diff", "text/plain", b"x"), File("logs.txt", "text/plain", b"y")]
        pr = {"url": "https://example.org/o/r/pull/7", "number": 7, "status": "open"}
        return queue.finish(tx, claimed.job, Ending("SUCCEEDED", "done", result={"pr": pr}, files=files))

    return await core.db.tx(queue.SYSTEM, finish)


async def settled(core: Core, job: Job) -> Delivery:
    """The message of a job, once it has arrived or was given up."""
    async with asyncio.timeout(30):
        with core.bus.listen("webhook.sent", "webhook.failed") as listener:
            while True:
                found = await core.db.read(ADA, rows.delivery_of, job.id)
                assert found is not None
                if found.state != "pending":
                    return found
                await listener.wait()


def genuine() -> Callable[[str, dict[str, str], bytes], bool]:
    """The check that the documentation shows."""
    shown = re.search(r"^```python\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    names: dict[str, Any] = {}
    exec(shown[1], names)
    found: Callable[[str, dict[str, str], bytes], bool] = names["genuine"]
    return found


def run(body: Any) -> None:
    asyncio.run(body)


def test_the_end_of_a_job_is_posted_and_signed(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver() as server, core_in(tmp_path) as core, sending(core):
            job = await end_job(core, server.url, well=True)
            sent = await settled(core, job)
            assert (sent.state, sent.tries, sent.error) == ("sent", 1, None)
            ((headers, text),) = server.got
            assert headers[""] == "POST /hook/a-secret-path?key=another-secret HTTP/1.1"
            assert headers["Content-Type"] == "application/json"
            assert headers["Quarterdeck-Delivery"] == sent.id
            assert genuine()(SECRET, headers, text)
            assert not genuine()("another key", headers, text)
            assert not genuine()(SECRET, headers, text + b" ")
            assert not genuine()(SECRET, {**headers, "Quarterdeck-Timestamp": "1"}, text)
            base = f"mcp://jobs/{job.id}/artifacts"
            assert json.loads(text) == {
                "event": "job.finished",
                "jobId": job.id,
                "state": "SUCCEEDED",
                "summary": "done",
                "artifacts": {"logs": f"{base}/logs.txt", "patch": f"{base}/patch.diff"},
                "stateVersion": job.state_version,
                **relay.times(job),
                "attempt": 1,
                "pr": {"url": "https://example.org/o/r/pull/7", "number": 7, "status": "open"},
            }

    run(body())


def test_a_job_that_ends_otherwise_is_posted_as_failed(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver() as server, core_in(tmp_path) as core, sending(core):
            job = await end_job(core, server.url)
            await settled(core, job)
            told = json.loads(server.got[0][1])
            assert told == {
                "event": "job.failed",
                "jobId": job.id,
                "state": "CANCELED",
                "summary": "not needed",
                "stateVersion": 2,
                "attempt": 0,
            }

    run(body())


def test_a_message_is_sent_again_until_it_arrives(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver(500, 302, 200) as server, core_in(tmp_path) as core, sending(core):
            sent = await settled(core, await end_job(core, server.url))
            assert (sent.state, sent.tries) == ("sent", 3)
            assert {headers["Quarterdeck-Delivery"] for headers, _ in server.got} == {sent.id}
            assert len({text for _, text in server.got}) == 1

    run(body())


def test_it_is_given_up_after_the_last_try_and_names_no_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        async with receiver(503) as server, core_in(tmp_path) as core, sending(core):
            job = await end_job(core, server.url)
            sent = await settled(core, job)
            assert (sent.state, sent.tries, sent.error) == ("failed", 3, "HTTP 503")
            assert len(server.got) == 3

    run(body())
    said = "".join(capfd.readouterr())
    assert "webhook.given_up" in said
    assert "secret" not in said


def test_gone_means_gone(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver(410) as server, core_in(tmp_path) as core, sending(core):
            sent = await settled(core, await end_job(core, server.url))
            assert (sent.state, sent.tries) == ("failed", 1)

    run(body())


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver() as inner:
            where = f"Location: {inner.url}\r\n"
            async with receiver(307, headers=where) as server, core_in(tmp_path) as core, sending(core):
                sent = await settled(core, await end_job(core, server.url))
                assert (sent.state, sent.error) == ("failed", "HTTP 307")
                assert inner.got == []

    run(body())


def test_a_host_that_is_away_or_silent_holds_up_nobody(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver(0) as silent, receiver() as server, core_in(tmp_path) as core:
            async with receiver() as away:
                closed = away.url
            async with sending(core, ()):
                waiting = await end_job(core, silent.url)
                lost = await settled(core, await end_job(core, closed))
                assert (lost.state, lost.error) == ("failed", "Connection refused")
                assert (await settled(core, await end_job(core, server.url))).state == "sent"
                kept = await core.db.read(ADA, rows.delivery_of, waiting.id)
                assert kept is not None and kept.state == "pending"

    run(body())


def test_an_answer_has_only_so_long_to_come(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver(0) as silent, core_in(tmp_path) as core, sending(core, (), patience=0.2):
            sent = await settled(core, await end_job(core, silent.url))
            assert (sent.state, sent.error) == ("failed", "no answer within 0.2 s")

    run(body())


PRIVATE = (
    *("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "10.1.2.3", "192.168.0.1", "172.16.0.1"),
    *("169.254.169.254", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "100.64.0.1", "2130706433"),
    *("[64:ff9b::7f00:1]", "[2002:7f00:1::]", "224.0.0.1", "0x7f.1"),
)


def test_no_message_goes_to_a_private_address_unless_allowed(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            receiver() as server,
            core_in(tmp_path, webhook_private=False) as core,
            sending(core),
        ):
            jobs = {
                host: await end_job(core, f"http://{host}:{server.port}/hook/a-secret") for host in PRIVATE
            }
            for host, job in jobs.items():
                sent = await settled(core, job)
                assert (sent.state, sent.tries) == ("failed", 1), host
                assert "private address" in (sent.error or ""), (host, sent.error)
            assert server.got == []

    run(body())


def test_a_message_outlives_its_core(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver() as server:
            async with core_in(tmp_path) as core:
                job = await end_job(core, server.url)
            assert server.got == []
            async with core_in(tmp_path) as core, sending(core):
                assert (await settled(core, job)).state == "sent"

    run(body())


def test_a_job_without_a_webhook_sends_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with core_in(tmp_path) as core:
            job = await end_job(core, None)
            assert await core.db.read(SYSTEM, rows.delivery_of, job.id) is None

    run(body())


def test_without_a_configured_key_a_private_one_is_made_and_kept(tmp_path: Path) -> None:
    async def body() -> None:
        async with receiver() as server, core_in(tmp_path, webhook_secret=None) as core, sending(core):
            for _ in range(2):
                await settled(core, await end_job(core, server.url))
            file = tmp_path / "webhook-secret"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert all(genuine()(file.read_text().strip(), *got) for got in server.got)
            assert len(server.got) == 2

    run(body())


def test_a_message_is_taken_by_one_sender_at_a_time(database_url: str) -> None:
    def add(tx: Tx) -> None:
        spec = json.loads(job_spec().dump())
        job = queue.submit(tx, kind="relay", spec=spec, agent="x")
        for number, state in enumerate(("pending", "pending", "sent")):
            rows.add_delivery(tx, Delivery(f"d{number}", job.id, "u", {}, state, 0, number, None, number))

    async def body() -> None:
        async with opened(database_url) as db:
            await db.tx(ADA, add)
            assert [each.id for each in await db.tx(SYSTEM, rows.due, 1, 2**60)] == ["d0"]
            assert [each.id for each in await db.tx(SYSTEM, rows.due, 9, 2**60)] == ["d1"]
            assert await db.tx(SYSTEM, rows.due, 9, 2**60) == []
            assert await db.read(SYSTEM, rows.next_due) == 2**60

    run(body())
