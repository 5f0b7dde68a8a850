"""Settings of the board: what is in force, who may change it, and what may be set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.core.settings import KEYS
from quarterdeck.surfaces.board_settings import SettingsUpdate
from tests.core_process import CoreProcess
from tests.integration.own_core import quarterdeck
from tests.mcp_client import Client, Deck

ADMIN = "the admin secret of these tests"
CONFIG = """
[general]
default_base_branch = "trunk"
auto_review = false
[worker]
concurrency = 2
[defaults]
worker_agent = "my-bot"
"""
# As the contract and its notes have them, where the configuration above says nothing.
DEFAULTS = {
    "general.auto_approve": False,
    "general.require_review_approval": False,
    "general.serialize_merges": True,
    "general.push_after_merge": False,
    "general.auto_sync_base_branch": True,
    "general.worktree_base_ref_strategy": "remote",
    "general.default_pair_terminal_backend": "tmux",
    "general.tasks_wait_default_timeout_seconds": 900,
    "general.tasks_wait_max_timeout_seconds": 900,
    "ui.skip_pair_instructions": False,
    **{
        f"general.default_model_{agent}": None
        for agent in ("claude", "opencode", "codex", "gemini", "kimi", "copilot")
    },
}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoreProcess]:
    folder: Path = tmp_path_factory.mktemp("core")
    (folder / "quarterdeck.toml").write_text(CONFIG)
    with CoreProcess(folder, {"QUARTERDECK_ADMIN_SECRET": ADMIN}) as core:
        yield core


@pytest.fixture(scope="module")
def deck(core: CoreProcess) -> Iterator[Deck]:
    with Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture(scope="module")
def board(deck: Deck) -> Client:
    return deck.connect(surface="board")


def test_every_setting_can_be_updated_by_name() -> None:
    assert sorted(SettingsUpdate.model_fields) == sorted(key.partition(".")[2] for key in KEYS)


def test_the_file_beats_the_default(board: Client) -> None:
    found = board.done("settings_get")["settings"]
    assert found == {
        **DEFAULTS,
        "general.default_base_branch": "trunk",
        "general.auto_review": False,
        "general.max_concurrent_agents": 2,
        "general.default_worker_agent": "my-bot",
    }


def test_an_update_beats_the_file_for_every_user_and_after_a_restart(core: CoreProcess) -> None:
    with Deck(core.url, ADMIN) as deck:
        changed: dict[str, Any] = {
            "general.default_base_branch": "release",
            "max_concurrent_agents": 5,
            "skip_pair_instructions": True,
            "default_model_codex": "gpt-5",
        }
        answer = deck.connect(surface="board").done("settings_update", **changed)
        assert (answer["code"], answer["success"]) == ("UPDATED", True)
        assert answer["updated"] == [
            *("general.default_base_branch", "general.default_model_codex"),
            *("general.max_concurrent_agents", "ui.skip_pair_instructions"),
        ]
        seen = deck.connect(surface="board").done("settings_get")["settings"]
        assert seen == answer["settings"]
        assert seen["general.default_base_branch"] == "release"
    core.restart()
    with Deck(core.url, ADMIN) as deck:
        client = deck.connect(surface="board")
        assert client.done("settings_get")["settings"] == seen
        client.done("settings_update", default_model_codex=None)
        assert client.done("settings_get")["settings"]["general.default_model_codex"] is None


@pytest.fixture(scope="module")
def again(core: CoreProcess) -> Iterator[Deck]:
    """The core after its restart, at its new address."""
    with Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"nonsense": 1},
        {"server.admin_secret": "x"},
        {"admin_secret": "x"},
        {"auto_review": "perhaps"},
        {"auto_review": None},
        {"max_concurrent_agents": 0},
        {"max_concurrent_agents": 11},
        {"max_concurrent_agents": 2.5},
        {"tasks_wait_max_timeout_seconds": 3601},
        {"tasks_wait_default_timeout_seconds": 0},
        {"worktree_base_ref_strategy": "newest"},
        {"default_pair_terminal_backend": "emacs"},
        {"default_base_branch": ""},
        {"default_base_branch": "--force"},
        {"default_worker_agent": "nobody"},
        {"default_model_claude": ""},
        {"default_model_claude": "--verbose"},
        {"auto_review": True, "max_concurrent_agents": 99},
    ],
    ids=str,
)
def test_what_is_not_allowed_changes_nothing(again: Deck, wrong: dict[str, Any]) -> None:
    board = again.connect(surface="board")
    before = board.done("settings_get")["settings"]
    assert board.refused("settings_update", **wrong)["code"] == "INVALID_PARAMS"
    assert board.done("settings_get")["settings"] == before


def test_only_a_maintainer_changes_settings_and_everyone_reads_them(again: Deck) -> None:
    for profile in ("viewer", "planner", "pair_worker", "operator"):
        client = again.connect(again.mint(None, profile)["token"], surface="board")
        assert client.done("settings_get")["settings"].keys() == set(KEYS)
        assert client.refused("settings_update", auto_review=True)["code"] == "AUTHORIZATION_DENIED"


def test_a_change_is_in_the_audit_with_its_values(again: Deck) -> None:
    board = again.connect(surface="board")
    board.done("settings_update", serialize_merges=False)
    event = board.done("audit_tail", capability="settings_update")["events"][0]
    assert (event["command_name"], event["data"]) == (
        "settings.updated",
        {"changed": {"general.serialize_merges": False}},
    )


def test_a_proposal_is_accepted_at_once_where_that_is_the_setting(core: CoreProcess) -> None:
    with Deck(core.url, ADMIN) as deck:
        board = deck.connect(surface="board")
        board.done("settings_update", auto_approve=True)
        answer = board.done("propose_plan", tasks=[{"title": "Wanted at once"}, {"title": "And then"}])
        assert (answer["code"], answer["status"]) == ("PROPOSAL_ACCEPTED", "accepted")
        made = {task["task_id"]: task["title"] for task in answer["tasks"]}
        assert list(made.values()) == ["Wanted at once", "And then"]
        listed = board.done("tasks_list", plan=answer["plan"])["tasks"]
        assert made == {task["task_id"]: task["title"] for task in listed}
        board.done("settings_update", auto_approve=False)


def test_a_default_agent_that_does_not_exist_is_told_wherever_one_looks(core: CoreProcess) -> None:
    said = "defaults.worker_agent is 'my-bot', but there is no such agent"
    assert said in (core.data_dir / "core.log").read_text()
    place = ("--data-dir", str(core.data_dir))
    assert f"warning {said}" in quarterdeck("doctor", *place).stdout
    assert f"warning: {said}" in quarterdeck("agents", "--no-probe", *place).stderr
