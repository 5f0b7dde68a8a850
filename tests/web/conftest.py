"""One browser for the whole run, one core for a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.integration.own_core import Core
from tests.web.browser import launched
from tests.web.world import World, prepared


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """What is in the store before the core of the module starts."""
    return prepared(tmp_path_factory.mktemp("web"))


@pytest.fixture(scope="module")
def core(world: World) -> Iterator[Core]:
    with Core(world.data_dir) as running:
        yield running
