"""Columns of a matrix of ids: the bits of the lookup of the ids that are sliced out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.schema.column_rules import broken
from fusion.schema.columns import COLUMN_ATTRS
from fusion.schema.row_formats import PACKED_FORMATS
from tests.ops.embedding_columns import DTYPES, NO_IDS, attrs, grouped, lookup, packed, run
from tests.ops.keyed_tables import KeyedTable
from tests.ops.test_stock_sums import same

ROWS, WIDTH = 9, 4
LIMITS = [-1.5, 0.0, 0.25, 1.0, 3.0]
#: What a column of single ids may do.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"combiner": "sum", "dim": 3},
    "sqrtn": {"combiner": "sqrtn", "dim": -1},
    "clipped": {"max_norm": 1.2},
    "all zeros": {"max_norm": 0.0},
    "ignored": {"use_ignored_id": True, "ignored_id": 2},
    "pruned": {"prune": True},
    "pruned and clipped": {"prune": True, "max_norm": 1.2},
    "filled": {"prune": True, "fill_empty_row": True},
    "filled by a row": {"prune": True, "fill_empty_row": True, "default_id": 5},
    "ignored and filled": {"use_ignored_id": True, "ignored_id": 1, "fill_empty_row": True},
    "in buckets": {"num_buckets": 7, "bucket_default": 3},
    "in buckets and clipped": {"num_buckets": 7, "bucket_default": 0, "max_norm": 1.2},
    "from the end": {"wrap_negative": True},
    "from the end, clipped": {"wrap_negative": True, "max_norm": 1.2},
}
#: With any of these ids may be < 0.
NEGATIVE = ("prune", "num_buckets", "wrap_negative")


def table_of(seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).normal(size=(ROWS, 3)).astype(dtype)


def ids_of(option: str, rows: int = 50, columns: int = WIDTH, dtype: Any = np.int64) -> Any:
    low = -3 if any(name in OPTIONS[option] for name in NEGATIVE) else 0
    return np.random.default_rng(len(option)).integers(low, ROWS, (rows, columns)).astype(dtype)


def pair(matrix: Any, number: int, table: Any = None, **given: Any) -> tuple[Any, Any]:
    """A column of a matrix of ids, and the same of ids that are sliced."""
    table = table_of() if table is None else table
    rest = {"entry_rows": NO_IDS, "dense_shape": NO_IDS, "weights": np.zeros(0, table.dtype)}
    made = [
        {"inputs": {"table": table, "ids": ids, **rest}, "attrs": attrs(form="each", **own)}
        for ids, own in (
            (matrix, given | {"id_column": number}),
            (np.ascontiguousarray(matrix[:, number]), given),
        )
    ]
    return made[0], made[1]


def agrees(of_matrix: Any, sliced: Any) -> None:
    """Alone, and in a group."""
    expected = run(sliced)
    same(run(of_matrix), expected)
    together = grouped([sliced, of_matrix, of_matrix]).numpy()
    same(together, np.concatenate([expected] * 3, 1))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("number", range(WIDTH))
@pytest.mark.parametrize("option", OPTIONS)
def test_each_option(option: str, number: int, dtype: Any) -> None:
    agrees(*pair(ids_of(option, dtype=dtype), number, **OPTIONS[option]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("option", ["plain", "ignored", "in buckets", "filled by a row", "clipped"])
def test_values_with_boundaries(option: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    values = rng.choice([-2.0, -1.5, -0.0, 0.25, 0.9, 1.0, 2.0, 7.0], (40, WIDTH)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        values[::7] = np.nan
    for number in (0, WIDTH - 1):
        agrees(*pair(values, number, boundaries=LIMITS, **OPTIONS[option]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_tables_of_other_dtypes(dtype: str) -> None:
    table = table_of(dtype=DTYPES.get(dtype, dtype))
    for option in ("plain", "filled by a row", "ignored", "clipped"):
        agrees(*pair(ids_of(option), 2, table, **OPTIONS[option]))


@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_packed_rows(row_format: str) -> None:
    for option in ("plain", "pruned", "in buckets", "from the end"):
        of_matrix, sliced = pair(ids_of(option), 1, **OPTIONS[option])
        same(run(packed(of_matrix, row_format)[0]), run(packed(sliced, row_format)[0]))


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (0, 1), (1, 1), (7, 1), (1, 5), (3, 200)])
def test_edge_sizes(rows: int, columns: int) -> None:
    for option in ("plain", "filled by a row", "clipped"):
        matrix = ids_of(option, rows, columns)
        agrees(*pair(matrix, columns - 1, **OPTIONS[option]))


def test_a_large_batch_of_many_columns() -> None:
    """Threads share it."""
    rng = np.random.default_rng(5)
    matrix = rng.integers(0, ROWS, (20_000, 26))
    pairs = [pair(matrix, number, table_of(number)) for number in range(26)]
    of_matrix, sliced = zip(*pairs, strict=True)
    same(grouped([*of_matrix]).numpy(), grouped([*sliced]).numpy())


def gradient_of(columns: list[Any], is_group: bool) -> Any:
    tables = [tf.constant(column["inputs"]["table"]) for column in columns]
    made = [
        {**column, "inputs": {**column["inputs"], "table": table}}
        for column, table in zip(columns, tables, strict=True)
    ]
    with tf.GradientTape() as tape:
        tape.watch(tables)
        result = grouped(made) if is_group else lookup(made[0])
    top = np.random.default_rng(7).normal(size=result.shape).astype(np.float32)
    return tape.gradient(result, tables, tf.constant(top))


@pytest.mark.parametrize("is_group", [False, True])
@pytest.mark.parametrize("option", OPTIONS)
def test_gradients(option: str, is_group: bool) -> None:
    pairs = [pair(ids_of(option), number, **OPTIONS[option]) for number in (1, 3)[: 1 + is_group]]
    of_matrix, sliced = zip(*pairs, strict=True)
    found, expected = (gradient_of([*one], is_group) for one in (of_matrix, sliced))
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, tf.IndexedSlices)
        same(one.values.numpy(), other.values.numpy())
        np.testing.assert_array_equal(one.indices, other.indices)


def test_gradients_of_values() -> None:
    values = np.random.default_rng(1).normal(size=(30, 2)).astype(np.float32)
    found, expected = (
        gradient_of([one], is_group=True) for one in pair(values, 1, boundaries=LIMITS)
    )
    same(tf.convert_to_tensor(found[0]).numpy(), tf.convert_to_tensor(expected[0]).numpy())


def test_columns_of_embedding_variables() -> None:
    table, keys = KeyedTable(64, 3), np.random.default_rng(0).integers(0, 40, (20, 3))
    table.train(np.arange(30))

    def looked_up(ids: Any, **own: Any) -> Any:
        column = attrs(form="each", dim=3, **own)
        with tf.GradientTape() as tape:
            tape.watch(table.table)
            result = ops.grouped_keyed_embedding_lookup(
                tables=[tf.zeros([0, 3])],
                ids=[ids],
                entry_rows=[NO_IDS],
                dense_shapes=[NO_IDS],
                weights=[tf.zeros([0])],
                boundaries=[],
                boundary_counts=[0],
                keyed_tables=[table.table.handle],
                initials=[table.initial.handle],
                indices=[table.index.handle],
                steps=tf.constant([-1], tf.int64),
                keyed=[True],
                trainable=[False],
                **{name: [column[attr.name]] for name, attr in COLUMN_ATTRS.items()},
            )
        return result.numpy()

    for number in range(3):
        same(looked_up(keys, id_column=number), looked_up(keys[:, number].copy()))


BAD: dict[str, dict[str, Any]] = {
    "id_column is 4, but ids have 4 columns": {"attrs": {"id_column": 4}},
    "id_column is 0, but ids have 0 columns": {"inputs": {"ids": np.zeros([3, 0], np.int64)}},
    "an input has rank 1 where 2 is needed": {"inputs": {"ids": np.zeros(3, np.int64)}},
    "an input has rank 3 where 2 is needed": {"inputs": {"ids": np.zeros([3, 1, 1], np.int64)}},
    r"indices\[3\] = 9 is not in \[0, 9\), the rows of the table, in row 3 of the batch": {
        "inputs": {"ids": np.array([[8, 9], [7, -1], [6, 0], [9, 9], [0, 11]])}
    },
    r"indices\[1\] = -2 is not in": {"inputs": {"ids": np.array([[8, 9], [-2, 1]], np.int32)}},
    "id_column does not go with form dense": {"attrs": {"form": "dense"}},
    "id_column does not go with form row_splits": {"attrs": {"form": "row_splits"}},
    "does not go with max_norm": {"attrs": {"row_format": "int8", "max_norm": 1.0, "dim": 3}},
}


@pytest.mark.parametrize("text", BAD)
def test_bad_columns_are_named(text: str) -> None:
    good, _ = pair(ids_of("plain"), 0)
    bad = {part: {**good[part], **BAD[text].get(part, {})} for part in ("inputs", "attrs")}
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"column 0: .*{text}"):
        lookup(bad)
    good, _ = pair(ids_of("plain", len(bad["inputs"]["ids"])), 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"column 1: .*{text}"):
        grouped([good, bad])


def test_a_bad_id_of_a_large_batch() -> None:
    matrix = np.random.default_rng(0).integers(0, ROWS, (30_000, 3))
    matrix[20_001] = ROWS, ROWS + 1, ROWS + 2
    column, sliced = pair(matrix, 1)
    for one in (column, sliced):
        text = rf"column 2: indices\[20001\] = {ROWS + 1} is not in .* in row 20001"
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            grouped([pair(matrix[:20_001].repeat(2, 0)[:30_000], 0)[0]] * 2 + [one])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"on_gpu": True}, "id_column has no kernel on a GPU"),
        ({"role": "pre"}, "id_column is not implemented for this op"),
        ({"form": "lengths"}, "id_column does not go with form lengths"),
        ({"form": "indices"}, "id_column does not go with form indices"),
        ({"form": "copy"}, ""),
        ({}, ""),
        ({"form": "dense", "id_column": -1}, ""),
    ],
)
def test_rules(fields: dict[str, Any], text: str) -> None:
    known = {"role": "full", "T": "float32", "Tids": "int64", "Trows": "int64", "boundaries": 0}
    assert broken(attrs(form="each", id_column=0) | known | fields) == text


def test_a_graph_refuses_what_a_kernel_refuses() -> None:
    column, _ = pair(ids_of("plain"), 0)
    column["attrs"] |= {"form": "dense"}
    with tf.Graph().as_default(), pytest.raises(tf.errors.InvalidArgumentError) as raised:
        grouped([column])
    assert "column 0: id_column does not go with form dense" in str(raised.value)


def test_ops_for_training_have_no_such_attr() -> None:
    with pytest.raises(TypeError, match="id_columns"):
        ops.grouped_embedding_pre_look_up(id_columns=[0])
    with pytest.raises(ValueError, match="id_column"):
        lookup(pair(ids_of("plain"), -2)[0])


def lists_of(columns: list[Any], **given: Any) -> tf.Tensor:
    """The columns by an op that is given these lists, and no others of ids' columns."""
    lists = {
        name: [column["attrs"][attr.name] for column in columns]
        for name, attr in COLUMN_ATTRS.items()
        if name != "id_columns"
    }
    names = {"table": "tables", "dense_shape": "dense_shapes"}
    inputs = {
        names.get(name, name): [column["inputs"][name] for column in columns]
        for name in columns[0]["inputs"]
    }
    counts = [0] * len(columns)
    return ops.grouped_embedding_lookup(
        **inputs, **lists, **given, boundaries=[], boundary_counts=counts
    )


def test_the_list_has_an_item_for_each_column() -> None:
    _, sliced = pair(ids_of("plain"), 1)
    expected = np.concatenate([run(sliced)] * 2, 1)
    same(lists_of([sliced, sliced], id_columns=[-1, -1]).numpy(), expected)
    with pytest.raises(tf.errors.InvalidArgumentError, match="id_columns has 1 items for 2 col"):
        lists_of([sliced, sliced], id_columns=[-1])


def test_static_shapes() -> None:
    column, _ = pair(ids_of("plain"), 1, dim=3)

    @tf.function
    def build(ids: tf.Tensor) -> Any:
        made = {**column, "inputs": {**column["inputs"], "ids": ids}}
        return lookup(made), grouped([made, made])

    function = build.get_concrete_function(tf.TensorSpec([None, WIDTH], tf.int64))
    assert [list(output.shape) for output in function.outputs] == [[None, 3], [None, 6]]
