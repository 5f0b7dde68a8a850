"""Who sees and does what on the orchestrator surface: users, profiles, bound tokens and narrowing headers."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx2
import pytest

from quarterdeck.surfaces.orchestrator import SURFACE
from quarterdeck.surfaces.schema import Id
from tests.core_process import CoreProcess
from tests.mcp_client import MODERN, OLDER, Client, Deck, ProtocolError, eventually

ADMIN = "the admin secret of these tests"
ENVIRONMENT = {"QUARTERDECK_ADMIN_SECRET": ADMIN, "QUARTERDECK_SEARCH__PROVIDER": "local"}

# Profile → the tools that it adds to those of the profiles before it.
LEAST: dict[str, set[str]] = {
    "viewer": {
        *("ping", "decision_search", "pattern_match", "task_list", "task_get", "context_for_task"),
        *("select_model", "list_agents", "get_agent", "orchestrator_classify"),
    },
    "planner": set(),
    "pair_worker": {"decision_log", "decision_outcome", "pattern_store", "pattern_used"},
    "operator": {"task_create", "task_update", "route_task"},
    "maintainer": {"orchestrator_reset_cache"},
}
PROFILES = list(LEAST)
CATALOGS = {"ping", "select_model", "list_agents", "get_agent", "orchestrator_classify"}
BOUND = CATALOGS | {"task_get", "context_for_task", "decision_log", "decision_outcome"}

# Arguments that make a call of the tool valid but for its ids.
VALID: dict[str, dict[str, Any]] = {
    "decision_log": {"context": "c", "decision": "d"},
    "decision_search": {"query": "q"},
    "pattern_store": {"name": "n", "trigger_conditions": {}, "actions": {}},
    "pattern_match": {"situation": "s"},
    "task_create": {"title": "t"},
    "task_update": {"title": "changed", "action": "approve"},
    "route_task": {"assign": True},
    "select_model": {"tier": "fast"},
    "get_agent": {"agent_id": "claude-code"},
    "orchestrator_classify": {"title": "t"},
    "decision_outcome": {"outcome": "o"},
    "pattern_used": {"success": True},
}
# Argument that names a row → which row.
NAMES = {
    "task_id": "task",
    "parent_task_id": "task",
    "decision_id": "decision",
    "pattern_id": "pattern",
}


def id_arguments() -> list[tuple[str, str]]:
    """Every argument of every tool that names a row, as the code declares them."""
    return [
        (tool.name, name)
        for tool in SURFACE.tools.values()
        for name, hint in get_type_hints(tool.args, include_extras=True).items()
        if Id in (hint, *get_args(hint))
    ]


@dataclass(frozen=True, slots=True)
class Owner:
    """A user with one row of each kind."""

    user: str
    client: Client
    ids: dict[str, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("core")


@pytest.fixture(scope="module")
def deck(folder: Path) -> Iterator[Deck]:
    with CoreProcess(folder, ENVIRONMENT) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture
def alice(deck: Deck) -> Owner:
    token = deck.mint()
    client = deck.connect(token["token"])
    task = client.done("task_create", title="Alice's task")["id"]
    ids = {
        "task": task,
        "decision": client.done("decision_log", context="c", decision="Alice's decision", task_id=task)["id"],
        "pattern": client.done("pattern_store", name="Alice's pattern", trigger_conditions={}, actions={})[
            "id"
        ],
    }
    return Owner(token["user_id"], client, ids)


@pytest.fixture(scope="module")
def bob(deck: Deck) -> Client:
    return deck.connect()


@contextlib.contextmanager
def nothing_changes(folder: Path) -> Iterator[None]:
    """Fail when the block adds, drops or changes any row that a tool can write."""
    before = rows(folder)
    yield
    assert rows(folder) == before


def rows(folder: Path) -> dict[str, list[Any]]:
    tables = ("tasks", "transitions", "decisions", "decision_tags", "patterns")
    return {table: query(folder, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}


def query(folder: Path, statement: str, *values: str) -> list[Any]:
    uri = f"file:{folder / 'quarterdeck.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute(statement, values).fetchall()


# Users


def test_every_argument_that_names_a_row_is_known_to_these_tests() -> None:
    declared = id_arguments()
    assert {name for _, name in declared} == NAMES.keys()
    named = {
        (tool.name, name)
        for tool in SURFACE.tools.values()
        for name in tool.input_schema["properties"]
        if name.endswith(("_id", "_ids"))
    }
    # An agent is of the registry, which is everybody's.
    assert named - {("get_agent", "agent_id")} == set(declared)


def test_every_argument_that_names_a_row_binds_unless_bound_tokens_cannot_call_the_tool() -> None:
    loose = {(tool, name) for tool, name in id_arguments() if name not in SURFACE.tools[tool].binds}
    assert {tool for tool, _ in loose}.isdisjoint(BOUND)


@pytest.mark.parametrize("version", [MODERN, OLDER])
@pytest.mark.parametrize(("tool", "argument"), id_arguments())
def test_foreign_id_and_unknown_id_answer_alike_and_change_nothing(
    deck: Deck, folder: Path, alice: Owner, tool: str, argument: str, version: str
) -> None:
    bob = deck.connect(version=version)
    foreign, unknown = alice.ids[NAMES[argument]], str(uuid.uuid4())
    valid = VALID.get(tool, {})
    with nothing_changes(folder):
        answers = [bob.refused(tool, **valid, **{argument: given}) for given in (foreign, unknown)]
    assert answers[0]["error"].replace(foreign, unknown) == answers[1].pop("error")
    del answers[0]["error"]
    assert answers[0] == answers[1]
    assert answers[0]["code"] == "not_found"
    assert answers[0]["field"] == argument
    # The same call with an id of one's own is the proof that nothing else was wrong with it.
    assert not alice.client.call(tool, **valid, **{argument: foreign}).is_error


@pytest.mark.parametrize("given", ["x", "' OR '1'='1", "%", "../../etc", "ID" * 50, "名"])
def test_id_of_any_form_is_just_not_found(bob: Client, given: str) -> None:
    body = bob.refused("task_get", task_id=given)
    assert body["code"] == "not_found"
    assert body["error"] == f"task {given} not found"


def test_lists_and_searches_show_ones_own_rows_only(deck: Deck, alice: Owner) -> None:
    def embedded() -> bool:
        rows = alice.client.done("decision_search", query="Alice's decision")
        rows += alice.client.done("pattern_match", situation="Alice's pattern")
        return sorted(row["id"] for row in rows if "similarity" in row) == sorted(
            [alice.ids["decision"], alice.ids["pattern"]]
        )

    assert eventually(embedded)
    bob = deck.connect()
    own = bob.done("task_create", title="Alice's task")["id"]
    assert [row["id"] for row in bob.done("task_list", limit=200)] == [own]
    assert bob.done("decision_search", query="Alice's decision", limit=50) == []
    assert bob.done("pattern_match", situation="Alice's pattern", limit=50) == []
    context = bob.done("context_for_task", task_id=own)
    assert (context["matching_patterns"], context["related_decisions"], context["subtasks"]) == ([], [], [])


def test_two_tokens_of_a_user_share_its_rows(deck: Deck, alice: Owner) -> None:
    other = deck.connect(deck.mint(alice.user, "viewer")["token"])
    assert other.done("task_get", task_id=alice.ids["task"])["task"]["user_id"] == alice.user


def test_session_of_one_user_is_unknown_to_another(deck: Deck) -> None:
    mine, theirs = deck.connect(version=OLDER), deck.connect(version=OLDER)
    theirs.session = mine.session
    with pytest.raises(ProtocolError) as refusal:
        theirs.call("ping")
    assert refusal.value.status == 404
    assert mine.done("ping")["pong"]


# Profiles


@pytest.mark.parametrize("version", [MODERN, OLDER])
@pytest.mark.parametrize("profile", PROFILES)
def test_profile_lists_its_tools_and_can_call_no_other(
    deck: Deck, folder: Path, alice: Owner, profile: str, version: str
) -> None:
    client = deck.connect(deck.mint(alice.user, profile)["token"], version)
    allowed = set().union(*(LEAST[each] for each in PROFILES[: PROFILES.index(profile) + 1]))
    assert {tool["name"] for tool in client.tools()} == allowed
    ids = {argument: alice.ids[NAMES[argument]] for argument in NAMES}
    with nothing_changes(folder):
        for tool in SURFACE.tools.keys() - allowed:
            named = {name: ids[name] for each, name in id_arguments() if each == tool}
            for arguments in (VALID.get(tool, {}) | named, {}, {"nonsense": 1}):
                body = client.refused(tool, **arguments)
                assert body["code"] == "permission_denied"
                assert profile in body["error"]
        assert client.refused("no_such_tool")["code"] == "unknown_tool"


def test_every_allowed_tool_really_works_for_its_least_profile(deck: Deck) -> None:
    user = deck.mint()["user_id"]
    owner = deck.connect(deck.mint(user)["token"])
    task = owner.done("task_create", title="t")["id"]
    ids = {
        "task_id": task,
        "decision_id": owner.done("decision_log", context="c", decision="d")["id"],
        "pattern_id": owner.done("pattern_store", name="n", trigger_conditions={}, actions={})["id"],
    }
    for profile, tools in LEAST.items():
        client = deck.connect(deck.mint(user, profile)["token"])
        for tool in tools:
            named = {name: ids[name] for each, name in id_arguments() if each == tool and name in ids}
            client.done(tool, **VALID.get(tool, {}), **named)


# Bound tokens


@dataclass(frozen=True, slots=True)
class Worker:
    """A pair worker bound to one of the owner's tasks, and the owner's other rows."""

    owner: Client
    client: Client
    token: dict[str, Any]
    task: str
    other_task: str


@pytest.fixture(params=[MODERN, OLDER])
def worker(deck: Deck, request: pytest.FixtureRequest) -> Worker:
    user = deck.mint()["user_id"]
    owner = deck.connect(deck.mint(user)["token"])
    task, other = (owner.done("task_create", title=title)["id"] for title in ("bound", "other"))
    token = deck.mint(user, "pair_worker", task_id=task)
    return Worker(owner, deck.connect(token["token"], request.param), token, task, other)


def test_bound_token_lists_what_it_can_use_and_the_rest_is_refused(worker: Worker, folder: Path) -> None:
    assert {tool["name"] for tool in worker.client.tools()} == BOUND
    with nothing_changes(folder):
        for tool in SURFACE.tools.keys() - BOUND:
            ids = {name: worker.task for each, name in id_arguments() if each == tool}
            for arguments in (VALID.get(tool, {}) | ids, {"nonsense": 1}):
                assert worker.client.refused(tool, **arguments)["code"] == "permission_denied"
        assert worker.client.refused("no_such_tool")["code"] == "unknown_tool"


@pytest.mark.parametrize("tool", sorted(CATALOGS))
def test_catalogs_are_open_to_bound_tokens(worker: Worker, tool: str) -> None:
    assert worker.client.done(tool, **VALID.get(tool, {})) is not None


@pytest.mark.parametrize("tool", ["task_get", "context_for_task"])
def test_bound_token_reads_its_own_task_only(worker: Worker, tool: str) -> None:
    assert worker.client.done(tool, task_id=worker.task) == worker.owner.done(tool, task_id=worker.task)
    body = worker.client.refused(tool, task_id=worker.other_task)
    assert (body["code"], body["field"]) == ("not_found", "task_id")


def test_bound_token_logs_decisions_on_its_own_task_only(worker: Worker, folder: Path) -> None:
    with nothing_changes(folder):
        unnamed = worker.client.refused("decision_log", context="c", decision="d")
        other = worker.client.refused("decision_log", context="c", decision="d", task_id=worker.other_task)
    assert (unnamed["code"], unnamed["field"]) == ("permission_denied", "task_id")
    assert (other["code"], other["field"]) == ("not_found", "task_id")
    row = worker.client.done("decision_log", context="c", decision="d", task_id=worker.task)
    assert worker.owner.done("context_for_task", task_id=worker.task)["related_decisions"] == [row]


def test_bound_token_records_outcomes_of_its_own_task_only(worker: Worker, folder: Path) -> None:
    def logged(**task: str) -> str:
        return str(worker.owner.done("decision_log", context="c", decision="d", **task)["id"])

    mine, others = logged(task_id=worker.task), [logged(task_id=worker.other_task), logged()]
    assert worker.client.done("decision_outcome", decision_id=mine, outcome="good")["outcome"] == "good"
    with nothing_changes(folder):
        for decision in others:
            body = worker.client.refused("decision_outcome", decision_id=decision, outcome="bad")
            assert (body["code"], body["field"]) == ("not_found", "decision_id")


@pytest.mark.parametrize("profile", ["operator", "maintainer"])
def test_bound_token_is_at_most_a_pair_worker(deck: Deck, alice: Owner, profile: str) -> None:
    wanted = {"name": "n", "profile": profile, "user_id": alice.user, "task_id": alice.ids["task"]}
    response = deck.rest("POST", "/profile/mcp/tokens", body=wanted)
    assert response.status_code == 422
    assert response.json()["field"] == "profile"


def test_token_cannot_be_bound_to_a_foreign_or_unknown_task(deck: Deck, alice: Owner) -> None:
    for task in (alice.ids["task"], str(uuid.uuid4())):
        wanted = {"name": "n", "profile": "viewer", "user_id": "somebody-else", "task_id": task}
        response = deck.rest("POST", "/profile/mcp/tokens", body=wanted)
        assert (response.status_code, response.json()["detail"]) == (404, f"task {task} not found")


def test_bound_token_mints_no_other(deck: Deck, worker: Worker) -> None:
    for task in ({}, {"task_id": worker.task}):
        wanted = {"name": "n", "profile": "viewer", **task}
        response = deck.rest("POST", "/profile/mcp/tokens", worker.token["token"], wanted)
        assert (response.status_code, response.json()["code"]) == (403, "permission_denied")


# Dead tokens


@pytest.mark.parametrize("version", [MODERN, OLDER])
def test_revoked_token_is_refused_at_once(deck: Deck, version: str) -> None:
    token = deck.mint()
    client = deck.connect(token["token"], version)
    assert client.done("ping")["pong"]
    assert deck.rest("DELETE", f"/profile/mcp/tokens/{token['id']}").status_code == 200
    with pytest.raises(ProtocolError) as refusal:
        client.call("ping")
    assert refusal.value.status == 403


def test_expired_token_is_refused(deck: Deck) -> None:
    client = deck.connect(deck.mint(expires_in_s=2)["token"])
    assert client.done("ping")["pong"]

    def refusal() -> ProtocolError | None:
        try:
            client.call("ping")
        except ProtocolError as error:
            return error
        return None

    assert eventually(refusal).status == 403


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Basic abc", 401),
        ("Bearer", 401),
        ("bearer mcp_x", 401),
        ("Bearer mcp_unknown", 403),
        (f"Bearer {ADMIN}x", 403),
    ],
)
def test_request_without_a_living_token_is_refused(
    deck: Deck, authorization: str | None, status: int
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    response = httpx2.post(f"{deck.url}/mcp/orchestrator", headers=headers, content="{}")
    assert response.status_code == status
    assert response.headers["www-authenticate"].startswith("Bearer")


# Headers by which a client holds itself to less


@pytest.mark.parametrize("version", [MODERN, OLDER])
@pytest.mark.parametrize(
    ("profile", "headers", "result"),
    [
        ("maintainer", {"Quarterdeck_Profile": "viewer"}, "viewer"),
        ("maintainer", {"Quarterdeck_Profile": "operator"}, "operator"),
        ("viewer", {"Quarterdeck_Profile": "maintainer"}, "viewer"),
        ("maintainer", {"Quarterdeck_Identity": "kagan"}, "pair_worker"),
        ("maintainer", {"Quarterdeck_Identity": "kagan_admin"}, "maintainer"),
        ("viewer", {"Quarterdeck_Identity": "kagan_admin"}, "viewer"),
        ("maintainer", {"Quarterdeck_Identity": "kagan", "Quarterdeck_Profile": "planner"}, "planner"),
        ("maintainer", {"Quarterdeck_Session": "any label"}, "maintainer"),
    ],
)
def test_header_can_narrow_and_never_widen(
    deck: Deck, profile: str, headers: dict[str, str], result: str, version: str
) -> None:
    client = deck.connect(deck.mint(profile=profile)["token"], version, **headers)
    allowed = set().union(*(LEAST[each] for each in PROFILES[: PROFILES.index(result) + 1]))
    assert {tool["name"] for tool in client.tools()} == allowed
    for tool in SURFACE.tools.keys() - allowed:
        assert client.refused(tool, **VALID.get(tool, {}))["code"] == "permission_denied"


@pytest.mark.parametrize("version", [MODERN, OLDER])
def test_session_of_a_task_binds_to_it(deck: Deck, alice: Owner, version: str) -> None:
    other = alice.client.done("task_create", title="other")["id"]
    token = deck.mint(alice.user)["token"]
    client = deck.connect(token, version, Quarterdeck_Session=f"task:{alice.ids['task']}")
    assert {tool["name"] for tool in client.tools()} == BOUND
    assert client.done("task_get", task_id=alice.ids["task"])
    assert client.refused("task_get", task_id=other)["code"] == "not_found"
    assert client.refused("task_update", task_id=alice.ids["task"])["code"] == "permission_denied"


def test_session_of_a_foreign_task_shows_nothing_of_it(deck: Deck, alice: Owner) -> None:
    client = deck.connect(Quarterdeck_Session=f"task:{alice.ids['task']}")
    assert client.refused("task_get", task_id=alice.ids["task"])["code"] == "not_found"


@pytest.mark.parametrize(
    "headers",
    [{"Quarterdeck_Profile": "root"}, {"Quarterdeck_Identity": "root"}, {"Quarterdeck_Profile": ""}],
)
def test_unknown_profile_or_identity_is_a_bad_request(deck: Deck, headers: dict[str, str]) -> None:
    with pytest.raises(ProtocolError) as refusal:
        deck.connect(**headers).call("ping")
    assert refusal.value.status == 400


def test_bound_token_cannot_move_to_another_task(deck: Deck, worker: Worker) -> None:
    moved = deck.connect(worker.token["token"], Quarterdeck_Session=f"task:{worker.other_task}")
    with pytest.raises(ProtocolError) as refusal:
        moved.call("ping")
    assert refusal.value.status == 400


# The audit


def test_audit_names_the_user_the_session_and_the_tool(deck: Deck, folder: Path) -> None:
    token = deck.mint()
    client = deck.connect(token["token"], Quarterdeck_Session="night shift")
    task = client.done("task_create", title="t")["id"]
    found = query(folder, "SELECT kind, user_id, actor, tool FROM events WHERE entity_id = ?", task)
    user = token["user_id"]
    assert found == [("task.created", user, f"{user}/night shift", "orchestrator.task_create")]


def test_audit_keeps_refused_writes_and_denials(deck: Deck, folder: Path) -> None:
    token = deck.mint(profile="viewer")
    client = deck.connect(token["token"])
    assert client.refused("task_create", title="t")["code"] == "permission_denied"
    assert client.refused("task_get", task_id="nowhere")["code"] == "not_found"
    statement = "SELECT tool, ok FROM events WHERE user_id = ? AND kind = 'call.refused'"
    assert eventually(lambda: query(folder, statement, token["user_id"])) == [("orchestrator.task_create", 0)]
