"""The benchmark of tiers, with a small table."""

from benchmarks import stores


def test_all_sides_are_measured(tmp_path):
    times = stores.measure(tmp_path, 14_000, 0.01)
    tiers = ["mapped", "rocksdb", "redis"]
    caches = [f"cache over {tier}" for tier in tiers]
    assert [*times] == [*tiers, "Redis MGET", *caches, "2,000 keys"]
    assert all(0 < found["p50_ms"] <= found["p99_ms"] for found in times.values())
