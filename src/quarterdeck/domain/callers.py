"""Who calls: a user, a profile, perhaps a binding to one project or task."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from quarterdeck.domain.errors import Invalid

Profile = Literal["viewer", "planner", "pair_worker", "operator", "maintainer"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
BOUND_CEILING: Profile = "pair_worker"

_ID_LENGTH = 36

# An identity lane is a ceiling that a client puts on itself.
LANES: dict[str, Profile] = {"kagan": "pair_worker", "kagan_admin": "maintainer"}


def lower(a: Profile, b: Profile) -> Profile:
    """The lesser of two profiles."""
    return min(a, b, key=PROFILES.index)


def profile(name: str) -> Profile:
    """The profile of that name, or Invalid."""
    for known in PROFILES:
        if known == name:
            return known
    raise Invalid(f"there is no profile {name!r}", field="profile", hint=f"one of {', '.join(PROFILES)}")


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller as the store and the core see it; `everyone` lifts the user filter (admin, system)."""

    user_id: str | None
    profile: Profile
    token_id: str | None = None
    project_id: str | None = None
    task_id: str | None = None
    everyone: bool = False
    unmetered: bool = False
    identity: str | None = None
    session: str | None = None
    tool: str = ""
    expires_at: int | None = None
    job_id: str | None = None

    @property
    def bound(self) -> bool:
        return self.project_id is not None or self.task_id is not None

    @property
    def actor(self) -> str:
        """Who did it, as the event log names it."""
        name = self.user_id or ("admin" if self.everyone else "unknown")
        return f"{name}/{self.session}" if self.session else name

    def may(self, least: Profile) -> bool:
        return PROFILES.index(self.profile) >= PROFILES.index(least)

    def narrow(
        self, *, ceiling: str | None = None, identity: str | None = None, session: str | None = None
    ) -> "Caller":
        """The same caller with less: a lower profile, an identity lane, a session that may bind to a task.

        Nothing here can widen what the token allows. A session id `task:<id>` binds to that task.
        """
        kept = self.profile
        if ceiling is not None:
            kept = lower(kept, profile(ceiling))
        if identity is not None:
            if identity not in LANES:
                raise Invalid(
                    f"there is no identity {identity!r}", field="identity", hint=f"one of {', '.join(LANES)}"
                )
            kept = lower(kept, LANES[identity])
        task_id = self.task_id
        if session is not None and session.startswith("task:"):
            wanted = session.removeprefix("task:")
            if not 0 < len(wanted) <= _ID_LENGTH:
                raise Invalid("the session names no task id", field="session-id", hint="task:<task id>")
            if task_id is not None and task_id != wanted:
                raise Invalid("the token is bound to another task", field="session-id")
            task_id, kept = wanted, lower(kept, BOUND_CEILING)
        return replace(self, profile=kept, identity=identity, session=session, task_id=task_id)


# The system's own work: reapers, start-up, embedding. Never made from a request.
SYSTEM = Caller(user_id=None, profile="maintainer", everyone=True, unmetered=True, session="system")
