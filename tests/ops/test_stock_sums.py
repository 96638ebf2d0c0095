"""Columns that are made as stock's dense reductions make them: the same bits, in each order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from fusion.cpu_ops.dense.folds import packet_size
from tests.ops.embedding_columns import NO_IDS, attrs, copied, grouped, lookup, run

Array = npt.NDArray[Any]
DTYPES = ("float32", "float64", "float16", "bfloat16")
EPSILON = 1e-8
PENALTY = 1e9

#: Added to numbers of the size of 1, such a one shows in which order, and where it is rounded.
LARGE = {"float32": 2.0**25, "float64": 2.0**54, "float16": 2.0**12, "bfloat16": 2.0**25}


def kind_of(dtype: str) -> Any:
    return tf.as_dtype(dtype).as_numpy_dtype


def table_of(dim: int, dtype: str, rows: int = 50) -> Array:
    """Numbers of very different sizes, a row of NaN, and one of -0.0."""
    rng = np.random.default_rng(dim)
    sizes = np.exp(2 * rng.normal(size=(rows, dim)))
    table = rng.normal(size=(rows, dim)) * sizes
    table[25:] = rng.choice([1, -1, 3, 0.5, LARGE[dtype], -LARGE[dtype]], (rows - 25, dim))
    table[3], table[4] = np.nan, -0.0
    return table.astype(kind_of(dtype))


def zeros_of(dim: int, dtype: str, rows: int = 50) -> Array:
    """Zeros of both signs, few numbers that are less, and some that are not finite."""
    table = np.random.default_rng(dim).choice([0.0, -0.0, -2.0], (rows, dim), p=[0.4, 0.4, 0.2])
    table[3], table[4], table[8], table[9] = np.nan, -0.0, -np.inf, -5
    table[30, ::2] = np.nan
    return table.astype(kind_of(dtype))


def padded(batch: int, length: int) -> Array:
    """Ids of which many are 0, some rows whole; one row has the NaN, one only -0.0."""
    rng = np.random.default_rng([batch, length])
    ids = rng.integers(5, 50, (batch, length))
    ids[rng.random((batch, length)) < 0.4] = 0
    for row, number in ((1, 4), (3, 3), (5, 0)):
        ids[row : row + 1] = number
    return ids


def column(table: Array, ids: Any, rows: Any = NO_IDS, weights: Any = None, **given: Any) -> Any:
    given = {"sum_order": "axis", "form": "dense", "dim": table.shape[1], **given}
    return {
        "inputs": {
            "table": table,
            "ids": ids,
            "entry_rows": rows,
            "dense_shape": NO_IDS,
            "weights": np.zeros(1, table.dtype) if weights is None else weights,
        },
        "attrs": attrs(**given, use_sparse_weights=weights is not None),
    }


def same(got: Array, expected: Any) -> None:
    """The same bits, but that one NaN is as good as another."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    numbers = ~np.isnan(got)
    assert got[numbers].tobytes() == expected[numbers].tobytes()


Expected = Callable[[Any, Any, Any, Any], Any]
Given = dict[str, Any]

