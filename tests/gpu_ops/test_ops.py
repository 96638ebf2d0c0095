"""Whole ops over the launcher, with the simulator in the place of NVIDIA's driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.schema.columns import COLUMN_ATTRS
from fusion.schema.row_formats import pack_rows
from tests.gpu_ops.driver import gpus, labelled, on_gpu


def same(found: Any, wanted: Any) -> None:
    """The bits of tensors as NumPy arrays."""
    for one, other in zip(found, (tensor.numpy() for tensor in wanted), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_unique(count: int, dtype: Any) -> None:
    ids = np.random.default_rng(count).integers(-9, 9, count).astype(dtype)
    gpus().log.clear()
    found = on_gpu(lambda x: ops.unique_with_counts_v3(input=x), ids)
    same(found, ops.unique_with_counts_v3(input=ids))
    assert gpus().log.count("insert_ids") == 1
    assert gpus().log.count("cuStreamSynchronize") == 1


@pytest.mark.parametrize("attrs", [{}, {"fill_empty_row": True, "default_id": 3}])
@pytest.mark.parametrize(
    ("dtype", "stored"), [("int32", "float32"), ("int64", "bfloat16"), ("int64", "float64")]
)
@pytest.mark.parametrize("prunes", ["", "ids", "weights", "buckets"])
def test_prune(prunes: str, dtype: str, stored: str, attrs: dict[str, Any]) -> None:
    draw, count, batch = np.random.default_rng(7), 30, 12
    ids = tf.constant(draw.integers(-3, 9, count), dtype)
    indices = np.stack([draw.integers(0, batch, count), draw.integers(0, 99, count)], 1)
    weighted = prunes == "weights"
    weights = tf.cast(draw.integers(-2, 4, count if weighted else 1), stored)
    attrs = attrs | {
        "prune": prunes != "",
        "use_sparse_weights": weighted,
        "prune_sparse_weights": weighted,
        "default_weight": 0.3,
        "num_buckets": 5 if prunes == "buckets" else 0,
    }

    def prune(ids: Any, indices: Any, weights: Any) -> Any:
        return ops.prune_invalid_and_fill_empty_rows(
            sp_values=ids,
            sp_indices=indices,
            sp_dense_shape=[batch, 99],
            sp_weights_values=weights,
            **attrs,
        )

    gpus().log.clear()
    found = on_gpu(prune, ids, indices, weights)
    assert gpus().log.count("cuStreamSynchronize") == 1
    same(found, prune(ids, indices, weights))


def test_rows_outside_the_batch_are_an_error() -> None:
    def prune(rows: Any) -> Any:
        return ops.prune_invalid_and_fill_empty_rows(
            sp_values=tf.constant([1, 2], tf.int64),
            sp_indices=rows,
            sp_dense_shape=tf.constant([3, 1], tf.int64),
            sp_weights_values=[0.0],
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match="entry 1 has row 3, which is not in"):
        on_gpu(prune, np.array([[0, 0], [3, 0]]))
    assert on_gpu(prune, np.array([[0, 0], [2, 0]])).is_row_empty.tolist() == [False, True, False]


def table(rows: int, dim: int, dtype: str, seed: int = 0) -> tf.Tensor:
    return tf.cast(np.random.default_rng(seed).standard_normal((rows, dim)), dtype)


@pytest.mark.parametrize(
    ("stored", "counts"),
    [
        *((stored, [5]) for stored in ("float32", "float16", "bfloat16", "float64")),
        ("float32", [1] * 5),
        ("bfloat16", [2, 1, 2]),
    ],
)
def test_lookup_of_many_forms(stored: str, counts: list[int]) -> None:
    """One launch for plain columns and others, in one matrix or several, and no wait."""
    draw, batch = np.random.default_rng(3), 9
    rows = np.sort(draw.integers(0, batch, 20))
    splits = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=batch))])
    tables = [table(*shape, stored) for shape in ((11, 8), (7, 3), (5, 4), (9, 6), (batch, 2))]
    ids = [
        draw.integers(-1, 11, 20),
        draw.integers(0, 7, 20).astype(np.int32),
        draw.integers(0, 5, 20),
        draw.uniform(0, 9, (batch, 3)).astype(np.float32),
        np.zeros([0], np.int64),
    ]
    entry_rows = [
        np.stack([draw.permutation(rows), rows], 1), rows.astype(np.int32), splits,
        np.zeros([0], np.int64), np.zeros([0], np.int64),
    ]  # fmt: skip
    nothing = tf.zeros([1], stored)
    weights = [nothing, tf.cast(draw.integers(1, 4, 20), stored), *[nothing] * 3]
    attrs = {name: [attr.default] * 5 for name, attr in COLUMN_ATTRS.items()} | {
        "forms": ["indices", "row_ids", "row_splits", "dense", "copy"],
        "combiners": ["mean", "sum", "sqrtn", "mean", "sum"],
        "max_norms": [-1.0, -1.0, 0.75, -1.0, -1.0],
        "prunes": [True, False, False, False, False],
        "fill_empty_rows": [True, False, False, False, False],
        "default_ids": [4, -1, -1, -1, -1],
        "use_sparse_weights": [False, True, False, False, False],
        "prune_sparse_weights": [False] * 5,
        "default_weights": [1.0] * 5,
        "divide_no_nans": [True] * 5,
        "row_counts": ["dense_shape"] * 5,
        "use_ignored_ids": [False] * 5,
        "ignored_ids": [-1] * 5,
        "column_strides": [0] * 5,
        "num_buckets": [0] * 5,
        "bucket_defaults": [0] * 5,
        "dims": [8, -1, 4, 6, 2],
        "boundaries": [1.0, 2.5, 4.0, 8.0],
        "boundary_counts": [0, 0, 0, 4, 0],
    }

    def look_up(*given: Any) -> Any:
        parts = [list(given[5 * k : 5 * k + 5]) for k in range(4)]
        shapes = [tf.constant([batch, 99], tf.int64)] * 5
        return ops.grouped_embedding_lookup(
            tables=parts[0], ids=parts[1], entry_rows=parts[2], dense_shapes=shapes,
            weights=parts[3], num_others=len(counts) - 1, output_columns=counts, **attrs,
        )  # fmt: skip

    given = [*tables, *map(tf.constant, ids), *map(tf.constant, entry_rows), *weights]
    gpus().log.clear()
    found = on_gpu(look_up, *given)
    kernels = [name for name in gpus().log if not name.startswith("cu")]
    assert kernels == ["check_rows", f"combine_any_{stored}"]
    assert "cuStreamSynchronize" not in gpus().log
    same(tf.nest.flatten(found), tf.nest.flatten(look_up(*given)))


def test_packed_rows_have_no_kernel() -> None:
    rows = pack_rows(np.ones((3, 8)), "int8")
    given = {"form": "dense", "dim": 8, "row_format": "int8", "Tpacked": "uint8"}

    def look_up(table: Any, ids: Any) -> Any:
        nothing = np.zeros(0, np.int64)
        return ops.fused_embedding_lookup(table, ids, nothing, nothing, np.ones(1, "f4"), **given)

    assert look_up(rows, [[1]]).numpy().tolist() == [[1.0] * 8]
    with pytest.raises(tf.errors.InvalidArgumentError, match="row_format int8 has no kernel on a"):
        on_gpu(look_up, rows, np.array([[1]]))


def look_up(ids: Any, rows: Any, **attrs: Any) -> Any:
    return ops.fused_embedding_lookup(
        table=table(5, 4, "float32"),
        ids=ids,
        entry_rows=rows,
        dense_shape=tf.constant(3, tf.int64),
        weights=[0.0],
        form="row_ids",
        **attrs,
    )


def test_bad_ids_are_told_by_the_next_run() -> None:
    """Nothing waits for the GPU, whose result has NaN meanwhile."""

    @tf.function(autograph=False)
    def traced(ids: Any, rows: Any) -> Any:
        with labelled():
            return look_up(ids, rows)

    good, bad, rows = tf.constant([1, 2, 0]), tf.constant([1, 7, 0]), tf.constant([0, 1, 2])
    with tf.device("CPU:0"):
        wanted = look_up(good, rows).numpy()
        assert traced(good, rows).numpy().tobytes() == wanted.tobytes()
        found = traced(bad, rows).numpy()
        assert np.isnan(found[1]).all()
        np.testing.assert_array_equal(found[::2], wanted[::2])
        message = r"column 0: element 1 has id 7, which is not in its table \(in an earlier run"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            traced(good, rows)
        assert traced(good, rows).numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("rows", [[], [0], [0, 0, 2], [1, 3]])
def test_rows_up_to_the_last_entry(rows: list[int], dtype: Any) -> None:
    """Then the number of rows is read from the GPU, once."""
    given = np.arange(len(rows)), np.array(rows, dtype)

    def up_to_last(ids: Any, rows: Any) -> Any:
        return look_up(ids, rows, row_count="last_row")

    gpus().log.clear()
    found = on_gpu(up_to_last, *given)
    assert gpus().log.count("cuStreamSynchronize") == int(len(rows) > 0)
    same([found], [up_to_last(*given)])


def test_rows_up_to_the_last_entry_that_are_negative() -> None:
    """An error as on a CPU, also of an entry that does not count."""

    @tf.function(autograph=False)
    def traced(ids: Any, rows: Any) -> Any:
        with labelled():
            return look_up(ids, rows, row_count="last_row", prune=True)

    bad, good = tf.constant([-1, 0]), tf.constant([0, 0])
    with tf.device("CPU:0"):
        traced(tf.constant([-1, 2]), bad)
        with pytest.raises(tf.errors.InvalidArgumentError, match="entry 0 has row -1"):
            traced(tf.constant([1, 2]), good)
        with pytest.raises(tf.errors.InvalidArgumentError, match="row -1"):
            look_up(tf.constant([-1, 2]), bad, row_count="last_row", prune=True)


@pytest.mark.parametrize(("stored", "shards"), [("float32", 1), ("bfloat16", 3)])
@pytest.mark.parametrize(
    "attrs",
    [
        {"combiner": "mean", "fill_empty_row": True},
        {"combiner": "sqrtn", "use_sparse_weights": True, "divide_no_nan": False},
        {"combiner": "sum", "max_norm": 0.75, "default_id": 1, "fill_empty_row": True},
        {"combiner": "mean", "row_count": "last_row"},
    ],
)
def test_post_lookup(attrs: dict[str, Any], shards: int, stored: str) -> None:
    draw, count, batch, unique = np.random.default_rng(5), 25, 6, 9
    rows = draw.integers(0, batch, count)
    last_row = attrs.get("row_count") == "last_row"
    indices = np.stack([np.sort(rows) if last_row else rows, draw.integers(0, 9, count)], 1)
    unique_idxs = draw.integers(0, unique, count).astype(np.int32)
    owners = draw.integers(0, shards, unique)
    pairs = np.zeros((unique, 2), np.int32)
    for one in range(shards):
        pairs[owners == one] = [[one, k] for k in range((owners == one).sum())]
    parts = [table(int((owners == one).sum()), 5, stored, one) for one in range(shards)]
    empty = np.arange(4 if last_row else batch) == 2
    weighted = "use_sparse_weights" in attrs
    weights = tf.cast(draw.integers(-1, 3, count if weighted else 1), stored)

    def combine(*given: Any) -> Any:
        return ops.fused_embedding_sparse_post_look_up_v2(
            emb_shards=list(given[:shards]),
            partition_permutation=given[shards],
            sp_dense_shape=tf.constant([batch, 9], tf.int64),
            indices_before_unique=given[shards + 1],
            is_row_empty=given[shards + 2],
            unique_idxs=given[shards + 3],
            sp_weights_values=given[shards + 4],
            **attrs,
        )

    given = [*parts, pairs, indices, empty, unique_idxs, weights]
    gpus().log.clear()
    found = on_gpu(combine, *given)
    assert gpus().log.count("cuStreamSynchronize") == int(last_row)
    same(found, combine(*given))
