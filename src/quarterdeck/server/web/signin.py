"""Who sits at the browser: one-time links, the cookie, and the mark that every form carries."""

import hashlib
import hmac
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final

from pydantic import SecretStr
from starlette.types import Scope

from quarterdeck.core import tokens
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.paths import write_private
from quarterdeck.server.http import header

_LINK_SECONDS: Final = 900.0
_SESSION_SECONDS: Final = 14 * 86_400
_ADMIN: Final = "admin"
_LINKS: Final = 100


class Doorman:
    """Makes and checks cookies. A cookie names a token's id and is signed; revoking the token ends it.

    The key is the configured one, else one that is kept in the data directory, so that a restart signs
    nobody out.
    """

    def __init__(self, core: Core, gatekeeper: tokens.Gatekeeper) -> None:
        self._core = core
        self._gatekeeper = gatekeeper
        given = core.settings.server.web_secret
        self._key = _derived(given) if given else _key(core.data_dir / "web.key")
        # Cookies are shared by all ports of a host: two cores must not sign each other's people out.
        self.name = f"quarterdeck_{hashlib.sha256(self._key).hexdigest()[:8]}"
        self._links: dict[str, tuple[str, float]] = {}

    def new_link(self, token_id: str) -> str:
        """A code that signs in once as the holder of that token, within a quarter of an hour."""
        now = time.monotonic()
        self._links = {known: link for known, link in self._links.items() if link[1] > now}
        while len(self._links) >= _LINKS:
            self._links.pop(next(iter(self._links)))
        code = secrets.token_urlsafe(32)
        self._links[_digest(code)] = (token_id, now + _LINK_SECONDS)
        return code

    async def enter_by_link(self, code: str) -> str | None:
        """The cookie for a code that was not used before."""
        token_id, until = self._links.pop(_digest(code), ("", 0.0))
        if until <= time.monotonic() or await self._gatekeeper.holder(token_id) is None:
            return None
        return self._cookie(token_id)

    async def enter(self, secret: str) -> tuple[str | None, Caller | None]:
        """The cookie for a token, and whose it is. A bound token is an agent's: it gets none."""
        caller = await self._gatekeeper.caller(secret)
        if caller is None or caller.bound:
            return None, caller
        return self._cookie(caller.token_id or _ADMIN), caller

    async def caller(self, cookie: str) -> Caller | None:
        """Whose cookie it is, while its token is good."""
        subject, _, rest = cookie.partition(".")
        issued, _, _ = rest.partition(".")
        if not hmac.compare_digest(self._signed(subject, issued).encode(), cookie.encode(errors="replace")):
            return None
        if time.time() - int(issued) > _SESSION_SECONDS:
            return None
        if subject == _ADMIN:
            return tokens.ADMIN if self._core.settings.server.admin_secret else None
        caller = await self._gatekeeper.holder(subject)
        return None if caller is None or caller.bound else caller

    def cookie_of(self, scope: Scope) -> str | None:
        try:
            found = SimpleCookie(header(scope, b"cookie") or "").get(self.name)
        except CookieError:
            return None
        return found.value if found is not None else None

    def csrf(self, cookie: str) -> str:
        """The mark of a session's own forms."""
        return hmac.new(self._key, b"form\n" + cookie.encode(), hashlib.sha256).hexdigest()

    def set_cookie(self, scope: Scope, cookie: str) -> tuple[bytes, bytes]:
        """The header that gives the cookie; an empty one takes it away."""
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        age = _SESSION_SECONDS if cookie else 0
        value = f"{self.name}={cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}"
        return b"set-cookie", value.encode()

    def _cookie(self, subject: str) -> str:
        return self._signed(subject, str(int(time.time())))

    def _signed(self, subject: str, issued: str) -> str:
        key = self._key
        if subject == _ADMIN and (secret := self._core.settings.server.admin_secret):
            key += secret.get_secret_value().encode()  # another secret ends the admin's sessions
        mac = hmac.new(key, f"in\n{subject}\n{issued}".encode(errors="replace"), hashlib.sha256)
        return f"{subject}.{issued}.{mac.hexdigest()}"


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode(errors="replace")).hexdigest()


def _derived(secret: SecretStr) -> bytes:
    return hashlib.sha256(b"web\n" + secret.get_secret_value().encode()).digest()


def _key(file: Path) -> bytes:
    try:
        kept = bytes.fromhex(file.read_text().strip())
    except (OSError, ValueError):
        kept = b""
    if len(kept) != 32:
        kept = secrets.token_bytes(32)
        write_private(file, kept.hex() + "\n")
    return kept


def same_origin(scope: Scope) -> bool:
    """Whether a page of this very address sent the request; a browser says so in one of two ways."""
    site = header(scope, b"sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = header(scope, b"origin")
    if origin is None:
        return True
    return origin.partition("://")[2].lower() == (header(scope, b"host") or "").lower()
