"""Columns in several matrices: those of one matrix, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.ops.embedding_columns import FORMS, attrs, copied, draw, grouped
from tests.ops.training_columns import grad, post, pre
from tests.reference import assert_same_bits

DTYPES = ["float16", "bfloat16", "float32", "float64"]
#: How many of seven columns are in each matrix.
PARTITIONS = [[7], [1] * 7, [1, 5, 1], [4, 3]]


def outputs(counts: list[int]) -> dict[str, Any]:
    """The attrs of an op with these columns in each matrix."""
    return {"num_others": len(counts) - 1, "output_columns": counts}


def drawn(seed: int, rows: int, dtype: str = "float32", **told: Any) -> list[dict[str, Any]]:
    """Six lookups, and a matrix between them."""
    rng = np.random.default_rng(seed)
    columns = [draw(rng, str(form), rows, dtype) for form in rng.choice(FORMS, 6)]
    for column in columns:
        column["attrs"] |= told
    matrix = rng.standard_normal((rows, 3)).astype(columns[0]["inputs"]["table"].dtype)
    return [*columns[:2], copied(matrix), *columns[2:]]


def width(column: dict[str, Any]) -> int:
    return int(column["inputs"]["table"].shape[1])


def cut(matrix: Any, columns: list[dict[str, Any]], counts: list[int]) -> list[Any]:
    """The parts of a matrix of all columns that have so many of them."""
    ends = np.cumsum([sum(map(width, part)) for part in parts_of(columns, counts)])
    return np.split(np.asarray(matrix), ends[:-1], 1)


def parts_of(items: list[Any], counts: list[int]) -> list[list[Any]]:
    ends = np.cumsum(counts)
    return [items[end - count : end] for count, end in zip(counts, ends, strict=True)]


def as_list(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


@pytest.mark.parametrize("counts", PARTITIONS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_lookups(rows: int, counts: list[int]) -> None:
    columns = drawn(rows, rows)
    whole = grouped(columns)
    found = as_list(grouped(columns, **outputs(counts)))
    for part, expected in zip(found, cut(whole, columns, counts), strict=True):
        assert_same_bits(part.numpy(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [40, 20_000])
def test_lookups_of_any_dtype_on_several_threads(rows: int, dtype: str) -> None:
    columns, counts = drawn(5, rows, dtype), [1, 2, 4]
    found = grouped(columns, **outputs(counts))
    for part, expected in zip(found, cut(grouped(columns), columns, counts), strict=True):
        assert_same_bits(part.numpy(), expected)


def test_results_that_go_past_the_caches() -> None:
    rng, rows = np.random.default_rng(1), 70_000
    columns = [draw(rng, "row_splits", rows) for _ in range(3)]
    for column in columns:
        column["inputs"]["table"] = rng.standard_normal((50, 32)).astype(np.float32)
        column["attrs"]["dim"] = 32
    found = grouped(columns, **outputs([2, 1]))
    for part, expected in zip(found, cut(grouped(columns), columns, [2, 1]), strict=True):
        assert_same_bits(part.numpy(), expected)


@pytest.mark.parametrize("counts", [[1] * 7, [2, 5]], ids=str)
def test_rows_in_any_order(counts: list[int]) -> None:
    rng, columns = np.random.default_rng(3), drawn(3, 50)
    for column in columns:
        given = column["inputs"]
        if column["attrs"]["form"] in ("indices", "row_ids"):
            order = rng.permutation(len(given["ids"]))
            given["ids"], given["entry_rows"] = given["ids"][order], given["entry_rows"][order]
    assert {"indices", "row_ids"} & {column["attrs"]["form"] for column in columns}
    found = grouped(columns, **outputs(counts))
    for part, expected in zip(found, cut(grouped(columns), columns, counts), strict=True):
        assert_same_bits(part.numpy(), expected)


def prepared(seed: int, rows: int, dtype: str, **told: Any) -> tuple[Any, Any, Any]:
    """Columns, the distinct ids of those that are lookups, and their rows."""
    columns = drawn(seed, rows, dtype, max_norm=-1.0, **told)
    entries = pre([column for column in columns if not is_copy(column)])
    keys = iter(entries.unique_keys)
    rows_of = [
        tf.constant(table) if is_copy(column) else tf.gather(table, next(keys))
        for column, table in ((one, one["inputs"]["table"]) for one in columns)
    ]
    return columns, entries, rows_of


def is_copy(column: dict[str, Any]) -> bool:
    return bool(column["attrs"]["form"] == "copy")


@pytest.mark.parametrize("counts", PARTITIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 200])
def test_training(rows: int, dtype: str, counts: list[int]) -> None:
    columns, entries, gathered = prepared(rows, rows, dtype)
    sources = [*gathered, entries.entry_weights]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        shared = entries._replace(entry_weights=sources[-1])
        whole = post(columns, gathered, shared)
        found = as_list(post(columns, gathered, shared, **outputs(counts)))
    for part, expected in zip(found, cut(whole, columns, counts), strict=True):
        assert_same_bits(part.numpy(), expected)
    top = tf.random.stateless_normal(whole.shape, [1, 2], dtype=whole.dtype)
    tops = [tf.constant(part) for part in cut(top, columns, counts)]
    wanted = tape.gradient(whole, sources, top)
    for mine, theirs in zip(tape.gradient(found, sources, tops), wanted, strict=True):
        assert_same_bits(tf.convert_to_tensor(mine).numpy(), tf.convert_to_tensor(theirs).numpy())


def test_second_gradients() -> None:
    rng = np.random.default_rng(12)
    columns = [draw(rng, "row_splits", 20) for _ in range(3)]
    for column in columns:
        column["inputs"]["weights"] = rng.random(len(column["inputs"]["ids"]), np.float32)
        column["attrs"] |= {"max_norm": -1.0, "use_sparse_weights": True}
    entries = pre(columns)
    keys = zip(columns, entries.unique_keys, strict=True)
    rows = [tf.gather(column["inputs"]["table"], own) for column, own in keys]

    def second(**told: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(rows)
            with tf.GradientTape() as inner:
                inner.watch(rows)
                results = as_list(post(columns, rows, entries, **told))
                loss = tf.add_n([tf.reduce_sum(result**3) for result in results])
            squares = [tf.reduce_sum(gradient**2) for gradient in inner.gradient(loss, rows)]
        return outer.gradient(squares, rows)

    for mine, theirs in zip(second(**outputs([1, 2])), second(), strict=True):
        assert np.any(theirs != 0)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("counts", [[6], [1] * 6, [2, 1, 3]], ids=str)
def test_columns_anywhere_in_their_gradient(counts: list[int]) -> None:
    columns, entries, gathered = prepared(4, 100, "float32")
    pairs = [pair for pair in zip(columns, gathered, strict=True) if not is_copy(pair[0])]
    lookups, rows = [column for column, _ in pairs], [matrix for _, matrix in pairs]
    top = np.random.default_rng(0).standard_normal((100, sum(map(width, lookups))))
    tops = cut(top.astype(np.float32), lookups, counts)
    wanted = grad(lookups, np.concatenate(tops, 1), rows, entries)
    padded = [np.pad(part, ((0, 1), (2, 3))) for part in tops]
    offsets = [2 if k == 0 else -1 for count in counts for k in range(count)]
    for given, places in ((tops, [-1] * 6), (padded, offsets)):
        told = {"offsets": places, "output_columns": counts}
        found = grad(lookups, given[0], rows, entries, other_top_grads=given[1:], **told)
        for mine, theirs in zip(found, wanted, strict=True):
            assert_same_bits(mine.numpy(), theirs.numpy())


def test_sizes_that_are_not_known_when_a_graph_is_built() -> None:
    columns, entries, gathered = prepared(6, 20, "float32", dim=-1)
    counts = [1, 4, 2]
    tops = [tf.ones([20, sum(map(width, part))]) for part in parts_of(columns, counts)]

    @tf.function(input_signature=[[tf.TensorSpec([None, None])] * 7])
    def gradients(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(rows)
            results = post(columns, rows, entries, **outputs(counts))
        return tape.gradient(results, rows, tops)

    with tf.GradientTape() as tape:
        tape.watch(gathered)
        whole = post(columns, gathered, entries)
    wanted = tape.gradient(whole, gathered, tf.concat(tops, 1))
    for mine, theirs in zip(gradients(gathered), wanted, strict=True):
        assert_same_bits(mine.numpy(), theirs.numpy())


def test_gradients_of_lookups_for_inference() -> None:
    columns = drawn(8, 30)
    tables = [tf.constant(column["inputs"].pop("table")) for column in columns]
    columns = [
        {"inputs": {"table": table, **column["inputs"]}, "attrs": column["attrs"]}
        for table, column in zip(tables, columns, strict=True)
    ]
    counts = [2, 1, 4]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tables)
        whole, found = grouped(columns), grouped(columns, **outputs(counts))
    top = tf.random.stateless_normal(whole.shape, [3, 4])
    tops = [tf.constant(part) for part in cut(top, columns, counts)]
    wanted = tape.gradient(whole, tables, top)
    for mine, theirs in zip(tape.gradient(found, tables, tops), wanted, strict=True):
        assert_same_bits(tf.convert_to_tensor(mine).numpy(), tf.convert_to_tensor(theirs).numpy())


def test_shapes() -> None:
    """Known where one matrix has all columns, and where each has one."""
    tables = [tf.TensorSpec([5, 2]), tf.TensorSpec([None, 3]), tf.TensorSpec([9, 4])]
    ids, unused = np.zeros([6, 1], np.int64), copied(np.zeros([1, 1], np.float32))["inputs"]

    def shapes(counts: list[int]) -> list[list[int | None]]:
        @tf.function(input_signature=[tables])
        def build(given: Any) -> Any:
            columns = [
                {"inputs": unused | {"table": table, "ids": ids}, "attrs": attrs(form="dense")}
                for table in given
            ]
            return grouped(columns, **outputs(counts))

        function = build.get_concrete_function()
        (op,) = (op for op in function.graph.get_operations() if op.type.startswith("Grouped"))
        return [output.shape.as_list() for output in op.outputs]

    assert shapes([3]) == [[None, 9]]
    assert shapes([1, 1, 1]) == [[None, 2], [None, 3], [None, 4]]
    assert shapes([2, 1]) == [[None, None], [None, None]]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"num_others": 1}, "output_columns has 0 items for 2 outputs"),
        ({"output_columns": [1, 2]}, "output_columns has 2 items for 1 outputs"),
        (outputs([1, 1]), "output_columns add up to 2, but there are 3 columns"),
        (outputs([2, 2]), "output_columns add up to 4, but there are 3 columns"),
        (outputs([3, 0]), "output_columns must be at least 1, got 0"),
        (outputs([4, -1]), "output_columns must be at least 1, got -1"),
        (outputs([2**62, 2**62]), "output_columns add up to 8, but there are 3 columns"),
    ],
)
def test_numbers_that_do_not_add_up(told: dict[str, Any], message: str) -> None:
    columns = [copied(np.zeros([2, 1], np.float32))] * 3
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        grouped(columns, **told)


def test_gradients_that_are_too_small_are_told_by_their_number() -> None:
    columns, entries, gathered = prepared(4, 10, "float32")
    pairs = [pair for pair in zip(columns, gathered, strict=True) if not is_copy(pair[0])]
    lookups, rows = [column for column, _ in pairs], [matrix for _, matrix in pairs]
    good = [np.zeros([10, width(column)], np.float32) for column in lookups]

    def run(*given: Any) -> Any:
        tops = [*good[: 6 - len(given)], *given]
        others = tops[1:]
        return grad(lookups, tops[0], rows, entries, other_top_grads=others, output_columns=[1] * 6)

    run()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"top_grad\[5\] has 9 rows"):
        run(good[5][:9])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"top_grad\[4\] has rank 1, not 2"):
        run(good[4][:, 0], good[5])
    text = rf"column 5 has {width(lookups[5])} elements from 0 on, .* row of top_grad\[5\] only"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(good[5][:, :-1])


def test_nodes_of_older_releases() -> None:
    """They have neither of the attrs, and one output."""
    columns, entries, gathered = prepared(2, 9, "float32")
    numbers = tf.nest.map_structure(lambda tensor: tensor.numpy(), entries)  # constants of a graph

    @tf.function
    def build() -> Any:
        rows = [tf.constant(matrix.numpy()) for matrix in gathered]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            trained = post(columns, rows, numbers)
        return grouped(columns), trained, *tape.gradient(trained, rows)

    expected = build()
    graph_def = build.get_concrete_function().graph.as_graph_def()
    old = [node for node in graph_def.node if node.op.startswith("Grouped")]
    assert len(old) == 3
    for node in old:
        del node.attr["num_others"], node.attr["output_columns"]
    names = [tensor.name for tensor in build.get_concrete_function().outputs]
    function = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, return_elements=names, name=""), []
    )
    for found, one in zip(function(), expected, strict=True):
        assert_same_bits(found.numpy(), one.numpy())


def test_the_function_of_an_op_returns_the_only_matrix_itself() -> None:
    columns = [copied(np.ones([2, 1], np.float32))] * 2
    assert grouped(columns).shape == [2, 2]
    assert grouped(columns, **outputs([2])).shape == [2, 2]
    assert [part.shape.as_list() for part in grouped(columns, **outputs([1, 1]))] == [[2, 1]] * 2
