"""FusedEmbeddingSparsePreLookUp against a reference that follows its definition word by word."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from fusion import ops
from tests import reference
from tests.reference import MODES

RUN_TIME = tf.errors.InvalidArgumentError

#: Of the attrs of the op; `rows` are those of each shard.
DEFAULTS = {
    "fill_empty_row": False,
    "prune_invalid_id": False,
    "default_id": -1,
    "partition_strategy": "div",
    "use_sparse_weights": False,
    "prune_sparse_weights": False,
    "default_weight": 1.0,
    "row_count": "dense_shape",
    "entry_order": "input",
}


def fused(rows, **attrs):
    """Builds (ids, indices, flags, weights, gradient of the weights) of each shard."""

    def build(_, indices, values, dense_shape, weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            out = ops.fused_embedding_sparse_pre_look_up(
                partition_shapes=[tf.constant([count, 3], tf.int64) for count in rows],
                sp_values=values,
                sp_indices=indices,
                sp_dense_shape=dense_shape,
                sp_weights_values=weights,
                **attrs,
            )
            loss = tf.add_n(
                [
                    tf.reduce_sum(weights_of * factors(shard, indices_of, weights_of.dtype))
                    for shard, (indices_of, weights_of) in enumerate(
                        zip(out.partitioned_indices, out.partitioned_weights, strict=True)
                    )
                ]
            )
        gradient = tape.gradient(loss, weights, unconnected_gradients="zero")
        return (
            list(out.partitioned_values),
            list(out.partitioned_indices),
            out.row_empty_and_invalid_flags,
            list(out.partitioned_weights),
            gradient,
        )

    return build


def factors(shard, indices, dtype):
    """The gradient of each entry's weight: it tells shards, rows and columns apart."""
    return tf.cast(1000 * (shard + 1) + 10 * indices[:, 0] + indices[:, 1], dtype)


def listed(arrays, attrs):
    """[(id, row, column, weight, place or None)] of the entries that are kept or filled in."""
    entries: list[tuple] = []
    empty = set(range(batch_rows(arrays, attrs)))
    for place, (key, (row, column), weight) in enumerate(
        zip(arrays["values"], arrays["indices"], arrays["weights"], strict=True)
    ):
        weighted = attrs["use_sparse_weights"]
        if attrs["prune_invalid_id"] and (
            key < 0 or (weighted and attrs["prune_sparse_weights"] and not weight > 0)
        ):
            continue
        entries.append((key, row, column, weight if weighted else attrs["default_weight"], place))
        empty.discard(row)
    flags = [int(row in empty) for row in range(batch_rows(arrays, attrs))]
    if attrs["fill_empty_row"]:
        filler = max(attrs["default_id"], 0)
        entries += [(filler, row, 0, attrs["default_weight"], None) for row in sorted(empty)]
    if attrs["entry_order"] == "row":
        entries.sort(key=lambda entry: entry[1])
    kept = {entry[4] for entry in entries}
    return entries, flags + [int(place in kept) for place in range(len(arrays["values"]))]


def batch_rows(arrays, attrs):
    if attrs["row_count"] == "last_row":
        return int(arrays["indices"][-1, 0]) + 1 if len(arrays["indices"]) else 0
    return int(arrays["dense_shape"][0])


def owner(key, rows, strategy):
    """(shard, id inside it)."""
    if len(rows) == 1:
        return 0, key
    if strategy == "mod":
        return key % len(rows), key // len(rows)
    ends = np.cumsum(rows)
    shard = int(np.searchsorted(ends, key, side="right"))
    return shard, key - (ends[shard] - rows[shard])


def expected(arrays, rows, attrs):
    entries, flags = listed(arrays, attrs)
    shards: list[list[tuple]] = [[] for _ in rows]
    for key, row, column, weight, place in entries:
        shard, local = owner(int(key), rows, attrs["partition_strategy"])
        shards[shard].append((local, (row, column), weight, place))
    weights = arrays["weights"]
    gradient = np.zeros_like(weights)
    for shard, items in enumerate(shards):
        for _, (row, column), _, place in items:
            if place is not None and attrs["use_sparse_weights"]:
                gradient[place] = 1000 * (shard + 1) + 10 * row + column
    return (
        [np.array([item[0] for item in items], arrays["values"].dtype) for items in shards],
        [np.array([item[1] for item in items], np.int64).reshape(-1, 2) for items in shards],
        np.array(flags, np.int32),
        [np.array([item[2] for item in items], weights.dtype) for items in shards],
        gradient,
    )


