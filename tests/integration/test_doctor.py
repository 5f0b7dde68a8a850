"""`quarterdeck doctor` and its route, with a core of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.own_core import ADMIN, Core, quarterdeck


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("core") / "data") as started:
        yield started


def doctor(core: Core, *flags: str) -> tuple[int, str]:
    done = quarterdeck("doctor", *flags, "--data-dir", str(core.data_dir))
    return done.returncode, done.stdout


def stray(core: Core) -> Path:
    path = core.data_dir / "worktrees" / "nobody" / "repo"
    path.mkdir(parents=True)
    (path / "work.txt").write_text("precious\n")
    return path


def test_the_command_looks_mends_and_says_so_by_its_exit_code(core: Core) -> None:
    assert doctor(core) == (0, "everything is as it should be\n")
    path = stray(core)
    code, said = doctor(core)
    assert code == 1
    assert f"drift folder_unknown: {path} belongs to no task" in said
    assert "quarterdeck doctor --fix" in said
    assert path.exists()
    code, said = doctor(core, "--json")
    report = json.loads(said)
    assert (code, report["ok"], len(report["drift"])) == (1, False, 1)
    assert report["drift"][0].keys() == {"kind", "what", "fix", "automatic"}
    code, said = doctor(core, "--fix")
    assert code == 0
    assert "mended folder_unknown" in said
    assert not path.exists()
    assert doctor(core, "--json") == (0, '{"ok": true, "drift": [], "warnings": []}\n')


def test_the_route_is_for_maintainers(core: Core) -> None:
    minted = core.request(
        "POST", "/profile/mcp/tokens", ADMIN, json={"name": "n", "profile": "operator", "user_id": "ann"}
    ).json()
    assert core.request("GET", "/api/doctor", minted["token"]).status_code == 403
    assert core.request("POST", "/api/doctor", minted["token"]).status_code == 403
    assert core.request("GET", "/api/doctor").status_code == 401
    assert core.request("DELETE", "/api/doctor", ADMIN).status_code == 405
    path = stray(core)
    assert [each["kind"] for each in core.request("GET", "/api/doctor", ADMIN).json()["drift"]] == [
        "folder_unknown"
    ]
    mended = core.request("POST", "/api/doctor", ADMIN).json()
    assert (mended["ok"], len(mended["mended"])) == (True, 1)
    assert not path.exists()