#: By (rows [B, L, D], mask as numbers [B, L, 1], lengths [B, 1], weights [B, L, 1]).
MASKED: dict[str, tuple[Expected, Given]] = {
    "sum": (lambda x, m, n, w: tf.reduce_sum(x, 1), {"combiner": "sum"}),
    "mean": (
        lambda x, m, n, w: tf.reduce_mean(x, 1),
        {"combiner": "mean", "divide_no_nan": False},
    ),
    "selected": (
        lambda x, m, n, w: tf.reduce_sum(tf.where(m > 0, x, tf.zeros([], x.dtype)), 1),
        {"combiner": "sum", "use_ignored_id": True, "ignored_id": 0},
    ),
    "mean of the selected": (
        lambda x, m, n, w: (
            tf.reduce_sum(tf.where(m > 0, x, tf.zeros([], x.dtype)), 1) / tf.reduce_sum(m, 1)
        ),
        {
            "combiner": "mean",
            "use_ignored_id": True,
            "ignored_id": 0,
            "divide_no_nan": False,
        },
    ),
    "product": (
        lambda x, m, n, w: tf.math.divide_no_nan(tf.reduce_sum(x * m, 1), tf.reduce_sum(m, 1)),
        {"combiner": "mean", "use_ignored_id": True, "ignored_id": 0, "mask_product": True},
    ),
    "product and epsilon": (
        lambda x, m, n, w: (
            tf.reduce_sum(x * m, 1) / (tf.reduce_sum(m, 1) + tf.constant(EPSILON, x.dtype))
        ),
        {
            "combiner": "mean",
            "use_ignored_id": True,
            "ignored_id": 0,
            "mask_product": True,
            "divide_no_nan": False,
            "divisor_epsilon": EPSILON,
        },
    ),
    "lengths": (
        lambda x, m, n, w: (
            tf.reduce_sum(x * _mask(n, x), 1)
            / (tf.cast(n, x.dtype) + tf.constant(np.float32(EPSILON), x.dtype))
        ),
        {
            "form": "lengths",
            "combiner": "mean",
            "mask_product": True,
            "divide_no_nan": False,
            "divisor_epsilon": EPSILON,
        },
    ),
    "sum of lengths": (
        lambda x, m, n, w: tf.reduce_sum(tf.where(_mask(n, x) > 0, x, tf.zeros([], x.dtype)), 1),
        {"form": "lengths", "combiner": "sum"},
    ),
    "root of the count": (
        lambda x, m, n, w: tf.math.divide_no_nan(
            tf.reduce_sum(x, 1), tf.sqrt(tf.cast(tf.shape(x)[1], x.dtype))
        ),
        {"combiner": "sqrtn"},
    ),
    "largest": (lambda x, m, n, w: tf.reduce_max(x, 1), {"combiner": "max"}),
    "largest of the selected": (
        lambda x, m, n, w: tf.reduce_max(tf.where(m > 0, x, tf.zeros([], x.dtype)), 1),
        {"combiner": "max", "use_ignored_id": True, "ignored_id": 0},
    ),
    "largest product": (
        lambda x, m, n, w: tf.reduce_max(x * m, 1),
        {"combiner": "max", "use_ignored_id": True, "ignored_id": 0, "mask_product": True},
    ),
    "largest with a penalty": (
        lambda x, m, n, w: tf.reduce_max(x - (1 - m) * tf.constant(PENALTY, x.dtype), 1),
        {"combiner": "max", "use_ignored_id": True, "ignored_id": 0, "mask_penalty": PENALTY},
    ),
    "largest with a negative penalty": (
        lambda x, m, n, w: tf.reduce_max(x - (1 - m) * tf.constant(-0.5, x.dtype), 1),
        {"combiner": "max", "use_ignored_id": True, "ignored_id": 0, "mask_penalty": -0.5},
    ),
    "largest of lengths with a penalty": (
        lambda x, m, n, w: tf.reduce_max(x - (1 - _mask(n, x)) * tf.constant(8.0, x.dtype), 1),
        {"form": "lengths", "combiner": "max", "mask_penalty": 8.0},
    ),
    "largest weighted": (lambda x, m, n, w: tf.reduce_max(x * w, 1), {"combiner": "max"}),
    "sum with a penalty": (
        lambda x, m, n, w: tf.reduce_sum(x - (1 - m) * tf.constant(3.0, x.dtype), 1),
        {"combiner": "sum", "use_ignored_id": True, "ignored_id": 0, "mask_penalty": 3.0},
    ),
    "weights": (lambda x, m, n, w: tf.reduce_sum(x * w, 1), {"combiner": "sum"}),
    "mean by weights": (
        lambda x, m, n, w: tf.math.divide_no_nan(tf.reduce_sum(x * w, 1), tf.reduce_sum(w, 1)),
        {"combiner": "mean"},
    ),
    "sqrtn by weights": (
        lambda x, m, n, w: tf.reduce_sum(x * w, -2) / tf.sqrt(tf.reduce_sum(tf.square(w), -2)),
        {"combiner": "sqrtn", "divide_no_nan": False},
    ),
}


