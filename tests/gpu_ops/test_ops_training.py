"""The training ops over the launcher, with the simulator as the driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import ops
from tests.gpu_ops.driver import gpus, on_gpu
from tests.gpu_ops.listing import Given, by_cpu
from tests.gpu_ops.test_listing import column
from tests.gpu_ops.test_ops import same, table

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")


def prepared(batch: int, columns: list[Given], dtype: Any = np.float32) -> tuple[Any, Any]:
    """What GroupedEmbeddingPreLookUp gives on a GPU and on a CPU."""

    def pre(*ids: Any) -> Any:
        given = [replace(one, ids=own) for one, own in zip(columns, ids, strict=True)]
        return tuple(by_cpu(batch, given, dtype))

    return on_gpu(pre, *(column.ids for column in columns)), by_cpu(batch, columns, dtype)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_pre_lookup_waits_once(is_sorted: bool) -> None:
    columns = [
        column("indices", 7, 1, prune=True, is_sorted=is_sorted, sort_key=True),
        column("row_ids", 7, 2, weighted=np.float32, fill_empty_row=True, default_id=3),
        column("row_splits", 7, 4, fill_empty_row=True, default_id=-1),
        column("dense", 7, 3, num_buckets=5, bucket_default=2),
        Given("dense", np.array([[0.1], [2.0], [9.0], [1.0], [1.5], [0.0], [3.0]], np.float32),
              boundaries=[1.0, 2.0]),
    ]  # fmt: skip
    gpus().log.clear()
    found, wanted = prepared(7, columns)
    assert gpus().log.count("cuStreamSynchronize") == 1
    same(tf.nest.flatten(found), tf.nest.flatten(tuple(wanted)))


def up_to_last(*rows: Any, **attrs: Any) -> list[Given]:
    """Columns whose rows are those up to the last entry's."""
    draw = np.random.default_rng(7)
    return [
        Given(
            "indices" if one.ndim > 1 else "row_ids", draw.integers(-1, 5, len(one)), one,
            draw.integers(0, 3, len(one)).astype(np.float32) if index == 1 else None,
            last_row=True, attrs={"prune": True, **attrs},
        )
        for index, one in enumerate(rows)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("attrs", "waits"), [({}, 1), ({"fill_empty_row": True, "default_id": 3}, 2)]
)
def test_rows_up_to_the_last_are_told_with_the_sizes(attrs: dict[str, Any], waits: int) -> None:
    """Unless rows are filled: then it depends on them what there is to list."""
    rows = np.array([0, 0, 2, 5]), np.array([[1, 0], [1, 3], [5, 0], [5, 1]]), np.array([5], "i4")
    columns = up_to_last(*rows, **attrs)
    gpus().log.clear()
    found, wanted = prepared(0, columns)
    assert gpus().log.count("cuStreamSynchronize") == waits
    assert gpus().log.count("split_rows") == 2 - waits
    same(tf.nest.flatten(found), tf.nest.flatten(tuple(wanted)))
    assert wanted.row_splits.shape == (3, 7)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([0, 2], [0, 1, 1]), "column 1 has 2 rows, but others have 3"),
        (([0, 1], [1, 0, 1]), "column 1: entry 1 has row 0, less than the one before"),
        (([0, 1], [-1, 0, 1]), "column 1: entry 0 has row -1, which is not in the batch"),
        (([2**63 - 1], [2**63 - 1]), f"2 columns of {2**48 + 1} rows are more than"),
        (([2**63 - 2], [2**63 - 1]), f"2 columns of {2**48 + 1} rows are more than"),
    ],
)
def test_rows_up_to_the_last_that_make_no_sense(rows: Any, message: str) -> None:
    columns = [replace(one, weights=None, attrs={}) for one in up_to_last(*map(np.array, rows))]
    columns = [replace(column, ids=np.arange(len(column.ids))) for column in columns]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        prepared(0, columns)


@pytest.mark.parametrize(
    ("rows", "attrs", "number"),
    [([0, 3], {}, 4), ([0, 1], {}, 2), ([], {}, 0), ([0, 3], {"fill_empty_row": True}, 4)],
)
def test_rows_up_to_the_last_beside_a_batch(
    rows: list[int], attrs: dict[str, Any], number: int
) -> None:
    """The message is the CPU's."""
    ids, given = np.arange(len(rows)), np.array(rows, np.int64)
    columns = [column("dense", 3, 1), Given("row_ids", ids, given, last_row=True, attrs=attrs)]
    message = f"column 1 has {number} rows, but others have 3"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        prepared(3, columns)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        by_cpu(3, columns, np.float32)


def test_pre_lookup_refuses_what_the_cpu_refuses() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 1: element 2 has id -1"):
        prepared(2, [column("dense", 2, 1), Given("dense", np.array([[1, 2], [-1, 3]]))])
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 0: entry 1 has row 2"):
        prepared(2, [Given("row_ids", np.array([1, 2]), np.array([0, 2]))])


