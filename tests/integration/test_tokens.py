"""Bearer tokens over REST and on the command line: who mints what, what is kept, and how one ends."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.domain.callers import PROFILES, Profile
from tests.integration.own_core import ADMIN, TOKENS, Core, quarterdeck
from tests.mcp_client import eventually
from tests.postgres import Postgres

PLAINTEXT = re.compile(r"mcp_[A-Za-z0-9_-]{48}")
SHOWN = {
    *("id", "user_id", "name", "profile", "project_id", "task_id"),
    *("created_at", "expires_at", "last_used_at", "revoked_at"),
}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("tokens") / "data") as running:
        yield running


def mint(core: Core, token: str, **body: Any) -> tuple[int, dict[str, Any]]:
    response = core.request("POST", TOKENS, token, json=body)
    answer: dict[str, Any] = response.json()
    return response.status_code, answer


def listed(core: Core, token: str) -> list[dict[str, Any]]:
    response = core.request("GET", TOKENS, token)
    assert response.status_code == 200
    tokens: list[dict[str, Any]] = response.json()["tokens"]
    return tokens


def row(core: Core, token_id: str) -> dict[str, Any]:
    return next(token for token in listed(core, ADMIN) if token["id"] == token_id)


def revoke(core: Core, token: str, token_id: str) -> int:
    return core.request("DELETE", f"{TOKENS}/{token_id}", token).status_code


def passes(core: Core, token: str) -> bool:
    return core.request("GET", TOKENS, token).status_code == 200


def refuses(core: Core, token: str) -> bool:
    return not passes(core, token)


def is_recent(when: str) -> bool:
    return timedelta() <= datetime.now(UTC) - datetime.fromisoformat(when) < timedelta(minutes=1)


def test_minted_token_is_shown_once_with_all_its_fields(core: Core) -> None:
    status, minted = mint(core, ADMIN, name="laptop", profile="viewer", user_id="ann")
    assert status == 201
    assert minted.keys() == SHOWN | {"token"}
    plaintext = minted.pop("token")
    assert PLAINTEXT.fullmatch(plaintext)
    assert is_recent(minted["created_at"])
    kept = {"name": "laptop", "profile": "viewer", "user_id": "ann", "id": minted["id"]}
    nothing = ("project_id", "task_id", "expires_at", "last_used_at", "revoked_at")
    assert minted == {**kept, **dict.fromkeys(nothing), "created_at": minted["created_at"]}
    assert row(core, minted["id"]) == minted
    for token in (ADMIN, plaintext):
        assert plaintext not in core.request("GET", TOKENS, token).text


def test_every_field_of_a_minting_request_is_kept(core: Core) -> None:
    owner = core.minted(user_id="binder", profile="maintainer")["token"]
    task = core.modern(owner).call("task_create", title="t").body["id"]
    status, minted = mint(
        core, ADMIN, name="n", profile="pair_worker", user_id="binder", task_id=task, expires_in_s=3600
    )
    assert status == 201
    assert (minted["user_id"], minted["task_id"], minted["profile"]) == ("binder", task, "pair_worker")
    lasts = datetime.fromisoformat(minted["expires_at"]) - datetime.fromisoformat(minted["created_at"])
    assert lasts == timedelta(hours=1)
    bound = core.modern(minted["token"])
    assert bound.call("task_get", task_id=task).body["task"]["id"] == task
    assert bound.call("decision_log", context="c", decision="d").body["code"] == "permission_denied"


def test_token_of_a_project_is_bound_to_it(core: Core) -> None:
    # No tool makes a project yet, so the row is put where one will put it.
    with (
        contextlib.closing(sqlite3.connect(core.data_dir / "quarterdeck.db", timeout=10)) as database,
        database,
    ):
        database.execute("INSERT INTO projects VALUES ('p-1', 'ann', 'Deck', '', 0, 0, NULL, NULL)")
    status, minted = mint(core, ADMIN, name="n", profile="viewer", user_id="ann", project_id="p-1")
    assert (status, minted["project_id"]) == (201, "p-1")
    assert mint(core, minted["token"], name="n", profile="viewer")[0] == 403
    assert "task_list" not in [tool["name"] for tool in core.modern(minted["token"]).tools()]
    for user, project in (("ann", "no-such"), ("bob", "p-1")):
        status, refused = mint(core, ADMIN, name="n", profile="viewer", user_id=user, project_id=project)
        assert (status, refused["field"], refused["code"]) == (404, "project_id", "not_found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"profile": "viewer"}, "name"),
        ({"name": "n"}, "profile"),
        ({"name": "", "profile": "viewer"}, "name"),
        ({"name": "n" * 201, "profile": "viewer"}, "name"),
        ({"name": 5, "profile": "viewer"}, "name"),
        ({"name": "nul \0", "profile": "viewer"}, "name"),
        ({"name": "n", "profile": "root"}, "profile"),
        ({"name": "n", "profile": None}, "profile"),
        ({"name": "n", "profile": "viewer", "user_id": ""}, "user_id"),
        ({"name": "n", "profile": "viewer", "user_id": ["ann"]}, "user_id"),
        ({"name": "n", "profile": "viewer", "project_id": 1}, "project_id"),
        ({"name": "n", "profile": "viewer", "task_id": ""}, "task_id"),
        ({"name": "n", "profile": "viewer", "expires_in_s": 0}, "expires_in_s"),
        ({"name": "n", "profile": "viewer", "expires_in_s": 1.5}, "expires_in_s"),
        ({"name": "n", "profile": "viewer", "expires_in_s": "soon"}, "expires_in_s"),
        ({"name": "n", "profile": "viewer", "expires_in_s": 10**12}, "expires_in_s"),
        ({"name": "n", "profile": "viewer", "expires_in_s": 10**30}, "expires_in_s"),
        ({"name": "n", "profile": "viewer", "expire": 5}, "expire"),
        ({"name": "n", "profile": "operator", "task_id": "t"}, "profile"),
    ],
)
def test_wrong_field_is_422_and_named(core: Core, body: dict[str, Any], field: str) -> None:
    before = len(listed(core, core.token))
    status, refused = mint(core, core.token, **body)
    assert (status, refused["field"], refused["code"]) == (422, field, "validation_error")
    assert field in refused["detail"] or field == "profile"
    assert len(listed(core, core.token)) == before


def test_admin_has_to_name_a_user(core: Core) -> None:
    status, refused = mint(core, ADMIN, name="n", profile="viewer")
    assert (status, refused["field"]) == (422, "user_id")


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"text"', b"{broken", b"\xff", b"[" * 5000])
def test_body_that_is_no_object_is_422(core: Core, body: bytes) -> None:
    response = core.request("POST", TOKENS, core.token, content=body)
    assert (response.status_code, response.json()["code"]) == (422, "validation_error")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", TOKENS, "GET, POST"), ("DELETE", TOKENS, "GET, POST"), ("GET", f"{TOKENS}/x", "DELETE")],
)
def test_other_methods_are_405(core: Core, method: str, path: str, allowed: str) -> None:
    response = core.request(method, path, core.token)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("profile", PROFILES)
def test_token_mints_up_to_its_own_profile_and_no_further(core: Core, profile: Profile) -> None:
    token = core.minted(user_id="ann", profile=profile)["token"]
    statuses = [mint(core, token, name="n", profile=wanted)[0] for wanted in PROFILES]
    allowed = PROFILES.index(profile) + 1
    assert statuses == [201] * allowed + [403] * (len(PROFILES) - allowed)


def test_caller_that_narrows_itself_mints_no_more_than_that(core: Core) -> None:
    for headers in ({"Quarterdeck-Profile": "viewer"}, {"Quarterdeck-Identity": "kagan"}):
        body = {"name": "n", "profile": "operator"}
        response = core.request("POST", TOKENS, core.token, json=body, headers=headers)
        assert (response.status_code, response.json()["field"]) == (403, "profile")


def test_user_mints_for_nobody_else_and_the_admin_for_anyone(core: Core) -> None:
    own = core.minted(user_id="ann", profile="maintainer")["token"]
    status, refused = mint(core, own, name="n", profile="viewer", user_id="bob")
    assert (status, refused["code"], refused["field"]) == (403, "permission_denied", "user_id")
    assert mint(core, own, name="n", profile="viewer", user_id="ann")[1]["user_id"] == "ann"
    assert mint(core, own, name="n", profile="viewer")[1]["user_id"] == "ann"
    assert mint(core, core.token, name="n", profile="viewer")[1]["user_id"] == "local"
    for user in ("bob", "local", "日本"):
        assert mint(core, ADMIN, name="n", profile="maintainer", user_id=user)[1]["user_id"] == user


def test_bound_token_mints_none_and_ends_only_itself(core: Core) -> None:
    owner = core.minted(user_id="ben", profile="maintainer")
    task = core.modern(owner["token"]).call("task_create", title="t").body["id"]
    bound = mint(core, owner["token"], name="n", profile="pair_worker", task_id=task)[1]
    status, refused = mint(core, bound["token"], name="n", profile="viewer")
    assert (status, refused["code"]) == (403, "permission_denied")
    # A session header binds a call as well.
    headers = {"Quarterdeck-Session": f"task:{task}"}
    body = {"name": "n", "profile": "viewer"}
    assert core.request("POST", TOKENS, owner["token"], json=body, headers=headers).status_code == 403
    assert revoke(core, bound["token"], owner["id"]) == 403
    assert passes(core, owner["token"])
    assert revoke(core, bound["token"], bound["id"]) == 200
    assert not passes(core, bound["token"])


def test_token_cannot_be_bound_to_a_task_of_another_user(core: Core) -> None:
    task = core.modern(core.minted(user_id="ann")["token"]).call("task_create", title="t").body["id"]
    other = core.minted(user_id="bob", profile="maintainer")["token"]
    for token, body in ((other, {}), (ADMIN, {"user_id": "bob"})):
        status, refused = mint(core, token, name="n", profile="viewer", task_id=task, **body)
        assert (status, refused["code"]) == (404, "not_found")


def test_list_holds_the_own_tokens_newest_first_and_the_admins_everybodys(core: Core) -> None:
    user, other = f"user-{time.time_ns()}", f"other-{time.time_ns()}"
    ids = [core.minted(user_id=user, name=f"n{number}")["id"] for number in range(3)]
    foreign = core.minted(user_id=other)["id"]
    token = core.minted(user_id=user, name="last")
    revoke(core, ADMIN, ids[0])
    mine = listed(core, token["token"])
    assert [found["id"] for found in mine] == [token["id"], *reversed(ids)]
    assert all(found.keys() == SHOWN for found in mine)
    assert is_recent(mine[-1]["revoked_at"])
    assert {*ids, foreign, token["id"]} <= {found["id"] for found in listed(core, ADMIN)}


def test_only_a_hash_is_stored(core: Core) -> None:
    plaintexts = [core.token, *(core.minted()["token"] for _ in range(5))]
    core.modern(plaintexts[1]).call("ping")
    files = [path for path in core.data_dir.iterdir() if path.name.startswith("quarterdeck.db")]
    assert len(files) > 1  # the newest rows are in the journal beside it
    stored = b"".join(path.read_bytes() for path in files)
    assert b"tokens" in stored
    for plaintext in plaintexts:
        for start in range(len(plaintext) - 8):
            # Nine characters in a row: more than chance, and more than anyone needs to recognise a token.
            piece = plaintext[start : start + 9].encode()
            assert piece not in stored


def test_last_use_is_written_within_a_moment_and_not_again_within_a_minute(core: Core) -> None:
    minted = core.minted()
    assert row(core, minted["id"])["last_used_at"] is None
    client = core.modern(minted["token"])
    client.call("ping")
    eventually(lambda: row(core, minted["id"])["last_used_at"], 5)
    first = row(core, minted["id"])["last_used_at"]
    assert is_recent(first)
    for _ in range(5):
        client.call("ping")
    core.minted()  # a write after them: on one writer, theirs would be done before it
    assert row(core, minted["id"])["last_used_at"] == first


def test_revocation_takes_effect_at_once_although_the_token_is_cached(core: Core) -> None:
    for _ in range(10):
        minted, other = core.minted(), core.minted()
        assert passes(core, minted["token"]) and passes(core, other["token"])
        assert revoke(core, minted["token"], minted["id"]) == 200
        assert not passes(core, minted["token"])
        assert passes(core, other["token"])
    assert revoke(core, ADMIN, minted["id"]) == 404
    assert is_recent(row(core, minted["id"])["revoked_at"])


def test_token_of_another_user_or_a_higher_profile_cannot_be_revoked(core: Core) -> None:
    high = core.minted(user_id="ann", profile="maintainer")
    low = core.minted(user_id="ann", profile="viewer")
    stranger = core.minted(user_id="bob", profile="maintainer")
    assert revoke(core, stranger["token"], high["id"]) == 404
    assert revoke(core, low["token"], high["id"]) == 403
    assert passes(core, high["token"])
    assert revoke(core, high["token"], low["id"]) == 200
    assert revoke(core, ADMIN, high["id"]) == 200
    assert revoke(core, ADMIN, "no-such-id") == 404


def test_local_token_that_was_revoked_is_replaced_at_the_next_start(core: Core) -> None:
    token = core.token
    local = next(found for found in listed(core, token) if found["name"] == "local")
    assert revoke(core, token, local["id"]) == 200
    assert not passes(core, token)
    core.restart()
    assert core.token != token
    assert passes(core, core.token) and not passes(core, token)
    assert len([t for t in listed(core, core.token) if t["name"] == "local" and not t["revoked_at"]]) == 1


def test_revocation_reaches_another_core_on_the_same_database(
    postgres: Postgres, postgres_template: str, tmp_path: Path
) -> None:
    url = postgres.create_database(postgres_template)
    with Core(tmp_path / "one", "--database", url) as one, Core(tmp_path / "two", "--database", url) as two:
        for _ in range(3):
            minted = one.minted()
            assert passes(one, minted["token"]) and passes(two, minted["token"])
            assert revoke(one, ADMIN, minted["id"]) == 200
            assert not passes(one, minted["token"])  # here at once, there as soon as it is heard of
            eventually(partial(refuses, two, minted["token"]), 3)


def test_command_line_mints_lists_and_revokes(core: Core) -> None:
    where = ("--data-dir", str(core.data_dir))
    created = quarterdeck("token", "create", "ci [bold]", "--profile", "viewer", "--expires-in", "60", *where)
    plaintext = created.stdout.strip()
    assert created.returncode == 0 and PLAINTEXT.fullmatch(plaintext)
    assert "ci [bold] (viewer" in created.stderr and plaintext not in created.stderr
    assert core.modern(plaintext).call("ping").body["pong"]

    table = quarterdeck("token", "list", *where)
    assert table.returncode == 0
    own = listed(core, plaintext)[0]
    line = next(line for line in table.stdout.splitlines() if own["id"] in line)
    assert "ci [bold]" in line and "viewer" in line and line.rstrip().endswith("active")
    assert plaintext not in table.stdout

    ended = quarterdeck("token", "revoke", own["id"], *where)
    assert (ended.returncode, ended.stdout.strip()) == (0, f"revoked {own['id']}")
    assert not passes(core, plaintext)


def test_command_line_speaks_json(core: Core) -> None:
    where = ("--data-dir", str(core.data_dir), "--json")
    # A proxy of the environment is no way to the core, and must not see its token.
    created = quarterdeck("token", "create", "ci", *where, http_proxy="http://127.0.0.1:1")
    minted = json.loads(created.stdout)
    assert created.stderr == ""
    assert minted.keys() == SHOWN | {"token"}
    assert (minted["name"], minted["profile"], minted["user_id"]) == ("ci", "operator", "local")
    tokens = json.loads(quarterdeck("token", "list", *where).stdout)
    assert tokens[0]["id"] == minted["id"] and "token" not in tokens[0]
    ended = quarterdeck("token", "revoke", minted["id"], *where)
    assert json.loads(ended.stdout) == {"id": minted["id"], "revoked": True}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "n", "--profile", "root"), "profile must be one of"),
        (("create", "n", "--profile", "viewer", "--task", "nope"), "not found"),
        (("revoke", "no such/id"), "not found"),
    ],
)
def test_refusal_on_the_command_line_is_one_line(core: Core, arguments: tuple[str, ...], says: str) -> None:
    refused = quarterdeck("token", *arguments, "--data-dir", str(core.data_dir))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: ") and says in refused.stderr
    assert "Traceback" not in refused.stderr


def test_command_line_without_a_core_says_how_to_start_one(tmp_path: Path) -> None:
    empty = quarterdeck("token", "list", "--data-dir", str(tmp_path / "[empty]"))
    assert (empty.returncode, empty.stdout) == (1, "")
    assert f"no core is running on {tmp_path / '[empty]'}" in empty.stderr
    assert "hint: start one with: quarterdeck up" in empty.stderr
    # What a core that was killed leaves behind.
    (tmp_path / "core.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    (tmp_path / "token").write_text("mcp_x")
    gone = quarterdeck("token", "list", "--data-dir", str(tmp_path))
    assert gone.returncode == 1
    assert "http://127.0.0.1:1 does not answer" in gone.stderr and "quarterdeck up" in gone.stderr
