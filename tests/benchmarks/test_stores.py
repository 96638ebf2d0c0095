"""The benchmark of tiers, with a small table."""

from benchmarks import stores


def test_all_sides_are_measured() -> None:
    rows = {row.key["side"]: row.values for row in stores.measure(14_000, 0.01)}
    tiers = ["mapped", "rocksdb", "redis"]
    caches = [f"cache over {tier}" for tier in tiers]
    assert [*rows] == [*tiers, "Redis MGET", *caches, "2,000 keys"]
    assert all(0 < found["p50, ms"] <= found["p99, ms"] for found in rows.values())
    assert all(0 < rows[name]["in the cache"] < 1 for name in caches)
