"""What belongs to one core of several on a database: the conversations that its agents keep."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quarterdeck.core import prompts, queue
from quarterdeck.core.prompts import Ask
from quarterdeck.domain.errors import Conflict
from quarterdeck.domain.records import WorkerRow
from tests.jobs import ANN, a_core
from tests.postgres import Postgres


def test_a_session_goes_on_at_the_core_that_keeps_it_and_not_while_that_is_away(
    postgres: Postgres, postgres_template: str, tmp_path: Path
) -> None:
    url = postgres.create_database(postgres_template)

    async def run() -> None:
        async with a_core(tmp_path / "a", url) as a, a_core(tmp_path / "b", url) as b:
            begun = await prompts.start(a, ANN, Ask("one", agent="claude"))
            assert begun.session is not None
            assert begun.job.place == a.place != b.place
            await a.db.tx(ANN, queue.cancel, begun.job, "over")
            again = Ask("two", session_id=begun.session_id, agent="claude")
            with pytest.raises(Conflict, match="a core that does not run"):
                await prompts.start(b, ANN, again)
            fresh = await prompts.start(b, ANN, Ask("three", agent="claude"))
            assert fresh.job.place == b.place
            await b.db.tx(ANN, queue.cancel, fresh.job, "over")
            worker = WorkerRow("w", a.place, "host", 1, ["prompt"], 1, 0, 0)
            await a.db.tx(queue.SYSTEM, queue.arrive, worker)
            gone_on = await prompts.start(b, ANN, again)
            assert gone_on.session is not None
            assert (gone_on.job.place, gone_on.session.id) == (a.place, begun.session.id)

    asyncio.run(run())
