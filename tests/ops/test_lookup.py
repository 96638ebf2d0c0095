from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.ops.embedding_columns import (
    FORMS,
    NO_IDS,
    attrs,
    by_v2,
    copied,
    draw,
    grouped,
    lookup,
    run,
)
from tests.reference import assert_same_bits


def dense(ids, table, **given):
    """A column of dense ids."""
    inputs = {
        "table": table,
        "ids": ids,
        "entry_rows": NO_IDS,
        "dense_shape": NO_IDS,
        "weights": np.zeros(0, table.dtype),
    }
    return {"inputs": inputs, "attrs": attrs(form="dense", **given)}


def table_of(rows, dim=4, dtype=np.float32):
    return np.random.default_rng(rows).standard_normal((rows, dim)).astype(dtype)


def is_nan_aware_equal(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    bits = f"u{actual.dtype.itemsize}"
    same = actual.view(bits) == expected.view(bits)
    both_nan = np.isnan(actual.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    return bool(np.all(same | both_nan))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_a_column_has_the_bits_of_the_v2_family(form, dtype):
    rng = np.random.default_rng([FORMS.index(form), len(dtype)])
    for rows in (1, 2, 7, 30, 200, 0, 3, 3):
        column = draw(rng, form, rows, dtype)
        assert is_nan_aware_equal(lookup(column), by_v2(column)), column["attrs"]


@pytest.mark.parametrize("seed", range(6))
def test_a_group_is_its_columns_side_by_side(seed):
    rng = np.random.default_rng(seed)
    dtype = ["float32", "float64", "bfloat16"][seed % 3]
    rows = int(rng.choice([0, 1, 5, 300]))
    columns = [draw(rng, str(form), rows, dtype) for form in rng.choice(FORMS, 7)]
    matrix = rng.standard_normal((rows, 3)).astype(columns[0]["inputs"]["table"].dtype)
    columns.insert(2, copied(matrix))
    expected = [matrix if place == 2 else lookup(c) for place, c in enumerate(columns)]
    assert is_nan_aware_equal(grouped(columns), np.concatenate(expected, 1))


@pytest.mark.parametrize("form", ["indices", "row_ids"])
def test_entries_in_any_order(form):
    rng = np.random.default_rng(5)
    column = draw(rng, form, 50)
    order = rng.permutation(len(column["inputs"]["ids"]))
    for name in ("ids", "entry_rows"):
        column["inputs"][name] = column["inputs"][name][order]
    if column["attrs"]["use_sparse_weights"]:
        column["inputs"]["weights"] = column["inputs"]["weights"][order]
    assert is_nan_aware_equal(lookup(column), by_v2(column))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_large_batch_has_the_bits_of_stock(combiner, shuffled):
    """Many threads share it."""
    rng = np.random.default_rng(3)
    table = table_of(1000, 24)
    table[::7] *= np.float32(1e-39)  # denormals, which TensorFlow's threads take for zeros
    lengths = rng.integers(0, 12, 20_000)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    rows = rng.permutation(rows) if shuffled else rows
    ids = rng.integers(-20, 1000, len(rows))
    sparse = tf.SparseTensor(np.stack([rows, rows], 1), ids, [len(lengths), 12])
    inputs = {
        "table": table,
        "ids": ids,
        "entry_rows": sparse.indices,
        "dense_shape": sparse.dense_shape,
        "weights": np.zeros(0, np.float32),
    }
    told = attrs(combiner=combiner, prune=True, fill_empty_row=True, dim=24)
    expected = tf.nn.safe_embedding_lookup_sparse(tf.constant(table), sparse, combiner=combiner)
    column = {"inputs": inputs, "attrs": told}
    assert_same_bits(run(column), expected.numpy())
    pair = np.concatenate([expected, expected], 1)
    assert_same_bits(grouped([column, column]).numpy(), pair)


@pytest.mark.parametrize("form", ["indices", "row_ids"])
def test_rows_up_to_the_last_with_an_entry(form):
    table, ids, rows = table_of(9), np.array([3, 4, 8]), np.array([1, 1, 4])
    column = {
        "inputs": {
            "table": table,
            "ids": ids,
            "entry_rows": np.stack([rows, rows], 1) if form == "indices" else rows,
            "dense_shape": NO_IDS,
            "weights": np.zeros(0, np.float32),
        },
        "attrs": attrs(form=form, combiner="sum", row_count="last_row"),
    }
    expected = tf.nn.embedding_lookup_sparse(
        tf.constant(table), tf.SparseTensor(np.stack([rows, rows], 1), ids, [9, 9]), None, "sum"
    )
    assert_same_bits(run(column), expected.numpy())
    column["inputs"] |= {"ids": ids[:0], "entry_rows": column["inputs"]["entry_rows"][:0]}
    assert lookup(column).shape == (0, 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_boundaries_make_ids_as_bucketize_does(dtype):
    limits = [-1.5, 0.0, 0.1, 3.0, 16777216.0]
    values = [-2, -1.5, -0.0, 0, 0.1, np.nextafter(np.float32(0.1), 1), 3, 7, 16777217, 2**30]
    if np.dtype(dtype).kind == "f":
        values += [np.nan, np.inf, -np.inf, 0.1 + 1e-12]
    ids = np.array(values).astype(dtype)[:, np.newaxis]
    table = table_of(6, 3)
    expected = table[tf.raw_ops.Bucketize(input=ids, boundaries=limits)[:, 0]]
    column = dense(ids, table, boundaries=limits, num_buckets=6)
    assert_same_bits(run(column), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "count", [1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 272, 500, 4096, 70_000]
)
def test_any_number_of_boundaries(count, dtype):
    rng = np.random.default_rng(count)
    # Some of them twice, and others only one step apart.
    limits = np.sort(rng.choice(np.linspace(-9, 9, count).astype(np.float32), count))
    values = np.concatenate(
        [
            rng.uniform(-10, 10, 300).astype(dtype),
            rng.choice(limits, 200).astype(dtype),
            np.nextafter(rng.choice(limits, 100).astype(dtype), dtype(-np.inf)),
            np.array([-np.inf, np.inf, np.nan, limits[0], limits[-1], 0.0, -0.0], dtype),
        ]
    )
    ids = values[:, np.newaxis]
    table = np.arange(2 * (count + 1), dtype=np.float32).reshape(-1, 2)
    buckets = tf.raw_ops.Bucketize(input=ids, boundaries=limits.tolist())[:, 0].numpy()
    found = run(dense(ids, table, boundaries=limits.tolist()))
    assert_same_bits(found, table[buckets])


def test_columns_of_a_bucketized_feature_have_strides():
    values = np.array([[0.5, 9.0], [-1.0, 2.0]], np.float32)
    table = table_of(8, 5)
    column = dense(values, table, boundaries=[0.0, 1.0, 5.0], column_stride=4, combiner="sum")
    expected = np.stack([table[1] + table[4 + 3], table[0] + table[4 + 2]])
    assert_same_bits(run(column), expected)


def test_ignored_ids_and_buckets():
    ids = np.array([[7, -1], [-1, -1], [2, 99]])
    table = table_of(5)
    told = {"use_ignored_id": True, "ignored_id": -1, "combiner": "sum"}
    column = dense(ids, table, num_buckets=5, bucket_default=3, **told)
    expected = np.stack([table[3], np.zeros(4, np.float32), table[2] + table[3]])
    assert_same_bits(run(column), expected)


def test_an_empty_row_shows_nothing_of_row_0():
    table = table_of(3)
    table[0] = np.nan
    column = dense(np.array([[-1], [2]]), table, prune=True, fill_empty_row=True)
    assert_same_bits(run(column), np.stack([np.zeros(4, np.float32), table[2]]))


@pytest.mark.parametrize("dim", [0, 1, 2, 5, 127, 128, 129, 300, 2000])
def test_dimensions(dim):
    table = table_of(20, dim)
    column = dense(np.arange(20)[:, np.newaxis] % 7, table)
    told = column["attrs"] | {"dim": dim}
    assert_same_bits(run(column), table[np.arange(20) % 7])
    assert_same_bits(run(column | {"attrs": told}), table[np.arange(20) % 7])


def test_a_bag_of_a_million_ids():
    table = table_of(50, 3)
    ids = np.random.default_rng(0).integers(0, 50, 1_000_000)
    inputs = {
        "table": table,
        "ids": ids,
        "entry_rows": np.array([0, 0, len(ids)]),
        "dense_shape": NO_IDS,
        "weights": np.zeros(0, np.float32),
    }
    column = {"inputs": inputs, "attrs": attrs(form="row_splits")}
    assert_same_bits(run(column), by_v2(column).numpy())


@pytest.mark.parametrize("Tids", [np.int64, np.int32])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_entries_are_dropped_by_their_weight_before_their_id_is_looked_at(dtype, Tids):
    column = indices([1, 9, -1, 2, 7, 3, 0], [0, 0, 1, 1, 1, 1, 3], 5, use_sparse_weights=True)
    told = column["attrs"] | {"prune": True, "prune_sparse_weights": True, "combiner": "sum"}
    weights = [0.5, 0, 2, -1, np.nan, 4, 1]
    inputs = column["inputs"] | {
        "table": column["inputs"]["table"].astype(dtype),
        "ids": column["inputs"]["ids"].astype(Tids),
        "weights": np.array(weights, dtype),
    }
    found = run({"inputs": inputs, "attrs": told})
    table = inputs["table"].astype(np.float64)
    zeros = np.zeros(4)
    expected = np.stack([table[1] / 2, table[3] * 4, zeros, table[0], zeros])
    np.testing.assert_array_equal(found.astype(np.float64), expected)
    inputs = inputs | {"weights": np.array([0.5, 1, 2, -1, np.nan, 4, 1], dtype)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = 9"):
        run({"inputs": inputs, "attrs": told})


def indices(ids, rows, batch, table_rows=5, **given):
    """A column of sparse ids, weights 1."""
    weighted = given.get("use_sparse_weights", False)
    inputs = {
        "table": table_of(table_rows),
        "ids": np.array(ids, np.int64),
        "entry_rows": np.array([[row, 0] for row in rows], np.int64).reshape(-1, 2),
        "dense_shape": np.array([batch, 1], np.int64),
        "weights": np.ones(len(ids) if weighted else 0, np.float32),
    }
    return {"inputs": inputs, "attrs": attrs(**given)}


def changed(column, **inputs):
    return {"inputs": column["inputs"] | inputs, "attrs": column["attrs"]}


GOOD = indices([0, 4], [0, 1], 2)
SPLITS = {
    "inputs": GOOD["inputs"] | {"entry_rows": np.array([0, 1, 2])},
    "attrs": attrs(form="row_splits"),
}
BAD = [
    (indices([0, 5], [0, 1], 2), r"indices\[1\] = 5 is not in \[0, 5\)"),
    (indices([0, -1], [0, 1], 2), r"indices\[1\] = -1 is not in \[0, 5\)"),
    (indices([0, 2**40], [0, 1], 2), r"indices\[1\] = 1099511627776 is not in \[0, 5\)"),
    (indices([0, 4], [0, 2], 2), r"row 2 of entry 1 is not in \[0, 2\)"),
    (indices([0, 4], [-1, 0], 2), r"row -1 of entry 0 is not in \[0, 2\)"),
    (indices([0, 4], [2, 1], 2, row_count="last_row"), "row 1 of entry 1 is less than 2"),
    (indices([0, 4], [0, 1], -3), r"not be negative, but dense_shape\[0\] = -3"),
    (changed(GOOD, dense_shape=np.array([2, -1])), r"not be negative, but dense_shape\[1\] = -1"),
    (changed(GOOD, dense_shape=np.array([2, 2**62])), r"2\*\*63 elements or more: 2 times 4611"),
    (changed(GOOD, dense_shape=np.array([2, 1, 1])), "has 3 sizes, but entry_rows have 2 columns"),
    (indices([], [], 2, 0, fill_empty_row=True), r"the id 0 of empty rows is not in \[0, 0\)"),
    (indices([], [], 2, fill_empty_row=True, default_id=7), "the id 7 of empty rows is not in"),
    (changed(GOOD, ids=np.array([1])), "there are 2 entry_rows for 1 ids"),
    (changed(GOOD, ids=np.array([[1, 2]])), "an input has rank 2 where 1 is needed"),
    (changed(GOOD, entry_rows=np.array([0, 1])), "an input has rank 1 where 2 is needed"),
    (changed(GOOD, entry_rows=np.zeros([2, 0], np.int64)), "entry_rows have no column"),
    (changed(GOOD, dense_shape=NO_IDS), "dense_shape must be a number or a vector"),
    (
        changed(
            indices([0, 4], [0, 1], 2, use_sparse_weights=True), weights=np.ones(3, np.float32)
        ),
        "there are 3 weights for 2 ids",
    ),
    (changed(SPLITS, entry_rows=np.array([0, 2, 1])), "row split 2 is 1, after 2"),
    (changed(SPLITS, entry_rows=np.array([1, 1, 2])), "row split 0 is 1, after 0"),
    (changed(SPLITS, entry_rows=np.array([0, 1, 1])), "the last row split is 1, but there are 2"),
    (changed(SPLITS, entry_rows=np.array([0, 1, 9])), "row split 2 is 9, after 1, for 2 ids"),
    (changed(SPLITS, entry_rows=NO_IDS), "there are no row splits"),
    (indices([0, 4], [0, 1], 2, dim=3), "the table has rows of 4 elements, but dim is 3"),
]


@pytest.mark.parametrize(("column", "text"), BAD)
def test_bad_values_are_named(column, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        lookup(column)
    other = draw(np.random.default_rng(1), "dense", 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"column 1: .*{text}"):
        grouped([other, column])


def test_the_first_bad_column_is_named_in_a_large_batch():
    good = dense(np.zeros([30_000, 1], np.int64), table_of(5))
    bad = dense(np.full([30_000, 1], 5), table_of(5))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"column 2: indices\[0\] = 5"):
        grouped([good, good, bad, bad])


def test_columns_must_have_the_same_rows():
    columns = [draw(np.random.default_rng(0), "dense", rows) for rows in (3, 4)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 1 has 4 rows, but others"):
        grouped(columns)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (dense(np.zeros([2, 1], np.float32), table_of(3)), "ids of dtype float32 need boundaries"),
        (dense(np.zeros([2, 1], np.float32), table_of(3), boundaries=[1, 0]), "be ascending"),
        (indices([0], [0], 1, boundaries=[1.0]), "do not go with form indices"),
        (indices([0], [0], 1, column_stride=2), "do not go with form indices"),
        (dense(np.zeros([2, 1], int), table_of(3), use_sparse_weights=True), "has no weights"),
        (dense(np.zeros([2, 1], int), table_of(3), row_count="last_row"), "does not go with"),
        (changed(GOOD, entry_rows=np.zeros([2, 2], np.int32)), "must be int64, not int32"),
    ],
)
def test_attrs_that_do_not_go_together(column, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        lookup(column)


def test_lists_of_a_group_have_one_item_per_column():
    inputs = {name: [value] for name, value in GOOD["inputs"].items()}
    lists = {name: [attr.default] for name, attr in ops_attrs().items()} | {"prunes": [True, True]}
    with pytest.raises(tf.errors.InvalidArgumentError, match="prunes has 2 items for 1 columns"):
        ops.grouped_embedding_lookup(
            tables=inputs["table"],
            ids=inputs["ids"],
            entry_rows=inputs["entry_rows"],
            dense_shapes=inputs["dense_shape"],
            weights=inputs["weights"],
            **lists,
            boundaries=[],
            boundary_counts=[0],
        )


def ops_attrs():
    from fusion.schema.columns import COLUMN_ATTRS

    return COLUMN_ATTRS


def test_static_shapes():
    @tf.function
    def build(table, ids):
        column = dense(ids, table_of(3, 4))
        column["inputs"]["table"] = table
        return lookup(column), grouped([column, column])

    spec = tf.TensorSpec([None, 1], tf.int64)
    function = build.get_concrete_function(tf.TensorSpec([None, 4]), spec)
    assert [list(output.shape) for output in function.outputs] == [[None, 4], [None, 8]]
    function = build.get_concrete_function(tf.TensorSpec([None, None]), spec)
    assert [list(output.shape) for output in function.outputs] == [[None, None], [None, None]]


def test_many_threads_at_once():
    rng = np.random.default_rng(9)
    columns = [draw(rng, str(form), 4000) for form in rng.choice(FORMS, 6)]
    expected = np.asarray(grouped(columns))
    wrong = []

    def client():
        for _ in range(20):
            if not is_nan_aware_equal(grouped(columns), expected):
                wrong.append(1)

    clients = [threading.Thread(target=client) for _ in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert not wrong
