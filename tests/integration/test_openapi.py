"""The description of the REST routes, held against a core that runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    response_schema_conformance,
    status_code_conformance,
)

from quarterdeck.server import audit, doctor, openapi, rest
from tests.integration.own_core import ADMIN, Core

EXAMPLES = 6
schema = schemathesis.openapi.from_dict(openapi.document())


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("openapi")) as running:
        yield running


def test_the_description_is_served_to_everybody_and_names_every_route(core: Core) -> None:
    answer = core.request("GET", "/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == openapi.document()
    assert {rest.PATH, audit.PATH, doctor.PATH, "/healthz", "/readyz"} <= answer.json()["paths"].keys()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case: Any, core: Core) -> None:
    case.call_and_validate(
        base_url=core.url,
        headers={"Authorization": f"Bearer {ADMIN}"},
        checks=[not_a_server_error, status_code_conformance, response_schema_conformance],
    )


def test_without_a_token_the_refusal_is_as_described(core: Core) -> None:
    for path, operations in openapi.document()["paths"].items():
        for method, operation in operations.items():
            if method != "parameters" and operation.get("security") != []:
                answer = core.request(method.upper(), path.replace("{id}", "x"))
                described = operation["responses"]
                assert (answer.status_code, "401" in described) == (401, True), path
                assert isinstance(answer.json()["detail"], str)
