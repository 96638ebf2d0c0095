from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from fusion import ops
from tests import reference
from tests.bounds import Bounds, loss_factors
from tests.reference import MODES, assert_same_bits, assert_within

COMBINERS = ["sum", "mean", "sqrtn"]
HALVES = [np.float16, ml_dtypes.bfloat16]
DTYPES = [*HALVES, np.float32, np.float64]


def batch(seed, lengths, dim, n_shards=1, dtype=np.float32, unique=30, weights_dtype=None):
    """The inputs of the op: filled, sorted entries and the gathered rows of unique ids."""
    rng = np.random.default_rng(seed)
    entries = reference.sparse(rng, lengths, unique, np.int32)
    shard = rng.integers(0, n_shards, unique)
    place = np.zeros(unique, np.int64)
    for k in range(n_shards):
        place[shard == k] = np.arange((shard == k).sum())
    arrays = {
        f"shard{k}": rng.standard_normal(((shard == k).sum(), dim)).astype(dtype)
        for k in range(n_shards)
    }
    return arrays | {
        "permutation": np.stack([shard, place], 1).astype(np.int32),
        "shape": entries["dense_shape"],
        "indices": entries["indices"],
        "empty": rng.random(len(lengths)) < 0.3,
        "places": entries["values"],
        "weights": entries["weights"].astype(weights_dtype or dtype),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_weights_that_add_up_to_nothing(dtype, combiner):
    def bags(**attrs):
        return ops.fused_embedding_sparse_post_look_up_v2(
            emb_shards=[np.array([[1, -2, 0]], dtype)],
            partition_permutation=[[0, 0]],
            sp_dense_shape=[3, 1],
            indices_before_unique=[[0, 0], [2, 0]],
            is_row_empty=[False] * 3,
            unique_idxs=[0, 0],
            sp_weights_values=np.array([0, 2], dtype),
            combiner=combiner,
            use_sparse_weights=True,
            **attrs,
        ).emb_vectors.numpy()

    assert_same_bits(bags()[[0, 1]], np.zeros((2, 3), dtype))
    assert_same_bits(bags(divide_no_nan=False)[[0]], np.full((1, 3), np.nan, dtype))
    for result in (bags(), bags(divide_no_nan=False)):
        assert_same_bits(result[[1]], np.zeros((1, 3), dtype))
        assert_same_bits(result[[2]], np.array([[1, -2, 0]], dtype))


def differentiated(result_of, tensors, row_count="dense_shape"):
    shards = [tensors[name] for name in sorted(tensors) if name.startswith("shard")]
    with tf.GradientTape() as tape:
        for source in (*shards, tensors["weights"]):
            tape.watch(source)
        result = result_of(shards)
        flat = tf.reshape(result, [-1])
        factors = tf.cos(tf.range(tf.size(flat), dtype=tf.float32))
        loss = tf.reduce_sum(flat * tf.cast(factors, flat.dtype))
    *grads, weights = tape.gradient(loss, [*shards, tensors["weights"]])
    grads = [tf.convert_to_tensor(g) for g in grads]
    return result, grads, tf.zeros([0]) if weights is None else tf.convert_to_tensor(weights)


def fused(weighted=False, **attrs):
    def build(_, **tensors):
        def result_of(shards):
            return ops.fused_embedding_sparse_post_look_up_v2(
                emb_shards=shards,
                partition_permutation=tensors["permutation"],
                sp_dense_shape=tensors["shape"],
                indices_before_unique=tensors["indices"],
                is_row_empty=tensors["empty"],
                unique_idxs=tensors["places"],
                sp_weights_values=tensors["weights"],
                use_sparse_weights=weighted,
                **attrs,
            ).emb_vectors

        return differentiated(result_of, tensors)

    return build


def stock(combiner="mean", weighted=False, max_norm=-1.0, fill_empty_row=False, default_id=-1):
    """The same from stock ops; the number of rows must be known."""

    def build(_, **tensors):
        segments, count = tensors["indices"][:, 0], tf.cast(tensors["shape"][0], tf.int32)
        dtype = tensors["shard0"].dtype
        computed = tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype

        def result_of(shards):
            starts = tf.cumsum([tf.shape(shard)[0] for shard in shards], exclusive=True)
            permutation = tensors["permutation"]
            places = tf.gather(starts, permutation[:, 0]) + permutation[:, 1]
            rows = tf.gather(tf.concat(shards, 0), places)
            if weighted or max_norm >= 0:
                rows = tf.cast(rows, computed)
            if max_norm >= 0:
                rows = tf.clip_by_norm(rows, max_norm, axes=[1])
            if weighted:
                result = weighted_bags(rows, tensors, segments, count)
            else:
                name = {"sum": "Sum", "mean": "Mean", "sqrtn": "SqrtN"}[combiner]
                segment = getattr(tf.raw_ops, f"SparseSegment{name}WithNumSegments")
                arguments = {"indices": tensors["places"], "segment_ids": segments}
                result = segment(data=rows, **arguments, num_segments=count)
            result = tf.cast(result, dtype)
            if fill_empty_row and default_id < 0:
                result = tf.where(tensors["empty"][:, None], tf.zeros_like(result), result)
            return result

        return differentiated(result_of, tensors)

    def weighted_bags(rows, tensors, segments, count):
        weights = tf.cast(tensors["weights"], rows.dtype)[:, None]
        total = tf.math.unsorted_segment_sum(
            tf.gather(rows, tensors["places"]) * weights, segments, count
        )
        if combiner == "sum":
            return total
        power = 1 if combiner == "mean" else 2
        divisor = tf.math.unsorted_segment_sum(weights**power, segments, count)
        divisor = divisor if combiner == "mean" else tf.sqrt(divisor)
        return tf.math.divide_no_nan(total, divisor)

    return build


def whole_table(arrays):
    shards = [arrays[name] for name in sorted(arrays) if name.startswith("shard")]
    return np.stack([shards[shard][place] for shard, place in arrays["permutation"]])


def compare(mode, arrays, exact, weighted=False, ours=fused, **attrs):
    output, grads, weights = reference.run(mode, ours(weighted, **attrs), arrays)
    expected = reference.run(mode, stock(weighted=weighted, **attrs), arrays)
    if exact:
        assert_same_bits(output, expected[0])
        for ours, theirs in zip(grads, expected[1], strict=True):
            assert_same_bits(ours, theirs)
        return
    max_norm = attrs.get("max_norm", -1.0)
    bounds = Bounds(
        whole_table(arrays),
        arrays["places"],
        arrays["indices"][:, 0],
        arrays["weights"] if weighted else None,
        attrs.get("combiner", "mean"),
        None if max_norm < 0 else max_norm,
        len(output),
    )
    top_grad = loss_factors(output.shape)
    assert_within(output, expected[0], bounds.output())
    bound = bounds.table_gradient(top_grad)
    for k, (ours, theirs) in enumerate(zip(grads, expected[1], strict=True)):
        assert_within(ours, theirs, bound[arrays["permutation"][:, 0] == k])
    if weighted:
        assert_within(weights, expected[2], bounds.weights_gradient(top_grad))


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("dim", [1, 2, 5, 8, 16, 31, 64, 300])
def test_unweighted_bags_have_stock_bits(combiner, n_shards, dim):
    arrays = batch(dim, [*range(41), 100, 257, 400], dim, n_shards)
    compare("eager", arrays, exact=True, combiner=combiner, fill_empty_row=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("max_norm", [-1.0, 0.5])
def test_weights_and_max_norm(mode, combiner, weighted, max_norm):
    exact = not weighted and max_norm < 0
    for dim in (1, 16, 300) if mode == "eager" else (16,):
        arrays = batch(dim, [1, 1, 7, 0, 30, 200], dim, n_shards=2)
        compare(mode, arrays, exact, weighted, combiner=combiner, max_norm=max_norm)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("dtype", [*HALVES, np.float64])
def test_unweighted_bags_of_other_dtypes_have_stock_bits(combiner, n_shards, dtype):
    arrays = batch(3, [*range(41), 300], 9, n_shards, dtype)
    for mode in MODES:
        compare(mode, arrays, exact=True, combiner=combiner, fill_empty_row=True)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dtype", [*HALVES, np.float64])
def test_weights_and_max_norm_of_other_dtypes(combiner, dtype):
    arrays = batch(3, [*range(30)], 9, n_shards=2, dtype=dtype)
    for weighted, max_norm in ((True, -1.0), (False, 0.5), (True, 0.5)):
        compare("eager", arrays, False, weighted, combiner=combiner, max_norm=max_norm)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize(
    ("dtype", "weights_dtype"), list(zip(DTYPES, [*DTYPES[1:], DTYPES[0]], strict=True))
)
def test_weights_of_another_dtype_than_the_table(combiner, dtype, weights_dtype):
    arrays = batch(5, [*range(20)], 9, n_shards=2, dtype=dtype, weights_dtype=weights_dtype)
    compare("eager", arrays, False, weighted=True, combiner=combiner)
    compare("eager", arrays, exact=True, combiner=combiner)


@pytest.mark.parametrize(("fill", "default_id"), [(True, -1), (True, 0), (False, -1), (False, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_flagged_rows(fill, default_id, weighted):
    arrays = batch(4, [1, 2, 3, 1, 5, 1], 4)
    attrs = {"fill_empty_row": fill, "default_id": default_id}
    compare("eager", arrays, not weighted, weighted, **attrs)


@given(
    lengths=st.lists(st.integers(0, 45), max_size=8).filter(any),
    dim=st.integers(1, 20),
    n_shards=st.integers(1, 4),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    max_norm=st.sampled_from([-1.0, 0.4, 3.0]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_any_bags(lengths, dim, n_shards, combiner, weighted, max_norm, dtype, seed):
    arrays = batch(seed, lengths, dim, n_shards, dtype)
    exact = not weighted and max_norm < 0
    compare("eager", arrays, exact, weighted, combiner=combiner, max_norm=max_norm)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_without_entries_all_is_zero(lengths, n_shards):
    # Not compared with stock: its segment gradients leave memory as it was if there is no entry.
    arrays = batch(0, lengths, 2, n_shards)
    output, grads, weights = reference.run("eager", fused(weighted=True), arrays)
    np.testing.assert_array_equal(output, np.zeros((len(lengths), 2)))
    for k, gradient in enumerate(grads):
        np.testing.assert_array_equal(gradient, np.zeros_like(arrays[f"shard{k}"]))
    assert weights.shape == (0,)


def small(**changes):
    """The arguments of a small call, with some changed."""
    arguments = {
        "emb_shards": [tf.constant([[1.0, 2.0], [3.0, 4.0]])],
        "partition_permutation": tf.zeros([1, 2], tf.int32),
        "sp_dense_shape": tf.constant([3, 9], tf.int64),
        "indices_before_unique": tf.constant([[0, 0], [2, 0], [0, 1]], tf.int64),
        "is_row_empty": tf.constant([False, False, False]),
        "unique_idxs": tf.constant([0, 1, 1]),
        "sp_weights_values": tf.constant([1.0]),
    }
    return ops.fused_embedding_sparse_post_look_up_v2(**{**arguments, **changes})


def test_result_is_a_named_tuple():
    out = small()
    assert out._fields == ("emb_vectors", "feature_nums")
    assert out.emb_vectors.numpy().tolist() == [[2, 3], [0, 0], [3, 4]]
    assert out.feature_nums.numpy().tolist() == [2, 0, 1]


def test_last_row_stops_there():
    rows = tf.constant([[0, 0], [0, 1], [1, 7]], tf.int64)
    out = small(indices_before_unique=rows, row_count="last_row", is_row_empty=tf.zeros([0], bool))
    assert out.emb_vectors.numpy().tolist() == [[2, 3], [3, 4]]
    assert out.feature_nums.numpy().tolist() == [2, 1]


def test_last_row_exceeds_the_dense_shape_as_in_stock():
    rows = tf.constant([[0, 0], [0, 1], [5, 7]], tf.int64)
    assert small(indices_before_unique=rows, row_count="last_row").emb_vectors.shape == (6, 2)


def test_last_row_without_entries():
    out = small(
        indices_before_unique=tf.zeros([0, 2], tf.int64),
        unique_idxs=tf.zeros([0], tf.int32),
        row_count="last_row",
    )
    assert out.emb_vectors.shape == (0, 2)


def test_last_row_has_a_gradient():
    rows = tf.constant([[0, 0], [0, 1], [1, 7]], tf.int64)
    shard = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(shard)
        out = small(
            emb_shards=[shard],
            indices_before_unique=rows,
            row_count="last_row",
            is_row_empty=tf.zeros([0], tf.bool),
        )
    np.testing.assert_array_equal(tape.gradient(out.emb_vectors, shard), [[0.5] * 2, [1.5] * 2])


def test_last_row_rejects_unsorted_rows():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2, 0\] = 0 is less than"):
        small(row_count="last_row")


def test_the_gradient_op_by_itself():
    out = ops.fused_embedding_sparse_post_look_up_v2_grad(
        top_grad=tf.constant([[2.0, 4.0], [9.0, 9.0], [1.0, 1.0]]),
        emb_shards=[tf.ones([1, 2]), tf.ones([1, 2])],
        partition_permutation=[[1, 0], [0, 0]],
        feature_nums=[2, 0, 1],
        indices_before_unique=[[0, 0], [2, 0], [0, 1]],
        unique_idxs=[0, 1, 1],
        is_row_empty=[False, False, False],
        sp_weights_values=[1.0],
        combiner="mean",
    )
    assert out._fields == ("grad_shards", "grad_weights")
    assert [g.numpy().tolist() for g in out.grad_shards] == [[[2, 3]], [[1, 2]]]
    assert out.grad_weights.shape == (0,)


@pytest.mark.parametrize("n_shards", [1, 3])
def test_static_shapes(n_shards):
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder
        out = small(
            emb_shards=[placeholder(tf.float32, [None, 7]) for _ in range(n_shards)],
            indices_before_unique=placeholder(tf.int64, None),
            unique_idxs=placeholder(tf.int32, None),
            sp_dense_shape=placeholder(tf.int64, None),
        )
        assert out.emb_vectors.shape.as_list() == [None, 7]
        assert out.feature_nums.shape.as_list() == [None]


def test_one_shard_with_a_known_width_is_enough():
    with tf.Graph().as_default():
        shards = [tf.compat.v1.placeholder(tf.float32, shape) for shape in (None, [None, 7])]
        assert small(emb_shards=shards).emb_vectors.shape.as_list() == [None, 7]
