"""Gradients of gradients: where stock TensorFlow has one, ours is the same; else both raise."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.lookup import VERSIONS
from fusion.schema.attributes import COMBINERS
from tests import tables
from tests.memo import computed_once
from tests.reference import MODES, assert_within, run

IDS = {
    "indices": np.array([[0, 0], [0, 1], [2, 0], [2, 1], [2, 2], [3, 0]], np.int64),
    "values": np.array([1, 5, 3, 1, -1, 8], np.int64),
    "dense_shape": np.array([5, 3], np.int64),
    "weights": np.array([1.0, 2.0, 0.5, 0.7, 3.0, 0.2]),
}
#: Without empty rows and invalid ids, which stock's plain lookup cannot take.
DENSE_IDS = {
    "indices": np.array([[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0]], np.int64),
    "values": np.array([1, 2, 3, 1, 0, 8], np.int64),
    "dense_shape": np.array([3, 3], np.int64),
    "weights": IDS["weights"],
}
TABLE = np.random.default_rng(0).standard_normal((10, 4))


PLAIN: dict[str, Any] = {
    "v1": fusion.fused_embedding_lookup_sparse,
    "v2": fusion.fused_embedding_lookup_sparse_v2,
}


def stock_safe(table, ids, weights, **options):
    return tf.compat.v1.nn.safe_embedding_lookup_sparse(table, ids, weights, **options)


def stock_plain(table, ids, weights, **options):
    return tf.compat.v1.nn.embedding_lookup_sparse(table, ids, weights, **options)


def fused_safe(version):
    def lookup(table, ids, weights, **options):
        return fusion.fused_safe_embedding_lookup_sparse(
            table, ids, weights, fusion_version=version, **options
        )

    return lookup


def fused_plain(version):
    function = PLAIN[version]

    def lookup(table, ids, weights, **options):
        return function(table, ids, weights, fill_empty_row=False, **options)

    return lookup


def second(mode, lookup, arrays, n_shards=1, weighted=True, of_weights=False, **options):
    """Gradients of a function of the first gradients, for each shard and for the weights."""

    def make():
        table = TABLE.astype(arrays["weights"].dtype)
        return [tf.Variable(shard) for shard in tables.split(table, n_shards)]

    def build(shards, indices, values, dense_shape, weights):
        dense_shape.set_shape([2])
        sources = [*shards, weights] if of_weights else shards

        def loss():
            sparse_weights = tf.SparseTensor(indices, weights, dense_shape) if weighted else None
            ids = tf.SparseTensor(indices, values, dense_shape)
            return tf.reduce_sum(tf.sin(lookup(shards, ids, sparse_weights, **options)))

        def of_first(first):
            return tf.add_n([tf.reduce_sum(tf.cos(3 * tf.convert_to_tensor(g) + 1)) for g in first])

        if mode == "session":
            first = tf.compat.v1.gradients(loss(), sources)
            result = tf.compat.v1.gradients(of_first(first), [*shards, weights])
        else:
            with tf.GradientTape() as outer:
                outer.watch(weights)
                with tf.GradientTape() as inner:
                    inner.watch(weights)
                    value = loss()
                value = of_first(inner.gradient(value, sources))
            result = outer.gradient(value, [*shards, weights])
        return [tf.convert_to_tensor(gradient) for gradient in result if gradient is not None]

    return run(mode, build, arrays, make)


@pytest.mark.parity("gradients of gradients")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("mode", "combiner"),
    [*(("eager", each) for each in COMBINERS), ("function", "mean"), ("session", "sqrtn")],
)
def test_weighted_lookups_have_stocks_second_gradient(mode, combiner, version):
    for n_shards in (1, 3):
        for more in ({"max_norm": 0.5}, {"default_id": 2}):
            options = {"combiner": combiner, **more}
            actual = second(mode, fused_safe(version), IDS, n_shards, **options)
            expected = computed_once(second, mode, stock_safe, IDS, n_shards, **options)
            assert len(actual) == len(expected) == n_shards + 1
            for ours, stock in zip(actual, expected, strict=True):
                np.testing.assert_allclose(ours, stock, rtol=1e-12, atol=1e-13)
                assert np.any(stock)


@pytest.mark.parity("gradients of gradients")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("dtype", "combiner"),
    [(np.float16, "sum"), (ml_dtypes.bfloat16, "mean"), (np.float16, "sqrtn")],
)
def test_second_gradients_of_half_types(dtype, combiner, version):
    arrays = IDS | {"weights": IDS["weights"].astype(dtype)}
    for more in ({}, {"max_norm": 1.2}):
        options = {"combiner": combiner, **more}
        actual = second("function", fused_safe(version), arrays, 2, **options)
        expected = computed_once(second, "function", stock_safe, arrays, 2, **options)
        for ours, stock in zip(actual, expected, strict=True):
            assert stock.dtype == dtype
            eps = 8 * float(ml_dtypes.finfo(dtype).eps)
            assert_within(ours, stock, eps * (1 + np.abs(stock.astype(np.float64))))
            assert np.any(stock)


@pytest.mark.parity("gradients of gradients")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_weights_too_where_nothing_is_filled(combiner, version):
    """Stock's plain lookup fills no rows, so that its weights have second gradients as well."""
    for mode in ("eager", "session"):
        options = {"combiner": combiner, "of_weights": True}
        actual = second(mode, fused_plain(version), DENSE_IDS, **options)
        expected = computed_once(second, mode, stock_plain, DENSE_IDS, **options)
        for ours, stock in zip(actual, expected, strict=True):
            np.testing.assert_allclose(ours, stock, rtol=1e-12, atol=1e-13)


@pytest.mark.parity("gradients of gradients")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_unweighted_lookups_have_none(mode, max_norm, version):
    for lookup in (fused_safe(version), stock_safe):
        # A tf.function wraps the error.
        with pytest.raises(Exception, match=r"LookupError|[Gg]radient.*(registry|defined)"):
            second(mode, lookup, IDS, weighted=False, max_norm=max_norm)


@pytest.mark.parity("gradients of gradients")
@pytest.mark.parametrize("version", VERSIONS)
def test_filled_weights_have_none(version):
    """Stock's gradient of filling empty rows has no gradient."""
    for lookup in (fused_safe(version), stock_safe):
        with pytest.raises(LookupError, match="SparseFillEmptyRowsGrad"):
            second("eager", lookup, IDS, of_weights=True)
