"""Named near misses: each is one step away from a lookup, and the reason says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.framework import tensor_util

from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import recognise_all
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.spec import SparseIds
from fusion.passes.recognise.stock.rows import Rows
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
fc = tf.feature_column
FILL = "embedding_lookup/SparseFillEmptyRows/SparseFillEmptyRows"
Nodes = dict[str, node_def_pb2.NodeDef]


def recognised(graph_def: graph_pb2.GraphDef) -> LookupMatch:
    matches = recognise_all(GraphView.of_graph(graph_def))
    # A gather of other ids than the distinct ones is a lookup of its own.
    (found,) = (match for match in matches if not isinstance(match.parts.whole, Rows))
    return found


def reason(graph_def: graph_pb2.GraphDef) -> tuple[str, str]:
    found = recognised(graph_def)
    assert found.spec is None
    assert found.failure is not None
    assert not found.failure
    return found.failure.reason, found.failure.node


def built(build: Callable[[tf.SparseTensor, Any], Any]) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        build(stock.sparse_placeholder(Case()), tf.constant(stock.table_values()))
        return graph.as_graph_def()


def test_a_lookup_is_recognised() -> None:
    spec = recognised(stock.build(Case(combiner="sqrtn"))).spec
    assert spec is not None
    assert str(spec).splitlines() == [
        "lookup embedding_lookup/embedding_lookup_sparse",
        "  ids      int64 values=ids/values indices=ids/indices shape=ids/shape",
        "  keep     id >= 0",
        "  empty    zeros",
        "  table    resource table float[20, 6] beside loc:@table",
        "  combine  sqrtn",
        "  output   embedding_lookup/Reshape_2",
    ]


@pytest.mark.parametrize(
    ("case", "flattened", "default_id", "output"),
    [
        (Case(), False, -1, "embedding_lookup/Reshape_2"),
        (Case(default_id=0), False, 0, "embedding_lookup/Reshape_1"),
        (Case(default_id=4), False, 4, "embedding_lookup/Reshape_1"),
        (Case(rank=3), True, -1, "embedding_lookup"),
        (Case(rank=None), True, -1, "embedding_lookup"),
        (Case(rank=3, default_id=4), True, 4, "embedding_lookup"),
    ],
    ids=str,
)
def test_what_is_read_and_replaced(
    case: Case, flattened: bool, default_id: int, output: str
) -> None:
    spec = recognised(stock.build(case)).spec
    assert spec is not None
    assert isinstance(spec.ids, SparseIds)
    assert (spec.ids.flattened, spec.column.default_id) == (flattened, default_id)
    assert str(spec.output) == output


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            lambda ids, table: tf.nn.safe_embedding_lookup_sparse(
                tf.stack([table, table], 2), ids, default_id=0
            ),
            "the table has rank 3, not 2",
        ),
        (
            lambda ids, table: tf.nn.safe_embedding_lookup_sparse(
                tf.constant(np.ones((4, 3, 2), np.float32)), ids, default_id=0
            ),
            "the table has rank 3, not 2",
        ),
        (
            lambda ids, table: tf.sparse.segment_sum(table, [0, 1], [0, 1], num_segments=4),
            "the number of rows is no int64",
        ),
        (
            lambda ids, table: tf.sparse.segment_mean(table, [0, 1], [0, 1]),
            "the segment ids are not the row numbers of a SparseTensor",
        ),
        (
            lambda ids, table: tf.nn.safe_embedding_lookup_sparse(
                tf.ones([stock.ROWS, 2], tf.int32), ids, combiner="sum"
            ),
            "tables of dtype int32 are not fused",
        ),
        (
            lambda ids, table: tf.math.segment_sum(table, tf.range(stock.ROWS)),
            "the segment sum does not reduce looked-up rows",
        ),
    ],
)
def test_other_segment_reductions(build: Callable[..., Any], expected: str) -> None:
    assert reason(built(build))[0] == expected


def _constant(name: str, value: Any) -> Callable[[Nodes], None]:
    def change(nodes: Nodes) -> None:
        nodes[name].attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value))

    return change


def _input(name: str, position: int, text: str) -> Callable[[Nodes], None]:
    def change(nodes: Nodes) -> None:
        nodes[name].input[position] = text

    return change


@pytest.mark.parametrize(
    ("change", "expected", "node"),
    [
        (
            _constant("embedding_lookup/SparseFillEmptyRows/Const", np.int64(2)),
            "empty rows get an id other than 0 and are zeroed as well",
            "embedding_lookup",
        ),
        (
            _constant("embedding_lookup/SparseFillEmptyRows/Const", np.int64(-1)),
            "the id for empty rows is negative",
            "embedding_lookup/SparseFillEmptyRows/Const",
        ),
        (
            _input(FILL, 3, "embedding_lookup/Prod"),
            "the id for empty rows is not a constant",
            "embedding_lookup/Prod",
        ),
        (
            _input("embedding_lookup/Reshape_1", 0, "flags"),
            "the mask is not that of this lookup's empty rows",
            "embedding_lookup/Reshape_1",
        ),
        (
            _constant("embedding_lookup/strided_slice/stack", np.array([0], np.int32)),
            "the mask of empty rows is not tiled to the width of a row",
            "embedding_lookup/Tile",
        ),
        (
            _input("embedding_lookup", 1, "embedding_lookup/embedding_lookup_sparse"),
            "empty rows are not replaced by zeros",
            "embedding_lookup/embedding_lookup_sparse",
        ),
        (
            _input("embedding_lookup/embedding_lookup_sparse/embedding_lookup", 1, "other"),
            "the gathered ids are not the unique ids of this lookup",
            "embedding_lookup/embedding_lookup_sparse/embedding_lookup",
        ),
        (
            _input("embedding_lookup/embedding_lookup_sparse/Unique", 0, "other"),
            "empty rows are filled, but the ids are others",
            "other",
        ),
        (
            _constant(
                "embedding_lookup/embedding_lookup_sparse/strided_slice/stack",
                np.array([0, 1], np.int32),
            ),
            "the segment ids are not the rows of the filled ids",
            "embedding_lookup/embedding_lookup_sparse/strided_slice",
        ),
    ],
)
def test_one_wrong_step(change: Callable[[Nodes], None], expected: str, node: str) -> None:
    graph_def = stock.build(Case())
    for name, dtype in (("other", 9), ("flags", 10)):
        graph_def.node.add(name=name, op="Placeholder").attr["dtype"].type = dtype
    change({node.name: node for node in graph_def.node})
    assert reason(graph_def) == (expected, node)


def test_ids_that_are_no_matrix() -> None:
    graph_def = stock.build(Case())
    nodes = {node.name: node for node in graph_def.node}
    for name in ("ids/shape", "ids/indices"):
        nodes[name].attr["shape"].shape.unknown_rank = True
        del nodes[name].attr["shape"].shape.dim[:]
    nodes["embedding_lookup/GatherV2_1"].input[0] = "ids/indices"
    nodes["embedding_lookup/Identity"].input[0] = "ids/shape"
    assert reason(graph_def) == ("the ids are not known to form a matrix", "ids/indices")


@pytest.mark.parametrize(
    "change",
    [
        _constant("embedding_lookup/GreaterEqual/y", np.int64(1)),
        _input("embedding_lookup/GreaterEqual", 0, "other"),
        _input("embedding_lookup/GatherV2_2", 1, "other"),
    ],
)
def test_what_is_pruned_otherwise_is_taken_as_it_is(change: Callable[[Nodes], None]) -> None:
    graph_def = stock.build(Case())
    graph_def.node.add(name="other", op="Placeholder").attr["dtype"].type = 9
    change({node.name: node for node in graph_def.node})
    spec = recognised(graph_def).spec
    assert spec is not None
    assert not spec.column.prune
    assert str(spec.ids.values) == "embedding_lookup/GatherV2_2"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            lambda ids, table: tf.nn.embedding_lookup_sparse(table, ids, None),
            ("values=ids/values indices=ids/indices", "all", "left empty, up to the last row"),
        ),
        (
            lambda ids, table: tf.nn.embedding_lookup_sparse(
                table, tf.sparse.fill_empty_rows(ids, np.int64(3))[0], None
            ),
            ("values=ids/values indices=ids/indices shape=ids/shape", "all", "3"),
        ),
        (
            lambda ids, table: tf.nn.embedding_lookup_sparse(
                stock.make_table(Case(), "variable"),
                tf.RaggedTensor.from_value_rowids(ids.values, ids.indices[:, 0]),
                None,
            ),
            ("values=ids/values rows=", "all", "left empty, up to the last row"),
        ),
    ],
)
def test_plain_lookups(build: Callable[..., Any], expected: tuple[str, ...]) -> None:
    spec = recognised(built(build)).spec
    assert spec is not None
    lines = str(spec).splitlines()
    for key, text in zip(("ids", "keep", "empty"), expected, strict=True):
        (line,) = (line for line in lines if line.split()[0] == key)
        assert text in line


SPECS = {
    Case(weighted=True): ["weights  weights", "keep     id >= 0 and weight > 0"],
    Case(weighted=True, combiner="sum"): ["weights  weights", "keep     id >= 0"],
    Case(weighted=True, combiner="sqrtn", dtype=tf.float16): [
        "table    resource table half[20, 6]"
    ],
    Case(max_norm=2.5): ["max_norm 2.5"],
    Case(max_norm=1.0, dtype=tf.float16): ["max_norm 1"],
    Case(shards=3): ["table    float[20, 6] in 3 shards by div", "shard    resource table_2"],
    Case(shards=3, strategy="mod", max_norm=1.0): ["float[20, 6] in 3 shards by mod", "max_norm 1"],
    Case(shards=2, table="constant", ids=tf.int32): ["in 2 shards by div"],
    Case(ragged=True): ["ids      int64 values=ids/values row_splits=ids/row_splits"],
    Case(ragged=True, weighted=True): ["weights  weights", "id >= 0 and weight > 0"],
}


@pytest.mark.parametrize("optimize", [False, True], ids=["raw", "optimized"])
@pytest.mark.parametrize("case", SPECS, ids=str)
def test_what_a_spec_says(case: Case, optimize: bool) -> None:
    graph_def = stock.build(case)
    if optimize:
        graph_def = stock.optimized(graph_def)
    spec = recognised(graph_def).spec
    assert spec is not None
    for text in SPECS[case]:
        assert text in str(spec)


COLUMNS = {
    "dense": (
        fc.categorical_column_with_identity("x", 8),
        "ids      int64 dense int64 values=x without -1",
    ),
    "dense with buckets": (
        fc.categorical_column_with_identity("x", 8, 3),
        "buckets  8, else 3",
    ),
    "bucketized": (
        fc.bucketized_column(fc.numeric_column("x", (3,)), [0.0, 1.0]),
        "plus 3 per column",
    ),
    "bucketized, one number": (
        fc.bucketized_column(fc.numeric_column("x"), [0.0, 1.0]),
        "ids      int32 dense int32 values=input_layer/x_bucketized_embedding/Bucketize",
    ),
}


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("optimize", [False, True], ids=["raw", "optimized"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_dense_ids_in_front_of_a_lookup(kind: str, optimize: bool, batch: int | None) -> None:
    column, text = COLUMNS[kind]
    with tf.Graph().as_default() as graph:
        width = {"bucketized": 3, "bucketized, one number": 1}.get(kind, 2)
        dtype = tf.float32 if kind.startswith("bucketized") else tf.int64
        inputs = {"x": v1.placeholder(dtype, [batch, width], "x")}
        result = v1.feature_column.input_layer(inputs, [fc.embedding_column(column, 2)])
        tf.identity(result, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def()
    if optimize:
        graph_def = stock.optimized(graph_def)
    spec = recognised(graph_def).spec
    assert spec is not None
    assert text in str(spec)
