"""What a table store counts."""

from __future__ import annotations

import threading

import numpy as np

from fusion.ops.stores.cpu_kernels import lookup
from fusion.ops.stores.cpu_kernels.layout import HISTOGRAM_BUCKETS, hash_of_name
from fusion.ops.stores.cpu_kernels.store import hash_of_text
from fusion.runtime.native.jit import callable_from_python
from fusion.stores.counters import Latency, TierMeter, bucket_of, bucket_start

native_bucket = callable_from_python(lookup.bucket_of_latency)

TIMES = [*range(300), *(int(1.1**power) for power in range(60, 280))]


def test_buckets_of_native_code_are_the_same() -> None:
    for time in TIMES:
        assert bucket_of(time) == native_bucket(time)
        assert bucket_start(bucket_of(time)) <= time < bucket_start(bucket_of(time) + 1)
    assert bucket_of(2**60) == HISTOGRAM_BUCKETS - 1


def test_a_bucket_is_an_eighth_wide() -> None:
    starts = np.array([bucket_start(bucket) for bucket in range(16, HISTOGRAM_BUCKETS)], float)
    assert (starts[1:] / starts[:-1] <= 1.125).all()


def test_quantiles() -> None:
    times = np.random.default_rng(0).lognormal(12, 1, 5000).astype(int)
    buckets = np.bincount([bucket_of(int(time)) for time in times], minlength=HISTOGRAM_BUCKETS)
    latency = Latency.of(int(times.sum()), buckets.tolist())
    assert latency.count == 5000
    for share in (0.5, 0.99):
        right = np.quantile(times, share, method="inverted_cdf") * 1e-9
        assert right < latency.quantile(share) <= 1.126 * right
    assert Latency.of(0, [0] * HISTOGRAM_BUCKETS).to_dict() == {
        "count": 0,
        "seconds": 0.0,
        "p50": 0.0,
        "p99": 0.0,
    }


def test_meters_count_from_several_threads() -> None:
    meter = TierMeter()

    def count() -> None:
        for _ in range(500):
            meter.add(2, 1, 32, 1000)
            meter.add_error()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters = meter.counters()
    assert (counters.requests, counters.errors, counters.hits) == (4000, 2000, 4000)
    assert (counters.misses, counters.byte_count, counters.latency.count) == (2000, 64000, 2000)


def test_hashes_of_native_code_are_the_same() -> None:
    native_hash = callable_from_python(hash_of_text)
    for name in (b"", b"a", "ärger".encode(), b"table" * 50):
        text = np.frombuffer(name + b"\0", np.uint8)
        assert native_hash(text.ctypes.data, len(name)) == hash_of_name(name)
