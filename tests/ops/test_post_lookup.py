"""The ops that combine gathered rows into bags, of both families, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from fusion import ops
from tests import reference
from tests.ops.post_lookup import COMBINERS, DTYPES, FAMILIES, HALVES, Family
from tests.reference import MODES, assert_same_bits

RUN_TIME = tf.errors.InvalidArgumentError

v1, v2 = FAMILIES["v1"], FAMILIES["v2"]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("dim", [1, 2, 5, 8, 16, 31, 64, 300])
def test_unweighted_bags_have_stock_bits(family, combiner, n_shards, dim):
    arrays = family.batch(dim, [*range(41), 100, 257, 400], dim, n_shards)
    family.compare("eager", arrays, exact=True, combiner=combiner, fill_empty_row=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("max_norm", [-1.0, 0.5])
@pytest.mark.parametrize("n_shards", [1, 2])
def test_weights_and_max_norm(family, mode, combiner, weighted, max_norm, n_shards):
    exact = not weighted and max_norm < 0
    for dim in (1, 16, 300) if mode == "eager" else (16,):
        arrays = family.batch(dim, [1, 1, 7, 0, 30, 200], dim, n_shards)
        family.compare(mode, arrays, exact, weighted, combiner=combiner, max_norm=max_norm)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("dtype", [*HALVES, np.float64])
def test_unweighted_bags_of_other_dtypes_have_stock_bits(family, combiner, n_shards, dtype):
    arrays = family.batch(3, [*range(41), 300], 9, n_shards, dtype)
    for mode in MODES:
        family.compare(mode, arrays, exact=True, combiner=combiner, fill_empty_row=True)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dtype", [*HALVES, np.float64])
@pytest.mark.parametrize("n_shards", [1, 2])
def test_weights_and_max_norm_of_other_dtypes(family, combiner, dtype, n_shards):
    arrays = family.batch(3, [*range(30)], 9, n_shards, dtype)
    for weighted, max_norm in ((True, -1.0), (False, 0.5), (True, 0.5)):
        family.compare("eager", arrays, False, weighted, combiner=combiner, max_norm=max_norm)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize(
    ("dtype", "weights_dtype"), list(zip(DTYPES, [*DTYPES[1:], DTYPES[0]], strict=True))
)
def test_weights_of_another_dtype_than_the_table(family, combiner, dtype, weights_dtype):
    arrays = family.batch(5, [*range(20)], 9, 2, dtype, weights_dtype=weights_dtype)
    family.compare("eager", arrays, False, weighted=True, combiner=combiner)
    family.compare("eager", arrays, exact=True, combiner=combiner)


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


@pytest.mark.parametrize(("fill", "default_id"), [(True, -1), (True, 0), (False, -1), (False, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_flagged_rows(fill, default_id, weighted):
    arrays = v2.batch(4, [1, 2, 3, 1, 5, 1], 4)
    arrays["empty"][[1, 4]] = True
    attrs = {"fill_empty_row": fill, "default_id": default_id}
    v2.compare("eager", arrays, not weighted, weighted, **attrs)


@pytest.mark.parametrize("default_id", [-1, 0, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_shards", [1, 2])
def test_flagged_rows_of_v1(default_id, weighted, n_shards):
    arrays = v1.batch(4, [1, 2, 3, 1, 5, 1], 4, n_shards)
    arrays["empty"][[1, 4]] = True
    v1.compare("eager", arrays, not weighted, weighted, default_id=default_id)


@given(
    name=st.sampled_from([*FAMILIES]),
    lengths=st.lists(st.integers(0, 45), max_size=8).filter(any),
    dim=st.integers(1, 20),
    n_shards=st.integers(1, 4),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    max_norm=st.sampled_from([-1.0, 0.5, 3.0]),  # float32 numbers, as the attr
    default_id=st.sampled_from([-1, 2]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_any_bags(
    name, lengths, dim, n_shards, combiner, weighted, max_norm, default_id, dtype, seed
):
    arrays = FAMILIES[name].batch(seed, lengths, dim, n_shards, dtype)
    exact = not weighted and max_norm < 0
    attrs = {"combiner": combiner, "max_norm": max_norm, "default_id": default_id}
    FAMILIES[name].compare("eager", arrays, exact, weighted, **attrs)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_without_entries_all_is_zero(family, lengths, n_shards):
    # Not compared with stock: its segment gradients leave memory as it was if there is no entry.
    arrays = family.batch(0, lengths, 2, n_shards)
    output, grads, weights = reference.run("eager", family.fused(weighted=True), arrays)
    np.testing.assert_array_equal(output, np.zeros((len(lengths), 2)))
    for k, gradient in enumerate(grads):
        np.testing.assert_array_equal(gradient, np.zeros_like(arrays[f"shard{k}"]))
    assert weights.shape == (0,)


@pytest.mark.parametrize(
    ("family", "rows"),
    [(v1, [[3, 4], [0, 0], [3, 4]]), (v2, [[2, 3], [0, 0], [3, 4]])],
    ids=FAMILIES,
)
def test_the_result_is_a_named_tuple(family, rows):
    out = family.call()
    assert out._fields == ("emb_vectors", "feature_nums")
    assert out.emb_vectors.numpy().tolist() == rows
    assert out.feature_nums.numpy().tolist() == [2, 0, 1]


def test_v2_last_row_stops_there():
    rows = tf.constant([[0, 0], [0, 1], [1, 7]], tf.int64)
    out = v2.call(
        indices_before_unique=rows, row_count="last_row", is_row_empty=tf.zeros([0], bool)
    )
    assert out.emb_vectors.numpy().tolist() == [[2, 3], [3, 4]]
    assert out.feature_nums.numpy().tolist() == [2, 1]


def test_v2_last_row_exceeds_the_dense_shape_as_in_stock():
    rows = tf.constant([[0, 0], [0, 1], [5, 7]], tf.int64)
    assert v2.call(indices_before_unique=rows, row_count="last_row").emb_vectors.shape == (6, 2)


def test_v2_last_row_without_entries():
    out = v2.call(
        indices_before_unique=tf.zeros([0, 2], tf.int64),
        unique_idxs=tf.zeros([0], tf.int32),
        row_count="last_row",
    )
    assert out.emb_vectors.shape == (0, 2)


def test_v2_last_row_has_a_gradient():
    rows = tf.constant([[0, 0], [0, 1], [1, 7]], tf.int64)
    shard = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(shard)
        out = v2.call(
            emb_shards=[shard],
            indices_before_unique=rows,
            row_count="last_row",
            is_row_empty=tf.zeros([0], tf.bool),
        )
    np.testing.assert_array_equal(tape.gradient(out.emb_vectors, shard), [[0.5] * 2, [1.5] * 2])


def test_v2_last_row_rejects_unsorted_rows():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2, 0\] = 0 is less than"):
        v2.call(row_count="last_row")


def test_the_gradient_op_of_v2_by_itself():
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


def test_v1_weights_of_several_shards():
    out = v1.call(use_sparse_weights=True)
    assert out.emb_vectors.numpy().tolist() == [[4, 5], [0, 0], [3, 4]]


def test_v1_dummy_weights():
    out = v1.call(partitioned_weights=[tf.zeros([1])] * 2)
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
    return v1.call(row_count="last_row", **changes)


def test_v1_last_row_stops_there():
    rows = [[[0, 0], [1, 0]], [[0, 1]]]
    out = until_the_last_row(partitioned_indices=rows)
    assert out.emb_vectors.numpy().tolist() == [[3, 4], [3, 4]]
    assert out.feature_nums.numpy().tolist() == [2, 1]


def test_v1_last_row_may_be_in_any_shard_and_exceed_the_dense_shape():
    for rows in ([[[0, 0], [4, 0]], [[0, 1]]], [[[0, 0], [0, 1]], [[4, 0]]]):
        out = until_the_last_row(partitioned_indices=rows)
        assert out.feature_nums.numpy().tolist() == [2, 0, 0, 0, 1]


def test_v1_last_row_without_entries():
    out = until_the_last_row(
        emb_shards=[tf.zeros([0, 2])] * 2,
        partitioned_indices=[tf.zeros([0, 2], tf.int64)] * 2,
        partitioned_values=[tf.zeros([0], tf.int64)] * 2,
        row_empty_and_invalid_flags=tf.zeros([0], tf.int32),
    )
    assert out.emb_vectors.shape == (0, 2)


def test_v1_last_row_rejects_unsorted_rows():
    rows = [[[2, 0], [0, 0]], [[0, 1]]]
    with pytest.raises(RUN_TIME, match=r"indices\[0\]\[1, 0\] = 0 is less than the row before"):
        until_the_last_row(partitioned_indices=rows)


def test_v1_last_row_has_a_gradient():
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


def test_the_gradient_op_of_v1_by_itself():
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


def rows_gradient(top_grad, places, **changes):
    """The gradients of two rows that bags of one entry each are made of, by the op of v2."""
    arguments = {
        "top_grad": np.array(top_grad, np.float32)[:, None],
        "emb_shards": [np.ones([2, 1], np.float32)],
        "partition_permutation": [[0, 0]],
        "feature_nums": [1] * len(places),
        "indices_before_unique": [[row, 0] for row in range(len(places))],
        "is_row_empty": [False] * len(places),
        "unique_idxs": places,
        "sp_weights_values": [1.0],
    }
    out = ops.fused_embedding_sparse_post_look_up_v2_grad(**{**arguments, **changes})
    return out.grad_shards[0].numpy()[:, 0]


def test_a_flagged_row_has_no_gradient_even_if_it_is_not_a_number():
    flags = {"is_row_empty": [True, False], "fill_empty_row": True}
    assert rows_gradient([np.nan, 2], [1, 1], **flags).tolist() == [0, 2]
    assert np.isnan(rows_gradient([np.nan, 2], [1, 1], default_id=0, **flags)[1])


def test_the_sign_of_a_zero_gradient_is_kept_in_rows_with_entries():
    assert np.signbit(rows_gradient([-0.0, -0.0], [1, 1])).tolist() == [False, True]
    assert np.signbit(rows_gradient([-0.0, 0.0], [1, 1])).tolist() == [False, False]


def test_a_subnormal_gradient_of_a_bag_of_one_is_that_of_stock():
    gradient = np.array([[1e-40]], np.float32)
    stock = tf.raw_ops.SparseSegmentMeanGrad(
        grad=gradient, indices=[0], segment_ids=[0], output_dim0=1
    )
    assert rows_gradient([1e-40], [0])[0] == stock.numpy()[0, 0]


@pytest.mark.parametrize("n_shards", [1, 3])
def test_static_shapes(family, n_shards):
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder
        unknown = {
            name: [placeholder(tf.convert_to_tensor(value[0]).dtype, None) for _ in range(n_shards)]
            if isinstance(value, list)
            else placeholder(value.dtype, None)
            for name, value in family.small().items()
            if name != "partition_permutation"
        }
        unknown["emb_shards"] = [placeholder(tf.float32, [None, 7]) for _ in range(n_shards)]
        out = family.call(**unknown)
        assert out.emb_vectors.shape.as_list() == [None, 7]
        assert out.feature_nums.shape.as_list() == [None]


def test_one_shard_with_a_known_width_is_enough():
    with tf.Graph().as_default():
        shards = [tf.compat.v1.placeholder(tf.float32, shape) for shape in (None, [None, 7])]
        assert v2.call(emb_shards=shards).emb_vectors.shape.as_list() == [None, 7]
