"""`GET /events`: the caller's own events, as they come and from any point on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.own_core import ADMIN, Core
from tests.listening import Frame, Listening, events
from tests.mcp_client import Client
from tests.store import ask

FIELDS = {"seq", "at", "kind", "entity_id", "task_id", "actor", "tool", "ok", "data"}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("events") / "data") as running:
        yield running


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class User:
    """Somebody new, with a token and a client."""

    def __init__(self, core: Core, name: str) -> None:
        self.core, self.name = core, name
        self.minted = core.minted(user_id=name)
        self.token: str = self.minted["token"]
        self.client: Client = core.modern(self.token)

    def task(self, title: str = "t") -> str:
        task_id: str = self.client.done("task_create", title=title)["id"]
        return task_id

    def stream(self, query: str = "", **headers: str) -> Listening:
        return events(self.core.url, self.token, query, **headers)

    def log(self) -> list[tuple[int, str, str]]:
        """Number, kind and entity of each of the user's events, as the database has them."""
        url = f"sqlite:///{self.core.data_dir / 'quarterdeck.db'}"
        question = "SELECT seq, kind, entity_id FROM events WHERE user_id = :user ORDER BY seq"
        return [(row[0], row[1], row[2]) for row in ask(url, question, user=self.name)]


@pytest.fixture
def user(core: Core, request: pytest.FixtureRequest) -> User:
    return User(core, f"user of {request.node.name}"[:200])


def told(frames: list[Frame]) -> list[tuple[int, str, str]]:
    """Number, kind and entity of each frame, whose fields must agree with its data."""
    for frame in frames:
        assert frame.data.keys() == FIELDS
        assert (frame.id, frame.event) == (str(frame.data["seq"]), frame.data["kind"])
    return [(frame.data["seq"], frame.data["kind"], frame.data["entity_id"]) for frame in frames]


def test_events_come_as_they_happen_and_say_who_did_what(user: User, opened: ExitStack) -> None:
    stream = opened.enter_context(user.stream())
    assert stream.status == 200
    task_id = user.task("näht")
    shown = stream.frame().data
    assert shown == {
        "seq": shown["seq"],
        "at": shown["at"],
        "kind": "task.created",
        "entity_id": task_id,
        "task_id": task_id,
        "actor": user.name,
        "tool": "all.task_create",
        "ok": True,
        "data": {"status": "pending", "title": "näht"},
    }
    assert user.client.refused("task_update", task_id=task_id, action="complete")
    assert (stream.frame().data["kind"], shown["at"][:2]) == ("call.refused", "20")


def test_everything_after_a_number_is_told_again_and_then_what_is_new(user: User, opened: ExitStack) -> None:
    for _ in range(3):
        user.task()
    stream = opened.enter_context(user.stream("?after=0"))
    past = told(stream.frames(4))
    assert past == user.log()
    assert [kind for _, kind, _ in past] == ["token.minted", *["task.created"] * 3]
    task_id = user.task()
    assert told([stream.frame()])[0][1:] == ("task.created", task_id)
    middle = opened.enter_context(user.stream(f"?after={past[1][0]}"))
    assert told(middle.frames(3)) == user.log()[2:]


def test_client_that_comes_again_goes_on_where_it_was(user: User, opened: ExitStack) -> None:
    with user.stream("?after=0") as stream:
        last = stream.frames(1)[-1].id
    assert last is not None
    made = [user.task() for _ in range(3)]
    # The header is newer than the URL, which a browser repeats as it was.
    again = opened.enter_context(user.stream("?after=0", Last_Event_ID=last))
    assert [entity for _, _, entity in told(again.frames(3))] == made


def test_client_cut_off_before_its_first_event_knows_where_it_was(user: User, opened: ExitStack) -> None:
    with user.stream() as stream:
        first = stream.first()
        assert first.data is None and first.id is not None
    task_id = user.task()
    again = opened.enter_context(user.stream(Last_Event_ID=first.id))
    assert told([again.frame()])[0][1:] == ("task.created", task_id)


def test_long_past_is_told_whole_and_in_order(user: User, opened: ExitStack) -> None:
    task_id = user.task()
    for n in range(620):  # more than a page of the log
        user.client.done("task_update", task_id=task_id, title=f"title {n}")
    stream = opened.enter_context(user.stream("?after=0"))
    assert told(stream.frames(622)) == user.log()


