"""Rows that others push to Redis, taken over while lookups go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fusion.stores import redis_changes
from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.redis_changes import ChangedKeys, announce
from fusion.stores.table_store import TableStore
from fusion.stores.tier import TableDescription, TierError
from tests.stores.dictionary_tier import DictionaryTier
from tests.stores.racing import racing, rows_of
from tests.stores.redis_server import RedisServer
from tests.stores.test_table_store import wait_for

KEYS = np.arange(-50, 50)


def redis_tier(address: str, *tables: TableDescription) -> Redis:
    tier = Redis(RedisOptions(address))
    for table in tables:
        tier.open_table(table)
    return tier


def push(tier: Redis, table: TableDescription, version: float, keys=KEYS) -> None:
    for some, rows in rows_of(version, keys, table.dimension):
        tier.put(table.name, some, rows)
        announce(tier, table.name, some)


def versions(store: TableStore, table: TableDescription, keys) -> list[float]:
    rows = store.lookup(table.name, keys)
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


@pytest.fixture
def table(request: pytest.FixtureRequest) -> TableDescription:
    """One of a name of its own: tests share a server."""
    return TableDescription(request.node.name, 3)


def changes_of(changes: ChangedKeys) -> dict[str, list[int] | None]:
    return {
        table: None if keys is None else keys.tolist() for table, keys in changes.read(0.01).items()
    }


class TestChangedKeys:
    """The streams of keys."""

    def test_keys_of_several_tables(self, redis_server: RedisServer) -> None:
        a, b = TableDescription("changed_a", 2), TableDescription("changed {b} ü", 2)
        tier = redis_tier(redis_server.address, a, b)
        push(tier, a, 1)
        changes = ChangedKeys(tier, [a.name, b.name])
        assert changes_of(changes) == {a.name: None, b.name: None}
        assert changes_of(changes) == {}
        push(tier, a, 2, [5, 3, -(2**63)])
        push(tier, a, 3, [4, 5, 2**63 - 1])
        assert changes_of(changes) == {a.name: [-(2**63), 3, 4, 5, 2**63 - 1]}
        push(tier, b, 1, [1])
        # Nothing was there before, so older entries may have been dropped.
        assert changes_of(changes) == {b.name: None}
        push(tier, b, 1, [2])
        push(tier, a, 1, [7])
        assert changes_of(changes) == {a.name: [7], b.name: [2]}
        assert changes.gap_count == 0

    def test_many_keys(
        self,
        redis_server: RedisServer,
        table: TableDescription,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(redis_changes, "_ENTRY_KEYS", 7)
        monkeypatch.setattr(redis_changes, "_READ_ENTRIES", 4)
        tier = redis_tier(redis_server.address, table)
        announce(tier, table.name, np.arange(1))
        changes = ChangedKeys(tier, [table.name])
        changes.read(0.01)
        announce(tier, table.name, np.arange(100))
        seen: list[int] = []
        while len(seen) < 100:
            (keys,) = changes_of(changes).values()
            assert keys is not None
            assert len(keys) <= 28
            seen += keys
        assert seen == [*range(100)]

    def test_a_gap(self, redis_server: RedisServer, table: TableDescription) -> None:
        tier, client = redis_tier(redis_server.address, table), redis_server.client()
        stream = f"fusion{{changes}}:{table.name}"
        push(tier, table, 1)
        changes = ChangedKeys(tier, [table.name])
        changes.read(0.01)
        push(tier, table, 2, [1])
        push(tier, table, 2, [2])
        client.xtrim(stream, maxlen=2, approximate=False)  # the entry that was read last
        assert changes_of(changes) == {table.name: None}
        assert (changes.gap_count, changes_of(changes)) == (1, {})
        push(tier, table, 3, [3])
        assert changes_of(changes) == {table.name: [3]}
        client.delete(stream)
        assert changes_of(changes) == {table.name: None}
        assert (changes.gap_count, changes_of(changes)) == (2, {})

    def test_streams_are_bounded(
        self, redis_server: RedisServer, table: TableDescription, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tier, client = redis_tier(redis_server.address, table), redis_server.client()
        monkeypatch.setattr(redis_changes, "_MAX_ENTRIES", 10)
        keys = np.arange(4096)
        for _ in range(50):
            announce(tier, table.name, keys)
        assert 10 <= client.xlen(f"fusion{{changes}}:{table.name}") < 20

    def test_a_cluster(self, redis_cluster: list[RedisServer]) -> None:
        tables = [TableDescription(f"changed_{k}", 2) for k in range(5)]
        tier = redis_tier(redis_cluster[1].address, *tables)
        for table in tables:
            push(tier, table, 1, [0])
        changes = ChangedKeys(tier, [table.name for table in tables])
        assert changes_of(changes) == {table.name: None for table in tables}
        for k, table in enumerate(tables[1:]):
            push(tier, table, 2, [k, 7])
        assert changes_of(changes) == {f"changed_{k + 1}": [k, 7] for k in range(4)}
        assert changes_of(changes) == {}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of one test, which keeps what it has when it is asked to."""
    started = RedisServer(tmp_path, "--save", "")
    yield started
    started.kill()


