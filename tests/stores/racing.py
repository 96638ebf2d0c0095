"""Lookups by several threads while the rows that they give change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from fusion import ops
from fusion.stores.table_store import TableStore

Blocks = list[tuple[np.ndarray, np.ndarray]]


def rows_of(version: float, keys: Sequence[int] | np.ndarray, dimension: int) -> Blocks:
    """Rows each element of which is the number of a version."""
    own = np.asarray(keys, np.int64)
    return [(own, np.full((len(own), dimension), version, np.float32))]


class Racers:
    """Threads that look up keys at random, and check what they get.

    Attributes:
      reported: lookups that begin now have rows of this version, or of later ones.
    """

    def __init__(
        self,
        store: TableStore,
        table: str,
        keys: np.ndarray,
        threads: int = 3,
        ignored: tuple[type[Exception], ...] = (),
    ) -> None:
        """Starts them; one half uses the op, which finds the store that is "default".

        Args:
          store: the store.
          table: whose rows `rows_of` has made; none may be of version 0.
          keys: those that are looked up.
          threads: how many threads.
          ignored: errors of lookups after which they go on.
        """
        self._ignored = ignored
        self.reported, self.lookup_count, self._ends = 0.0, 0, False
        self._errors: list[Exception] = []
        self._store, self._table, self._all = store, table, keys
        (self._dimension,) = (own.dimension for own in store.tables if own.name == table)
        calls = (self._from_python, self._from_op)
        self._threads = [
            threading.Thread(target=self._run, args=(calls[k % 2], k), daemon=True)
            for k in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Ends them, and raises what they have found."""
        self._ends = True
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        if self._errors:
            raise self._errors[0]

    def wait(self, count: int) -> None:
        """Waits for so many lookups more."""
        wanted, pause = self.lookup_count + count, threading.Event()
        while self.lookup_count < wanted and not self._errors:
            pause.wait(0.001)

    def _run(self, call: Callable[[np.ndarray], np.ndarray], seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not self._ends:
                keys = rng.choice(self._all, 200)
                oldest = self.reported
                try:
                    rows = call(keys)
                except self._ignored:
                    continue
                assert (rows == rows[:, :1]).all(), "a row is of two versions"
                assert rows.min() >= oldest, f"row of {rows.min()} after {oldest} was taken over"
                self.lookup_count += 1
        except Exception as error:
            self._errors.append(error)

    def _from_python(self, keys: np.ndarray) -> np.ndarray:
        return self._store.lookup(self._table, keys)

    def _from_op(self, keys: np.ndarray) -> np.ndarray:
        (rows,) = ops.table_store_gather([keys], tables=[self._table], dims=[self._dimension])
        return rows.numpy()


@contextmanager
def racing(
    store: TableStore,
    table: str,
    keys: np.ndarray,
    threads: int = 3,
    ignored: tuple[type[Exception], ...] = (),
) -> Iterator[Racers]:
    """A block beside which threads look up keys; each of them has done so before it ends."""
    with store.as_default():
        racers = Racers(store, table, keys, threads, ignored)
        try:
            yield racers
            racers.wait(20 * threads)
        finally:
            racers.end()
