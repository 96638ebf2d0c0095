"""The stores that are open in this process: their names, what ops ask of them, and forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fusion.cpu_ops.hot_rows.layout import Waiting, WaitingTable
from fusion.ops.tables import store_names
from fusion.runtime.process import single
from fusion.runtime.upcalls.service import Request, upcalls
from fusion.stores.tier import Keys, Rows, TierError

#: Nanoseconds without Python's lock after which an op gives up that waits for rows.
PATIENCE_NS = 20_000_000_000

#: Of TensorFlow's errors.
_FAILED_PRECONDITION, _INTERNAL, _UNAVAILABLE = 9, 13, 14


class Store(Protocol):
    """What is asked of a store."""

    def rows_of(self, wanted: Sequence[tuple[int, Keys]]) -> list[Rows]:
        """The rows of keys of tables, by the numbers of these."""

    def forget(self) -> None:
        """Closes it in the child of a fork, which has none of its threads."""


class OpenStores:
    """The stores of a process, and the server of ops that wait for rows."""

    def __init__(self) -> None:
        self.server = upcalls().add(self)
        self._stores: dict[int, Store] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget_all)

    def add(self, record: int, store: Store) -> None:
        """Adds a store by the address of its record; it lives until it is removed."""
        with self._lock:
            self._stores[record] = store

    def remove(self, record: int) -> None:
        """Removes a store, and its names."""
        store_names.names().clear(record)
        with self._lock:
            self._stores.pop(record, None)

    def serve(self, request: Request) -> None:
        """Answers an op with the rows that it waits for."""
        try:
            words = np.frombuffer(request.input(), np.int64)
            store = self._stores.get(int(words[Waiting.store]))
            if store is None:
                request.answer(b"the table store was closed\0", _FAILED_PRECONDITION)
                return
            rows = store.rows_of(list(_wanted(words)))
            request.answer(b"".join(one.tobytes() for one in rows))
        except TierError as error:
            request.answer(f"{error}".encode() + b"\0", _UNAVAILABLE)
        except BaseException as error:  # nothing may be raised into C
            request.answer(f"{type(error).__name__}: {error}".encode() + b"\0", _INTERNAL)

    def too_late(self) -> None:
        """The op has failed already."""

    def _forget_all(self) -> None:
        self._lock = threading.Lock()
        store_names.names().renew_lock()
        for record, store in self._stores.items():
            store_names.names().clear(record)
            store.forget()
        self._stores.clear()


def _wanted(words: np.ndarray) -> list[tuple[int, Keys]]:
    """The keys of each table that an op waits for, by its number."""
    count = int(words[Waiting.table_count])
    first = Waiting.tables
    heads = words[first : first + count * WaitingTable.SIZE].reshape(count, WaitingTable.SIZE)
    keys = words[first + count * WaitingTable.SIZE :]
    ends = np.cumsum(heads[:, WaitingTable.key_count])[:-1]
    numbers = heads[:, WaitingTable.number].tolist()
    return list(zip(numbers, np.split(keys, ends), strict=True))


def open_stores() -> OpenStores:
    """Those of this process."""
    return single("open table stores", OpenStores)
