"""The stock lookup of a case, and what the pass makes of it in each of its forms.

The graph knows of the ids that they form a matrix, and no more: sizes can be fed that do not fit.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.passes.targets import PASSES, Target
from tests import reference
from tests.differential import stock
from tests.differential.case import Case

v1 = tf.compat.v1

FORMS = ("single", "grouped", "split", "stock", "trained", "forward")


def lookup(form: str, case: Case, table: Any, ids: Any, weights: Any, fuse: bool) -> Any:
    """The lookup, in a v1 graph; with what the form needs beside it.

    Args:
      form: which form the pass is to give it.
      case: what is looked up.
      table, ids, weights: by what; weights are the values alone, or None.
      fuse: whether to rewrite it at all.

    Raises:
      AssertionError: the pass gives it another form.
    """
    shards = reference.sources(table)
    given = [*tf.nest.flatten(ids, expand_composites=True), *([] if weights is None else [weights])]
    with tf.Graph().as_default() as graph:
        tables = [_like(shard, place) for place, shard in enumerate(shards)]
        inner = [v1.placeholder(one.dtype, one.shape) for one in given]
        if isinstance(ids, tf.SparseTensor):
            inner[2] = v1.placeholder(tf.int64, [2])
        of_ids = tf.nest.pack_sequence_as(ids, inner[: len(given) - (weights is not None)], True)
        of_weights = None if weights is None else inner[-1]
        outputs = _outputs(form, case, tables, of_ids, of_weights)
        names = [tf.identity(one, name=f"out{k}").op.name for k, one in enumerate(outputs)]
        graph_def = graph.as_graph_def()
    if fuse:
        target = Target.STOCK if form == "stock" else Target.FUSED
        result = PASSES[target](preserve=frozenset(names)).apply(graph_def)
        found = {column.form for column in result.report.columns}
        assert found == {form}, str(result.report)
        graph_def = result.graph_def
    pairs = zip(tables, shards, strict=True)
    outer = {one.op.outputs[0].name: other.op.outputs[0] for one, other in pairs}
    outer |= {one.name: other for one, other in zip(inner, given, strict=True)}
    return tf.import_graph_def(graph_def, outer, [f"{name}:0" for name in names])


def _outputs(form: str, case: Case, tables: list[Any], ids: Any, weights: Any) -> list[tf.Tensor]:
    result = stock.lookup(case, tables, ids, weights)
    if form == "grouped":
        return [tf.concat([result, stock.lookup(case, tables, ids, weights)], 1)]
    if form not in ("trained", "forward"):
        return [result]
    if form == "forward":
        # Somebody else reads the distinct ids, which a weighted lookup has.
        unique = next(op for op in result.graph.get_operations() if op.type == "Unique")
        return [result, unique.outputs[0]]
    slices = v1.gradients(tf.reduce_sum(result * result), tables)
    return [result, *(tf.convert_to_tensor(one) for one in slices)]


def _like(shard: Any, place: int) -> Any:
    return v1.get_variable(f"table{place}", shard.shape, shard.dtype.base_dtype, use_resource=True)
