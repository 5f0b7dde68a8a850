"""Which doors are open to an agent without a network of its own."""

from __future__ import annotations

import json

import pytest

from quarterdeck.domain import hosts
from quarterdeck.domain.hosts import PROVIDERS, Allowed, Door


@pytest.mark.parametrize(
    ("text", "door"),
    [
        ("a.example", Door("a.example", 443)),
        ("A.Example.", Door("a.example", 443)),
        ("a.example:8080", Door("a.example", 8080)),
        ("my_host:1", Door("my_host", 1)),
        ("127.0.0.1:5000", Door("127.0.0.1", 5000)),
        ("[::1]:5000", Door("::1", 5000)),
        ("[0:0:0:0:0:0:0:1]", Door("::1", 443)),
    ],
)
def test_a_host_has_one_spelling_and_a_port(text: str, door: Door) -> None:
    assert hosts.parse(text) == door
    assert hosts.parse(str(door)) == door


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":443",
            "*.example",
            "a example",
            "a.example/path",
            "https://a.example",
            "me@a.example",
            "a..b",
        ),
        *(
            "a.example:0",
            "a.example:65536",
            "a.example:http",
            "a\nb",
            "a.example\r",
            "::1",
            "[::1",
            "a?b",
            "a#b",
        ),
        *("bücher.example", "-a", "a" * 254),
    ],
)
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        hosts.parse(text)


def test_a_url_leads_to_the_port_of_its_scheme_unless_it_names_one() -> None:
    assert hosts.door_of("https://a.example/v1") == Door("a.example", 443)
    assert hosts.door_of("http://A.example") == Door("a.example", 80)
    assert hosts.door_of("http://user:word@[::1]:81/x?y") == Door("::1", 81)
    assert [hosts.door_of(url) for url in ("", "ftp://a.example", "a.example", "http://", "http://a:b")] == [
        None
    ] * 5


def test_an_agent_reaches_what_is_named_and_its_provider_and_nothing_else() -> None:
    env = {
        "ANTHROPIC_BASE_URL": "http://gateway.example:8000/anthropic",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "OTHER_BASE_URL": "not a URL",
    }
    found = hosts.allowed(
        "claude", ["http://127.0.0.1:7000/mcp", ""], env, ["mirror.example", "localhost:9000"]
    )
    assert found.named == {
        Door("127.0.0.1", 7000),
        Door("gateway.example", 8000),
        Door("mirror.example", 443),
        Door("localhost", 9000),
    }
    assert found.others == {Door("api.anthropic.com", 443)}
    assert found.loopback == [Door("127.0.0.1", 7000), Door("localhost", 9000)]
    for door in (*found.named, *found.others):
        assert door in found
        assert Door(door.host, door.port + 1) not in found
        assert Door(f"x.{door.host}", door.port) not in found


def test_opencode_reaches_the_base_urls_of_its_configuration() -> None:
    provider = {"options": {"baseURL": "http://127.0.0.1:8000/v1", "apiKey": "none"}}
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps({"provider": {"own": provider}, "x": "http://b.example"})}
    assert hosts.allowed("opencode", [], env, []).named == {Door("127.0.0.1", 8000)}


def test_a_program_of_ones_own_has_no_provider() -> None:
    assert hosts.allowed("command", [], {}, []) == Allowed(frozenset())


def test_every_provider_is_a_host() -> None:
    assert all(hosts.parse(name) == Door(name, 443) for names in PROVIDERS.values() for name in names)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *(
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1%eth0",
            "fd00::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "fec0::1",
        ),
    ],
)
def test_only_who_is_named_may_have_a_private_address(address: str) -> None:
    named, other = Door("named.example", 443), Door("other.example", 443)
    doors = Allowed(frozenset({named}), frozenset({other}))
    assert doors.reaches(named, ["8.8.8.8", address])
    assert not doors.reaches(other, ["8.8.8.8", address])
    assert doors.reaches(other, ["8.8.8.8", "2001:4860:4860::8888"])
    assert not doors.reaches(Door("third.example", 443), ["8.8.8.8"])
