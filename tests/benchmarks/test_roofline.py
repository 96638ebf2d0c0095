import numpy as np
import pytest

from benchmarks import roofline


@pytest.mark.parametrize("dim", [8, 23, 128])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_added_up(dim, threads):
    rng = np.random.default_rng(0)
    table = rng.random((50, dim), np.float32)
    ids = rng.integers(0, 50, 10 * 7)
    run = roofline.row_sums(table, ids, 7, threads)
    expected = table[ids].reshape(10, 7, dim).sum(1)
    for ahead in (0, 8):
        seconds, sums = run(ahead)
        assert seconds > 0
        np.testing.assert_allclose(sums, expected, rtol=1e-5)
        sums.fill(0)


def test_the_best_distance_is_the_fastest():
    seconds = dict(zip(roofline.AHEAD, (5.0, 4.0, 3.0, 2.0, 1.0, 6.0), strict=True))
    assert roofline.best_ahead(lambda ahead: (seconds[ahead], np.zeros(0))) == 32


def test_reading_has_a_rate():
    assert roofline.streaming(2, megabytes=1, repeats=1) > 0.1
