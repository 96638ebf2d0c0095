"""Ragged ids and weights against stock TensorFlow, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.lookup import VERSIONS
from tests import tables
from tests.bounds import Bounds, loss_factors
from tests.memo import computed_once
from tests.reference import MODES, assert_same_bits, assert_within, gradient_parts, run

COMBINERS = ["sum", "mean", "sqrtn"]
LENGTHS = [2, 0, 1, 13, 30, 0, 9, 10]


def batch(lengths=LENGTHS, rows=20, dtype=np.int64, splits_dtype=np.int64, negative=0.1):
    rng = np.random.default_rng(len(lengths))
    values = rng.integers(0, rows, sum(lengths)).astype(dtype)
    values[rng.random(len(values)) < negative] = -1
    return {
        "values": values,
        "splits": np.cumsum([0, *lengths]).astype(splits_dtype),
        "weights": rng.uniform(0.1, 3, len(values)).astype(np.float32),
    }


def table(rows=20, dim=5):
    return np.random.default_rng(rows).standard_normal((rows, dim)).astype(np.float32)


def ours(version="v2"):
    def lookup(shards, ids, weights, **options):
        return fusion.fused_safe_embedding_lookup_sparse(
            shards, ids, weights, fusion_version=version, **options
        )

    return lookup


def stock(shards, ids, weights, **options):
    return tf.compat.v1.nn.safe_embedding_lookup_sparse(shards, ids, weights, **options)


def outcome(mode, lookup, shards, arrays, weighted=False, **options):
    """(result, dense gradient of each shard, gradient of the weights)."""

    def build(params, values, splits, weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            ids = tf.RaggedTensor.from_row_splits(values, splits)
            sparse_weights = tf.RaggedTensor.from_row_splits(weights, splits) if weighted else None
            result = lookup(params, ids, sparse_weights, **options)
            flat = tf.reshape(result, [-1])
            loss = tf.reduce_sum(flat * tf.cos(tf.range(tf.size(flat), dtype=tf.float32)))
        sources = [*params, weights]
        if mode == "session":
            *of_shards, of_weights = tf.compat.v1.gradients(loss, sources)
        else:
            *of_shards, of_weights = tape.gradient(loss, sources)
        dense = [gradient_parts(g, s)[1] for g, s in zip(of_shards, params, strict=True)]
        return result, dense, tf.zeros_like(weights) if of_weights is None else of_weights

    return run(mode, build, arrays, lambda: [tf.Variable(shard) for shard in shards])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_ragged_ids_have_stock_bits(mode, combiner, version):
    for n_shards, default_id in ((1, None), (1, 3), (3, 0)):
        shards = tables.split(table(), n_shards)
        options = {"combiner": combiner, "default_id": default_id}
        actual = outcome(mode, ours(version), shards, batch(), **options)
        expected = computed_once(outcome, mode, stock, shards, batch(), **options)
        assert_same_bits(actual[0], expected[0])
        for gradient, wanted in zip(actual[1], expected[1], strict=True):
            assert_same_bits(gradient, wanted)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_ragged_weights(mode, combiner, max_norm, version):
    arrays, full = batch(), table()
    options = {"combiner": combiner, "max_norm": max_norm}
    actual = outcome(mode, ours(version), [full], arrays, weighted=True, **options)
    expected = computed_once(outcome, mode, stock, [full], arrays, weighted=True, **options)
    rows = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    keep = arrays["values"] >= 0
    values, weights = arrays["values"][keep], arrays["weights"][keep]
    bounds = Bounds(full, values, rows[keep], weights, combiner, max_norm, len(LENGTHS))
    top_grad = loss_factors(actual[0].shape)
    assert_within(actual[0], expected[0], bounds.output())
    assert_within(actual[1][0], expected[1][0], bounds.table_gradient(top_grad))
    bound = np.zeros(len(keep))
    bound[keep] = bounds.weights_gradient(top_grad)
    assert_within(actual[2], expected[2], bound)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("lengths", [[], [0, 0, 0], [1], [0, 17]])
def test_edge_batches(lengths, version):
    arrays = batch(lengths)
    actual = outcome("eager", ours(version), [table()], arrays)
    assert actual[0].shape == (len(lengths), 5)
    if sum(lengths):
        assert_same_bits(actual[0], outcome("eager", stock, [table()], arrays)[0])
    else:
        assert not actual[0].any()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("splits_dtype", [np.int32, np.int64])
def test_dtypes_of_ids_and_splits(dtype, splits_dtype):
    """Stock cannot take int32 splits; the values are those of int64 splits."""
    actual = outcome("eager", ours(), [table()], batch(dtype=dtype, splits_dtype=splits_dtype))
    assert_same_bits(actual[0], outcome("eager", stock, [table()], batch())[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_ids_and_weights_may_be_of_different_kinds(version):
    """Weights pair with ids by position, as in stock."""
    arrays = batch()
    ragged = tf.RaggedTensor.from_row_splits(arrays["values"], arrays["splits"])
    weights = tf.RaggedTensor.from_row_splits(arrays["weights"], arrays["splits"])
    expected = ours(version)(table(), ragged, weights)
    for ids, given in (
        (ragged.to_sparse(), weights),
        (ragged, weights.to_sparse()),
        (ragged, weights.values),
    ):
        assert_same_bits(ours(version)(table(), ids, given).numpy(), expected.numpy())


def test_every_partition_of_rows():
    values, splits = batch()["values"], batch()["splits"]
    expected = stock(table(), tf.RaggedTensor.from_row_splits(values, splits), None).numpy()
    rowids = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    for ids in (
        tf.RaggedTensor.from_row_lengths(values, tf.constant(LENGTHS, tf.int64)),
        tf.RaggedTensor.from_row_starts(values, splits[:-1]),
        tf.RaggedTensor.from_value_rowids(values, rowids, len(LENGTHS)),
    ):
        assert_same_bits(ours()(table(), ids, None).numpy(), expected)


def test_static_rows_are_kept():
    spec = tf.RaggedTensorSpec([7, None], tf.int64, ragged_rank=1)
    function = tf.function(lambda ids: ours()(table(), ids, None))
    assert function.get_concrete_function(spec).output_shapes.as_list()[1] == 5


RANK_3 = tf.ragged.constant([[[1, 2], [3]], [[]]], ragged_rank=2, dtype=tf.int64)
RAGGED_ROWS = tf.ragged.constant([[[1, 2]], [[3, 4]]], ragged_rank=1, dtype=tf.int64)
IDS = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)


@pytest.mark.parametrize("ids", [RANK_3, RAGGED_ROWS])
def test_only_matrices_are_looked_up(ids):
    for lookup in (ours(), stock):
        with pytest.raises(ValueError, match=r"rank|len|[Ss]hape"):
            lookup(table(), ids, None)
    with pytest.raises(ValueError, match=r"sparse_ids must have rank 2 .*got shape"):
        ours()(table(), ids, None)


def test_ragged_weights_of_another_rank():
    weights = tf.ragged.constant([[[1.0, 2.0], [3.0]]], ragged_rank=2)
    with pytest.raises(ValueError, match="sparse_weights must have rank 2"):
        ours()(table(), IDS, weights)


@pytest.mark.parametrize("weights", [[[1.0], [3.0]], [[1.0, 2.0], [3.0, 4.0]]])
def test_ragged_weights_of_another_length(weights):
    weights = tf.ragged.constant(weights)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        stock(table(), IDS, weights)
    with pytest.raises(ValueError, match="sp_weights_values"):
        ours()(table(), IDS, weights)
    # Lengths that are not known when the graph is built are compared at run time.
    spec = tf.RaggedTensorSpec([None, None], tf.float32)
    function = tf.function(lambda given: ours()(table(), IDS, given), input_signature=[spec])
    with pytest.raises(tf.errors.InvalidArgumentError, match="sp_weights_values"):
        function(weights)


def test_an_id_outside_the_table():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 20 is not in \[0, 20\)"):
        ours()(table(), IDS * 10, None)


def test_other_dtypes_of_ragged_ids():
    with pytest.raises(TypeError, match="sparse_ids must be int32 or int64, got float32"):
        ours()(table(), tf.cast(IDS, tf.float32), None)


@pytest.mark.parametrize("splits", [[0, 2, 1], [1, 3], [0, 2], [0, 4]])
def test_malformed_splits(splits):
    """What an unvalidated RaggedTensor may hold: an error or stock's values, never a crash."""
    ids = tf.RaggedTensor.from_row_splits(
        tf.constant([1, 2, 3], tf.int64), tf.constant(splits, tf.int64), validate=False
    )
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        ours()(table(), ids, None)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        stock(table(), ids, None)
