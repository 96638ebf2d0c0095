"""FusedEmbeddingSparsePostLookUp and its gradient against stock ops on all entries in order."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from fusion import ops
from tests import reference
from tests.ops import test_post_lookup as v2
from tests.ops.test_post_lookup import COMBINERS, DTYPES, differentiated
from tests.reference import MODES

RUN_TIME = tf.errors.InvalidArgumentError


def batch(seed, lengths, dim, n_shards=1, dtype=np.float32, **kw):
    """As for the v2 op, each entry having a row of its own; shards keep the entries' order."""
    total = sum(lengths)
    arrays = v2.batch(seed, lengths, dim, n_shards, dtype, unique=total, **kw)
    return arrays | {"places": np.arange(total, dtype=np.int32)}


def fused(weighted=False, fill_empty_row=True, **attrs):
    """A call of the op; flagged rows are always taken for filled ones."""

    def build(_, permutation, shape, indices, empty, weights, places, **shards):
        names = sorted(shards)
        entries = [tf.where(tf.equal(permutation[:, 0], k))[:, 0] for k in range(len(names))]
        flags = tf.concat([tf.cast(empty, tf.int32), tf.ones_like(places)], 0)

        def result_of(shards):
            return ops.fused_embedding_sparse_post_look_up(
                emb_shards=shards,
                partitioned_indices=[tf.gather(indices, part) for part in entries],
                sp_dense_shape=shape,
                row_empty_and_invalid_flags=flags,
                partitioned_values=entries,
                partitioned_weights=[tf.gather(weights, part) for part in entries],
                use_sparse_weights=weighted,
                **attrs,
            ).emb_vectors

        return differentiated(result_of, {**shards, "weights": weights})

    return build


def compare(mode, arrays, exact, weighted=False, **attrs):
    v2.compare(mode, arrays, exact, weighted, fused, fill_empty_row=True, **attrs)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("dim", [1, 5, 16, 300])
def test_unweighted_bags_have_stock_bits(combiner, n_shards, dim):
    arrays = batch(dim, [*range(41), 100, 257], dim, n_shards)
    compare("eager", arrays, exact=True, combiner=combiner)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("max_norm", [-1.0, 0.5])
@pytest.mark.parametrize("n_shards", [1, 2])
def test_weights_and_max_norm(mode, combiner, weighted, max_norm, n_shards):
    exact = not weighted and max_norm < 0
    arrays = batch(0, [1, 1, 7, 0, 30, 200], 16, n_shards)
    compare(mode, arrays, exact, weighted, combiner=combiner, max_norm=max_norm)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_shards", [1, 2])
def test_dtypes(dtype, n_shards):
    arrays = batch(3, [*range(30)], 9, n_shards, dtype)
    for combiner in COMBINERS:
        compare("eager", arrays, exact=True, combiner=combiner)
        compare("eager", arrays, exact=False, weighted=True, combiner=combiner)


@pytest.mark.parametrize(
    ("dtype", "weights_dtype"), [(np.float32, np.float64), (np.float64, np.float16)]
)
def test_weights_of_another_dtype_than_the_table(dtype, weights_dtype):
    arrays = batch(5, [*range(20)], 9, n_shards=2, dtype=dtype, weights_dtype=weights_dtype)
    compare("eager", arrays, exact=False, weighted=True)
    compare("eager", arrays, exact=True)


@pytest.mark.parametrize("default_id", [-1, 0, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_shards", [1, 2])
def test_flagged_rows(default_id, weighted, n_shards):
    arrays = batch(4, [1, 2, 3, 1, 5, 1], 4, n_shards)
    assert arrays["empty"].any()
    compare("eager", arrays, not weighted, weighted, default_id=default_id)


@given(
    lengths=st.lists(st.integers(0, 45), max_size=8).filter(any),
    dim=st.integers(1, 20),
    n_shards=st.integers(1, 4),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    max_norm=st.sampled_from([-1.0, 0.4, 3.0]),
    default_id=st.sampled_from([-1, 2]),
    seed=st.integers(0, 2**32),
)
def test_any_bags(lengths, dim, n_shards, combiner, weighted, max_norm, default_id, seed):
    arrays = batch(seed, lengths, dim, n_shards)
    exact = not weighted and max_norm < 0
    attrs = {"combiner": combiner, "max_norm": max_norm, "default_id": default_id}
    compare("eager", arrays, exact, weighted, **attrs)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_without_entries_all_is_zero(lengths, n_shards):
    arrays = batch(0, lengths, 2, n_shards)
    output, grads, weights = reference.run("eager", fused(weighted=True), arrays)
    np.testing.assert_array_equal(output, np.zeros((len(lengths), 2)))
    for gradient in grads:
        assert gradient.shape == (0, 2)
    assert weights.shape == (0,)


def small(**changes):
    """Rows 0 and 2 of three get entries, from two shards."""
    arguments = {
        "emb_shards": [tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[5.0, 6.0]])],
        "partitioned_indices": [
            tf.constant([[0, 0], [2, 0]], tf.int64),
            tf.constant([[0, 1]], tf.int64),
        ],
        "sp_dense_shape": tf.constant([3, 9], tf.int64),
        "row_empty_and_invalid_flags": tf.constant([0, 0, 0, 1, 1, 1]),
        "partitioned_values": [tf.constant([7, 8]), tf.constant([9])],
        "partitioned_weights": [tf.constant([1.0, 2.0]), tf.constant([3.0])],
    }
    return ops.fused_embedding_sparse_post_look_up(**{**arguments, **changes})


