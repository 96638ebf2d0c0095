"""The open stores of this process: their names, requests of ops, and forks."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from fusion.ops.stores import store_names
from fusion.ops.stores.cpu_kernels.layout import Waiting, WaitingTable
from fusion.runtime.process import single
from fusion.runtime.upcalls.service import Request, upcalls
from fusion.stores.tier import Keys, Rows, TierError

#: Nanoseconds without Python's lock after which an op gives up that waits for rows.
PATIENCE_NS = 20_000_000_000

#: Of TensorFlow's errors.
_FAILED_PRECONDITION, _INTERNAL, _UNAVAILABLE = 9, 13, 14


class Store(Protocol):
    """The interface of a store."""

    def rows_of(self, wanted: Sequence[tuple[int, Keys]]) -> list[Rows]:
        """The rows of keys of tables, by the numbers of these."""

    def forget(self) -> None:
        """Closes it in the child of a fork, which has none of its threads."""


class OpenStores:
    """The stores of a process, and the server of ops that wait for rows."""

    def __init__(self) -> None:
        self.server = upcalls().add(self)
        self._stores: dict[int, Store] = {}
        self._requests = Counter[int]()  # under way, of each store
        self._changing = threading.Condition()
        os.register_at_fork(after_in_child=self._forget_all)

    def add(self, record: int, store: Store) -> None:
        """Adds a store by the address of its record; it lives until it is removed."""
        with self._changing:
            self._stores[record] = store

    def remove(self, record: int) -> None:
        """Removes a store and its names, and waits until its requests are over.

        That may be when all its lookups are over: an op may have given up waiting for an answer.
        """
        store_names.names().clear(record)
        with self._changing:
            self._stores.pop(record, None)
            self._changing.wait_for(lambda: not self._requests[record])
            del self._requests[record]

    def serve(self, request: Request) -> None:
        """Answers an op with the rows that it waits for."""
        try:
            words = np.frombuffer(request.input(), np.int64)
            with self._in_use(int(words[Waiting.store])) as store:
                if store is None:
                    request.answer(b"the table store was closed\0", _FAILED_PRECONDITION)
                    return
                rows = store.rows_of(_wanted(words))
            request.answer(b"".join(one.tobytes() for one in rows))
        except TierError as error:
            request.answer(_text(f"{error}"), _UNAVAILABLE)
        except BaseException as error:  # nothing may be raised into C
            request.answer(_text(f"{type(error).__name__}: {error}"), _INTERNAL)

    @contextmanager
    def _in_use(self, record: int) -> Iterator[Store | None]:
        """A block in which the store at a record stays open; None if it is closed."""
        with self._changing:
            store = self._stores.get(record)
            if store is not None:
                self._requests[record] += 1
        try:
            yield store
        finally:
            if store is not None:
                with self._changing:
                    self._requests[record] -= 1
                    self._changing.notify_all()

    def too_late(self) -> None:
        """The op has failed already."""

    def _forget_all(self) -> None:
        self._changing = threading.Condition()
        self._requests.clear()
        store_names.names().renew_lock()
        for record, store in self._stores.items():
            store_names.names().clear(record)
            store.forget()
        self._stores.clear()


def _text(message: str) -> bytes:
    """A C string; a name of a file may have characters that cannot be encoded."""
    return message.encode(errors="replace") + b"\0"


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
