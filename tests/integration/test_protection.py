"""The plans surface under trouble: the database away, too many calls, sessions that nobody uses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core_process import CoreProcess
from tests.mcp_client import Deck, eventually
from tests.postgres import Postgres

ADMIN = "the admin secret of these tests"
AWAY = {"error": "Agentic service temporarily unavailable", "code": "service_unavailable"}


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that this test may stop."""
    with Postgres(durable=True) as server:
        yield server


def test_a_stopped_database_opens_the_breaker_and_a_health_check_closes_it(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    environment = {
        "QUARTERDECK_ADMIN_SECRET": ADMIN,
        "QUARTERDECK_DATABASE_URL": own_postgres.create_database(),
    }
    with CoreProcess(tmp_path, environment) as core, Deck(core.url, ADMIN) as deck:
        token = deck.mint()["token"]
        plans = deck.connect(token, surface="plans")
        slug = plans.done("plan_create", title="Before", phases=[{"name": "A", "tasks": ["One"]}])["plan"][
            "slug"
        ]
        acknowledged: list[str] = []
        over = threading.Event()

        def work() -> None:
            client = deck.connect(token, surface="plans")
            number = 0
            while not over.is_set():
                number += 1
                key = f"{threading.get_ident()}-{number}"
                answer = client.call("state_set", plan_slug=slug, key=key, value=number)
                if answer.is_error:
                    assert AWAY.items() <= answer.body.items()
                    time.sleep(0.05)
                else:
                    acknowledged.append(key)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        eventually(lambda: len(acknowledged) > 20)
        own_postgres.stop(immediate=True)
        eventually(lambda: plans.call("plan_get", slug=slug).is_error)
        refusal = eventually(
            lambda: plans.refused("plan_list").get("retry_after") and plans.refused("plan_list")
        )
        assert AWAY.items() <= refusal.items()
        held = len(acknowledged)
        own_postgres.start()
        eventually(lambda: len(acknowledged) > held + 20)
        over.set()
        for worker in workers:
            worker.join()
        kept = {row["key"] for row in plans.done("state_list", plan_slug=slug)["state"]}
        assert set(acknowledged) <= kept or len(kept) == 1000
        for key in acknowledged[-50:]:
            assert plans.done("state_get", plan_slug=slug, key=key)["state"]["key"] == key


def test_too_many_calls_are_rate_limited_in_the_documents_words(tmp_path: Path) -> None:
    environment = {"QUARTERDECK_ADMIN_SECRET": ADMIN, "QUARTERDECK_SERVER__RATE_LIMIT_PER_MINUTE": "30"}
    with CoreProcess(tmp_path, environment) as core, Deck(core.url, ADMIN) as deck:
        plans = deck.connect(surface="plans")
        answers = [plans.call("plan_list") for _ in range(40)]
        refused = [answer.body for answer in answers if answer.is_error]
        assert refused and {body["code"] for body in refused} == {"rate_limited"}
        assert all(body["retry_after"] > 0 for body in refused)


def test_a_session_that_nobody_writes_to_is_closed_as_failed(tmp_path: Path) -> None:
    environment = {
        "QUARTERDECK_ADMIN_SECRET": ADMIN,
        "QUARTERDECK_PLANS__SESSION_IDLE_HOURS": str(1.5 / 3600),
    }
    with CoreProcess(tmp_path, environment) as core, Deck(core.url, ADMIN) as deck:
        plans = deck.connect(surface="plans")
        idle = plans.done("session_start", agent_type="opus")["session"]["session_id"]
        ended = plans.done("session_start", agent_type="opus")["session"]["session_id"]
        plans.done("session_end", session_id=ended, status="completed")

        def states() -> dict[str, str]:
            return {row["session_id"]: row["status"] for row in plans.done("session_list")["sessions"]}

        eventually(lambda: states()[idle] == "failed")
        assert states()[ended] == "completed"
        assert plans.refused("session_log", session_id=idle, message="late")["code"] == "validation_error"
