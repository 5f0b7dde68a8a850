"""Bearer tokens: minting, listing, revoking, and turning one into a caller."""

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

from quarterdeck.core import tasks
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import BOUND_CEILING, PROFILES, SYSTEM, Caller, Profile, lower
from quarterdeck.domain.errors import Denied, Invalid, NotFound, Unavailable
from quarterdeck.domain.ids import new_id, new_token, now_us
from quarterdeck.domain.records import Job, Token
from quarterdeck.store import tokens as rows
from quarterdeck.store.tasks import project_exists
from quarterdeck.store.tx import Tx

LOCAL_USER = "local"
ADMIN = Caller(None, "maintainer", everyone=True, unmetered=True)
_FRESH_SECONDS = 5.0
_LATELY_SECONDS = 300.0
_TOUCH_SECONDS = 60.0
_CACHED = 10_000


@dataclass(frozen=True, slots=True)
class Minted:
    """A new token and its plaintext, which exists nowhere else."""

    token: Token
    plaintext: str


def digest(plaintext: str) -> str:
    return hashlib.sha256(plaintext.encode()).hexdigest()


async def mint(
    core: Core,
    caller: Caller,
    *,
    name: str,
    profile: Profile,
    user_id: str | None = None,
    project_id: str | None = None,
    task_id: str | None = None,
    expires_in_s: int | None = None,
) -> Minted:
    """A token for the caller's own user, never above the caller's profile; the admin mints for anyone.

    A token bound to a project or a task is at most a pair worker, and a bound caller mints none.
    """
    owner = user_id or caller.user_id
    if owner is None:
        raise Invalid("user_id is required", field="user_id", hint="the admin mints for a named user")
    if not caller.everyone and owner != caller.user_id:
        raise Denied("only the admin secret mints for another user", field="user_id")
    if caller.bound or caller.job_id is not None:
        raise Denied("a token bound to a project, task or job mints no other")
    if not caller.may(profile):
        raise Denied(f"the caller is {caller.profile} and cannot mint {profile}", field="profile")
    bound = project_id is not None or task_id is not None
    if bound and lower(profile, BOUND_CEILING) != profile:
        raise Invalid(
            f"a bound token is at most {BOUND_CEILING}",
            field="profile",
            hint=f"one of {', '.join(PROFILES[: PROFILES.index(BOUND_CEILING) + 1])}",
        )
    plaintext = new_token()
    owned = Caller(owner, caller.profile, session=caller.session, tool=caller.tool)

    def body(tx: Tx) -> Token:
        if task_id is not None:
            tasks.seen(tx, task_id)
        if project_id is not None and not project_exists(tx, project_id):
            raise NotFound(f"project {project_id} not found", field="project_id")
        expires = None if expires_in_s is None else tx.now + expires_in_s * 1_000_000
        if caller.expires_at is not None:  # what a token mints ends with it
            expires = min(expires or caller.expires_at, caller.expires_at)
        token = Token(new_id(), owner, name, profile, project_id, task_id, False, tx.now, expires, None, None)
        rows.add(tx, token, digest(plaintext))
        tx.emit("token.minted", token.id, name=name[:200], profile=profile, by=caller.actor)
        return token

    return Minted(await core.db.tx(owned, body), plaintext)


async def mint_local(core: Core) -> Minted:
    """The maintainer token of the local user, kept in the data directory for the CLI and the stdio bridge."""
    plaintext = new_token()

    def body(tx: Tx) -> Token:
        token = Token(new_id(), LOCAL_USER, "local", "maintainer", None, None, True, tx.now, None, None, None)
        rows.add(tx, token, digest(plaintext))
        tx.emit("token.minted", token.id, user_id=LOCAL_USER, name="local", profile="maintainer")
        return token

    return Minted(await core.db.tx(SYSTEM, body), plaintext)


def mint_for_job(tx: Tx, job: Job) -> str:
    """A token for one attempt of a job, bound to its task, or to the job itself; its plaintext."""
    plaintext = new_token()
    token = Token(
        id=new_id(),
        user_id=job.user_id or LOCAL_USER,
        name=f"job {job.id}",
        profile=BOUND_CEILING,
        project_id=None,
        task_id=job.task_id,
        local=False,
        created_at=tx.now,
        expires_at=None,
        last_used_at=None,
        revoked_at=None,
        job_id=job.id,
        attempt=job.attempt,
    )
    rows.add(tx, token, digest(plaintext))
    tx.emit("token.minted", token.id, task_id=job.task_id, user_id=token.user_id, name=token.name)
    return plaintext