def test_result_is_a_named_tuple():
    out = small()
    assert out._fields == ("emb_vectors", "feature_nums")
    assert out.emb_vectors.numpy().tolist() == [[3, 4], [0, 0], [3, 4]]
    assert out.feature_nums.numpy().tolist() == [2, 0, 1]


def test_weights_of_several_shards():
    out = small(use_sparse_weights=True)
    assert out.emb_vectors.numpy().tolist() == [[4, 5], [0, 0], [3, 4]]


def test_dummy_weights():
    out = small(partitioned_weights=[tf.zeros([1])] * 2)
    assert out.emb_vectors.numpy().tolist() == [[3, 4], [0, 0], [3, 4]]


def rounded(columns, n_shards=2):
    """The sum in float32 of 2^24, 1, 1 and -2^24 as entries with these columns.

    Two entries are in each of two shards. All sums in between depend on the order.
    """
    rows = tf.constant([[2.0**24], [1.0], [1.0], [-(2.0**24)]])
    indices = tf.constant([[0, column] for column in columns], tf.int64)
    sizes = [4 // n_shards] * n_shards
    out = ops.fused_embedding_sparse_post_look_up(
        emb_shards=tf.split(rows, sizes),
        partitioned_indices=tf.split(indices, sizes),
        sp_dense_shape=[1, 4],
        row_empty_and_invalid_flags=[0],
        partitioned_values=tf.split(tf.range(4), sizes),
        partitioned_weights=[tf.ones([1])] * n_shards,
        combiner="sum",
    )
    return float(out.emb_vectors[0, 0])


def test_column_1_orders_the_entries_of_a_row():
    assert rounded([0, 1, 2, 3]) == 0  # 2^24 + 1 + 1 - 2^24
    assert rounded([2, 0, 1, 3]) == 2  # 1 + 1 + 2^24 - 2^24
    assert rounded([2, 0, 3, 1]) == 2  # 1 - 2^24 + 2^24 + 1
    assert rounded([1, 0, 3, 2]) == 1  # 1 + 2^24 - 2^24 + 1
    assert rounded([9, -5, 2**62, 40]) == 1


def test_equal_columns_are_ordered_by_shard_and_place():
    assert rounded([7, 7, 7, 7]) == rounded([0, 1, 2, 3])
    assert rounded([1, 0, 1, 1]) == rounded([1, 0, 2, 3])


def test_the_order_of_a_single_shard_counts():
    assert rounded([2, 0, 1, 3], n_shards=1) == rounded([0, 1, 2, 3])


@pytest.mark.parametrize("n_shards", [1, 3])
def test_one_row_with_a_million_entries(n_shards):
    count = 10**6
    rng = np.random.default_rng(0)
    order = rng.permutation(count)
    rows = rng.standard_normal((count, 1)).astype(np.float32)
    indices = np.stack([np.zeros(count, np.int64), np.arange(count)], 1)
    # Shuffled over three shards, sorted in one.
    taken = order if n_shards > 1 else np.arange(count)
    parts = np.array_split(taken, n_shards)
    out = ops.fused_embedding_sparse_post_look_up(
        emb_shards=[rows[part] for part in parts],
        partitioned_indices=[indices[part] for part in parts],
        sp_dense_shape=[1, count],
        row_empty_and_invalid_flags=[0],
        partitioned_values=parts,
        partitioned_weights=[[1.0]] * n_shards,
    )
    stock = tf.raw_ops.SparseSegmentMean(
        data=rows, indices=np.arange(count), segment_ids=np.zeros(count, np.int32)
    )
    np.testing.assert_array_equal(out.emb_vectors, stock)
    assert out.feature_nums.numpy().tolist() == [count]


def until_the_last_row(**changes):
    return small(row_count="last_row", **changes)


def test_last_row_stops_there():
    rows = [[[0, 0], [1, 0]], [[0, 1]]]
    out = until_the_last_row(partitioned_indices=rows)
    assert out.emb_vectors.numpy().tolist() == [[3, 4], [3, 4]]
    assert out.feature_nums.numpy().tolist() == [2, 1]


def test_last_row_may_be_in_any_shard_and_exceed_the_dense_shape():
    for rows in ([[[0, 0], [4, 0]], [[0, 1]]], [[[0, 0], [0, 1]], [[4, 0]]]):
        out = until_the_last_row(partitioned_indices=rows)
        assert out.feature_nums.numpy().tolist() == [2, 0, 0, 0, 1]


def test_last_row_without_entries():
    out = until_the_last_row(
        emb_shards=[tf.zeros([0, 2])] * 2,
        partitioned_indices=[tf.zeros([0, 2], tf.int64)] * 2,
        partitioned_values=[tf.zeros([0], tf.int64)] * 2,
        row_empty_and_invalid_flags=tf.zeros([0], tf.int32),
    )
    assert out.emb_vectors.shape == (0, 2)


def test_last_row_rejects_unsorted_rows():
    rows = [[[2, 0], [0, 0]], [[0, 1]]]
    with pytest.raises(RUN_TIME, match=r"indices\[0\]\[1, 0\] = 0 is less than the row before"):
        until_the_last_row(partitioned_indices=rows)


def test_last_row_has_a_gradient():
    shard = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(shard)
        out = until_the_last_row(
            emb_shards=[shard, tf.ones([1, 2])], partitioned_indices=[[[0, 0], [1, 0]], [[0, 1]]]
        )
    np.testing.assert_array_equal(tape.gradient(out.emb_vectors, shard), [[0.5] * 2, [1] * 2])


def gradient(**changes):
    arguments = {
        "top_grad": tf.constant([[2.0, 4.0], [9.0, 9.0], [1.0, 1.0]]),
        "emb_shards": [tf.ones([2, 2]), tf.ones([1, 2])],
        "partitioned_indices": [[[0, 0], [2, 0]], [[0, 1]]],
        "feature_nums": [2, 0, 1],
        "row_empty_and_invalid_flags": [0, 0, 0],
        "partitioned_weights": [[1.0, 2.0], [3.0]],
    }
    return ops.fused_embedding_sparse_post_look_up_grad(**{**arguments, **changes})


def test_the_gradient_op_by_itself():
    out = gradient()
    assert out._fields == ("grad_shards", "grad_weights")
    assert [g.numpy().tolist() for g in out.grad_shards] == [[[1, 2], [1, 1]], [[1, 2]]]
    assert [g.shape for g in out.grad_weights] == [(0,), (0,)]


def test_the_gradient_op_with_weights():
    out = gradient(combiner="sum", use_sparse_weights=True)
    assert [g.numpy().tolist() for g in out.grad_shards] == [[[2, 4], [2, 2]], [[6, 12]]]
    assert [g.numpy().tolist() for g in out.grad_weights] == [[6, 2], [6]]


def test_flagged_rows_have_no_gradient_without_a_default_id():
    flags = [1, 0, 0]
    masked = gradient(row_empty_and_invalid_flags=flags, use_sparse_weights=True)
    assert [g.numpy().tolist() for g in masked.grad_shards] == [[[0, 0], [1, 1]], [[0, 0]]]
    assert masked.grad_weights[1].numpy().tolist() == [0]
    kept = gradient(row_empty_and_invalid_flags=flags, default_id=0)
    assert [g.numpy().tolist() for g in kept.grad_shards] == [[[1, 2], [1, 1]], [[1, 2]]]


@pytest.mark.parametrize("n_shards", [1, 3])
def test_static_shapes(n_shards):
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder
        out = small(
            emb_shards=[placeholder(tf.float32, [None, 7]) for _ in range(n_shards)],
            partitioned_indices=[placeholder(tf.int64, None) for _ in range(n_shards)],
            partitioned_values=[placeholder(tf.int64, None) for _ in range(n_shards)],
            partitioned_weights=[placeholder(tf.float32, None) for _ in range(n_shards)],
            sp_dense_shape=placeholder(tf.int64, None),
        )
        assert out.emb_vectors.shape.as_list() == [None, 7]
        assert out.feature_nums.shape.as_list() == [None]
