"""Hosts and ports: which of them an agent without a network of its own may reach, and what is public."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORTS: Final = {"https": 443, "http": 80}
_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
# OpenCode has the base URLs of its providers in its configuration.
_BASE_URL: Final = re.compile(r'"baseURL"\s*:\s*"([^"]+)"')
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# Where the model of each kind of agent is when no base URL says otherwise.
PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "claude": ("api.anthropic.com",),
    "codex": ("api.openai.com", "chatgpt.com"),
    "gemini": (
        *("generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com"),
    ),
    "opencode": (
        *("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "openrouter.ai"),
        *("api.groq.com", "api.mistral.ai", "api.deepseek.com", "api.x.ai", "opencode.ai", "models.dev"),
    ),
}


class Door(NamedTuple):
    """A host by its name or address, as it is written once and for all, and a port of it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class Allowed:
    """The doors that are open. Those that somebody `named` may lead to a private address, others not."""

    named: frozenset[Door]
    others: frozenset[Door] = frozenset()

    def __contains__(self, door: Door) -> bool:
        return door in self.named or door in self.others

    def reaches(self, door: Door, addresses: Iterable[str]) -> bool:
        """Whether these may be the addresses of that door."""
        return door in self.named or (door in self.others and all(map(public, addresses)))

    @property
    def loopback(self) -> list[Door]:
        return sorted(door for door in self.named if door.loopback)


def allowed(kind: str, urls: Iterable[str], env: Mapping[str, str], listed: Iterable[str]) -> Allowed:
    """What an agent of a kind may reach: these URLs, the base URLs of its environment, the hosts that are
    listed, and its provider."""
    bases = [value for name, value in env.items() if name.endswith("_BASE_URL")]
    bases += _BASE_URL.findall(env.get("OPENCODE_CONFIG_CONTENT", ""))
    named = {door for url in (*urls, *bases) if (door := door_of(url)) is not None}
    named |= {parse(entry) for entry in listed}
    return Allowed(frozenset(named), frozenset(map(parse, PROVIDERS.get(kind, ()))))


def parse(text: str) -> Door:
    """`host` or `host:port`, an IPv6 address in brackets; without a port it is that of HTTPS.

    ValueError for anything else.
    """
    parts = urlsplit(f"//{text}")
    whole = text.isascii() and text.isprintable() and parts.netloc == text and "@" not in text
    if not whole or parts.port == 0:
        raise ValueError(f"{text!r} is no host and port")
    return Door(_host(parts.hostname or ""), parts.port or _PORTS["https"])


def door_of(url: str) -> Door | None:
    """Where a URL of HTTP leads; None for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        return Door(_host(parts.hostname or ""), port)
    except (KeyError, ValueError):
        return None


def public(address: str) -> bool:
    """Whether an address belongs to the open network, also one that another is wrapped in."""
    # A zone says through which interface, not to which address.
    return _public(ipaddress.ip_address(address.partition("%")[0]))


def _host(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        found = name.lower().removesuffix(".")
    if not _NAME.fullmatch(found) or ".." in found:
        raise ValueError(f"{name!r} is no host")
    return found


def _public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast
