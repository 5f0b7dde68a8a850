"""The settings that can be changed while the core runs. They are the server's, the same for every user.

What `settings_update` stored beats the configuration, which beats the default.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from quarterdeck.config import GeneralSettings, Settings, UiSettings
from quarterdeck.core import queue, registry
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.jobspec import branch_name, model_name
from quarterdeck.events import Bus
from quarterdeck.store import settings as rows
from quarterdeck.store.db import Database
from quarterdeck.store.tx import Tx

CONCURRENCY: Final = "general.max_concurrent_agents"
_WORKER: Final = "general.default_worker_agent"
_SECTIONS: Final[dict[str, type[BaseModel]]] = {"general": GeneralSettings, "ui": UiSettings}
# Names of the board for what the configuration has under another key.
_ELSEWHERE: Final[dict[str, tuple[str, str, Any]]] = {
    CONCURRENCY: ("worker", "concurrency", Annotated[int, Field(ge=1, le=10)]),
    _WORKER: (
        *("defaults", "worker_agent"),
        Annotated[str, Field(min_length=1, max_length=200)],
    ),
}


def _types() -> dict[str, TypeAdapter[Any]]:
    found: dict[str, Any] = {
        f"{section}.{name}": Annotated[field.annotation, *field.metadata]
        if field.metadata
        else field.annotation
        for section, model in _SECTIONS.items()
        for name, field in model.model_fields.items()
    }
    found |= {key: kind for key, (_, _, kind) in _ELSEWHERE.items()}
    return {key: TypeAdapter(kind) for key, kind in sorted(found.items())}


_TYPES: Final = _types()
KEYS: Final = tuple(_TYPES)


class Tuning:
    """What was changed, read once and again after each change, whichever core made it."""

    def __init__(self, db: Database, bus: Bus) -> None:
        self._db = db
        self._changes = 0
        self._stored: dict[str, Any] | None = None
        bus.on("settings.updated", lambda event: self.drop())

    def drop(self) -> None:
        self._changes += 1
        self._stored = None

    async def stored(self) -> dict[str, Any]:
        if self._stored is not None:
            return self._stored
        changes = self._changes
        found = await self._db.read(SYSTEM, rows.stored)
        if changes == self._changes:  # else it may be old already
            self._stored = found
        return found


async def current(core: Core) -> dict[str, Any]:
    """Every setting by its dotted name, as it is in force."""
    return {**configured(core.settings), **await core.tuning.stored()}


async def get(core: Core, key: str) -> Any:
    """One setting by its dotted name, as it is in force."""
    stored = await core.tuning.stored()
    return stored[key] if key in stored else configured(core.settings)[key]


def configured(settings: Settings) -> dict[str, Any]:
    """The settings as the configuration has them."""
    found = {}
    for key in KEYS:
        section, _, name = key.partition(".")
        if key in _ELSEWHERE:
            section, name, _ = _ELSEWHERE[key]
        found[key] = getattr(getattr(settings, section), name)
    return found


async def update(core: Core, caller: Caller, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set some, named with or without their section, all or none; the new values by dotted name."""
    checked = {}
    for name, value in changes.items():
        key = _key(name)
        checked[key] = _checked(key, name, value)
        _check_name(core, key, name, checked[key])
    if not checked:
        raise Invalid("no setting was given", hint=f"one of {', '.join(KEYS)}")

    def body(tx: Tx) -> None:
        for key, value in checked.items():
            rows.put(tx, key, value)
        if CONCURRENCY in checked:
            queue.set_limits(tx, registry.limits(core, checked[CONCURRENCY]))
        tx.emit("settings.updated", None, changed=checked)

    await core.db.tx(caller, body)
    core.tuning.drop()  # a shared database tells of it a moment later
    return checked


def _key(name: str) -> str:
    for key in (name, *(f"{section}.{name}" for section in _SECTIONS)):
        if key in _TYPES:
            return key
    raise Invalid(f"there is no setting {name[:100]}", field=name[:100], hint=f"one of {', '.join(KEYS)}")


def _checked(key: str, name: str, value: Any) -> Any:
    try:
        return _TYPES[key].validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"].partition(" should ")[2]
        raise Invalid(f"{name} must {problem or 'be another value'}", field=name) from None


def _check_name(core: Core, key: str, name: str, value: Any) -> None:
    """Refuse what can be no branch, model or agent: it would fail every task from then on."""
    if key == _WORKER and registry.named(core, value) is None:
        raise Invalid(f"there is no agent {value!r}", field=name, hint=f"one of {', '.join(core.agents)}")
    try:
        if key == "general.default_base_branch":
            branch_name(value)
        elif key.startswith("general.default_model_") and value is not None:
            model_name(value)
    except ValueError as error:
        raise Invalid(f"{name} {error}", field=name) from None
