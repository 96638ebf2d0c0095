"""Constant tables that are stacked, so that one gather looks up many columns side by side."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.plan.stacks import TOO_FEW
from fusion.schema.names import OP_NAMES
from tests import layer_graphs as layers
from tests.layer_graphs import Model, Table
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
fc = tf.feature_column
WORDS = np.array([["x"], [""], ["yy"], ["x"], [""]])
IDS = np.array([[3], [-1], [0], [5], [2]])
NUMBERS = np.array([[-1.0], [0.5], [7.0], [np.nan], [np.inf]], np.float32)


def values(seed: int, rows: int, dim: int) -> Any:
    """Rows of a table, with numbers that arithmetic would change."""
    table = np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)
    table[0, 0], table[1, 0], table[2, -1] = np.nan, -0.0, np.inf
    return table


def embedding(kind: str, key: str, seed: int, dim: int = 3, combiner: str = "mean") -> Any:
    rows, source = {
        "ids": (6, lambda: fc.categorical_column_with_identity(key, 6)),
        "bounded": (6, lambda: fc.categorical_column_with_identity(key, 6, default_value=1)),
        "words": (5, lambda: fc.categorical_column_with_hash_bucket(key, 5)),
        "numbers": (3, lambda: fc.bucketized_column(fc.numeric_column(key), [0.0, 1.0])),
    }[kind]
    initial = v1.constant_initializer(values(seed, rows, dim))
    return fc.embedding_column(source(), dim, combiner, initial)


def placeholder(kind: str, key: str) -> Any:
    dtype = {"words": tf.string, "numbers": tf.float32}.get(kind, tf.int64)
    return v1.placeholder(dtype, [None, 1], key)


def feed_of(kind: str) -> Any:
    return {"words": WORDS, "numbers": NUMBERS}.get(kind, IDS)


def frozen(*columns: tuple[str, int], extra: Any = None) -> graph_pb2.GraphDef:
    """A frozen `input_layer` of columns, given by kind and dim, of inputs `c0`, `c1`, ..."""
    with tf.Graph().as_default() as graph:
        keys = [f"c{index}" for index in range(len(columns))]
        features = {
            key: placeholder(kind, key) for key, (kind, _) in zip(keys, columns, strict=True)
        }
        made = [
            embedding(kind, key, index, dim, ["mean", "sum", "sqrtn"][index % 3])
            for index, (key, (kind, dim)) in enumerate(zip(keys, columns, strict=True))
        ]
        result = v1.feature_column.input_layer(features, made)
        tf.identity(result, name="out")
        outputs = ["out"]
        if extra is not None:
            tf.identity(extra(graph), name="other")
            outputs.append("other")
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            return v1.graph_util.convert_variables_to_constants(
                session, graph.as_graph_def(add_shapes=True), outputs
            )


def fed(*kinds: str) -> dict[str, Any]:
    return {f"c{index}:0": feed_of(kind) for index, kind in enumerate(kinds)}


def forms(before: graph_pb2.GraphDef, *outputs: str) -> tuple[graph_pb2.GraphDef, list[str]]:
    result = fusion.fuse_graph(before, ["out", *outputs], target="stock")
    assert not {node.op for node in result.graph_def.node} & {*OP_NAMES}
    return result.graph_def, [str(column.form) for column in result.report.columns]


def run(graph_def: graph_pb2.GraphDef, feed: Any) -> Any:
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        return session.run("out:0", feed)


def assert_same(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef, feed: Any) -> None:
    for part in (slice(None), slice(1), slice(0)):
        some = {name: array[part] for name, array in feed.items()}
        one, other = run(before, some), run(after, some)
        assert (one.shape, one.tobytes()) == (other.shape, other.tobytes())


KINDS = ("ids", "words", "numbers")


@pytest.mark.parametrize("kinds", [("ids", "ids"), KINDS, ("numbers",) * 2, ("words",) * 3])
def test_columns_side_by_side_are_one_gather(kinds: tuple[str, ...]) -> None:
    before = frozen(*((kind, 3) for kind in kinds))
    after, found = forms(before)
    assert found == ["stacked"] * len(kinds)
    counts = Counter(node.op for node in after.node)
    assert counts["GatherV2"] == 1
    assert not {"Unique", "SparseSegmentMean", "SparseFillEmptyRows"} & set(counts)
    # No id of those can be negative, so that nothing has to ask.
    assert ("Select" in counts) == bool({"ids", "words"} & set(kinds))
    assert ("Less" in counts) == ("ids" in kinds)
    assert after.ByteSize() < before.ByteSize()
    assert_same(before, after, fed(*kinds))


def test_columns_of_another_dim_are_beside_the_stack() -> None:
    kinds = ("ids", "words", "ids", "numbers", "numbers")
    dims = (3, 3, 5, 2, 2)
    before = frozen(*zip(kinds, dims, strict=True))
    after, found = forms(before)
    assert Counter(found) == {"stacked": 4, "stock": 1}
    assert_same(before, after, fed(*kinds))


@pytest.mark.parametrize("wrong", [6, 2**40, 2**63 - 1])
def test_an_id_outside_its_table_is_no_row_of_the_next(wrong: int) -> None:
    before = frozen(("ids", 3), ("ids", 3))
    after, _ = forms(before)
    feed = fed("ids", "ids")
    feed["c0:0"] = np.array([[1], [wrong], [2], [0], [1]])
    for graph in (before, after):
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(graph, feed)


def test_the_most_negative_id_is_none() -> None:
    before = frozen(("ids", 3), ("ids", 3))
    after, _ = forms(before)
    feed = fed("ids", "ids")
    feed["c0:0"] = np.array([[1], [-(2**63)], [-2], [0], [1]])
    assert_same(before, after, feed)


def test_a_table_that_others_read_is_not_held_twice() -> None:
    def extra(graph: Any) -> tf.Tensor:
        return tf.reduce_sum(v1.global_variables()[0].value())

    before = frozen(("ids", 3), ("ids", 3), ("words", 3), extra=extra)
    after, found = forms(before, "other")
    assert sorted(found) == ["stacked", "stacked", "stock"]
    assert_same(before, after, fed("ids", "ids", "words"))


def test_ids_that_are_left_out_but_not_negative_are_no_part_of_a_stack() -> None:
    """Whatever is out of bounds becomes id 1, but for -1, which stands for no id."""
    before = frozen(("ids", 3), ("bounded", 3), ("ids", 3), ("ids", 3))
    after, found = forms(before)
    assert Counter(found) == {"stock": 2, "stacked": 2}
    feed = fed("ids", "bounded", "ids", "ids")
    feed["c1:0"] = np.array([[7], [-1], [-2], [2], [2**40]])
    assert_same(before, after, feed)


def test_variables_are_not_stacked() -> None:
    with tf.Graph().as_default() as graph:
        features = {key: placeholder("ids", key) for key in ("c0", "c1")}
        columns = [embedding("ids", key, seed) for seed, key in enumerate(features)]
        tf.identity(v1.feature_column.input_layer(features, columns), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        before = graph.as_graph_def(add_shapes=True)
    after, found = forms(before, "initialize")
    assert found == ["stock", "stock"]
    feed = fed("ids", "ids")
    (one,), (other,) = stock.run(before, feed), stock.run(after, feed)
    assert one.tobytes() == other.tobytes()


def test_one_column_is_no_stack() -> None:
    before = frozen(("ids", 3))
    after, found = forms(before)
    assert found == ["stock"]
    assert_same(before, after, fed("ids"))


def _rows(count: int = 8, dim: int = 4) -> tuple[Table, ...]:
    return tuple(Table(20 + k, dim, "constant") for k in range(count))


#: Rows of constant tables as layers join them.
ROWS = {
    "flattened": Model(_rows()),
    "counted from the end": Model(_rows(), wraps=True, ids="int32"),
    "a new axis": Model(_rows(), between="", joins=(("concat", 1),)),
    "packed": Model(_rows(), (), between="", joins=(("pack", 1),)),
    "beside others": Model((*_rows(), Table(9, 5, "constant"), *_rows()), beside=True),
    "of halves": Model(_rows(), dtype="bfloat16"),
}


@pytest.mark.parametrize("model", ROWS.values(), ids=ROWS)
def test_rows_of_constants_become_one_gather_with_the_same_bits(model: Model) -> None:
    graph_def = layers.build(model)
    result = LowerLookups(preserve=frozenset({"out", "initialize"})).apply(graph_def)
    assert {column.form for column in result.report.columns} == {"stacked"}
    gathers = [node.op for node in result.graph_def.node].count("GatherV2")
    assert gathers == (3 if len(model.tables) > 8 else 1)
    for batch in (7, 1, 0):
        feed = layers.feeds(model, batch)
        (wanted,) = stock.run(graph_def, feed, optimize=False)
        (got,) = stock.run(result.graph_def, feed)
        assert got.shape == wanted.shape
        assert got.tobytes() == wanted.tobytes()
    for bad in (-1, -25, 24, 1 << 20):
        feed = layers.feeds(model)
        feed["ids_3:0"].reshape(-1)[-1] = bad
        outcomes = []
        for one in (graph_def, result.graph_def):
            try:
                outcomes.append(stock.run(one, feed, optimize=False)[0].tobytes())
            except tf.errors.InvalidArgumentError:
                outcomes.append(b"")
        assert outcomes[0] == outcomes[1], bad


@pytest.mark.parametrize(
    "model",
    [
        Model(_rows(7)),
        Model(_rows(), (3,), between="", joins=(("concat", 2),)),
        Model(tuple(Table(20_000, 16, "constant") for _ in range(8))),
    ],
    ids=["few", "sequences", "large"],
)
def test_rows_that_one_gather_does_not_pay_for_stay(model: Model) -> None:
    graph_def = layers.build(model)
    result = LowerLookups(preserve=frozenset({"out", "initialize"})).apply(graph_def)
    assert not result.modified
    # Of small tables nothing is said.
    reasons = {column.reason for column in result.report.columns}
    assert reasons <= {TOO_FEW}
    assert bool(reasons) == (model.tables[0].rows > 1000)


def test_rows_of_a_table_that_others_read_stay() -> None:
    """The graph would hold it twice."""
    graph_def = layers.build(Model(_rows()))
    tables = [node.name for node in graph_def.node if node.name.startswith("table_")]
    result = LowerLookups(preserve=frozenset({"out", "initialize", *tables})).apply(graph_def)
    assert not result.modified
