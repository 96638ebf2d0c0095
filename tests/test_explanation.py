"""`explain` takes everything that can be fused, and says about all of it what fusing would do.

What it says under `enable` is compared with what `enable` does in tests/grappler.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.report.report import FusionReport
from fusion.saved_model import ModelError

SPEC = tf.SparseTensorSpec([None, None], tf.int64)


class Model(tf.Module):
    """One column that can be fused, in a function of its own, and one that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.items = tf.Variable(tf.zeros([20, 6]), name="items")
        self.shops = tf.zeros([30, 6])  # no variable: its gather is none to speak of

    @tf.function(input_signature=[SPEC])
    def embed(self, ids: tf.SparseTensor) -> tf.Tensor:
        return tf.nn.safe_embedding_lookup_sparse(self.items, ids, combiner="sqrtn")

    @tf.function(input_signature=[SPEC])
    def __call__(self, ids: tf.SparseTensor) -> dict[str, tf.Tensor]:
        rows = tf.nn.embedding_lookup(self.shops, ids.values)
        sums = tf.math.segment_sum(rows + 1, tf.cast(ids.indices[:, 0], tf.int32))
        return {"rows": self.embed(ids), "sums": sums}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def saved(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m"
    tf.saved_model.save(model, path, signatures=model.__call__)
    return path


def by_op(report: FusionReport) -> dict[str, Any]:
    columns = {column.anchor.rpartition("/")[2].lower(): column for column in report.columns}
    assert len(columns) == 2
    return columns


def check(report: FusionReport) -> None:
    columns = by_op(report)
    fused, stock = columns["embedding_lookup_sparse"], columns["segmentsum"]
    assert fused.fused
    assert fused.name == "items"
    assert fused.spec is not None
    assert fused.spec.table.shape == (20, 6)
    assert fused.explained[0].startswith("sqrtn of the rows of each bag")
    assert any("ids below 0 are dropped" in words for words in fused.explained)
    assert not stock.fused
    assert stock.reason
    assert stock.node
    found = json.loads(json.dumps(report.to_dict()))
    assert (found["fused"], found["total"]) == (1, 2)
    assert str(stock.reason) in str(report)


def test_a_concrete_function(model: Model) -> None:
    function = model.__call__.get_concrete_function()
    report = fusion.explain(function, under="rewrite")
    check(report)
    first, second = report.columns
    assert first.function == ""
    assert "embed" in second.function
    assert report.nodes_before == report.nodes_after > 60


def test_a_concrete_function_that_runs(model: Model) -> None:
    function = model.__call__.get_concrete_function()
    report = fusion.explain(function)
    check(report)
    assert fusion.explain(function, under="enable") == report
    # TensorFlow inlines what is called.
    assert {column.function for column in report.columns} == {""}
    assert report.nodes_before == report.nodes_after > 60


def test_a_saved_model(saved: Path) -> None:
    for path in (saved, str(saved)):
        report = fusion.explain(path)
        check(FusionReport(report.columns[:2]))


def test_a_graph(model: Model) -> None:
    function = model.__call__.get_concrete_function()
    with tf.Graph().as_default() as graph:
        function.add_to_graph(graph)
    graph_def = graph.as_graph_def()
    report = fusion.explain(graph_def)
    assert report.fused_count == 1
    fused = fusion.fuse_graph(graph_def)
    assert [c.to_dict() for c in fused.report.columns] == [c.to_dict() for c in report.columns]
    assert report.nodes_after == fused.report.nodes_before


def test_it_tells_what_fuse_function_did(model: Model) -> None:
    function = model.__call__.get_concrete_function()
    fused = fusion.fuse_function(function)
    for under in ("enable", "rewrite"):
        columns = fusion.explain(fused, under=under).columns
        (left,) = (one for one in columns if not one.fused_before)
        (kept,) = (one for one in columns if one.fused_before)
        before = by_op(fusion.explain(function, under=under))["segmentsum"]
        assert (left.reason, left.node, left.fused) == (before.reason, before.node, False)
        assert (kept.reason, kept.fused) == ("it is one fused op already", False)


def test_nothing_is_changed_by_asking(model: Model, saved: Path) -> None:
    function = model.__call__.get_concrete_function()
    graph_def = function.graph.as_graph_def()
    before = graph_def.SerializeToString(deterministic=True)
    files = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    assert fusion.explain(graph_def) == fusion.explain(graph_def)
    assert fusion.explain(function) == fusion.explain(function)
    assert fusion.explain(function, under="rewrite") == fusion.explain(function, under="rewrite")
    assert fusion.explain(saved) == fusion.explain(saved)
    assert graph_def.SerializeToString(deterministic=True) == before
    assert {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (tf.function(lambda x: x), "model must be .*; pass what its get_concrete_function"),
        (tf.Graph(), "got Graph .*; pass its as_graph_def"),
        (tf.keras.Sequential([]), r"got Sequential .*; pass tf.function\(model\)"),
        (3, "got int 3$"),
        (b"path", "got bytes b'path'$"),
    ],
)
def test_other_arguments_are_refused(argument: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        fusion.explain(argument)


def test_a_path_without_model_is_the_error_of_fuse_saved_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a SavedModel"):
        fusion.explain(tmp_path)


def v1_graph() -> graph_pb2.GraphDef:
    """Two lookups, of which each is a result."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        for name in ("a", "b"):
            table = v1.get_variable(name, [20, 6])
            ids = v1.sparse_placeholder(tf.int64, [None, None], name=f"{name}_ids")
            tf.identity(tf.nn.safe_embedding_lookup_sparse(table, ids), name=f"{name}_rows")
    return graph.as_graph_def()


@pytest.mark.parametrize("under", ["enable", "rewrite"])
def test_outputs_of_a_graph(under: str) -> None:
    graph_def = v1_graph()
    both = fusion.explain(graph_def, under=under)
    assert both.fused_count == len(both.columns) == 2
    (inside,) = (
        n.name for n in graph_def.node if n.op.startswith("SparseSegment") and "_1" in n.name
    )
    report = fusion.explain(graph_def, under=under, outputs=["a_rows", "b_rows:0", inside])
    reasons = {column.name: column.reason for column in report.columns}
    assert reasons["a"] is None
    assert "named outside the graph" in str(reasons["b"])
    with pytest.raises(ValueError, match="the graph has no node 'rows'"):
        fusion.explain(graph_def, under=under, outputs=["rows"])
    with pytest.raises(TypeError, match="outputs must be an iterable of names"):
        fusion.explain(graph_def, under=under, outputs="a_rows")


def test_outputs_are_those_of_a_graph(model: Model, saved: Path) -> None:
    for other in (model.__call__.get_concrete_function(), saved):
        with pytest.raises(TypeError, match="model must be a GraphDef, since outputs are named"):
            fusion.explain(other, outputs=["x"])


def test_a_way_that_there_is_not(model: Model, saved: Path) -> None:
    with pytest.raises(ValueError, match="under must be 'enable' or 'rewrite', got 'run'"):
        fusion.explain(model.__call__.get_concrete_function(), under="run")
    with pytest.raises(ValueError, match="load the model, and pass one of its signatures"):
        fusion.explain(saved, under="enable")


def test_a_graph_that_cannot_run_here_is_explained_as_it_is() -> None:
    graph_def = v1_graph()
    graph_def.node.add(name="other", op="AnOpOfSomebodyElse")
    with pytest.raises(ValueError, match=r"AnOpOfSomebodyElse.*under='rewrite'"):
        fusion.explain(graph_def)
    assert fusion.explain(graph_def, under="rewrite").fused_count == 2


def test_a_function_that_xla_compiles_is_explained_as_it_is(model: Model) -> None:
    compiled = tf.function(model.embed, jit_compile=True)
    function = compiled.get_concrete_function(SPEC)
    (column,) = fusion.explain(function).columns
    assert column.reason == "the function is compiled by XLA"
    outer = tf.function(lambda ids: compiled(ids) + 1).get_concrete_function(SPEC)
    (column,) = fusion.explain(outer).columns
    assert column.reason == "the function is compiled by XLA"


def test_embedding_variables_and_table_stores_in_fused_ops() -> None:
    users = fusion.EmbeddingVariable("users", dimension=2)
    items = tf.Variable(tf.ones([10, 3]), name="items")

    @tf.function
    def model(ids: Any) -> Any:
        shops = fusion.ops.table_store_gather([ids.values], tables=["shops"], dims=[4])[0]
        return fusion.lookup_sparse([users, items], [ids, ids]), shops

    columns = fusion.explain(model.get_concrete_function(SPEC), under="rewrite").columns
    assert [(column.name, column.is_fused_already) for column in columns] == [
        ("users", True),
        ("items", True),
        ("shops", True),
    ]
