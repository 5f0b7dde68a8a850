"""Webhooks: a message for each relay job that asked for one, written with the end of the job and sent until
it arrives or is given up. It goes to the address that was checked, is signed, and follows no redirect.
"""

import asyncio
import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

import structlog

from quarterdeck import __version__
from quarterdeck.core import queue, relay
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.domain.hosts import public
from quarterdeck.domain.ids import new_id, now_us
from quarterdeck.domain.records import Delivery, Job
from quarterdeck.events import Event
from quarterdeck.paths import write_private
from quarterdeck.store import artifacts
from quarterdeck.store import relay as rows
from quarterdeck.store.tx import Tx

# After so many seconds the next try; after the last the message is given up.
DELAYS: Final = (5.0, 30.0, 120.0, 600.0, 3600.0)
TIMEOUT_SECONDS: Final = 15.0

_AT_ONCE: Final = 8
_IDLE_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 5.0
_TAKEN_SECONDS: Final = 0.1
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|\n)")
_LONGEST_LINE: Final = 8192
# What stands for itself in a path or a query; the percent sign, since it is encoded already.
_SAFE: Final = "/%:@!$&'()*+,;=?-._~[]"


logger = structlog.get_logger()


class _Undelivered(Exception):
    """A try that failed; `final` when no other will do better."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a message goes: the parts of its URL and the address that was checked."""

    host: str
    port: int
    path: str
    tls: bool
    address: str


def enqueue(tx: Tx, job: Job) -> None:
    """Write the message of a job that ends in this transaction, if its spec asks for one."""
    url = (job.spec.get("notify") or {}).get("webhook")
    if not url:
        return
    view = relay.View(job, artifacts.names_of(tx, job.id))
    event = "job.finished" if job.state == "SUCCEEDED" else "job.failed"
    body = {"event": event, **relay.ending(view), **relay.pull_request(job)}
    rows.add_delivery(tx, Delivery(new_id(), job.id, url, body, "pending", 0, tx.now, None, tx.now))


queue.ENDING[relay.KIND] = enqueue


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """What a receiver computes anew: `v1=` and the HMAC-SHA256 of the time, a dot and the body."""
    signed = hmac.new(secret.encode(), b"%d." % timestamp + body, hashlib.sha256)
    return f"v1={signed.hexdigest()}"