def _mask(lengths: Any, rows: Any) -> Any:
    return tf.cast(tf.sequence_mask(lengths[:, 0], rows.shape[1]), rows.dtype)[:, :, None]


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_of_an_axis_have_stocks_bits(name: str, dtype: str) -> None:
    expected, given = MASKED[name]
    packet, is_max = packet_size(dtype), given["combiner"] == "max"
    if dtype == "float16" and given.get("mask_penalty") == PENALTY:
        given = {**given, "mask_penalty": float("inf")}  # as which float16 has it
    rng = np.random.default_rng(1)
    # Each dim has kernels of its own, which take a while to compile.
    plain = (1, 2, packet - 1, packet, packet + 2, 3 * packet, 33, 130)
    for dim in plain if name in ("sum", "mean", "largest") else (1, packet + 2, 33):
        table = (zeros_of if is_max else table_of)(dim, dtype)
        for length, batch in ((1, 7), (2, 2), (15, 3), (16, 70), (20, 1), (50, 7), (131, 2)):
            ids = padded(batch, length)
            lengths = rng.integers(0, length + 3, (batch, 1)).astype(np.int32)
            weights = rng.normal(size=(batch, length)).astype(kind_of(dtype))
            mask = tf.constant((ids != 0).astype(kind_of(dtype))[:, :, None])
            rows = tf.gather(table, ids)
            if "epsilon" in name and dtype == "float64":
                # The attr is a float32.
                ids = np.maximum(ids, 1)
                rows, mask = tf.gather(table, ids), tf.ones_like(mask)
            other = lengths if given.get("form") == "lengths" else NO_IDS
            own = weights if "weight" in name else None
            got = run(column(table, ids, other, own, **given))
            same(got, expected(rows, mask, lengths, tf.constant(weights[:, :, None])))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 3, 16, 33])
def test_reductions_in_sequence_have_stocks_bits(dim: int, dtype: str) -> None:
    rng = np.random.default_rng(dim)
    lengths = rng.integers(0, 25, 40)
    lengths[[3, 9]], lengths[4], lengths[20] = 0, 1, 3000
    ids = rng.integers(0, 50, lengths.sum())
    splits = np.cumsum([0, *lengths])
    ids[splits[4]] = 4  # -0.0 alone
    for combiner in ("sum", "mean", "sqrtn", "max"):
        for no_nan in (True, False):
            table = (zeros_of if combiner == "max" else table_of)(dim, dtype)
            expected = in_sequence(tf.gather(table, ids), lengths, combiner, no_nan)
            given: Given = {"form": "row_splits", "sum_order": "sequence", "combiner": combiner}
            given["divide_no_nan"] = no_nan
            same(run(column(table, ids, splits, **given)), expected)
            wrapped = np.where(ids % 2, ids, ids - 50)
            given |= {"wrap_negative": True, "dim": -1}
            same(run(column(table, wrapped, splits, **given)), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 3, 16, 33])
def test_weighted_sums_in_sequence_have_stocks_bits(dim: int, dtype: str) -> None:
    table, rng = table_of(dim, dtype), np.random.default_rng(dim)
    lengths = rng.integers(0, 25, 40)
    lengths[[3, 9]], lengths[4] = 0, 1
    ids, splits = rng.integers(0, 50, lengths.sum()), np.cumsum([0, *lengths])
    weights = rng.normal(size=len(ids)).astype(dtype)
    weights[splits[6] : splits[7]] = 0
    rows, by = np.repeat(np.arange(40), lengths), tf.constant(weights[:, None])
    total = tf.math.unsorted_segment_sum(tf.gather(table, ids) * by, rows, 40)
    weight = tf.math.unsorted_segment_sum(by, rows, 40)
    root = tf.sqrt(tf.math.unsorted_segment_sum(tf.square(by), rows, 40))
    for combiner, expected in (
        ("sum", total),
        ("mean", tf.math.divide_no_nan(total, weight)),
        ("sqrtn", tf.math.divide_no_nan(total, root)),
    ):
        given: Given = {"form": "row_splits", "sum_order": "sequence", "combiner": combiner}
        for size in (dim, -1):
            made = column(table, ids, splits, weights, **{**given, "dim": size})
            same(run(made), expected)


