"""The benchmark of tiers, with a small table."""

from benchmarks import stores


def test_all_sides_are_measured() -> None:
    rows = {row.key["side"]: row for row in stores.measure(14_000, 0.01)}
    tiers = ["mapped", "rocksdb", "redis"]
    caches = [f"cache over {tier}" for tier in tiers]
    assert [*rows] == [*tiers, "Redis MGET", *caches, "2,000 keys"]
    assert all(0 < row.number("p50, ms") <= row.number("p99, ms") for row in rows.values())
    assert all(0 < rows[name].number("in the cache") < 1 for name in caches)