class Webhooks:
    """Sends what is due, one at a time for each message, for as long as the core runs."""

    def __init__(
        self, core: Core, delays: Sequence[float] = DELAYS, patience: float = TIMEOUT_SECONDS
    ) -> None:
        self._core = core
        self._delays = delays
        self._patience = patience
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        core.bus.on("job.finished", self._heard)

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop(), name="webhooks")

    async def close(self) -> None:
        """Stop; what was not sent is sent after the next start."""
        tasks = [*self._sending, *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _heard(self, event: Event) -> None:
        if event.data.get("job_kind") == relay.KIND:
            self._wake.set()

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._round()
            except QuarterdeckError as error:
                logger.warning("webhook.waits", error=error.message)
                pause = _RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _round(self) -> float:
        """Begin with what is due; how long until there is more."""
        while (room := _AT_ONCE - len(self._sending)) > 0:
            at = await self._core.db.read(SYSTEM, rows.next_due)
            wait = _IDLE_SECONDS if at is None else (at - now_us()) / 1_000_000
            if wait > 0:
                return min(wait, _IDLE_SECONDS)
            # Longer than a try takes: if we end in between, it is due again then.
            until = now_us() + int(2 * self._patience * 1_000_000)
            found = await self._core.db.tx(SYSTEM, rows.due, room, until)
            if not found:  # another core is about to take it
                return _TAKEN_SECONDS
            for delivery in found:
                task = asyncio.create_task(self._send(delivery))
                self._sending.add(task)
                task.add_done_callback(self._sent)
        return _IDLE_SECONDS

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._sending.discard(task)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("webhook.broke", error=str(error), kind=type(error).__name__)

    async def _send(self, delivery: Delivery) -> None:
        """One try, and what became of it."""
        problem: _Undelivered | None = None
        try:
            async with asyncio.timeout(self._patience):
                await self._try(delivery)
        except _Undelivered as error:
            problem = error
        except TimeoutError:
            problem = _Undelivered(f"no answer within {self._patience:g} s")
        except ssl.SSLError as error:
            problem = _Undelivered(f"TLS: {error.reason or 'refused'}")
        except OSError as error:
            problem = _Undelivered(os.strerror(error.errno) if error.errno else "the connection broke")
        except ValueError:
            problem = _Undelivered("the answer is not HTTP")
        await self._core.db.tx(SYSTEM, self._record, delivery, problem)

    def _record(self, tx: Tx, delivery: Delivery, problem: _Undelivered | None) -> None:
        tries = delivery.tries + 1
        if problem is None:
            rows.change_delivery(tx, delivery, {"state": "sent", "tries": tries, "error": None})
            tx.emit("webhook.sent", delivery.job_id, delivery=delivery.id, tries=tries)
            return
        values = {"tries": tries, "error": str(problem)}
        if problem.final or tries > len(self._delays):
            rows.change_delivery(tx, delivery, {**values, "state": "failed"})
            tx.emit("webhook.failed", delivery.job_id, ok=False, delivery=delivery.id, error=str(problem))
            logger.warning("webhook.given_up", job=delivery.job_id, tries=tries, error=str(problem))
        else:
            wait = int(self._delays[tries - 1] * 1_000_000)
            rows.change_delivery(tx, delivery, {**values, "next_at": now_us() + wait})

    async def _try(self, delivery: Delivery) -> None:
        target = await _resolved(delivery.url, private=self._core.settings.relay.webhook_private)
        body = json.dumps(delivery.body, ensure_ascii=False, separators=(",", ":")).encode()
        now = int(time.time())
        head = {
            "Host": _host_header(target),
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "User-Agent": f"quarterdeck/{__version__}",
            "Quarterdeck-Delivery": delivery.id,
            "Quarterdeck-Timestamp": str(now),
            "Quarterdeck-Signature": signature(await self._secret(), now, body),
        }
        lines = [
            f"POST {target.path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in head.items()),
            "",
            "",
        ]
        status = await _exchanged(target, "\r\n".join(lines).encode("ascii") + body)
        if not 200 <= status < 300:
            raise _Undelivered(f"HTTP {status}", final=status == 410)

    async def _secret(self) -> str:
        """The configured secret, else a random one that stays in the data directory."""
        given = self._core.settings.relay.webhook_secret
        if given is not None:
            return given.get_secret_value()
        file = self._core.data_dir / "webhook-secret"
        if not file.exists():
            write_private(file, secrets.token_urlsafe(32) + "\n")
        return file.read_text().strip()


async def _resolved(url: str, *, private: bool) -> _Target:
    """Look up the host once. Every address that it has must be a public one, unless private ones may be."""
    parts = urlsplit(url)
    host, tls = parts.hostname or "", parts.scheme.lower() == "https"
    port = parts.port or (443 if tls else 80)
    try:
        ascii_host = host if ":" in host else host.encode("idna").decode()
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(ascii_host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _Undelivered("the host has no address") from None
    addresses = [str(entry[4][0]) for entry in found]
    if not private and not all(map(public, addresses)):
        raise _Undelivered(
            "the host has a private address, which relay.webhook_private would allow", final=True
        )
    path = quote(parts.path or "/", safe=_SAFE) + (
        f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    )
    return _Target(ascii_host, port, path, tls, addresses[0])


def _host_header(target: _Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return host if target.port == (443 if target.tls else 80) else f"{host}:{target.port}"


async def _exchanged(target: _Target, request: bytes) -> int:
    """Send a request to the checked address; the status of the answer, whose rest nobody needs."""
    context = ssl.create_default_context() if target.tls else None
    reader, writer = await asyncio.open_connection(
        target.address,
        target.port,
        ssl=context,
        server_hostname=target.host if target.tls else None,
        limit=_LONGEST_LINE,
    )
    try:
        writer.write(request)
        await writer.drain()
        found = _STATUS.match(await reader.readline())
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if found is None:
        raise _Undelivered("the answer is not HTTP")
    return int(found[1])