def in_sequence(values: Any, lengths: Array, combiner: str, no_nan: bool) -> Any:
    rows, count = np.repeat(np.arange(len(lengths)), lengths), len(lengths)
    if combiner == "max":
        return tf.math.unsorted_segment_max(values, rows, count)
    total = tf.math.unsorted_segment_sum(values, rows, count)
    if combiner == "sum":
        return total
    # As reduce_mean of a RaggedTensor has it: half types do not count very far.
    divisor = tf.math.unsorted_segment_sum(tf.ones_like(values), rows, count)
    if combiner == "sqrtn":
        divisor = tf.sqrt(divisor)
    return tf.math.divide_no_nan(total, divisor) if no_nan else total / divisor


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_ids(dtype: str) -> None:
    table, ids = table_of(5, dtype), np.zeros((3, 0), np.int64)
    for combiner, reduce in (("max", tf.reduce_max), ("sum", tf.reduce_sum)):
        same(run(column(table, ids, combiner=combiner)), reduce(tf.gather(table, ids), 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["dense", "lengths"])
def test_what_a_divisor_gets_added_may_be_an_input(form: str, dtype: str) -> None:
    table, ids = table_of(8, dtype), padded(7, 20)
    epsilon, lengths = np.array(1 / 3, dtype), np.arange(7).astype(np.int32)[:, None]
    numbers = tf.constant((ids != 0).astype(dtype)[:, :, None])
    numbers = _mask(lengths, numbers) if form == "lengths" else numbers
    count = tf.cast(lengths, dtype) if form == "lengths" else tf.reduce_sum(numbers, 1)
    given: Given = {"form": form, "combiner": "mean", "mask_product": True}
    given |= {"epsilon_input": True, "use_ignored_id": form == "dense", "ignored_id": 0}
    other = lengths if form == "lengths" else NO_IDS
    for number in (epsilon, epsilon.reshape(1, 1)):
        made = column(table, ids, other, divide_no_nan=False, **given)
        made["inputs"]["weights"] = number
        same(run(made), tf.reduce_sum(tf.gather(table, ids) * numbers, 1) / (count + epsilon))
        made["inputs"]["weights"] = np.ones(2, dtype)
        message = "weights have 2 elements, not the one"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run(made)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 3, 8, 12, 33])
def test_sums_by_segments_have_stocks_bits(dim: int, dtype: str) -> None:
    table, rng = table_of(dim, dtype), np.random.default_rng(dim)
    lengths = np.array([1, 2, 3, 7, 15, 16, 17, 20, 31, 50, 200, 0, 5, 1])
    ids = rng.integers(0, 50, lengths.sum())
    ids[[0, 1, 2, -1]] = 4  # -0.0 alone
    given: Given = {"form": "row_ids", "sum_order": "dense_segment", "row_count": "last_row"}
    for kind in (np.int64, np.int32):
        rows = np.repeat(np.arange(len(lengths)), lengths).astype(kind)
        for combiner, stock in (("sum", tf.math.segment_sum), ("mean", tf.math.segment_mean)):
            expected = stock(tf.gather(table, ids), rows)
            same(run(column(table, ids, rows, combiner=combiner, **given)), expected)
            wrapped = np.where(ids % 2, ids, ids - 50)
            made = column(table, wrapped, rows, combiner=combiner, wrap_negative=True, **given)
            same(run(made), expected)
    none = np.zeros(0, np.int64)
    assert run(column(table, none, none, combiner="sum", **given)).shape == (0, dim)


