"""What `FuseUpdates` does to a graph: which programs it emits, and that they compute the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_updates import FuseUpdates
from fusion.passes.report.report import FusionResult
from tests.passes.update_graphs import run

UPDATE = "FusedEmbeddingUpdate"
PASS = FuseUpdates(preserve=frozenset({"out"}))
SCATTERS = ("ResourceScatterAdd", "ResourceScatterSub")
WRITES = (*SCATTERS, "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
SUBTRACT = "t0=mul(x0,s0);scatter_sub(v0,t0)"


def count(graph_def: graph_pb2.GraphDef) -> dict[str, int]:
    """The ops that the pass emits or replaces."""
    found = Counter(node.op for node in graph_def.node)
    return {op: found[op] for op in (UPDATE, *WRITES) if found[op]}


def check(
    graph_def: graph_pb2.GraphDef,
    *programs: str,
    rewrite: FuseUpdates = PASS,
    ops: int | None = None,
) -> FusionResult:
    """Applies the pass, which replaces all updates by these programs, and compares the tables."""
    result = rewrite.apply(graph_def)
    assert [update.program for update in result.report.updates] == [*programs]
    assert all(update.fused for update in result.report.updates)
    assert result.modified
    assert count(result.graph_def) == {UPDATE: len(programs) if ops is None else ops}
    assert not rewrite.apply(result.graph_def).modified
    for ids in ([4, 1, 4, 8, 4], [0], []):
        feed = {"ids": np.array(ids, np.int64)}
        np.testing.assert_array_equal(run(result.graph_def, feed), run(graph_def, feed))
    return result


def refused(graph_def: graph_pb2.GraphDef, reason: str, rewrite: FuseUpdates = PASS) -> None:
    """The pass changes nothing, and says why."""
    result = rewrite.apply(graph_def)
    assert result.graph_def is graph_def
    (update,) = result.report.updates
    assert not update.fused
    assert update.reason == reason
    assert f"0 of 1 updates of tables fused\n  stock  {update.name}\n" in str(result.report)
    assert result.report.to_dict()["updates"] == [update.to_dict()]