def check(mode, arrays, rows, **attrs):
    attrs = DEFAULTS | attrs
    actual = reference.run(mode, fused(rows, **attrs), arrays)
    for ours, theirs in zip(
        tf.nest.flatten(actual), tf.nest.flatten(expected(arrays, rows, attrs)), strict=True
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def batch(seed=0, lengths=(2, 0, 1, 13, 0, 5), vocabulary=20, dtype=np.int64, **kw):
    rng = np.random.default_rng(seed)
    arrays = reference.sparse(rng, lengths, vocabulary, dtype, **{"negative": 0.2, **kw})
    arrays["weights"][rng.random(len(arrays["weights"])) < 0.2] = 0
    return arrays


PRUNED = {"prune_invalid_id": True}
FILLED = {**PRUNED, "fill_empty_row": True}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [[20], [10, 10], [7, 7, 6]])
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("entry_order", ["input", "row"])
@pytest.mark.parametrize("weights", [False, True])
def test_prune_fill_and_partition(mode, rows, strategy, entry_order, weights):
    attrs = {"use_sparse_weights": weights, "prune_sparse_weights": weights, "default_weight": 2.5}
    arrays = batch(shuffled=True)
    check(
        mode,
        arrays,
        rows,
        partition_strategy=strategy,
        entry_order=entry_order,
        default_id=6,
        **FILLED,
        **attrs,
    )


@given(
    lengths=st.lists(st.integers(0, 6), max_size=8),
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    strategy=st.sampled_from(["div", "mod"]),
    prune=st.booleans(),
    fill=st.booleans(),
    default_id=st.sampled_from([-1, 0, 3]),
    weights=st.sampled_from([(False, False), (False, True), (True, False), (True, True)]),
    shuffled=st.booleans(),
    order=st.sampled_from(["input", "row"]),
    seed=st.integers(0, 2**32),
)
def test_any_batch(
    lengths, rows, strategy, prune, fill, default_id, weights, shuffled, order, seed
):
    # mod needs an even split to have a row for every id; 4 rows for the ids of fillers.
    rows = [5 * len(rows)] * len(rows) if strategy == "mod" else [4, *rows]
    negative = 0.3 if prune or len(rows) == 1 else 0.0
    arrays = batch(seed, lengths, sum(rows), negative=negative, shuffled=shuffled)
    check(
        "eager",
        arrays,
        rows,
        partition_strategy=strategy,
        prune_invalid_id=prune,
        fill_empty_row=fill,
        default_id=default_id,
        use_sparse_weights=weights[0],
        prune_sparse_weights=weights[1],
        entry_order=order,
    )


