"""The comparison itself: it sees what is wrong, and its program shows the smallest case of it."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from tests.differential import ours, stock
from tests.differential.case import Case
from tests.differential.compare import Mismatch, check
from tests.differential.strategies import PLAIN_REPORT, cases
from tests.tiers import examples

LOOKUP = ours.lookup


def next_number(case, table, ids, weights):
    """One bit more than it should be."""
    result = LOOKUP(case, table, ids, weights)
    following = tf.math.nextafter(result, tf.fill(tf.shape(result), 1e9))
    return result + tf.stop_gradient(following - result)


@tf.custom_gradient
def scaled_gradient(value):
    return tf.identity(value), lambda gradient: gradient * 1.001


def wrong_gradient(case, table, ids, weights):
    return scaled_gradient(LOOKUP(case, table, ids, weights))


def wrong_weights_gradient(case, table, ids, weights):
    return LOOKUP(case, table, ids, scaled_gradient(weights))


def wrong_shape(case, table, ids, weights):
    return LOOKUP(case, table, ids, weights)[None]


def wrong_dtype(case, table, ids, weights):
    return tf.cast(LOOKUP(case, table, ids, weights), tf.float64)


def raises(case, table, ids, weights):
    raise ValueError("no such lookup")


def repeated_ids(case, table, ids, weights):
    rows = tf.gather(table[0], ids.values)
    return tf.math.segment_sum(rows, ids.indices[:, 0])


CALLS = itertools.count()


def not_deterministic(case, table, ids, weights):
    return LOOKUP(case, table, ids, weights) * (1.0 if next(CALLS) % 2 else 1 + 2e-7)


def ignores_bad_ids(case, table, ids, weights):
    return LOOKUP(case, table, ids.with_values(0 * ids.values), weights)


BAG = Case(lengths=(2, 1), rows=2, dim=3)
WEIGHTED = Case(lengths=(2, 1), weights="sparse")


@pytest.mark.parametrize(
    ("lookup", "case", "message"),
    [
        (next_number, BAG, "output: "),
        (wrong_gradient, BAG, "table's gradient: "),
        (wrong_gradient, WEIGHTED, "table's gradient: "),
        (wrong_weights_gradient, WEIGHTED, "weights' gradient: "),
        (wrong_shape, BAG, "the shape is"),
        (wrong_dtype, BAG, "dtype float64"),
        (raises, BAG, "no such lookup"),
        (repeated_ids, Case(table="tensors", combiner="sum", lengths=(9,)), "ids of the gradient"),
        (not_deterministic, Case(weights="sparse", rows=1, seed=4), "other bits"),
        (ignores_bad_ids, Case(negative=1.0, prune=False), "stock raises InvalidArgument"),
    ],
)
def test_what_is_wrong_is_seen(lookup, case, message, monkeypatch):
    check(case)
    monkeypatch.setattr(ours, "lookup", lookup)
    with pytest.raises(Mismatch, match=message):
        check(case)


def test_a_mismatch_ends_with_a_program_that_shows_its_smallest_case(monkeypatch):
    def wrong_for_long_bags(case, table, ids, weights):
        wrong = case.combiner != "sum" and max(case.lengths, default=0) > 8
        return (next_number if wrong else LOOKUP)(case, table, ids, weights)

    monkeypatch.setattr(ours, "lookup", wrong_for_long_bags)

    @settings(PLAIN_REPORT, max_examples=examples(200))
    @given(cases())
    def run(case):
        check(case)

    with pytest.raises(Mismatch) as caught:
        run()
    program = str(caught.value).partition("repository:\n\n")[2]
    assert program.endswith("\n\ncheck(Case(lengths=(9,)))\n")
    with pytest.raises(Mismatch, match=re.escape(program)):
        exec(program, {})
    monkeypatch.undo()
    exec(program, {})


def test_a_case_prints_what_is_not_as_usual_and_can_be_made_of_it():
    case = Case(lengths=(1, 2), odd_rows=("nan",), max_norm=0.5, outer=(2, 1))
    assert repr(case) == "Case(lengths=(1, 2), outer=(2, 1), odd_rows=('nan',), max_norm=0.5)"
    assert eval(repr(case)) == case


def test_the_reference_put_together_from_stock_ops_is_the_stock_lookup():
    """Where both are defined."""

    @settings(max_examples=examples(50))
    @given(cases())
    def run(case):
        if case.function == "plain" and case.prune and case.fill:
            arrays = case.arrays
            ids = tf.SparseTensor(arrays.indices, arrays.values, arrays.dense_shape)
            composed = stock.lookup(case, arrays.table, ids, None)
            expected = tf.compat.v1.nn.safe_embedding_lookup_sparse(
                arrays.table,
                ids,
                combiner=case.combiner,
                default_id=case.default_id,
                max_norm=case.max_norm,
            )
            np.testing.assert_array_equal(composed, expected)

    run()


@pytest.mark.parametrize(
    "case",
    [
        # Not fused, so that stock's own error is what is to be expected.
        Case(
            version="pass",
            mode="session",
            table="fed",
            shards=2,
            rows=1,
            ids="ragged",
            lengths=(),
            combiner="sum",
        ),
        # Stock divides the gradient of a row of zeros by the limit: it overflows on the way.
        Case(
            dim=159,
            dtype="float16",
            lengths=(29, 0, 37, 1, 37, 37),
            odd_rows=("nan", "nan", "0"),
            weights="sparse",
            combiner="sum",
            max_norm=0.001,
            seed=1307,
        ),
    ],
    ids=["left to stock", "an overflow of stock's"],
)
def test_what_is_stock_s_own_is_no_mismatch(case):
    check(case)
