"""The one tree of errors. A surface words them in its own dialect; nothing else reaches a caller."""

from typing import Any


class QuarterdeckError(Exception):
    """A refused call: what went wrong, a stable code, the argument at fault and what to do next."""

    code = "internal_error"

    def __init__(
        self, message: str, *, hint: str | None = None, field: str | None = None, **data: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        self.data = data


class Invalid(QuarterdeckError):
    """An argument is missing, of the wrong type, out of range or contradicts another."""

    code = "validation_error"


class NotFound(QuarterdeckError):
    """No such row, or none that this caller may see: the two are never told apart."""

    code = "not_found"


class IllegalTransition(QuarterdeckError):
    """The state machine does not allow this action from the current state."""

    code = "invalid_transition"


class Conflict(QuarterdeckError):
    """The state of the row, or another row, forbids it now."""

    code = "conflict"


class Denied(QuarterdeckError):
    """The caller's profile or binding does not allow it."""

    code = "permission_denied"


class UnknownTool(QuarterdeckError):
    """No tool of that name on this surface."""

    code = "unknown_tool"


class RateLimited(QuarterdeckError):
    """The caller's bucket is empty; `retry_after` seconds until the next call passes."""

    code = "rate_limited"


class Unavailable(QuarterdeckError):
    """A part that the call needs is away: the database or a provider."""

    code = "service_unavailable"
