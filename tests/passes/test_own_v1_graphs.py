"""Graphs of compat.v1 that this package builds, with steps of training, are known to its pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.ops.columns.specs.training import PRE
from fusion.passes.report.report import FusionResult
from fusion.passes.targets import Target
from fusion.schema.names import OP_NAMES
from tests.passes.own_v1_graphs import LOOKUPS, OWN_V1, OwnV1

v1 = tf.compat.v1


def rewritten(own: OwnV1, target: Target) -> FusionResult:
    """What the pass makes of the graph, checked to give the same."""
    graph_def, outputs = own.build(), [*own.fetches, "initialize"]
    result = fusion.fuse_graph(graph_def, outputs, target.value)
    assert len(result.report.columns) == own.columns, str(result.report)
    assert not fusion.fuse_graph(result.graph_def, outputs, target.value).modified
    is_exact = own.is_exact or (target is Target.FUSED and bool(own.trained))
    for one, other in zip(own.run(result.graph_def), own.run(graph_def), strict=True):
        if is_exact:
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    return result


@pytest.mark.parametrize("own", OWN_V1, ids=str)
def test_fused(own: OwnV1) -> None:
    result = rewritten(own, Target.FUSED)
    assert {node.op for node in result.graph_def.node} & {*OP_NAMES}
    for column in result.report.columns:
        assert column.fused or "it is" in str(column.reason), str(result.report)


@pytest.mark.parametrize("own", OWN_V1, ids=str)
def test_stock(own: OwnV1) -> None:
    result = rewritten(own, Target.STOCK)
    assert not {node.op for node in result.graph_def.node} & {*OP_NAMES}
    assert result.report.fused_count == own.columns, str(result.report)
    if own.columns > 1:
        return
    (column,) = result.report.columns
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(result.graph_def, name="")
        session.run("initialize")
        np.testing.assert_array_equal(*session.run(["out:0", f"{column.op}:0"]))


@pytest.mark.parametrize("look_up", LOOKUPS)
def test_what_is_fetched_of_fused_ops_is_there_in_stock_ones(look_up: str) -> None:
    graph_def = OwnV1(look_up, "reference", "gradients").build()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        fused = [one for one in graph.get_operations() if one.type in OP_NAMES]
    # What lies between the entries of its columns is up to that op.
    others = [lookup for lookup in fused if lookup.type != PRE.name]
    values = [(one.name, k) for one in others for k in range(len(one.outputs))]
    outputs = [*(lookup.name for lookup in fused), "gradient_0", "initialize"]
    result = fusion.fuse_graph(graph_def, outputs, "stock")
    assert not {node.op for node in result.graph_def.node} & {*OP_NAMES}

    def fetched(graph_def: graph_pb2.GraphDef) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            tf.import_graph_def(graph_def, name="")
            session.run("initialize")
            return session.run(["gradient_0:0", *(f"{name}:{k}" for name, k in values)])

    for one, other in zip(fetched(result.graph_def), fetched(graph_def), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
