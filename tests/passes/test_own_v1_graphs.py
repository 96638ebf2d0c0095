"""Graphs of compat.v1 that this package builds, with steps of training, are known to its pass."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.ops import OP_NAMES
from fusion.passes.plan import Target
from fusion.passes.report import FusionResult
from tests.passes.own_v1_graphs import OWN_V1, OwnV1

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
