"""The matrix against a plain dictionary that is searched by hand."""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray

from quarterdeck.core.vectors import Matrix

Vector = NDArray[np.float32]
Rows = dict[str, tuple[str | None, Vector]]


def units(count: int, dim: int, seed: int = 7) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).standard_normal((count, dim))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn.astype(np.float32)


def by_hand(
    rows: Rows, query: Vector, sees: Callable[[str, str | None], bool], k: int
) -> list[tuple[str, float]]:
    exact = query.astype(np.float64)
    scored = [
        (round(float(vector.astype(np.float64) @ exact), 9), row_id)
        for row_id, (user_id, vector) in rows.items()
        if sees(row_id, user_id)
    ]
    nearest = sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:k]
    return [(row_id, min(1.0, max(0.0, score))) for score, row_id in nearest]


def agree(found: list[tuple[str, float]], expected: list[tuple[str, float]]) -> None:
    assert [row_id for row_id, _ in found] == [row_id for row_id, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-5)
    assert all(isinstance(score, float) and 0.0 <= score <= 1.0 for _, score in found)


# Few vectors, so that rows often tie; few ids, so that they are often replaced.
POOL = units(12, 8)
ids = st.integers(0, 150).map(lambda number: f"row-{number}")
users = st.sampled_from([None, "ann", "bob", "cyd"])
vectors = st.integers(0, len(POOL) - 1).map(lambda number: POOL[number])


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = Matrix(8)
        self.rows: Rows = {}

    @rule(row_id=ids, user_id=users, vector=vectors)
    def put(self, row_id: str, user_id: str | None, vector: Vector) -> None:
        self.matrix.put(row_id, user_id, vector)
        self.rows[row_id] = (user_id, vector)

    @rule(start=st.integers(0, 150), count=st.integers(1, 100), user_id=users, vector=vectors)
    def put_many(self, start: int, count: int, user_id: str | None, vector: Vector) -> None:
        for number in range(start, start + count):
            self.put(f"row-{number % 151}", user_id, vector)

    @rule(row_id=ids)
    def drop(self, row_id: str) -> None:
        self.matrix.drop(row_id)
        self.rows.pop(row_id, None)

    @rule(start=st.integers(0, 150), count=st.integers(1, 100))
    def drop_many(self, start: int, count: int) -> None:
        for number in range(start, start + count):
            self.drop(f"row-{number % 151}")

    @rule(query=vectors, user_id=users, k=st.integers(0, 200))
    def search_as_one_user(self, query: Vector, user_id: str | None, k: int) -> None:
        expected = by_hand(self.rows, query, lambda _, owner: owner is not None and owner == user_id, k)
        agree(self.matrix.search(query, user_id, False, k), expected)

    @rule(query=vectors, user_id=users, k=st.integers(0, 200))
    def search_as_everyone(self, query: Vector, user_id: str | None, k: int) -> None:
        agree(self.matrix.search(query, user_id, True, k), by_hand(self.rows, query, lambda *_: True, k))

    @rule(query=vectors, user_id=users, everyone=st.booleans(), allowed=st.sets(ids), k=st.integers(0, 20))
    def search_among_some(
        self, query: Vector, user_id: str | None, everyone: bool, allowed: set[str], k: int
    ) -> None:
        def sees(row_id: str, owner: str | None) -> bool:
            return row_id in allowed and (everyone or (owner is not None and owner == user_id))

        agree(self.matrix.search(query, user_id, everyone, k, allowed), by_hand(self.rows, query, sees, k))

    @invariant()
    def holds_the_same_rows(self) -> None:
        assert len(self.matrix) == len(self.rows)
        assert all(row_id in self.matrix for row_id in self.rows)
        assert "row-999" not in self.matrix


