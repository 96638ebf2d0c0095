"""The stock lookup of a case, rewritten by the pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.passes.targets import PASSES, Target
from tests import reference
from tests.differential import stock
from tests.differential.case import Case

v1 = tf.compat.v1


def is_fused(case: Case) -> bool:
    """Whether the pass fuses the case's lookup; it leaves all others as they are.

    Stock TensorFlow divides by zero where div has fewer rows than shards. Of fed shards the sizes
    are not known. Weights that the graph reorders are not known to be a vector, unless the graph
    tells shapes or they are filled. One reduction of rows of a table is as few stock ops as can be.
    """
    is_known = case.table != "fed" and (case.strategy == "mod" or case.shards <= case.rows)
    is_split = case.shards == 1 or is_known
    composed = case.function == "plain" or not case.prune
    reordered = case.weights is not None and composed and not case.fill
    is_plain = (
        case.weights is None and case.max_norm is None and case.table in ("ref", "tensor", "fed")
    )
    is_one_op = is_plain and composed and not case.fill and case.shards == 1
    if case.version == "lowered" and is_one_op:
        return False
    return is_split and (_tells_shapes(case) or not reordered)


def _tells_shapes(case: Case) -> bool:
    """Whether the graph is saved with the shapes of its tensors."""
    return case.seed % 2 == 0


def lookup(case: Case, table: Any, ids: Any, weights: Any) -> tf.Tensor:
    """The rewritten lookup of a table, ids and weights of a v1 graph.

    Raises:
      AssertionError: the pass does not do what `is_fused` says.
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
        graph_def = graph.as_graph_def(add_shapes=_tells_shapes(case))
    target = Target.STOCK if case.version == "lowered" else Target.FUSED
    result = PASSES[target](preserve=frozenset({"out"})).apply(graph_def)
    assert result.report.fused_count == int(is_fused(case)), str(result.report)
    assert result.modified == is_fused(case)
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
