"""Which nodes of a call parse, make ids, look up, and are dense."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.report.call import PARTS
from fusion.passes.report.call_parts import parts_of

v1 = tf.compat.v1
DIM = 4


def scores(serialized: tf.Tensor) -> tf.Tensor:
    """Two columns of hashed ids and a number; named where nodes are asked for below."""
    features = {
        "word": tf.io.VarLenFeature(tf.string),
        "age": tf.io.FixedLenFeature([1], tf.float32),
    }
    parsed = tf.io.parse_example(serialized, features)
    rows = [parsed["age"]]
    for k in range(2):
        table = v1.get_variable(f"table{k}", [50, DIM], use_resource=True)
        word = parsed["word"]
        hashed = tf.strings.to_hash_bucket_fast(word.values, 40 + k, name=f"hash{k}")
        ids = tf.SparseTensor(word.indices, hashed, word.dense_shape)
        rows.append(tf.nn.safe_embedding_lookup_sparse(table, ids))
    joined = tf.concat(rows, 1, name="joined")
    weights = tf.ones([2 * DIM + 1, 1], name="weights")
    return tf.identity(tf.matmul(joined, weights, name="product"), name="out")


@pytest.fixture(scope="module")
def graph_def():
    with tf.Graph().as_default() as graph:
        scores(v1.placeholder(tf.string, [None], name="serialized"))
        return graph.as_graph_def()


def part_of_each(graph_def):
    view = GraphView.of_graph(graph_def, frozenset({"out"}))
    return view, parts_of(view)


def test_of_stock_ops(graph_def):
    view, parts = part_of_each(graph_def)
    (parser,) = view.named("ParseExampleV2")
    assert parts[parser] == parts["serialized"] == "parsing"
    assert parts["hash0"] == parts["hash1"] == "ids"
    for op in ("SparseSegmentMean", "SparseFillEmptyRows", "ResourceGather", "VarHandleOp"):
        reads = {name for name in view.named(op) if not name.startswith("Initializer")}
        assert {parts[name] for name in reads} == ({"lookups"} if reads else set()), op
    assert parts["joined"] == parts["product"] == parts["out"] == "dense"


def test_of_fused_ops(graph_def):
    result = FuseLookups(frozenset({"out"})).apply(graph_def)
    view, parts = part_of_each(result.graph_def)
    ops = {view.op(name): part for name, part in parts.items()}
    assert ops["FusedParseExample"] == "parsing"
    assert ops["GroupedIds"] == "ids"
    assert ops["GroupedEmbeddingLookup"] == "lookups"
    assert ops["MatMul"] == "dense"


def test_a_report_counts_ops_before_and_after(graph_def):
    report = fusion.explain(graph_def, under="rewrite", outputs=["out"])
    assert [part.name for part in report.call] == [*PARTS]
    parsing, ids, lookups, dense = report.call
    assert (parsing.ops_before, parsing.ops_after) == (1, 1)
    assert (ids.ops_before, ids.ops_after) == (2, 1)
    # With the reads of both tables.
    assert lookups.ops_before > 20
    assert lookups.ops_after == 5
    assert dense.ops_after < dense.ops_before
    assert f"ops of a call: parsing 1, ids 2 -> 1, lookups {lookups.ops_before} -> 5" in str(report)
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["call"][1] == {"name": "ids", "ops_before": 2, "ops_after": 1}


def test_ops_that_no_signature_runs_do_not_count(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = tf.Variable(np.ones([50, DIM], np.float32))

        def rows(self, words):
            return tf.nn.safe_embedding_lookup_sparse(self.table, words)

        @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
        def serve(self, words):
            return {"out": tf.reduce_sum(self.rows(words))}

        @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
        def other(self, words):
            return tf.reduce_sum(tf.math.exp(tf.math.log(self.rows(words))))

    model = Model()
    model.other.get_concrete_function()
    tf.saved_model.save(model, str(tmp_path / "both"), signatures={"serving_default": model.serve})
    with_both = fusion.explain(tmp_path / "both").call
    model = Model()
    model.other = None
    tf.saved_model.save(model, str(tmp_path / "one"), signatures={"serving_default": model.serve})
    assert with_both == fusion.explain(tmp_path / "one").call


def test_a_graph_without_lookups_has_no_line():
    with tf.Graph().as_default() as graph:
        tf.identity(v1.placeholder(tf.float32, [None]) * 2, name="out")
    report = fusion.explain(graph.as_graph_def(), under="rewrite")
    assert "ops of a call" not in str(report)
    assert [part.ops_before for part in report.call] == [0, 0, 0, 2]
