import numpy as np
import pytest

from benchmarks.lookups.draws import MISSING, Bags, Draw, draw_bags


def bags(draw=Draw(), batch=2000, rows=100, least=0, most=5, **options):  # noqa: B008
    return draw_bags(np.random.default_rng(0), draw, batch, rows, least, most, **options)


def test_the_same_seed_gives_the_same_bags():
    one, other = bags(weighted=True), bags(weighted=True)
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.lengths, other.lengths)
    np.testing.assert_array_equal(one.weights, other.weights)


@pytest.mark.parametrize("distribution", ["power law", "uniform"])
def test_ids_and_lengths_stay_in_range_and_reach_its_ends(distribution):
    found = bags(Draw(distribution))
    assert (found.ids.min(), found.ids.max()) == (0, 99)
    assert (found.lengths.min(), found.lengths.max()) == (0, 5)
    assert found.lengths.sum() == len(found.ids)


def test_low_ids_are_frequent_in_a_power_law_alone():
    shares = {
        name: (bags(Draw(name), rows=1000).ids < 10).mean() for name in ("power law", "uniform")
    }
    assert shares["power law"] > 0.25
    assert shares["uniform"] < 0.03


def test_half_of_the_rows_are_empty():
    assert 0.45 < (bags(Draw(empty=0.5), least=1).lengths == 0).mean() < 0.55
    assert not (bags(least=1).lengths == 0).any()


def test_coverage_leaves_rows_empty_too():
    assert 0.65 < (bags(least=1, coverage=0.3).lengths == 0).mean() < 0.75


def test_two_percent_of_the_ids_are_negative():
    assert 0.01 < (bags(Draw(negative=0.02)).ids == MISSING).mean() < 0.03
    assert not (bags().ids < 0).any()


SMALL = Bags(
    np.array([7, MISSING, 9, 4]), np.array([2, 0, 1, 1]), np.array([1, 2, 3, 4], np.float32)
)


def test_the_forms_of_a_bag():
    np.testing.assert_array_equal(SMALL.offsets, [0, 2, 2, 3, 4])
    np.testing.assert_array_equal(SMALL.indices, [[0, 0], [0, 1], [2, 0], [3, 0]])
    np.testing.assert_array_equal(SMALL.dense_shape, [4, 2])
    np.testing.assert_array_equal(SMALL.dense, [[7], [MISSING], [9], [4]])


def test_pruning_takes_ids_out_with_their_weights():
    found = SMALL.pruned()
    np.testing.assert_array_equal(found.ids, [7, 9, 4])
    np.testing.assert_array_equal(found.lengths, [1, 0, 1, 1])
    np.testing.assert_array_equal(found.weights, [1, 3, 4])


@pytest.mark.parametrize("lengths", [(-1, 2), (3, 2)])
def test_lengths_that_are_no_range(lengths):
    with pytest.raises(ValueError, match="least <= most"):
        bags(least=lengths[0], most=lengths[1])


def test_a_table_without_rows():
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        bags(rows=0)


def test_a_draw_says_what_it_is():
    assert str(Draw("uniform", 0.5, 0.02)) == "uniform ids, 50% empty rows, 2% negative ids"
