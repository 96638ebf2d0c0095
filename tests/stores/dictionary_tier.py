"""A tier in a dictionary, which tests slow down, break and look at."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

import numpy as np

from fusion.stores.tier import Block, HitMask, Keys, Rows, TableDescription, TierError


class DictionaryTier:
    """Rows in dictionaries.

    Attributes:
      requests: (table, keys) of each request, in order.
      error: what requests end with, None for nothing.
      gate: requests wait until it is set.
    """

    address = ""

    def __init__(self, name: str = "dictionary", is_writable: bool = True) -> None:
        self.name, self.is_writable = name, is_writable
        self.rows: dict[str, dict[int, np.ndarray]] = {}
        self.requests: list[tuple[str, list[int]]] = []
        self.error: str | None = None
        self.gate, self.asked = threading.Event(), threading.Semaphore(0)
        self.gate.set()
        self.is_closed = False

    def open_table(self, table: TableDescription) -> None:
        self.rows.setdefault(table.name, {})

    def fill(self, table: str, keys, rows) -> DictionaryTier:
        pairs = zip(keys, np.asarray(rows, np.float32), strict=True)
        self.rows.setdefault(table, {}).update((int(key), row) for key, row in pairs)
        return self

    def fetch(self, table: str, keys: Keys, rows: Rows) -> HitMask:
        assert len(np.unique(keys)) == len(keys) > 0
        assert rows.shape[0] == len(keys)
        self.requests.append((table, sorted(keys.tolist())))
        known = [self.rows[table].get(key) for key in keys.tolist()]  # others may change them
        found = np.array([row is not None for row in known], np.bool_)
        values = [row for row in known if row is not None]
        self.asked.release()
        assert self.gate.wait(60)
        if self.error is not None:
            raise TierError(self.name, table, self.error)
        if values:
            rows[found] = values
        return found

    def put(self, table: str, keys: Keys, rows: Rows) -> None:
        if not self.is_writable:
            raise io.UnsupportedOperation(self.name)
        if self.error is not None:
            raise TierError(self.name, table, self.error)
        self.fill(table, keys, rows.copy())

    def remove(self, table: str, keys: Keys) -> None:
        if self.error is not None:
            raise TierError(self.name, table, self.error)
        for key in keys.tolist():
            self.rows[table].pop(key, None)

    def blocks(self, table: str, size: int) -> Iterator[Block]:
        rows = self.rows[table]
        yield np.array([*rows], np.int64), np.array([*rows.values()], np.float32)

    def count(self, table: str) -> int:
        return len(self.rows[table])

    def close(self) -> None:
        self.is_closed = True


class ManyTablesTier(DictionaryTier):
    """One that fetches rows of several tables at once."""

    def __init__(self) -> None:
        super().__init__("many")
        self.round_count = 0

    def fetch_many(self, requests) -> list[HitMask]:
        self.round_count += 1
        return [self.fetch(*request) for request in requests]