@pytest.mark.parametrize("rows", [[0, 2, 1], [-1, 0, 1], [0, 1]])
def test_segments_that_stock_refuses_are_errors(rows: list[int]) -> None:
    given: Given = {"form": "row_ids", "sum_order": "dense_segment", "row_count": "last_row"}
    table, ids = table_of(8, "float32"), np.array([5, 6, 7])
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(column(table, ids, np.array(rows), combiner="sum", **given))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.math.segment_sum(tf.gather(table, ids), np.array(rows))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["indices", "row_ids", "row_splits"])
def test_ids_from_the_end_in_all_forms(form: str, weighted: bool) -> None:
    table, ids = table_of(8, "float32"), np.array([5, -1, 49, -50, 7, 7])
    rows = np.array([0, 0, 1, 3, 3, 3])
    entry_rows = {
        "indices": np.stack([rows, rows], 1),
        "row_ids": rows,
        "row_splits": np.array([0, 2, 3, 3, 6]),
    }[form]
    weights = np.arange(1, 7, dtype=np.float32) if weighted else None
    given: Given = {"form": form, "sum_order": "segment", "combiner": "sum"}
    given |= {"row_count": "dense_shape" if form == "row_splits" else "last_row"}
    got = run(column(table, ids, entry_rows, weights, wrap_negative=True, **given))
    assert got.tobytes() == run(column(table, ids % 50, entry_rows, weights, **given)).tobytes()


def test_weights_of_all_rows_alike() -> None:
    table, ids = table_of(8, "float32"), padded(6, 20)
    weights = np.random.default_rng(0).normal(size=20).astype(np.float32)
    for shape in ((20,), (1, 20), (1, 20, 1)):
        got = run(column(table, ids, weights=weights.reshape(shape), combiner="sum"))
        same(got, tf.reduce_sum(tf.gather(table, ids) * weights[:, None], 1))


