"""Threads that look for changes and refresh the rows of a store while lookups go on.

A tier has the new rows first. Then copies of older ones leave the tiers above it, and those in the
cache are replaced, each of them whole; rows that were fetched before, and are on their way, do not
come into the cache any more, nor into those tiers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from fusion.stores.counters import RefreshCounters
from fusion.stores.fetching import Fetcher
from fusion.stores.local_files import LocalFiles
from fusion.stores.redis import Redis
from fusion.stores.redis_changes import ChangedKeys
from fusion.stores.tier import Keys, TableDescription, Tier, TierError
from fusion.stores.versioned_files import VersionChange, VersionedFiles

#: Keys of a delta that are read at a time.
_BLOCK = 1 << 16


class _Follower:
    """A thread that looks for changes again and again.

    Attributes:
      error_count: how often that failed.
      row_count: rows in the cache that were replaced.
    """

    def __init__(
        self, fetcher: Fetcher, tables: Sequence[TableDescription], seconds: float
    ) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds}")
        self._fetcher, self._seconds = fetcher, seconds
        self._numbers = {table.name: number for number, table in enumerate(tables)}
        self._closing, self._looking = threading.Event(), threading.Lock()
        self.error_count = self.row_count = 0
        self._thread = threading.Thread(target=self._run, name="fusion-refresh", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, once it has done what it does."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError

    def _failed(self, error: Exception) -> None:
        self.error_count += 1
        self._fetcher.log(error)

    def _refresh(self, table: str, keys: Keys | None) -> None:
        """Takes over the rows of keys, of all with None.

        Raises:
          TierError: a tier may keep copies of older rows; this has to be called again.
        """
        number = self._numbers[table]
        self._fetcher.remove_copies(number, keys)
        try:
            self.row_count += self._fetcher.refresh(number, keys)
        except TierError as error:  # these rows are not in the cache any more
            self._failed(error)


class FolderFollower(_Follower):
    """Takes over the versions that appear in a folder.

    Attributes:
      version: the number of the one that was taken over last; no lookup that begins has older rows.
      version_count: of those taken over.
    """

    def __init__(
        self,
        files: VersionedFiles,
        fetcher: Fetcher,
        tables: Sequence[TableDescription],
        seconds: float,
    ) -> None:
        super().__init__(fetcher, tables, seconds)
        self._files, self.version, self.version_count = files, files.number, 0
        self._unfinished: VersionChange | None = None

    def look(self) -> int | None:
        """Takes over the newest version now, if there is one that is not broken.

        Returns:
          Its number; None: it was taken over before, or there is none.

        Raises:
          OSError: the folder of versions cannot be read.
          TierError: a tier may keep copies of older rows; the next look tries again.
        """
        with self._looking:
            change = self._files.take_newest()
            if self._unfinished is not None:
                number = self._unfinished.number if change is None else change.number
                change = VersionChange(number, None)
            if change is None:
                return None
            self._unfinished = change
            for table in self._numbers:
                self._refresh_table(table, change)
            self._unfinished = None
            self.version = change.number
            self.version_count += 1
            return change.number

    def close(self) -> None:
        """Ends the thread; a version that is being checked is not taken over."""
        self._files.close()
        super().close()

    def counters(self) -> RefreshCounters:
        """What there is."""
        return RefreshCounters(
            version=self.version,
            taken_versions=self.version_count,
            refused_versions=self._files.refused_count,
            refusals=self._files.refusals,
            rows=self.row_count,
            errors=self.error_count,
        )

    def try_to_look(self) -> None:
        """As `look`, but errors are logged and counted."""
        try:
            self.look()
        except Exception as error:
            self._failed(error)

    def _refresh_table(self, table: str, change: VersionChange) -> None:
        if change.deltas is None:
            self._refresh(table, None)
            return
        for delta in change.deltas:
            for keys, _ in delta.blocks(table, _BLOCK):
                self._refresh(table, keys)

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            self.try_to_look()


class RedisFollower(_Follower):
    """Takes over rows that others write to Redis, and announce there."""

    def __init__(
        self, redis: Redis, fetcher: Fetcher, tables: Sequence[TableDescription], seconds: float
    ) -> None:
        super().__init__(fetcher, tables, seconds)
        self._redis, self._tables = redis, {table.name: table for table in tables}
        self._changes = ChangedKeys(redis, list(self._tables))

    def look(self) -> bool:
        """Takes over what has been announced, for which it waits `seconds`, or less.

        Returns:
          Whether there was something. If not, no lookup that begins has rows which are older than
          what was announced before this call.

        Raises:
          TierError: Redis does not answer, or a tier may keep copies of older rows.
        """
        with self._looking:
            changed = self._changes.read(self._seconds)
            try:
                for table, keys in changed.items():
                    if keys is None:  # it may be another table, in other partitions
                        self._redis.open_table(self._tables[table])
                    self._refresh(table, keys)
            except TierError:
                self._changes.forget()
                raise
            return bool(changed)

    def counters(self) -> RefreshCounters:
        """What there is."""
        return RefreshCounters(
            rows=self.row_count, gaps=self._changes.gap_count, errors=self.error_count
        )

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception as error:
                self._failed(error)
                self._closing.wait(self._seconds)


class Followers:
    """The followers of a store.

    Args:
      tables: of the store, by their numbers.
      tiers: of the store and of its fetcher; files are replaced in it by versions of them.
      fetcher: of the store.
      promote: the names of tiers that have copies of rows of lower ones.
    """

    def __init__(
        self,
        tables: Sequence[TableDescription],
        tiers: list[Tier],
        fetcher: Fetcher,
        promote: Collection[str],
    ) -> None:
        self._tables, self._tiers, self._fetcher = tables, tiers, fetcher
        self._promote = frozenset(promote)
        self._folder: FolderFollower | None = None
        self._redis: RedisFollower | None = None
        self._lock = threading.Lock()

    def follow_folder(self, root: str | os.PathLike[str], seconds: float) -> FolderFollower:
        """See `TableStore.follow`."""
        with self._lock:
            if self._folder is not None:
                raise ValueError("the store follows a folder already")
            level = self._level("files", (LocalFiles, VersionedFiles), None)
            files = self._tiers[level]
            if isinstance(files, LocalFiles):
                files = VersionedFiles(root, self._tables, before=files)
            elif not isinstance(files, VersionedFiles) or files.root != Path(root):
                raise ValueError(f"{root}: the store has versions at {files.address}")
            follower = FolderFollower(files, self._fetcher, self._tables, seconds)
            for number in range(len(self._tables)):
                self._fetcher.remove_copies(number, None)  # of whatever was there when it was made
            self._tiers[level] = files
            follower.try_to_look()
            follower.start()
            self._folder = follower
            return follower

    def follow_redis(self, redis: Redis | None, seconds: float) -> RedisFollower:
        """See `TableStore.follow_redis`."""
        with self._lock:
            if self._redis is not None:
                raise ValueError("the store follows Redis already")
            tier = self._tiers[self._level("Redis", (Redis,), redis)]
            assert isinstance(tier, Redis)
            follower = RedisFollower(tier, self._fetcher, self._tables, seconds)
            follower.start()
            self._redis = follower
            return follower

    def counters(self) -> RefreshCounters:
        """Those of all together."""
        counters = RefreshCounters()
        for follower in (self._folder, self._redis):
            if follower is not None:
                counters = counters + follower.counters()
        return counters

    def close(self) -> None:
        """Ends all threads."""
        with self._lock:
            for follower in (self._folder, self._redis):
                if follower is not None:
                    follower.close()

    def _level(self, what: str, kinds: tuple[type, ...], wanted: Tier | None) -> int:
        """The number of the tier that is to be followed.

        Raises:
          ValueError: there is none, several, or others copy its rows to a tier above.
        """
        levels = [
            level
            for level, tier in enumerate(self._tiers)
            if (isinstance(tier, kinds) if wanted is None else tier is wanted)
        ]
        if len(levels) != 1:
            raise ValueError(
                f"the store must have one tier of {what} to be followed, not {len(levels)}"
            )
        for upper in self._tiers[: levels[0]]:
            if upper.name in self._promote and isinstance(upper, Redis):
                raise ValueError(
                    f"{upper.name} may get copies of older rows of {what} from other processes"
                )
        return levels[0]