def revoke_of_job(tx: Tx, job: Job) -> None:
    """End the tokens of a job, in the transaction that takes the job from its worker."""
    for token_id in rows.live_of_job(tx, job.id):
        rows.revoke(tx, token_id)
        tx.emit("token.revoked", token_id, task_id=job.task_id, user_id=job.user_id)


async def listing(core: Core, caller: Caller) -> list[Token]:
    """The caller's tokens without their secrets, newest first; none of jobs that have ended."""
    return await core.db.read(caller, rows.newest, 500)


async def revoke(core: Core, caller: Caller, token_id: str) -> None:
    """End a token at once, everywhere: one's own, or one of the same user that is not above the caller.

    A bound caller ends no other token.
    """

    def body(tx: Tx) -> None:
        token = rows.live(tx, token_id)
        if token is None:
            raise NotFound(f"token {token_id} not found", field="token_id")
        if token.id != caller.token_id and (caller.bound or not caller.may(token.profile)):
            raise Denied(f"the caller may not revoke a token of the profile {token.profile}")
        rows.revoke(tx, token_id)
        tx.emit("token.revoked", token_id)

    await core.db.tx(caller, body)


async def stands(core: Core, caller: Caller) -> bool:
    """Whether a caller who came in some time ago would be let in now. While nobody can tell, yes."""
    if caller.token_id is None:
        return True
    if expired(caller):
        return False
    try:
        return await core.db.read(SYSTEM, rows.live, caller.token_id) is not None
    except Unavailable:
        return True


def expired(caller: Caller) -> bool:
    """Whether the caller's token has run out of its time."""
    return caller.expires_at is not None and caller.expires_at <= now_us()


@dataclass(slots=True)
class _Seen:
    caller: Caller
    checked: float
    touched: float


class Gatekeeper:
    """Turns a bearer secret into a caller, with a short memory that a revocation empties at once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._seen: dict[str, _Seen] = {}
        self._revocations = 0
        secret = core.settings.server.admin_secret
        self._admin = secret.get_secret_value().encode() if secret else None
        core.bus.on("token.revoked", lambda event: self.forget(str(event.entity_id)))

    async def caller(self, plaintext: str) -> Caller | None:
        """The caller behind a secret, None for an unknown, revoked or expired one.

        While the database is away a token seen lately still passes; an unknown one raises Unavailable.
        """
        if self._admin is not None and hmac.compare_digest(plaintext.encode(), self._admin):
            return ADMIN
        key = digest(plaintext)
        return await self._known(key, rows.by_hash, key)

    async def holder(self, token_id: str) -> Caller | None:
        """The caller behind a token's id: for a session that the token's secret opened before."""
        return await self._known(f"id {token_id}", rows.live, token_id)

    async def _known(self, key: str, find: Callable[[Tx, str], Token | None], named: str) -> Caller | None:
        seen, now = self._seen.get(key), time.monotonic()
        if seen is None or now - seen.checked > _FRESH_SECONDS:
            revocations = self._revocations
            try:
                token = await self._core.db.read(SYSTEM, find, named)
            except Unavailable:
                if seen is None or now - seen.checked > _LATELY_SECONDS:
                    raise
            else:
                seen = self._remember(key, token, seen, now)
                if revocations != self._revocations:  # it may be this one: look again at the next call
                    self._seen.pop(key, None)
        if seen is None or expired(seen.caller):
            return None
        if now - seen.touched > _TOUCH_SECONDS:
            seen.touched = now
            self._core.spawn(self._core.db.tx(SYSTEM, rows.touch, str(seen.caller.token_id)))
        return seen.caller

    def _remember(self, key: str, token: Token | None, seen: _Seen | None, now: float) -> _Seen | None:
        if token is None:
            self._seen.pop(key, None)
            return None
        caller = Caller(
            token.user_id,
            token.profile,
            token_id=token.id,
            project_id=token.project_id,
            # A job without a task is bound to itself: its id is no task's, so it reaches no task.
            task_id=token.task_id or token.job_id,
            job_id=token.job_id,
            unmetered=token.local,
            expires_at=token.expires_at,
        )
        if len(self._seen) >= _CACHED:
            self._seen.clear()
        fresh = _Seen(caller, now, seen.touched if seen else float("-inf"))
        self._seen[key] = fresh
        return fresh

    def forget(self, token_id: str) -> None:
        """Look the token up again at its next use."""
        self._revocations += 1
        self._seen = {k: s for k, s in self._seen.items() if s.caller.token_id != token_id}

    def clear(self) -> int:
        count = len(self._seen)
        self._seen.clear()
        return count