class TestFollower:
    """Stores that follow Redis."""

    def test_only_rows_of_the_cache_are_fetched(
        self, redis_server: RedisServer, table: TableDescription
    ) -> None:
        own = redis_tier(redis_server.address, table)
        push(own, table, 1)
        with TableStore([table], [Redis(RedisOptions(redis_server.address))], 200) as store:
            assert versions(store, table, [1, 2, 99]) == [1, 1, 0]
            follower = store.follow_redis()
            follower.look()
            push(own, table, 2, [2, 3, 4, 99])
            follower.look()
            wait_for(lambda: versions(store, table, [2]) == [2])
            assert versions(store, table, [1, 3, 99]) == [1, 2, 2]
            counters = store.counters()
            (tier,) = counters.tiers.values()
            # 1, 2 and 99; 1 and 2 at first; 2; 3 and 99
            assert tier[table.name].hits + tier[table.name].misses == 3 + 2 + 1 + 2
            assert counters.refresh.rows == 3

    def test_rows_that_are_removed(
        self, redis_server: RedisServer, table: TableDescription
    ) -> None:
        own, lower = redis_tier(redis_server.address, table), DictionaryTier("lower")
        lower.fill(table.name, [3], np.full((1, 3), 9.0))
        push(own, table, 1)
        tier = Redis(RedisOptions(redis_server.address))
        with TableStore([table], [tier, lower], 200) as store:
            follower = store.follow_redis(seconds=0.01)
            while follower.look():
                pass
            assert versions(store, table, [1, 2, 3]) == [1, 1, 1]
            removed = np.array([1, 3])
            own.remove(table.name, removed)
            announce(own, table.name, removed)
            while follower.look():
                pass
            assert versions(store, table, [1, 2, 3]) == [0, 1, 9]

    def test_a_server_that_comes_back(self, server: RedisServer) -> None:
        table = TableDescription("table", 3)
        own = redis_tier(server.address, table)
        push(own, table, 1)
        tier = Redis(RedisOptions(server.address, timeout=0.2))
        with TableStore([table], [tier], 200) as store:
            store.follow_redis(tier, seconds=0.05)
            assert versions(store, table, [1, 2]) == [1, 1]
            server.kill()
            wait_for(lambda: store.counters().refresh.errors > 2)
            with pytest.raises(TierError):
                store.lookup("table", [3])
            server.start()  # it has lost all
            own.open_table(table)
            for keys, rows in rows_of(2, [1, 3], 3):
                own.put("table", keys, rows)  # which is not announced
            wait_for(lambda: versions(store, table, [1, 2, 3]) == [2, 0, 2])
            push(own, table, 3, [2])
            wait_for(lambda: versions(store, table, [1, 2, 3]) == [2, 3, 2])

    def test_a_table_that_is_made_anew_in_other_partitions(self, server: RedisServer) -> None:
        table = TableDescription("table", 3)
        push(redis_tier(server.address, table), table, 1)
        with TableStore([table], [Redis(RedisOptions(server.address))], 200) as store:
            follower = store.follow_redis(seconds=0.01)
            assert versions(store, table, [1, 2, 3]) == [1, 1, 1]
            other = Redis(RedisOptions(server.address, num_partitions=3))
            with follower._looking:  # it does not make the table
                server.client().flushall()
                other.open_table(table)
            push(other, table, 2)
            while follower.look():
                pass
            assert versions(store, table, [1, 2, 3, 40]) == [2, 2, 2, 2]

    def test_an_upper_tier_has_the_row(
        self, redis_server: RedisServer, table: TableDescription
    ) -> None:
        upper = DictionaryTier("upper").fill(table.name, [1], np.full((1, 3), 9.0))
        tier = redis_tier(redis_server.address, table)
        push(tier, table, 1, [1, 2])
        with TableStore([table], [upper, Redis(RedisOptions(redis_server.address))], 200) as store:
            assert versions(store, table, [1, 2]) == [9, 1]
            store.follow_redis().look()
            push(tier, table, 2, [1, 2])
            wait_for(lambda: versions(store, table, [1, 2]) == [9, 2])

    def test_what_cannot_be_followed(
        self, redis_server: RedisServer, table: TableDescription
    ) -> None:
        copies, tier = (Redis(RedisOptions(redis_server.address)) for _ in range(2))
        store = TableStore([table], [copies, tier], cache_rows=5, promote=["redis"])
        with store, pytest.raises(ValueError, match="redis may get copies of older rows of Redis"):
            store.follow_redis(tier)
        upper, tier = DictionaryTier("upper"), Redis(RedisOptions(redis_server.address))
        with TableStore([table], [upper], cache_rows=5) as store:
            with pytest.raises(ValueError, match="one tier of Redis to be followed, not 0"):
                store.follow_redis()
            with pytest.raises(ValueError, match="one tier of Redis to be followed, not 0"):
                store.follow_redis(tier)
        tier = Redis(RedisOptions(redis_server.address))
        with TableStore([table], [tier], cache_rows=5) as store:
            store.follow_redis()
            with pytest.raises(ValueError, match="follows Redis already"):
                store.follow_redis()

    @pytest.mark.parametrize("where", ["server", "cluster"])
    def test_a_lookup_sees_one_version_of_a_row(
        self, where: str, request: pytest.FixtureRequest
    ) -> None:
        found = request.getfixturevalue(f"redis_{where}")
        address = found.address if where == "server" else found[0].address
        table = TableDescription("racing", 61)
        own = redis_tier(address, table)
        push(own, table, 1)
        tier = Redis(RedisOptions(address))
        with TableStore([table], [tier], cache_rows=70) as store:
            follower = store.follow_redis(seconds=0.02)
            with racing(store, "racing", KEYS) as racers:
                for version in range(2, 40):
                    push(own, table, version)
                    while follower.look():
                        pass
                    racers.reported = version
                    racers.wait(3)
