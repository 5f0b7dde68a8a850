"""The rate limit: a bucket for each token, refused in the surface's own words, with the time to wait."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.own_core import ADMIN, TOKENS, Core
from tests.mcp_client import Client, Result

BURST = 60  # also the calls a minute, so one comes back each second


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    data = tmp_path_factory.mktemp("rate") / "data"
    with Core(data, QUARTERDECK_SERVER__RATE_LIMIT_PER_MINUTE=str(BURST)) as running:
        yield running


def calls_until_refused(client: Client) -> tuple[int, Result]:
    """How many calls passed, checked against the time they took; and the first refusal."""
    began = time.monotonic()
    for passed in range(10 * BURST):
        result = client.call("ping")
        if result.is_error:
            assert BURST <= passed <= BURST + (time.monotonic() - began) + 1
            return passed, result
    raise AssertionError("no call was refused")


@pytest.mark.parametrize("era", ["modern", "older"])
def test_call_beyond_the_burst_is_refused_with_the_time_to_wait(core: Core, era: str) -> None:
    token = core.minted()["token"]
    client = core.modern(token) if era == "modern" else core.older(token)
    _, refused = calls_until_refused(client)
    assert refused.body.keys() == {"error", "code", "hint", "retry_after"}
    assert refused.body["code"] == "rate_limited"
    wait = refused.body["retry_after"]
    assert 0 < wait <= 1
    assert refused.body["hint"] == f"try again in {wait:g} s"
    time.sleep(wait)  # as the server asked
    assert not client.call("ping").is_error


def test_a_chat_beyond_the_burst_is_429_in_openais_shape(core: Core) -> None:
    token = core.minted(user_id="chatter")["token"]
    answers = (core.request("GET", "/v1/models", token) for _ in range(10 * BURST))
    refused = next(answer for answer in answers if answer.status_code != 200)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "rate_limited"


def test_refused_call_changes_nothing_and_costs_nothing(core: Core) -> None:
    token = core.minted(user_id="quiet")["token"]
    client = core.modern(token)
    calls_until_refused(client)
    began = time.monotonic()
    results = [client.call("task_create", title="t") for _ in range(20)]
    waits = [result.body["retry_after"] for result in results if result.is_error]
    created = len(results) - len(waits)
    assert created <= time.monotonic() - began + 1
    assert max(waits) <= 1  # a refusal does not push the next call further away
    time.sleep(1)
    assert len(client.call("task_list").body) == created


def test_two_tokens_of_one_user_have_separate_buckets(core: Core) -> None:
    first, second = core.minted(user_id="twin")["token"], core.minted(user_id="twin")["token"]
    calls_until_refused(core.modern(first))
    calls_until_refused(core.modern(second))


def test_bucket_is_one_for_all_surfaces_eras_and_connections_of_a_token(core: Core) -> None:
    token = core.minted()["token"]
    others = [core.modern(token), core.older(token), core.modern(token, "/mcp/orchestrator")]
    calls_until_refused(core.modern(token))
    began = time.monotonic()
    refused = [client.call("ping").is_error for client in others * 5]
    assert refused.count(False) <= time.monotonic() - began + 1


def test_listing_tools_and_minting_are_not_metered(core: Core) -> None:
    token = core.minted()["token"]
    client = core.modern(token)
    calls_until_refused(client)
    for _ in range(3):
        assert client.tools()
        assert core.request("GET", TOKENS, token).status_code == 200


def test_admin_and_local_token_are_exempt(core: Core) -> None:
    for client in (core.modern(ADMIN), core.modern(), core.older()):
        assert not any(client.call("ping").is_error for _ in range(2 * BURST))


def test_local_token_is_metered_when_it_comes_from_elsewhere(core: Core) -> None:
    # A reverse proxy on this machine says where a request comes from.
    calls_until_refused(core.modern(X_Forwarded_For="203.0.113.9"))
    assert not core.modern(ADMIN, X_Forwarded_For="203.0.113.9").call("ping").is_error
    assert not core.modern().call("ping").is_error


def test_identity_of_a_token_has_a_bucket_of_its_own(core: Core) -> None:
    token = core.minted()["token"]
    calls_until_refused(core.modern(token))
    calls_until_refused(core.modern(token, Quarterdeck_Identity="kagan"))


def test_refusals_are_counted(core: Core) -> None:
    sample = 'quarterdeck_calls_total{result="rate_limited",surface="all",tool="ping"}'

    def count() -> float:
        lines = core.request("GET", "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample))

    before = count()
    calls_until_refused(core.modern(core.minted()["token"]))
    assert count() == before + 1