def test_pre_lookup_names_the_column() -> None:
    columns = [column("dense", 2, 1), Given("dense", np.array([[1, 2], [-1, 3]]))]

    def pre(*ids: Any) -> Any:
        given = [replace(one, ids=own) for one, own in zip(columns, ids, strict=True)]
        return tuple(by_cpu(2, given, np.float32, column_names=["a", "b"]))

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"column 1 \(b\): element 2 has id -1"
    ):
        on_gpu(pre, *(column.ids for column in columns))


def test_pre_lookup_refuses_more_rows_than_have_numbers() -> None:
    none = np.zeros(0, np.int64)
    for batch in (2**30, 2**47):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"2 columns of {batch} rows"):
            prepared(batch, [Given("row_ids", none, none)] * 2)


@pytest.mark.parametrize(
    ("stored", "counts"),
    [("float32", [3]), ("float16", [3]), ("float32", [1] * 3), ("float16", [1, 2])],
)
def test_post_lookup_launches_once_and_does_not_wait(stored: str, counts: list[int]) -> None:
    draw, batch = np.random.default_rng(1), 6
    lengths = draw.integers(0, 4, (2, batch))
    splits = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    splits = np.stack([splits[: batch + 1], splits[batch:]]).astype(np.int32)
    unique_idxs = draw.integers(0, 5, splits[-1, -1]).astype(np.int32)
    weights = tf.cast(draw.integers(1, 4, unique_idxs.size), stored)
    rows = [table(5, 4, stored), table(batch, 3, stored), table(5, 6, stored)]

    def post(*given: Any) -> Any:
        return ops.grouped_embedding_post_look_up(
            emb_rows=list(given[:3]),
            unique_idxs=given[3],
            row_splits=given[4],
            entry_weights=given[5],
            copied=[False, True, False],
            combiners=["mean", "sum", "sqrtn"],
            use_sparse_weights=[False, False, True],
            divide_no_nans=[True] * 3,
            dims=[4, 3, -1],
            num_others=len(counts) - 1,
            output_columns=counts,
        )

    gpus().log.clear()
    found = on_gpu(post, *rows, unique_idxs, splits, weights)
    kernels = [name for name in gpus().log if not name.startswith("cu")]
    assert kernels == [f"combine_any_{stored}"]
    assert "cuStreamSynchronize" not in gpus().log
    same(tf.nest.flatten(found), tf.nest.flatten(post(*rows, unique_idxs, splits, weights)))


@pytest.mark.parametrize(
    ("stored", "widths"), [("float32", [9]), ("bfloat16", [9]), ("float32", [4, 8])]
)
def test_gradient_does_not_wait(stored: str, widths: list[int]) -> None:
    draw, batch = np.random.default_rng(2), 6
    lengths = draw.integers(0, 5, (2, batch))
    splits = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    splits = np.stack([splits[: batch + 1], splits[batch:]]).astype(np.int32)
    unique_idxs = draw.integers(0, 4, splits[-1, -1]).astype(np.int32)
    weights = tf.cast(draw.integers(-1, 3, unique_idxs.size), stored)
    rows = [table(5, 4, stored), table(4, 3, stored)]
    tops = [table(batch, width, stored, 5) for width in widths]

    def grad(*given: Any) -> Any:
        return ops.grouped_embedding_post_look_up_grad(
            top_grad=given[5],
            other_top_grads=list(given[6:]),
            emb_rows=list(given[:2]),
            unique_idxs=given[2],
            row_splits=given[3],
            entry_weights=given[4],
            output_columns=[2] if len(widths) == 1 else [1, 1],
            combiners=["mean", "sqrtn"],
            use_sparse_weights=[False, True],
            dims=[4, -1],
            offsets=[-1, 5],
        )

    given = [*rows, unique_idxs, splits, weights, *tops]
    gpus().log.clear()
    found = on_gpu(grad, *given)
    assert "cuStreamSynchronize" not in gpus().log
    assert gpus().log.count(f"scatter_{stored}") == 1
    same(found, grad(*given))


def test_columns_train_as_on_a_cpu() -> None:
    """A whole step: forward, backward and the numbers of a column with several kinds of ids."""
    weights = tf.Variable(table(9, 4, "float32"))
    ids = tf.sparse.from_dense(np.array([[3, 0, 1], [0, 8, 0], [0, 0, 0], [5, 5, 2]]))

    def step(indices: Any, values: Any) -> Any:
        sparse = tf.SparseTensor(indices, values, [4, 3])
        with tf.GradientTape() as tape:
            found = fusion.fused_safe_embedding_lookup_sparse(weights, sparse, combiner="sqrtn")
            loss = tf.reduce_sum(found * found)
        grad = tape.gradient(loss, weights)
        return found, grad.values, grad.indices

    gpus().log.clear()
    found = on_gpu(step, ids.indices, ids.values)
    assert {"insert_ids", "mark_entries"} <= set(gpus().log)
    wanted = tf.function(step)(ids.indices, ids.values)
    same(found, wanted)
