"""The circuit breaker, by example and against a plain model of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quarterdeck.domain.breaker import MESSAGE, TRIAL_SECONDS, Breaker
from quarterdeck.domain.errors import Unavailable


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[Breaker, Clock]:
    clock = Clock()
    breaker = Breaker(3, 100.0, 60.0, clock)
    for _ in range(3):
        breaker.failed()
    return breaker, clock


def passes(breaker: Breaker) -> bool:
    try:
        breaker.enter()
    except Unavailable:
        return False
    return True


def state(breaker: Breaker) -> str:
    return breaker.state


def test_calls_pass_until_the_threshold_is_reached() -> None:
    breaker = Breaker(5, 120.0, 60.0, Clock())
    for _ in range(4):
        assert passes(breaker)
        breaker.failed()
        assert state(breaker) == "closed"
    breaker.failed()
    assert state(breaker) == "open"
    assert not passes(breaker)


def test_a_refusal_says_what_the_document_says_and_when_to_come_back() -> None:
    breaker, clock = opened()
    clock.now += 0.5
    with pytest.raises(Unavailable) as refusal:
        breaker.enter()
    assert (refusal.value.message, refusal.value.code) == (MESSAGE, "service_unavailable")
    assert MESSAGE == "Agentic service temporarily unavailable"
    assert refusal.value.data == {"retry_after": 60}


def test_failures_older_than_the_window_do_not_count() -> None:
    clock = Clock()
    breaker = Breaker(3, 100.0, 60.0, clock)
    breaker.failed()
    breaker.failed()
    clock.now += 100
    breaker.failed()
    assert state(breaker) == "closed"
    clock.now += 99
    breaker.failed()
    breaker.failed()
    assert state(breaker) == "open"


def test_a_success_makes_one_failure_good() -> None:
    breaker = Breaker(3, 100.0, 60.0, Clock())
    for _ in range(50):
        breaker.failed()
        breaker.succeeded()
    breaker.failed()
    breaker.failed()
    assert state(breaker) == "closed"
    breaker.failed()
    assert state(breaker) == "open"


def test_after_the_reset_one_trial_passes_and_its_success_closes() -> None:
    breaker, clock = opened()
    clock.now += 60
    assert state(breaker) == "half_open"
    assert passes(breaker)
    assert not passes(breaker)
    breaker.succeeded()
    assert state(breaker) == "closed"
    assert passes(breaker)
    breaker.failed()
    breaker.failed()
    assert state(breaker) == "closed", "the failures before the opening are forgotten"


def test_a_failed_trial_opens_for_the_whole_reset_again() -> None:
    breaker, clock = opened()
    clock.now += 60
    assert passes(breaker)
    breaker.failed()
    clock.now += 59
    assert state(breaker) == "open"
    assert not passes(breaker)
    clock.now += 1
    assert passes(breaker)


def test_a_trial_of_which_nothing_is_heard_gives_way() -> None:
    breaker, clock = opened()
    clock.now += 60
    assert passes(breaker)
    clock.now += TRIAL_SECONDS - 1
    assert not passes(breaker)
    clock.now += 1
    assert passes(breaker)


def test_a_check_refuses_like_a_call_but_is_no_trial() -> None:
    breaker, clock = opened()
    with pytest.raises(Unavailable):
        breaker.check()
    clock.now += 60
    breaker.check()
    assert passes(breaker)
    with pytest.raises(Unavailable):
        breaker.check()


def test_a_call_from_before_the_opening_neither_closes_nor_prolongs() -> None:
    breaker, clock = opened()
    clock.now += 30
    breaker.succeeded()
    breaker.failed()
    assert state(breaker) == "open"
    clock.now += 30
    assert state(breaker) == "half_open"


def test_a_health_check_closes_it_before_its_time() -> None:
    breaker, _ = opened()
    breaker.reset()
    assert state(breaker) == "closed"
    assert passes(breaker)


def test_among_many_threads_one_is_the_trial() -> None:
    breaker, clock = opened()
    clock.now += 60
    together = threading.Barrier(8)

    def call() -> bool:
        together.wait()
        return passes(breaker)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: call(), range(8))) == 1


class Machine(RuleBasedStateMachine):
    """Steps of whole seconds, so that a list of times says exactly what should happen."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(3, 20.0, 10.0, self.clock)
        self.failures: list[float] = []
        self.opened: float | None = None
        self.trial: float | None = None

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def enter(self) -> None:
        now = self.clock.now
        allowed = self.opened is None or (
            now >= self.opened + 10 and (self.trial is None or now >= self.trial + TRIAL_SECONDS)
        )
        assert passes(self.breaker) == allowed
        if allowed and self.opened is not None:
            self.trial = now

    @rule()
    @precondition(lambda self: self.opened is None)
    def fail_closed(self) -> None:
        self.breaker.failed()
        self.failures = [at for at in self.failures if at > self.clock.now - 20] + [self.clock.now]
        if len(self.failures) >= 3:
            self.opened, self.failures = self.clock.now, []

    @rule()
    @precondition(lambda self: self.opened is None)
    def succeed_closed(self) -> None:
        self.breaker.succeeded()
        self.failures = self.failures[1:]

    @rule()
    @precondition(lambda self: self.opened is not None)
    def fail_open(self) -> None:
        self.breaker.failed()
        if self.trial is not None:
            self.opened, self.trial = self.clock.now, None

    @rule()
    @precondition(lambda self: self.opened is not None)
    def succeed_open(self) -> None:
        self.breaker.succeeded()
        if self.trial is not None:
            self.opened, self.trial, self.failures = None, None, []

    @invariant()
    def state_is_as_expected(self) -> None:
        if self.opened is None:
            expected = "closed"
        else:
            expected = "half_open" if self.clock.now >= self.opened + 10 else "open"
        assert self.breaker.state == expected


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAgainstAModel = Machine.TestCase
