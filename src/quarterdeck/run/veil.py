"""Takes secrets out of a text that comes in pieces."""

from collections.abc import Callable, Mapping


class Veil:
    """What may be the beginning of a secret waits for the piece that tells. `secrets` gives each the word
    that stands for it."""

    def __init__(self, secrets: Callable[[], Mapping[str, str]]) -> None:
        self._secrets = secrets
        self._held = ""

    def add(self, piece: str) -> str:
        """The piece, and what waited for it, as far as it can be shown."""
        secrets = self._secrets()
        text = self._held + piece
        for secret, word in secrets.items():
            text = text.replace(secret, word)
        begun = max((_begun(text, secret) for secret in secrets), default=0)
        shown = len(text) - begun
        self._held = text[shown:]
        return text[:shown]

    def rest(self) -> str:
        """What still waits: no secret, for nothing came after it."""
        text, self._held = self._held, ""
        return text


def _begun(text: str, secret: str) -> int:
    """How much of a secret the end of a text has, short of the whole."""
    longest = min(len(secret) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(secret[:size])), 0)
