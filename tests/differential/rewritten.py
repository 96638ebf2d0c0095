"""The stock lookup of a case, rewritten by the pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.passes.fuse_lookups import FuseLookups
from tests.differential import stock
from tests.differential.case import Case

v1 = tf.compat.v1


def is_fused(case: Case) -> bool:
    """Whether the pass fuses the case's lookup; it leaves all others as they are."""
    return (
        case.is_exact
        and case.ids == "sparse"
        and case.shards == 1
        and case.function == "safe"
        and case.prune
    )


def lookup(case: Case, table: Any, ids: Any, weights: Any) -> tf.Tensor:
    """What the rewritten graph gives for a table, ids and weights of the graph being built.

    Raises:
      AssertionError: the pass does not do what `is_fused` says.
    """
    shards = table if isinstance(table, list) else [table]
    given = [ids.values, *_shape_of(ids), *([] if weights is None else [weights]), *shards]
    with tf.Graph().as_default() as graph:
        inner = [_stand_in(f"input{place}", one) for place, one in enumerate(given)]
        graph_def, names = _stock_graph(case, graph, inner, ids, weights is not None)
    result = FuseLookups(preserve=frozenset({"out"})).apply(graph_def)
    assert result.modified == is_fused(case), str(result.report)
    assert result.report.fused_count == int(is_fused(case)), str(result.report)
    (out,) = tf.import_graph_def(
        result.graph_def,
        input_map=dict(zip(names, map(_outer, given), strict=True)),
        return_elements=["out:0"],
        name="rewritten",
    )
    return out


def _stock_graph(
    case: Case, graph: tf.Graph, inner: list[Any], ids: Any, weighted: bool
) -> tuple[Any, list[str]]:
    """The graph of the stock lookup of stand-ins, its result `out`, and their names."""
    names = [_outer(one).name for one in inner]
    values, *rest = inner
    of_ids = [rest.pop(0) for _ in _shape_of(ids)]
    weights = rest.pop(0) if weighted else None
    same = tf.RaggedTensor.from_row_splits(values, *of_ids, validate=False)
