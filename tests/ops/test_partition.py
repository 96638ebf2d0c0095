from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from fusion import ops
from tests import reference
from tests.reference import MODES


def canonical(rows, n_shards):
    """Rows of each shard of a v1 PartitionedVariable: the first ones are one row longer."""
    return [rows // n_shards + (k < rows % n_shards) for k in range(n_shards)]


def fused(rows, strategy):
    def build(_, ids):
        shapes = [tf.constant([n, 3], tf.int64) for n in rows]
        out = ops.partition_with_permutation(ids, shapes, partition_strategy=strategy)
        return list(out.partitioned_values), out.partition_permutation

    return build


def stock(rows, strategy):
    """The arithmetic of tf.nn.embedding_lookup, in stock ops."""
    n_shards, total = len(rows), sum(rows)

    def build(_, ids):
        if strategy == "mod":
            shard, local = ids % n_shards, ids // n_shards
        else:
            size, extras = total // n_shards, total % n_shards
            shard = tf.maximum(ids // (size + 1), (ids - extras) // max(size, 1))
            local = tf.where(shard < extras, ids % (size + 1), (ids - extras) % max(size, 1))
        shard = tf.cast(shard, tf.int32)
        inside = [
            tf.cumsum(tf.cast(tf.equal(shard, k), tf.int32), exclusive=True)
            for k in range(n_shards)
        ]
        place = tf.reduce_sum(
            tf.one_hot(shard, n_shards, dtype=tf.int32) * tf.stack(inside, 1), axis=1
        )
        return list(tf.dynamic_partition(local, shard, n_shards)), tf.stack([shard, place], 1)

    return build


def check(mode, ids, rows, strategy):
    actual, permutation = reference.run(mode, fused(rows, strategy), {"ids": ids})
    expected, expected_permutation = reference.run(mode, stock(rows, strategy), {"ids": ids})
    np.testing.assert_array_equal(permutation, expected_permutation)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("n_shards", [2, 3, 10])
def test_equals_stock(mode, strategy, dtype, n_shards):
    ids = np.random.default_rng(n_shards).integers(0, 23, 200).astype(dtype)
    check(mode, ids, canonical(23, n_shards), strategy)


@given(
    rows=st.integers(1, 60),
    n_shards=st.integers(2, 6),
    strategy=st.sampled_from(["div", "mod"]),
    seed=st.integers(0, 2**32),
    count=st.integers(0, 30),
)
def test_any_split_equals_stock(rows, n_shards, strategy, seed, count):
    # Stock TensorFlow's div divides by zero with more shards than rows.
    rows = max(rows, n_shards)
    ids = np.random.default_rng(seed).integers(0, rows, count)
    check("eager", ids, canonical(rows, n_shards), strategy)


@pytest.mark.parametrize("strategy", ["div", "mod", "mod_ev"])
def test_more_than_32768_ids(strategy):
    ids = np.random.default_rng(0).permutation(100_001)
    if strategy != "mod_ev":
        check("eager", ids, canonical(100_001, 3), strategy)
    parts, permutation = reference.run("eager", fused([33_334] * 3, strategy), {"ids": ids})
    assert sum(map(len, parts)) == len(ids)
    restored = np.array([parts[shard][place] for shard, place in permutation])
    shard = permutation[:, 0]
    starts = shard * 33_334
    expected = {"div": ids - starts, "mod": ids // 3, "mod_ev": ids}[strategy]
    np.testing.assert_array_equal(restored, expected)


def test_div_splits_uneven_shards_by_their_rows():
    out = ops.partition_with_permutation(
        input=tf.constant([9, 0, 1, 5, 6], tf.int64), partition_shapes=[[1, 4], [5, 4], [4, 4]]
    )
    assert [t.numpy().tolist() for t in out.partitioned_values] == [[0], [0, 4], [3, 0]]
    assert out.partition_permutation.numpy().tolist() == [[2, 0], [0, 0], [1, 0], [1, 1], [2, 1]]


def test_mod_ev_keeps_ids():
    ids = [1999, 2**40, 3, -1]
    out = ops.partition_with_permutation(
        tf.constant(ids, tf.int64), [[0, 4], [0, 4]], partition_strategy="mod_ev"
    )
    shards = [key % 1000 % 2 for key in ids]
    for shard in (0, 1):
        expected = [key for key, owner in zip(ids, shards, strict=True) if owner == shard]
        assert out.partitioned_values[shard].numpy().tolist() == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("bad", [-1, 10, 2**40, -(2**63)])
def test_an_id_outside_the_table(mode, strategy, bad):
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{bad} is not an id.*10 rows"):
        reference.run(mode, fused([5, 5], strategy), {"ids": np.array([3, bad])})


@pytest.mark.parametrize("mode", MODES)
def test_negative_rows(mode):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"partition_shapes\[1\] has -2 rows"):
        reference.run(mode, fused([5, -2], "div"), {"ids": np.array([3])})


def test_result_is_a_named_tuple():
    out = ops.partition_with_permutation([0], [[1, 1], [1, 1]])
    assert out._fields == ("partitioned_values", "partition_permutation")


def test_static_shapes():
    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.int32, [9])
        out = ops.partition_with_permutation(ids, [[1, 1], [1, 1], [1, 1]])
        assert [t.shape.as_list() for t in out.partitioned_values] == [[None]] * 3
        assert out.partition_permutation.shape.as_list() == [9, 2]
