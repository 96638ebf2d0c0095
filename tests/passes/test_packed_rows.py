"""Ops for lookups in packed rows, as passes see them: they stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.fused_columns import grouped_columns
from fusion.passes.graph.view import GraphView
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.recognise.fused.fused_op import column_spec
from fusion.passes.ungroup import ungrouped
from fusion.saved_model.verify.columns import packed_dim
from fusion.schema.names import GROUPED, SINGLE
from tests.ops.embedding_columns import NO_IDS, attrs, copied, grouped, packed

PRESERVED = frozenset({"out"})
DIM = 24


def column(row_format: str = "", **given: Any) -> dict[str, Any]:
    table = np.random.default_rng(0).normal(size=(9, DIM)).astype(np.float32)
    ids = np.array([[1, 2], [8, 0], [3, 3]])
    inputs = {"table": table, "ids": ids, "entry_rows": NO_IDS, "dense_shape": NO_IDS}
    inputs["weights"] = np.zeros(0, np.float32)
    made = {"inputs": inputs, "attrs": attrs(form="dense", dim=DIM, **given)}
    return packed(made, row_format)[0] if row_format else made


def graph_of(columns: list[dict[str, Any]]) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        tf.identity(grouped(columns), name="out")
        return graph.as_graph_def()


def result(graph_def: graph_pb2.GraphDef) -> Any:
    with tf.Graph().as_default():
        (out,) = tf.import_graph_def(graph_def, return_elements=["out:0"])
        with tf.compat.v1.Session() as session:
            return session.run(out)


def ops_of(graph_def: graph_pb2.GraphDef, op: str) -> list[Any]:
    return [node for node in graph_def.node if node.op == op]


def test_groups_are_taken_apart() -> None:
    matrix = copied(np.ones((3, 2), np.float32))
    graph_def = graph_of([column(), column("int8"), matrix, column("int4"), column("int8")])
    apart = ungrouped(graph_def, PRESERVED)
    singles = ops_of(apart, SINGLE)
    assert [node.attr["row_format"].s for node in singles] == [b"plain", b"int8", b"int4", b"int8"]
    types = [node.attr["Tpacked"].type for node in singles]
    assert types == [types_pb2.DT_INVALID, *[types_pb2.DT_UINT8] * 3]
    np.testing.assert_array_equal(result(apart), result(graph_def))


@pytest.mark.parametrize("sum_order", ["segment", "axis"])
def test_no_stock_ops_stand_for_them(sum_order: str) -> None:
    graph_def = graph_of([column("int8", sum_order=sum_order, combiner="sum")])
    lowered = LowerLookups(preserve=PRESERVED).apply(graph_def)
    assert not lowered.modified
    (column_report,) = lowered.report.columns
    assert column_report.reason == "the rows of its table are packed"


def test_they_are_not_fused_again() -> None:
    graph_def = graph_of([column("int8"), column("int8")])
    fused = FuseLookups(preserve=PRESERVED).apply(graph_def)
    assert not fused.modified
    reasons = [(one.fused, one.reason) for one in fused.report.columns]
    assert reasons == [(False, "it is a part of one fused op already")] * 2


def test_the_attr_tells_how_long_rows_are() -> None:
    view = GraphView.of_graph(graph_of([column("int8"), column()]))
    (name,) = view.named(GROUPED)
    specs = [column_spec(view, name, one) for one in grouped_columns(view, name)]
    assert [spec.table.shape for spec in specs] == [(9, DIM), (9, DIM)]
    (tensor,) = {view.resolve(tensor) for tensor in view.inputs("out")}
    assert [packed_dim(view, tensor, part) for part in range(2)] == [DIM, None]