def test_any_history_agrees_with_a_search_by_hand() -> None:
    often = settings(max_examples=40, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(AnyHistory, settings=often)


def test_thousands_of_rows_agree_with_a_search_by_hand() -> None:
    drawn = random.Random(3)
    pool = units(3_000, 384)
    matrix, rows = Matrix(384), Rows()
    for step, vector in enumerate(pool):
        row_id, user_id = f"row-{drawn.randrange(1_500)}", drawn.choice(["ann", "bob", None])
        matrix.put(row_id, user_id, vector)
        rows[row_id] = (user_id, vector)
        if step % 3 == 0 and rows:
            gone = drawn.choice(sorted(rows))
            matrix.drop(gone)
            del rows[gone]
    for query in units(5, 384, seed=11):
        agree(matrix.search(query, None, True, 50), by_hand(rows, query, lambda *_: True, 50))
        agree(matrix.search(query, "ann", False, 50), by_hand(rows, query, lambda _, user: user == "ann", 50))


def test_rows_without_a_user_are_seen_by_everyone_only() -> None:
    matrix = Matrix(8)
    matrix.put("system", None, POOL[0])
    matrix.put("hers", "ann", POOL[1])
    assert [row_id for row_id, _ in matrix.search(POOL[0], "ann", False, 9)] == ["hers"]
    assert matrix.search(POOL[0], None, False, 9) == []
    assert matrix.search(POOL[0], "stranger", False, 9) == []
    assert {row_id for row_id, _ in matrix.search(POOL[0], None, True, 9)} == {"system", "hers"}


def test_a_row_that_changes_hands_leaves_its_old_owner() -> None:
    matrix = Matrix(8)
    matrix.put("row", "ann", POOL[0])
    matrix.put("row", "bob", POOL[1])
    assert matrix.search(POOL[1], "ann", False, 9) == []
    agree(matrix.search(POOL[1], "bob", False, 9), [("row", 1.0)])


def test_an_empty_matrix_finds_nothing() -> None:
    assert Matrix(8).search(POOL[0], None, True, 10) == []
    assert Matrix(8).search(POOL[0], None, True, 10, {"row"}) == []


def test_equal_rows_come_in_the_order_of_their_ids() -> None:
    names = [f"row-{number:04}" for number in range(1_003)]
    vector, query = units(2, 384)
    for seed in range(5):
        matrix = Matrix(384)
        for name in random.Random(seed).sample(names, len(names)):
            matrix.put(name, "ann", vector)
        assert [row_id for row_id, _ in matrix.search(query, "ann", False, 20)] == names[:20]


def test_opposite_vectors_have_similarity_zero() -> None:
    matrix = Matrix(8)
    matrix.put("row", None, POOL[0])
    assert matrix.search(-POOL[0], None, True, 1) == [("row", 0.0)]


def test_dropping_most_rows_gives_their_memory_back() -> None:
    matrix = Matrix(8)
    for number in range(10_000):
        matrix.put(f"row-{number}", "ann", POOL[0])
    for number in range(9_990):
        matrix.drop(f"row-{number}")
    assert len(matrix) == 10
    assert matrix._vectors.shape[0] < 200
    assert len(matrix.search(POOL[0], "ann", False, 99)) == 10


@pytest.mark.parametrize("vector", [[1.0], [[1.0] * 8], [float("nan")] * 8, [float("inf")] * 8])
def test_a_vector_of_another_shape_or_not_finite_is_refused(vector: Any) -> None:
    matrix = Matrix(8)
    with pytest.raises(ValueError, match="vector"):
        matrix.put("row", "ann", np.array(vector, np.float32))
    with pytest.raises(ValueError, match="vector"):
        matrix.search(np.array(vector, np.float32), "ann", False, 1)
    assert len(matrix) == 0


def test_searches_never_see_a_row_half_written() -> None:
    """One writer replaces, adds and drops; each id always has the axis of its number."""
    dim, axes = 16, np.eye(16, dtype=np.float32)
    matrix = Matrix(dim)
    lasting = {axis: {f"{number}" for number in range(axis, 64, dim)} for axis in range(dim)}
    for number in range(64):
        matrix.put(f"{number}", "ann", axes[number % dim])
    stop, wrong = threading.Event(), list[str]()

    def read(seed: int) -> None:
        drawn = random.Random(seed)
        while not stop.is_set():
            axis = drawn.randrange(dim)
            found = matrix.search(axes[axis], "ann", False, 10_000)
            near = {row_id for row_id, score in found if score == 1.0}
            if not lasting[axis] <= near:
                wrong.append(f"lost {lasting[axis] - near}")
            wrong.extend(row_id for row_id in near if int(row_id) % dim != axis)
            if len(found) != len(dict(found)):
                wrong.append("one row twice")

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    try:
        drawn = random.Random(0)
        for _ in range(15_000):
            number = drawn.randrange(600)
            if number >= 64 and drawn.random() < 0.5:
                matrix.drop(f"{number}")
            else:
                matrix.put(f"{number}", "ann", axes[number % dim])
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []
