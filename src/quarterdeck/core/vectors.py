"""The vectors of one kind of row in memory, and the exact search over them."""

import threading
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DEAD = -1  # owner code of a slot whose row was dropped or replaced
_NOBODY = 0  # owner code of a row without a user
_LEAST = 64  # slots
_SLACK = 1e-5  # more than the rounding error of a float32 product of unit vectors


class Matrix:
    """Unit vectors of one kind of row, all from one model. Any thread may call any method.

    A slot is written once and never again: a replaced row moves to a new slot and the old one dies, so a
    search multiplies without holding the lock and still never sees half a row.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._lock = threading.Lock()
        self._owner_codes: dict[str | None, int] = {None: _NOBODY}
        self._slots: dict[str, int] = {}
        self._ids: list[str] = []
        self._allocate(_LEAST)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, row_id: object) -> bool:
        return row_id in self._slots

    def put(self, row_id: str, user_id: str | None, vector: "NDArray[np.float32]") -> None:
        """Add a row or replace it. The vector has length 1; another shape or a NaN in it is a ValueError."""
        checked = self._checked(vector)
        with self._lock:
            if len(self._ids) == len(self._owners):
                self._rebuild()
            self._kill(row_id)
            slot = len(self._ids)
            self._vectors[slot] = checked
            self._owners[slot] = self._owner_codes.setdefault(user_id, len(self._owner_codes))
            self._slots[row_id] = slot
            self._ids.append(row_id)

    def drop(self, row_id: str) -> None:
        """Forget a row; one that is not there is no error."""
        with self._lock:
            self._kill(row_id)
            if len(self._ids) > max(_LEAST, 2 * len(self._slots)):
                self._rebuild()

    def search(
        self,
        query_vector: "NDArray[np.float32]",
        user_id: str | None,
        everyone: bool,
        k: int,
        allowed_ids: AbstractSet[str] | None = None,
    ) -> list[tuple[str, float]]:
        """The `k` nearest rows, best first, equal ones by id, with their cosine similarity clamped to 0–1.

        Only rows of `user_id` are seen, or all with `everyone`; rows without a user are seen by `everyone`
        alone. `allowed_ids` narrows further. The query vector has length 1.
        """
        import numpy as np

        query = self._checked(query_vector)
        with self._lock:
            # Later writes touch neither these slots nor these ids, so the rest needs no lock.
            slots = self._visible(user_id, everyone, allowed_ids)
            vectors, ids, used = self._vectors, self._ids, len(self._ids)
        k = min(k, len(slots))
        if k < 1:
            return []
        # Gathering rows copies them, which pays only for a small share of the matrix.
        scores = vectors[slots] @ query if len(slots) * 8 < used else (vectors[:used] @ query)[slots]
        nearest = np.partition(scores, -k)[-k]
        near = slots[scores >= nearest - _SLACK]
        # BLAS rounds equal rows differently by their place; these sums do not, so equal rows tie.
        exact = (vectors[near] * query).sum(axis=1)
        best = sorted(zip((-exact).tolist(), (ids[slot] for slot in near.tolist()), strict=True))[:k]
        return [(row_id, min(1.0, max(0.0, -negated))) for negated, row_id in best]

    def _visible(
        self, user_id: str | None, everyone: bool, allowed_ids: AbstractSet[str] | None
    ) -> "NDArray[np.intp]":
        import numpy as np

        owners = self._owners[: len(self._ids)]
        if everyone:
            seen = owners != _DEAD
        elif user_id is not None and user_id in self._owner_codes:
            seen = owners == self._owner_codes[user_id]
        else:
            return np.empty(0, np.intp)
        if allowed_ids is None:
            return np.flatnonzero(seen)
        known = [self._slots[row_id] for row_id in allowed_ids if row_id in self._slots]
        allowed = np.zeros_like(seen)
        allowed[known] = True
        return np.flatnonzero(seen & allowed)

    def _kill(self, row_id: str) -> None:
        slot = self._slots.pop(row_id, None)
        if slot is not None:
            self._owners[slot] = _DEAD

    def _allocate(self, slots: int) -> None:
        import numpy as np

        self._vectors: NDArray[np.float32] = np.empty((slots, self.dim), np.float32)
        self._owners: NDArray[np.int32] = np.full(slots, _DEAD, np.int32)

    def _rebuild(self) -> None:
        import numpy as np

        vectors, owners, ids = self._vectors, self._owners, self._ids
        live = np.flatnonzero(owners[: len(ids)] != _DEAD)
        self._allocate(max(_LEAST, 2 * len(live)))
        np.take(vectors, live, axis=0, out=self._vectors[: len(live)])
        self._owners[: len(live)] = owners[live]
        # A search in flight reads the old arrays and the old list: both are replaced, never changed.
        self._ids = [ids[slot] for slot in live.tolist()]
        self._slots = {row_id: slot for slot, row_id in enumerate(self._ids)}

    def _checked(self, vector: Any) -> "NDArray[np.float32]":
        import numpy as np

        checked: NDArray[np.float32] = np.asarray(vector, np.float32)
        if checked.shape != (self.dim,):
            raise ValueError(f"a vector of {self.dim} numbers is needed, got the shape {checked.shape}")
        if not np.isfinite(checked).all():
            raise ValueError("a vector of finite numbers is needed")
        return checked
