"""The stock lookup of a case, rewritten by the pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.passes.targets import PASSES, Target
from tests import reference
from tests.differential import stock
from tests.differential.case import Case

v1 = tf.compat.v1


def lookup(case: Case, table: Any, ids: Any, weights: Any) -> tf.Tensor:
    """The rewritten lookup of a table, ids and weights of a v1 graph.

    Raises:
      AssertionError: the pass does not do what `Case.is_fused` says.
    """
    shards = reference.sources(table)
    given = [*tf.nest.flatten(ids, expand_composites=True), *([] if weights is None else [weights])]
    with tf.Graph().as_default() as graph:
        tables = [_like_table(shard, place) for place, shard in enumerate(shards)]
        inner = [v1.placeholder(one.dtype, one.shape) for one in given]
        of_weights = None if weights is None else inner[-1]
        of_ids = tf.nest.pack_sequence_as(
            ids, inner[: len(inner) - (weights is not None)], expand_composites=True
        )
        tf.identity(stock.lookup(case, tables, of_ids, of_weights), name="out")
        graph_def = graph.as_graph_def(add_shapes=case.tells_shapes)
    target = Target.STOCK if case.version == "lowered" else Target.FUSED
    result = PASSES[target](preserve=frozenset({"out"})).apply(graph_def)
    assert result.report.fused_count == int(case.is_fused), str(result.report)
    assert result.modified == case.is_fused
    outer = {_tensor(one).name: _tensor(other) for one, other in zip(tables, shards, strict=True)}
    outer |= {one.name: other for one, other in zip(inner, given, strict=True)}
    (out,) = tf.import_graph_def(
        result.graph_def, outer, return_elements=["out:0"], name="rewritten"
    )
    return out


def _like_table(shard: Any, place: int) -> Any:
    """Another table of the same kind."""
    if isinstance(shard, tf.Tensor):
        return v1.placeholder(shard.dtype, shard.shape)
    is_resource = shard.op.type == "VarHandleOp"
    return v1.get_variable(
        f"table{place}", shard.shape, shard.dtype.base_dtype, use_resource=is_resource
    )


def _tensor(table: Any) -> tf.Tensor:
    """The handle or reference of a variable, or a tensor as it is."""
    return table if isinstance(table, tf.Tensor) else table.op.outputs[0]
