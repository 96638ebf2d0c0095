import numpy as np
import pytest

from benchmarks.lookups import roofline


@pytest.mark.parametrize("dim", [8, 23, 128])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_added_up(dim, threads):
    rng = np.random.default_rng(0)
    table = rng.random((50, dim), np.float32)
    ids = rng.integers(0, 50, 10 * 7)
    run = roofline.row_sums(table, ids, 7, threads)
    expected = table[ids].reshape(10, 7, dim).sum(1)
    for fetch in roofline.FETCHES:
        seconds, sums = run(fetch)
        assert seconds > 0
        np.testing.assert_allclose(sums, expected, rtol=1e-5)
        sums.fill(0)


def test_the_best_fetch_is_the_fastest():
    fastest = roofline.Fetch(32, 2)
    found = roofline.best_fetch(lambda fetch: (1.0 + (fetch != fastest), np.zeros(0)))
    assert found == fastest


def test_reading_has_a_rate():
    assert roofline.streaming(2, megabytes=1, repeats=1) > 0.1
