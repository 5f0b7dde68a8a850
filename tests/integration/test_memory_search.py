"""Finding decisions and patterns again: in this process, in PostgreSQL with pgvector, and without a model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from quarterdeck.config import DatabaseSettings, SearchSettings, Settings
from quarterdeck.core import embedding, life, memory
from quarterdeck.core.context import Core
from quarterdeck.core.memory_index import InDatabase, InProcess
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.records import Decision, Pattern
from quarterdeck.store import memory as rows
from quarterdeck.store import pgvector
from quarterdeck.store.tx import Tx
from tests.postgres import SUPERUSER, Postgres
from tests.store import ANN, BOB, ask, opened, until

ADMIN = Caller(None, "maintainer", everyone=True)


def create_extension(server: Postgres, url: str) -> None:
    """As an administrator does: the role of the core may not."""
    with psycopg.connect(
        host=str(server.directory), port=server.port, user=SUPERUSER, dbname=url.rsplit("/", 1)[1]
    ) as connection:
        connection.execute("create extension vector")


@pytest.fixture
def postgres_url(postgres: Postgres, postgres_template: str) -> Iterator[str]:
    url = postgres.create_database(postgres_template)
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres", "pgvector"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'quarterdeck.db'}"
    made: str = request.getfixturevalue("postgres_url")
    if request.param == "pgvector":
        create_extension(request.getfixturevalue("postgres"), made)
    return made


@contextlib.asynccontextmanager
async def core_on(url: str, provider: Literal["local", "off"] = "local") -> AsyncIterator[Core]:
    database, search = DatabaseSettings(url=SecretStr(url)), SearchSettings(provider=provider)
    async with life.opened(Settings(database=database, search=search), Path()) as core:
        await until(lambda: core.memory.state != "loading")
        assert core.memory.state == ("semantic" if provider == "local" else "fallback")
        yield core


async def embedded(core: Core, work: Awaitable[Any]) -> None:
    """Do something, and wait until every row it left is embedded."""
    with core.bus.listen("decision.logged", "pattern.stored", "memory.embedded") as listener:
        waiting = set[str]()
        done = asyncio.ensure_future(work)
        while waiting or not done.done():
            for event in await asyncio.wait_for(listener.wait(), 60):
                if event.kind == "memory.embedded":
                    waiting.difference_update(event.data["ids"])
                else:
                    waiting.add(str(event.entity_id))
        await done


async def log(core: Core, *decisions: tuple[str, str], tags: tuple[str, ...] = (), who: Caller = ANN) -> None:
    for context, decision in decisions:
        await memory.log_decision(core, who, context=context, decision=decision, tags=tags)


def contexts(found: list[tuple[Decision, float | None]]) -> list[str]:
    return [decision.context for decision, _ in found]


def is_sorted_similarity(found: list[tuple[Any, float | None]]) -> bool:
    given = [similarity for _, similarity in found if similarity is not None]
    return given == sorted(given, reverse=True) and all(0.0 <= similarity <= 1.0 for similarity in given)


def in_the_database(url: str) -> int | None:
    """How many rows pgvector holds, None where it holds none at all."""
    if url.startswith("sqlite") or ask(url, "select to_regclass('embedding_vectors')") == [(None,)]:
        return None
    count: int = ask(url, "select count(*) from embedding_vectors")[0][0]
    return count


SEVERAL = [
    ("Payment calls fail now and then", "Retry five times with exponential back-off and jitter"),
    ("The pool of database connections runs dry", "Put pgbouncer in front, in transaction mode"),
    ("Where to keep the pictures that people upload", "In object storage, not in a table"),
    ("Two people edit one customer's basket", "Lock the cart row during checkout"),
]
# All alike, so that meaning alone does not tell them apart.
ADVISORIES = [
    (f"CVE-2024-{number:04} in OpenSSL", "Upgrade the base image") for number in range(700, 760, 2)
] + [("CVE-2024-0727 in OpenSSL", "Upgrade the base image")]


def test_search_picks_by_meaning_by_all_words_and_by_identifier(
    url: str, request: pytest.FixtureRequest
) -> None:
    async def run() -> None:
        async with core_on(url) as core:
            await embedded(core, log(core, *SEVERAL, *ADVISORIES))

            async def first(query: str) -> str:
                [(decision, similarity)] = await memory.search_decisions(core, ANN, query, limit=1)
                assert similarity is not None
                return decision.context

            assert await first("how long do we wait before we ask a broken service again?") == SEVERAL[0][0]
            assert await first("simultaneous changes to a shopping cart") == SEVERAL[3][0]
            assert await first("pgbouncer mode") == SEVERAL[1][0]
            assert await first("CVE-2024-0727") == "CVE-2024-0727 in OpenSSL"
            assert await first("are we affected by cve-2024-0727?") == "CVE-2024-0727 in OpenSSL"
            found = await memory.search_decisions(core, ANN, "storing images", limit=50)
            assert len(found) == len(SEVERAL) + len(ADVISORIES)
            assert found[0][0].context == SEVERAL[2][0]
            assert is_sorted_similarity(found)
            assert len(await memory.search_decisions(core, ANN, "storing images", limit=3)) == 3
        count = len(SEVERAL) + len(ADVISORIES)
        assert in_the_database(url) == (count if "pgvector" in request.node.name else None)
        assert ask(url, "select count(*) from embeddings") == [(count,)]

    asyncio.run(run())


def test_tags_overlap_and_users_see_their_own(url: str) -> None:
    async def run() -> None:
        async with core_on(url) as core:
            await embedded(core, log(core, SEVERAL[0], tags=("payments", "http")))
            await embedded(core, log(core, SEVERAL[1], tags=("database",)))
            await embedded(core, log(core, SEVERAL[2]))
            await embedded(core, log(core, SEVERAL[3], tags=("database",), who=BOB))
            await embedded(core, log(core, ("Nobody's", "pictures"), who=ADMIN))

            async def found(who: Caller, *tags: str) -> set[str]:
                result = await memory.search_decisions(core, who, "pictures", limit=50, tags=tags)
                assert is_sorted_similarity(result)
                assert all(similarity is not None for _, similarity in result)
                return set(contexts(result))

            assert await found(ANN) == {SEVERAL[0][0], SEVERAL[1][0], SEVERAL[2][0]}
            assert await found(ANN, "http", "nothing") == {SEVERAL[0][0]}
            assert await found(ANN, "database", "payments") == {SEVERAL[0][0], SEVERAL[1][0]}
            assert await found(ANN, "nothing") == set()
            assert await found(BOB) == {SEVERAL[3][0]}
            assert await found(BOB, "http") == set()
            assert await found(Caller("cyd", "maintainer")) == set()
            assert await found(Caller(None, "maintainer")) == set()
            assert len(await found(ADMIN)) == 5
            assert await found(ADMIN, "database") == {SEVERAL[1][0], SEVERAL[3][0]}

    asyncio.run(run())


def test_patterns_are_found_by_meaning_among_ones_own(url: str) -> None:
    async def store(core: Core, who: Caller, name: str, description: str | None = None) -> None:
        await memory.store_pattern(
            core, who, name=name, description=description, trigger_conditions={}, actions={}
        )

    async def run() -> None:
        async with core_on(url) as core:
            await embedded(core, store(core, ANN, "Flaky tests", "Run a failing test again three times"))
            await embedded(core, store(core, ANN, "Roll out slowly", "Release to one customer in ten first"))
            await embedded(core, store(core, BOB, "Gradual deployment"))
            found = await memory.match_patterns(core, ANN, "a gradual deployment of the new version")
            assert [pattern.name for pattern, _ in found] == ["Roll out slowly", "Flaky tests"]
            assert is_sorted_similarity(found)
            assert [pattern.name for pattern, _ in await memory.match_patterns(core, BOB, "tests")] == [
                "Gradual deployment"
            ]

    asyncio.run(run())


def test_a_decision_is_found_by_meaning_as_soon_as_it_is_said_to_be_embedded(url: str) -> None:
    async def run() -> None:
        async with core_on(url) as core:
            for number in range(10):
                with core.bus.listen("memory.embedded") as listener:
                    logged = await memory.log_decision(
                        core, ANN, context=f"Number {number}", decision="Whatever"
                    )
                    [event] = await asyncio.wait_for(listener.wait(), 60)
                    assert event.data["ids"] == [logged.id]
                found = await memory.search_decisions(core, ANN, "how many", limit=50)
                assert logged.id in {row.id for row, similarity in found if similarity is not None}

    asyncio.run(run())


def test_what_was_logged_without_a_model_is_embedded_at_the_next_start(url: str) -> None:
    async def run() -> None:
        async with core_on(url, "off") as core:
            await log(core, *SEVERAL)
            await memory.store_pattern(core, ANN, name="n", trigger_conditions={}, actions={})
        assert ask(url, "select count(*) from embeddings") == [(0,)]
        for _ in range(2):
            async with core_on(url) as core:
                found = await memory.search_decisions(core, ANN, "shopping cart")
                assert contexts(found)[0] == SEVERAL[3][0]
                assert len(found) == len(SEVERAL)
                assert all(similarity is not None for _, similarity in found)
        assert ask(url, "select count(*) from embeddings") == [(len(SEVERAL) + 1,)]
        assert ask(url, "select count(*) from events where kind = 'memory.embedded'") == [(2,)]

    asyncio.run(run())


@pytest.mark.parametrize("extension", ["never", "before", "between"])
def test_what_one_core_embeds_the_other_finds(
    postgres: Postgres, postgres_url: str, extension: Literal["never", "before", "between"]
) -> None:
    async def run() -> None:
        async with contextlib.AsyncExitStack() as cores:
            if extension == "before":
                create_extension(postgres, postgres_url)
            one = await cores.enter_async_context(core_on(postgres_url))
            await embedded(one, log(one, SEVERAL[0]))
            if extension == "between":
                create_extension(postgres, postgres_url)
            two = await cores.enter_async_context(core_on(postgres_url))
            for writer, decision in ((one, SEVERAL[1]), (two, SEVERAL[2]), (one, SEVERAL[3])):
                await log(writer, decision)
            for core in (one, two):

                async def all_by_meaning(core: Core = core) -> bool:
                    found = await memory.search_decisions(core, ANN, "shopping cart", limit=9)
                    return len([similarity for _, similarity in found if similarity is not None]) == 4

                await until(all_by_meaning)
                assert contexts(await memory.search_decisions(core, ANN, "shopping cart"))[0] == SEVERAL[3][0]
        expected = None if extension == "never" else 4
        assert in_the_database(postgres_url) == expected

    asyncio.run(run())


def test_a_row_that_another_core_embedded_first_is_taken_in(url: str) -> None:
    model = embedding.load("local", openai_key=None, openai_base_url="")

    def as_a_faster_core(tx: Tx, row_id: str) -> None:
        decision = Decision(row_id, "ann", None, *SEVERAL[3], None, None, [], tx.now)
        rows.add_decision(tx, decision)
        vector = model.embed([rows.decision_text(decision)])[0].tobytes()
        rows.put_vectors(tx, model.model, [rows.Vector("decision", row_id, "ann", vector)])

    async def run() -> None:
        async with core_on(url) as core:
            await embedded(core, log(core, SEVERAL[0]))
            await core.db.tx(SYSTEM, as_a_faster_core, "row")

            async def found() -> bool:
                [(first, similarity), *_] = await memory.search_decisions(core, ANN, "shopping cart")
                return first.id == "row" and similarity is not None

            await until(found)
        assert ask(url, "select count(*) from events where kind = 'memory.embedded'") == [(2,)]

    asyncio.run(run())


def test_both_ways_to_search_agree(postgres: Postgres, postgres_url: str) -> None:
    create_extension(postgres, postgres_url)
    random = np.random.default_rng(5)
    drawn = random.standard_normal((400, 16)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    drawn[-1] = -drawn[0]
    owners = [("ann", "bob", None)[number % 3] if number % 50 else "rare" for number in range(400)]
    vectors = [
        rows.Vector("decision", f"{number:04}", owner, vector.tobytes())
        for number, (owner, vector) in enumerate(zip(owners, drawn, strict=True))
    ]

    def fill(tx: Tx) -> None:
        for vector in vectors:
            rows.add_decision(tx, Decision(vector.row_id, vector.user_id, None, "c", "d", None, None, [], 1))

    async def run() -> None:
        async with opened(postgres_url) as db:
            assert await db.tx(SYSTEM, pgvector.prepare)
            await db.tx(SYSTEM, fill)
            here, there = InProcess(db, "it's", 16), InDatabase(db, "it's", 16)
            await here.put(vectors[:200])
            await there.catch_up()
            await there.put(vectors[200:])
            await here.catch_up()
            some = {f"{number:04}" for number in range(0, 400, 7)}
            for who in (ANN, BOB, ADMIN, Caller("rare", "viewer"), Caller("cyd", "viewer")):
                for query in drawn[:5]:
                    for k, allowed in ((1, None), (60, None), (9, some), (9, {"0003"})):
                        exact = await here.search(who, "decision", query, k, allowed)
                        found = await there.search(who, "decision", query, k, allowed)
                        assert [row_id for row_id, _ in found] == [row_id for row_id, _ in exact]
                        scores = [score for _, score in found]
                        np.testing.assert_allclose(scores, [score for _, score in exact], atol=1e-5)
            assert await there.search(ADMIN, "pattern", drawn[0], 9, None) == []
            assert (await there.search(ADMIN, "decision", drawn[0], 400, None))[-1][1] == 0.0

    asyncio.run(run())


def test_the_database_answers_from_its_index(postgres: Postgres, postgres_url: str) -> None:
    create_extension(postgres, postgres_url)
    query = np.ones(8, np.float32)

    def search_often(tx: Tx) -> None:
        for setting in ("enable_seqscan = off", "enable_sort = off", "plan_cache_mode = force_generic_plan"):
            tx.conn.execute(text(f"set local {setting}"))
        # The driver prepares a statement that it sees often.
        for _ in range(20):
            pgvector.nearest(tx, "decision", "m", query.tolist(), 5, None)

    async def run() -> None:
        async with opened(postgres_url) as db:
            assert await db.tx(SYSTEM, pgvector.prepare)
            await InDatabase(db, "m", 8).catch_up()
            await db.read(ADMIN, search_often)
        used = "select idx_scan from pg_stat_user_indexes where indexrelname = :name"
        # A server process counts when it ends.
        await until(lambda: ask(postgres_url, used, name="ix_embedding_vectors_decision_m") == [(20,)])

    asyncio.run(run())


def test_without_a_model_decisions_are_found_by_substring_newest_first(database_url: str) -> None:
    async def run() -> None:
        async with core_on(database_url, "off") as core:
            await log(core, ("Rate of 100% reached", "none"), ("Rate of 100 reached", "snake_case"))
            await log(core, ("ÜBER alles", "100%"), tags=("x", "y"))
            await log(core, ("snakeXcase", "back\\slash"), tags=("y",))
            await log(core, ("Rate of bob", "100%"), who=BOB)

            async def found(query: str, *tags: str, limit: int = 10) -> list[str]:
                result = await memory.search_decisions(core, ANN, query, limit=limit, tags=tags)
                assert all(similarity is None for _, similarity in result)
                return contexts(result)

            assert await found("rate OF") == ["Rate of 100 reached", "Rate of 100% reached"]
            assert await found("100%") == ["ÜBER alles", "Rate of 100% reached"]
            assert await found("snake_case") == ["Rate of 100 reached"]
            assert await found("über") == ["ÜBER alles"]
            assert await found("back\\") == ["snakeXcase"]
            assert await found("of_100") == []
            assert await found("reached rate") == []
            assert await found("e" * 60_000) == []
            assert (await found(""))[:3] == ["snakeXcase", "ÜBER alles", "Rate of 100 reached"]
            assert await found("", limit=1) == ["snakeXcase"]
            assert await found("e", "x", "z") == ["ÜBER alles"]
            assert await found("e", "y") == ["snakeXcase", "ÜBER alles"]

    asyncio.run(run())


def test_without_a_model_patterns_come_by_success_rate_and_then_by_use(database_url: str) -> None:
    async def run() -> None:
        async with core_on(database_url, "off") as core:
            made: dict[str, Pattern] = {}
            for name, description in (("a", "Deploy"), ("b", None), ("c deploy", ""), ("d", "DEPLOY_x")):
                made[name] = await memory.store_pattern(
                    core, ANN, name=name, description=description, trigger_conditions={}, actions={}
                )
            for name, uses in (("a", [True, False]), ("c deploy", [True]), ("d", [True, True])):
                for success in uses:
                    await memory.record_use(core, ANN, made[name].id, success=success)
            await memory.store_pattern(core, BOB, name="deploy", trigger_conditions={}, actions={})

            async def found(situation: str, limit: int = 10) -> list[str]:
                result = await memory.match_patterns(core, ANN, situation, limit=limit)
                assert all(similarity is None for _, similarity in result)
                return [pattern.name for pattern, _ in result]

            assert await found("deploy") == ["d", "c deploy", "a"]
            assert await found("deploy", limit=1) == ["d"]
            assert await found("deploy_") == ["d"]
            assert await found("b") == ["b"]

    asyncio.run(run())
