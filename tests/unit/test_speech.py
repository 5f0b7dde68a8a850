"""What an agent says while it says it, from its run to who listens."""

from __future__ import annotations

import asyncio

from quarterdeck.core.speech import Speech

LONG = 60.0


def test_who_listens_first_hears_all_of_the_run_and_nothing_else() -> None:
    async def story() -> str:
        speech = Speech()
        speech.say("ann", "job_1", "before anybody listened ")
        with speech.listen("ann") as ear:
            speech.say("ann", "job_0", "an earlier run ")
            speech.say("bob", "job_1", "another user ")
            speech.say("ann", "job_1", "good ")
            heard = await ear.within("job_1", LONG)
            asyncio.get_running_loop().call_soon(speech.say, "ann", "job_1", "evening")
            return heard + await ear.within("job_1", LONG)

    assert asyncio.run(story()) == "good evening"


def test_two_listeners_hear_the_same_and_one_that_is_woken_hears_nothing() -> None:
    async def story() -> list[str]:
        speech = Speech()
        with speech.listen("ann") as one, speech.listen("ann") as other:
            speech.say("ann", "job_1", "hello")
            heard = [one.rest("job_1"), other.rest("job_1")]
            one.wake()
            return [*heard, await one.within("job_1", LONG), await other.within("job_1", 0.01)]

    assert asyncio.run(story()) == ["hello", "hello", "", ""]