@pytest.mark.parametrize("ids", [np.int32, np.int64])
@pytest.mark.parametrize("weights", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("rows", [[20], [5, 15]])
def test_dtypes(ids, weights, rows):
    arrays = batch(dtype=ids)
    dtype = tf.as_dtype(weights).as_numpy_dtype
    # Multiples of 1/8, which all dtypes hold.
    arrays["weights"] = (np.round(arrays["weights"] * 8) / 8).astype(dtype)
    flags = {"use_sparse_weights": True, "prune_sparse_weights": True, "default_weight": 0.5}
    attrs = DEFAULTS | FILLED | flags
    actual = reference.run("eager", fused(rows, **attrs), arrays)
    wanted = expected(arrays, rows, attrs)
    for ours, theirs in zip(tf.nest.flatten(actual[:4]), tf.nest.flatten(wanted[:4]), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    # The gradients that the test makes up need more digits than half types have.
    np.testing.assert_array_equal(actual[4] != 0, wanted[4] != 0)


@pytest.mark.parametrize("rows", [[10], [5, 5]])
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("fill", [False, True])
def test_no_entries(rows, lengths, fill):
    check("eager", batch(lengths=lengths), rows, fill_empty_row=fill, use_sparse_weights=True)


@pytest.mark.parametrize("rows", [[10], [5, 5]])
@pytest.mark.parametrize("order", ["input", "row"])
def test_all_ids_are_invalid(rows, order):
    check("eager", batch(negative=1.0), rows, entry_order=order, **FILLED)


@pytest.mark.parametrize("n_shards", [1, 2, 3])
def test_the_guides_example(n_shards):
    # Its last column lies outside its dense shape.
    out = ops.fused_embedding_sparse_pre_look_up(
        partition_shapes=[[100 // n_shards + 1, 3]] * n_shards,
        sp_values=tf.constant([1, 2, 3, 4, 5], tf.int64),
        sp_indices=[[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]],
        sp_dense_shape=[5, 4],
        sp_weights_values=[1.0],
        fill_empty_row=True,
        prune_invalid_id=True,
    )
    assert out.partitioned_values[0].numpy().tolist() == [1, 2, 3, 4, 5]
    assert out.partitioned_indices[0].numpy().tolist() == [[k, k] for k in range(5)]
    assert out.row_empty_and_invalid_flags.numpy().tolist() == [0] * 5 + [1] * 5
    assert out.partitioned_weights[0].numpy().tolist() == [1] * 5
    assert [len(part) for part in out.partitioned_values[1:]] == [0] * (n_shards - 1)


def small(**changes):
    """Three rows of which the first is empty once -1 is pruned, in two shards of five rows."""
    arguments = {
        "partition_shapes": [[5, 2], [5, 2]],
        "sp_values": tf.constant([9, -1, 3, 7, 3], tf.int64),
        "sp_indices": [[2, 5], [0, 1], [1, 0], [1, 9], [2, 4]],
        "sp_dense_shape": [3, 3],
        "sp_weights_values": [1.0, 2.0, 3.0, 4.0, 5.0],
        **FILLED,
        "default_id": 6,
    }
    return ops.fused_embedding_sparse_pre_look_up(**{**arguments, **changes})


def test_result_is_a_named_tuple():
    out = small(use_sparse_weights=True)
    assert out._fields == (
        "partitioned_values",
        "partitioned_indices",
        "row_empty_and_invalid_flags",
        "partitioned_weights",
    )
    assert [part.numpy().tolist() for part in out.partitioned_values] == [[3, 3], [4, 2, 1]]
    assert [part.numpy().tolist() for part in out.partitioned_indices] == [
        [[1, 0], [2, 4]],
        [[2, 5], [1, 9], [0, 0]],
    ]
    assert out.row_empty_and_invalid_flags.numpy().tolist() == [1, 0, 0, 1, 0, 1, 1, 1]
    assert [part.numpy().tolist() for part in out.partitioned_weights] == [[3, 5], [1, 4, 1]]


def test_entries_by_row():
    out = small(entry_order="row")
    assert [part.numpy().tolist() for part in out.partitioned_values] == [[3, 3], [1, 2, 4]]
    assert [part.numpy().tolist() for part in out.partitioned_indices] == [
        [[1, 0], [2, 4]],
        [[0, 0], [1, 9], [2, 5]],
    ]


@pytest.mark.parametrize("row", [77, -1])
@pytest.mark.parametrize("order", ["input", "row"])
def test_entries_that_are_dropped_may_lie_outside_the_batch(order, row):
    indices = [[2, 5], [row, 1], [1, 0], [1, 9], [2, 4]]
    found, wanted = small(entry_order=order, sp_indices=indices), small(entry_order=order)
    for ours, expected in zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_rows_are_flagged_whether_they_are_filled_or_not():
    for fill in (False, True):
        flags = small(fill_empty_row=fill).row_empty_and_invalid_flags
        assert flags.numpy().tolist() == [1, 0, 0, 1, 0, 1, 1, 1]


def test_one_shard_takes_any_id():
    for ids in ([2**62, -5, 3], [-1, -(2**63), 0]):
        out = ops.fused_embedding_sparse_pre_look_up(
            [[2, 2]], tf.constant(ids, tf.int64), [[1, 0], [0, 0], [0, 1]], [3, 1], [1.0]
        )
        assert out.partitioned_values[0].numpy().tolist() == ids
        by_row = ops.fused_embedding_sparse_pre_look_up(
            partition_shapes=[[2, 2]],
            sp_values=tf.constant(ids, tf.int64),
            sp_indices=[[1, 0], [0, 0], [0, 1]],
            sp_dense_shape=[3, 1],
            sp_weights_values=[1.0],
            entry_order="row",
        )
        assert by_row.partitioned_values[0].numpy().tolist() == [*ids[1:], ids[0]]


def test_div_splits_uneven_shards_by_their_rows():
    arrays = batch(vocabulary=17)
    check("eager", arrays, [0, 1, 0, 9, 7, 0], **FILLED)


def test_more_entries_than_32768():
    arrays = batch(lengths=[40_000, 0, 60_000], vocabulary=1000)
    for rows in ([1000], [334, 333, 333]):
        check("eager", arrays, rows, use_sparse_weights=True, **FILLED)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [[20], [10, 10]])
def test_rows_until_the_last_one(mode, rows):
    arrays = batch(lengths=[1, 0, 3, 2])
    arrays["dense_shape"][0] = 2
    check(mode, arrays, rows, row_count="last_row", **FILLED)


@pytest.mark.parametrize("dense_shape", [[-5, -5], [0, 0]])
def test_the_dense_shape_does_not_count_until_the_last_row(dense_shape):
    out = small(
        sp_indices=[[0, 0], [0, 1], [1, 0], [4, 9], [4, 4]],
        sp_dense_shape=tf.constant(dense_shape, tf.int64),
        row_count="last_row",
    )
    assert out.row_empty_and_invalid_flags.numpy().tolist()[:5] == [0, 0, 1, 1, 0]


def test_no_entries_until_the_last_row():
    out = small(
        sp_values=tf.zeros([0], tf.int64),
        sp_indices=tf.zeros([0, 2], tf.int64),
        row_count="last_row",
    )
    assert out.row_empty_and_invalid_flags.shape == [0]
    assert [part.shape[0] for part in out.partitioned_values] == [0, 0]


def test_until_the_last_row_rows_must_be_sorted():
    with pytest.raises(RUN_TIME, match=r"sp_indices\[1, 0\] = 0 is less than the row before it"):
        small(row_count="last_row")


@pytest.mark.parametrize("last", [-1, -7])
def test_until_the_last_row_rows_must_not_be_negative(last):
    indices = [[-9, 0], [-8, 1], [-8, 0], [-8, 9], [last, 4]]
    with pytest.raises(RUN_TIME, match=r"sp_indices\[0, 0\] = -9 is not in \[0, 0\)"):
        small(sp_indices=indices, row_count="last_row")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("bad", [-1, 20, 2**40, -(2**63)])
def test_an_id_outside_the_table(mode, strategy, bad):
    arrays = batch(negative=0.0)
    arrays["values"][7] = bad
    message = rf"sp_values\[7\] = {bad} is not an id of a table of 20 rows in 2 shards"
    with pytest.raises(RUN_TIME, match=message):
        reference.run(mode, fused([10, 10], partition_strategy=strategy), arrays)


def test_an_id_outside_the_table_is_named_by_its_place_in_the_input():
    # A pruned entry comes before it, and ordering by row moves it.
    for order in ("input", "row"):
        with pytest.raises(RUN_TIME, match=r"sp_values\[3\] = 70 is not an id of a table of 10"):
            small(sp_values=tf.constant([9, -1, 3, 70, 3], tf.int64), entry_order=order)


def test_a_default_id_outside_the_table_matters_only_if_used():
    with pytest.raises(RUN_TIME, match=r"10, for empty rows, is not an id of a table of 10 rows"):
        small(default_id=10)
    small(default_id=10, sp_values=tf.constant([9, 1, 3, 7, 3], tf.int64))


def test_a_default_id_that_does_not_fit_the_ids():
    with pytest.raises(RUN_TIME, match=f"default_id = {2**31} does not fit the type of sp_values"):
        small(sp_values=tf.constant([1, 1, 1, 1, 1]), default_id=2**31)


@pytest.mark.parametrize("mode", MODES)
def test_negative_rows_of_a_shard(mode):
    with pytest.raises(RUN_TIME, match=r"partition_shapes\[1\] has -2 rows"):
        reference.run(mode, fused([20, -2]), batch(negative=0.0))


def test_a_huge_batch_is_an_error_not_a_crash():
    for count in (2**50, 2**62, 2**63 - 1):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory"):
            small(sp_dense_shape=tf.constant([count, 1], tf.int64))
    indices = tf.constant([[0, 0], [0, 0], [0, 0], [0, 0], [2**62, 0]], tf.int64)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory"):
        small(sp_indices=indices, row_count="last_row")


def test_the_gradient_when_only_some_shards_matter():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weights = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])
        out = small(sp_weights_values=weights, use_sparse_weights=True)
        (gradient,) = tf.gradients(out.partitioned_weights[1], weights)
        assert session.run(gradient).tolist() == [1, 0, 0, 1, 0]


def test_weights_that_do_not_count_have_no_gradient():
    weights = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        out = small(sp_weights_values=weights)
    assert tape.gradient(out.partitioned_weights, weights) is None


def test_static_shapes():
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder
        out = small(
            sp_values=placeholder(tf.int64, None),
            sp_indices=placeholder(tf.int64, None),
            sp_dense_shape=placeholder(tf.int64, None),
            sp_weights_values=placeholder(tf.float32, None),
        )
        assert [t.shape.as_list() for t in out.partitioned_values] == [[None]] * 2
        assert [t.shape.as_list() for t in out.partitioned_indices] == [[None, 2]] * 2
        assert out.row_empty_and_invalid_flags.shape.as_list() == [None]
        assert [t.shape.as_list() for t in out.partitioned_weights] == [[None]] * 2