def test_ids_of_more_dimensions_are_bags_of_the_last() -> None:
    table, ids = table_of(8, "float32"), padded(12, 20)
    expected = tf.reduce_sum(tf.gather(table, ids), 1)
    same(run(column(table, ids.reshape(3, 2, 2, 20), combiner="sum")), expected)


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 1, 5), (0, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_each_id_is_a_row(shape: tuple[int, ...], dtype: str) -> None:
    table = tf.cast(table_of(8, "float32"), dtype).numpy()
    ids = np.random.default_rng(0).integers(-50, 50, shape).astype(np.int32)
    for wraps in (True, False):
        numbers = ids if wraps else np.abs(ids) % 50
        made = column(table, numbers, form="each", sum_order="segment", wrap_negative=wraps)
        assert run(made).tobytes() == table[numbers.reshape(-1)].tobytes()


def test_all_orders_in_one_op() -> None:
    """With many rows, so that threads share the work, and other columns between."""
    table, ids = table_of(12, "float32"), padded(700, 20)
    splits = np.arange(0, 700 * 20 + 1, 20)
    total = tf.reduce_sum(tf.gather(table, ids), 1).numpy()
    one_by_one = tf.math.unsorted_segment_sum(
        tf.gather(table, ids.reshape(-1)), np.repeat(np.arange(700), 20), 700
    ).numpy()
    matrix = np.random.default_rng(0).normal(size=(700, 5000)).astype(np.float32)
    columns = [
        column(table, ids, combiner="sum"),
        copied(matrix),
        column(table, ids.reshape(-1), splits, form="row_splits", sum_order="sequence"),
        column(table, ids[:, :1], form="each", sum_order="segment", combiner="sum"),
        column(table, ids, combiner="sum", use_ignored_id=True, ignored_id=-7),
    ]
    for one in columns[2:3]:
        one["attrs"]["combiner"] = "sum"
    got = np.split(grouped(columns).numpy(), [12, 5012, 5024, 5036], 1)
    for part, expected in zip(
        got, [total, matrix, one_by_one, table[ids[:, 0]], total], strict=True
    ):
        same(part, expected)


@pytest.mark.parametrize("given", [{}, {"use_ignored_id": True, "ignored_id": 50}])
def test_a_bad_id_is_an_error_even_if_it_does_not_count(given: Any) -> None:
    ids = padded(5, 20)
    ids[2, 7] = 50
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[47\] = 50 .* row 2 of"):
        run(column(table_of(8, "float32"), ids, combiner="sum", **given))


BAD = {
    "there are 4 lengths for 5 rows": ({"form": "lengths"}, np.ones(4, np.int64), None),
    "there are 60 weights for 5 rows of 20 ids": ({}, NO_IDS, np.ones((3, 20), np.float32)),
}


@pytest.mark.parametrize("message", BAD)
def test_sizes_that_do_not_fit_are_errors(message: str) -> None:
    given, rows, weights = BAD[message]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(column(table_of(8, "float32"), padded(5, 20), rows, weights, combiner="sum", **given))


UNFIT: dict[str, tuple[str, Any]] = {
    "form lengths needs sum_order axis": ("float32", {"form": "lengths", "sum_order": "segment"}),
    "does not go with form dense": ("float32", {"sum_order": "sequence"}),
    "dense_segment does not go with combiner sqrtn": (
        "float32",
        {"form": "row_ids", "sum_order": "dense_segment", "combiner": "sqrtn"},
    ),
    "does not go with form each": ("float32", {"form": "each"}),
    "needs a dim in": ("float32", {"dim": -1}),
    "combiner max needs sum_order": ("float32", {"sum_order": "segment", "combiner": "max"}),
    "mask_penalty needs sum_order": ("float32", {"sum_order": "segment", "mask_penalty": 1.0}),
    "mask_penalty beside": ("float32", {"mask_penalty": 1.0, "mask_product": True}),
    "does not go with prune": ("float32", {"prune": True}),
    "does not go with max_norm": ("float32", {"max_norm": 1.0}),
    "mask_product needs sum_order": ("float32", {"sum_order": "segment", "mask_product": True}),
    "does not go with column_stride": ("float32", {"column_stride": 1}),
    "epsilon_input needs sum_order axis": (
        "float32",
        {"sum_order": "segment", "epsilon_input": True},
    ),
    "epsilon_input beside": ("float32", {"divisor_epsilon": 1.0, "epsilon_input": True}),
    "does not go with use_sparse_weights": (
        "float16",
        {"form": "row_splits", "sum_order": "sequence", "weights": np.ones(6, np.float16)},
    ),
    "does not go with default_id": ("float32", {"fill_empty_row": True, "default_id": 1}),
}


@pytest.mark.parametrize("message", UNFIT)
def test_attrs_that_do_not_go_together_are_errors(message: str) -> None:
    dtype, given = UNFIT[message]
    table = np.zeros((50, 4), dtype)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        run(column(table, padded(3, 2), **given))


@pytest.mark.parametrize("name", MASKED)
def test_gradients_are_stocks(name: str) -> None:
    expected, given = MASKED[name]
    table, ids = (
        tf.constant(np.random.default_rng(0).normal(size=(50, 5)), tf.float32),
        padded(7, 4),
    )
    lengths = np.random.default_rng(1).integers(1, 5, (7, 1)).astype(np.int32)
    weights = tf.constant(np.random.default_rng(2).normal(size=(7, 4)), tf.float32)
    ids = np.maximum(ids, 1) if "mean" in name or "lengths" in name else ids
    mask = tf.constant((ids != 0).astype(np.float32)[:, :, None])
    other = lengths if given.get("form") == "lengths" else NO_IDS
    top = np.random.default_rng(3).normal(size=(7, 5)).astype(np.float32)
    sources = [table, weights] if "weight" in name else [table]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        made = column(np.zeros((50, 5), np.float32), ids, other, **given)
        made["inputs"]["table"] = table
        if "weight" in name:
            made["inputs"]["weights"], made["attrs"]["use_sparse_weights"] = weights, True
        got = lookup(made)
        wanted = expected(tf.gather(table, ids), mask, lengths, weights[:, :, None])
    for source in sources:
        pair = [tape.gradient(result, source, top) for result in (got, wanted)]
        one, another = (tf.convert_to_tensor(gradient).numpy() for gradient in pair)
        np.testing.assert_allclose(one, another, rtol=1e-5, atol=1e-6)