def test_other_users_hear_nothing_of_it(core: Core, user: User, opened: ExitStack) -> None:
    other = User(core, "somebody else")
    stream, whole = opened.enter_context(other.stream()), opened.enter_context(other.stream("?after=0"))
    user.task()
    mine = other.task()
    assert told([stream.frame()])[0][2] == mine
    assert told(whole.frames(2)) == other.log()
    assert (stream.comments, whole.comments) == (0, 0)


def test_admin_hears_everybody(core: Core, user: User, opened: ExitStack) -> None:
    stream = opened.enter_context(events(core.url, ADMIN))
    task_id = user.task()
    assert told([stream.frame()])[0][2] == task_id


def test_filters_narrow_what_is_told_past_and_new(user: User, opened: ExitStack) -> None:
    first, second = user.task(), user.task()
    kinds = opened.enter_context(user.stream("?after=0&kinds=task.updated,decision.logged"))
    of_task = opened.enter_context(user.stream(f"?after=0&task_id={second}"))
    both = opened.enter_context(user.stream(f"?after=0&task_id={first}&kinds=task.updated"))
    user.client.done("task_update", task_id=first, title="x")
    user.client.done("decision_log", context="c", decision="d", task_id=second)
    user.client.done("task_update", task_id=second, title="x")
    past = user.log()
    assert told(kinds.frames(3)) == past[3:]
    assert told(of_task.frames(3)) == [past[2], *past[4:]]
    assert told([both.frame()]) == [past[3]]


def test_bound_token_hears_its_own_task_only(core: Core, user: User, opened: ExitStack) -> None:
    own, other = user.task(), user.task()
    bound = core.minted(user_id=user.name, profile="pair_worker", task_id=own)["token"]
    stream = opened.enter_context(events(core.url, bound, "?after=0"))
    user.client.done("task_update", task_id=other, title="x")
    user.client.done("task_update", task_id=own, title="x")
    heard = told(stream.frames(2))
    assert [entity for _, _, entity in heard] == [own, own]


def test_stream_ends_with_its_token(core: Core, user: User, opened: ExitStack) -> None:
    stream = opened.enter_context(user.stream())
    assert core.request("DELETE", f"/profile/mcp/tokens/{user.minted['id']}", ADMIN).status_code == 200
    assert [frame.data for frame in stream.rest()] == [None]
    assert core.request("GET", "/events", user.token).status_code == 403


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?after=x", "after"),
        ("?after=-1", "after"),
        ("?nope=1", "nope"),
        ("?task_id=", "task_id"),
        ("?kinds=", "kinds"),
        ("?kinds=task.created,task.exploded", "kinds"),
    ],
)
def test_wrong_parameter_is_refused_by_name(core: Core, query: str, field: str) -> None:
    answer = core.request("GET", f"/events{query}", core.token)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_an_unknown_kind_is_refused_with_those_there_are(core: Core) -> None:
    refusal = core.request("GET", "/events?kinds=task.exploded", core.token).json()
    assert "task.exploded" in refusal["detail"]
    assert {"task.created", "job.finished"} <= set(refusal["hint"].split(", "))


def test_only_a_caller_gets_in_and_only_by_get(core: Core) -> None:
    assert core.request("GET", "/events").status_code == 401
    assert core.request("GET", "/events", "mcp_wrong").status_code == 403
    answer = core.request("POST", "/events", core.token)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_streams_of_one_user_are_limited_and_others_are_not(
    core: Core, user: User, opened: ExitStack
) -> None:
    streams = [opened.enter_context(user.stream()) for _ in range(100)]
    assert {stream.status for stream in streams} == {200}
    refused: Any = core.request("GET", "/events", user.token)
    assert (refused.status_code, "100" in refused.json()["detail"]) == (429, True)
    assert opened.enter_context(events(core.url, core.token)).status == 200
    task_id = user.task()
    assert {told([stream.frame()])[0][2] for stream in streams} == {task_id}


def test_streams_end_with_the_core(core: Core, opened: ExitStack) -> None:
    stream = opened.enter_context(events(core.url, core.token))
    assert stream.first().data is None
    assert core.leave() == 0
    stream.rest()
    core.start()
