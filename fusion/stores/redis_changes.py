"""Which rows of tables in Redis have changed: a stream for each table, with their keys.

Who changes rows adds an entry of keys when they are written:

    fusion{changes}:TABLE    {keys: int64, little endian}, so many entries at most

All streams have one hash tag, so that one command reads them all, in a cluster too. Redis drops the
oldest entries, and does not say who has not read them. But it drops no entry before an older one:
a reader whose last entry is still there has missed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusion.stores.redis import Redis
from fusion.stores.tier import Keys

#: Keys of an entry, and entries of a stream: some 32 MB of Redis's memory a table at most.
_ENTRY_KEYS, _MAX_ENTRIES = 4096, 1000

#: Entries of a table that are read at once.
_READ_ENTRIES = 64

#: The field of keys, and the number before that of any entry.
_KEYS, _START = b"keys", b"0-0"


def announce(redis: Redis, table: str, keys: Keys) -> None:
    """Announces to readers that rows of keys [n] have changed, which must be written already.

    Raises:
      TierError: no answer.
    """
    with redis.connection(table) as client:
        pipeline = client.pipeline(transaction=False)
        for first in range(0, len(keys), _ENTRY_KEYS):
            content = keys[first : first + _ENTRY_KEYS].astype("<i8").tobytes()
            pipeline.xadd(_stream(table), {_KEYS: content}, maxlen=_MAX_ENTRIES)
        pipeline.execute()


class ChangedKeys:
    """Reads the keys whose rows have changed.

    Attributes:
      gap_count: how often entries of a table may have been dropped before they were read.
    """

    def __init__(self, redis: Redis, tables: Sequence[str]) -> None:
        """Begins with the next changes.

        Args:
          redis: where tables are.
          tables: their names.
        """
        self.gap_count = 0
        self._redis, self._tables = redis, {_stream(table): table for table in tables}
        self._last: dict[bytes, bytes | None] = dict.fromkeys(self._tables)

    def read(self, seconds: float) -> dict[str, Keys | None]:
        """The keys that have changed since the last call, distinct, by table.

        None instead of keys: any may have changed, as when this is called for the first time, after
        a gap, and when there was no answer before.

        Args:
          seconds: how long it waits for a change; half of the time limit for answers at most.

        Raises:
          TierError: no answer.
        """
        seconds = min(seconds, self._redis.options.timeout / 2)
        try:
            with self._redis.connection("") as client:
                unknown = [name for name, last in self._last.items() if last is None]
                if unknown:
                    return self._begin(client, unknown)
                return self._read(client, max(1, int(1000 * seconds)))
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """Begins again: the next `read` says of all tables that any key may have changed."""
        self._last = dict.fromkeys(self._tables)

    def _begin(self, client: Any, names: Sequence[bytes]) -> dict[str, Keys | None]:
        """Goes on behind the newest entries."""
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.xrevrange(name, count=1)
        for name, newest in zip(names, pipeline.execute(), strict=True):
            self._last[name] = newest[0][0] if newest else _START
        return {self._tables[name]: None for name in names}

    def _read(self, client: Any, milliseconds: int) -> dict[str, Keys | None]:
        last = dict(self._last)
        answer = client.xread(last, _READ_ENTRIES, milliseconds)
        # Asked for later than what is behind them: none of that was dropped while they are there.
        pipeline = client.pipeline(transaction=False)
        for name, entry in last.items():
            pipeline.xrange(name, entry, entry)
        are_there = dict(zip(last, map(bool, pipeline.execute()), strict=True))
        new = {name: entries for name, entries in answer if entries}
        changed: dict[str, Keys | None] = {}
        lost = []
        for name, table in self._tables.items():
            if last[name] == _START:
                if name in new:  # it may have had more, before the first one
                    lost.append(name)
            elif not are_there[name]:
                self.gap_count += 1
                lost.append(name)
            elif name in new:
                content = b"".join(fields[_KEYS] for _, fields in new[name])
                changed[table] = np.unique(np.frombuffer(content, "<i8").astype(np.int64))
                self._last[name] = new[name][-1][0]
        return changed | self._begin(client, lost) if lost else changed


def _stream(table: str) -> bytes:
    return b"fusion{changes}:" + table.encode()
