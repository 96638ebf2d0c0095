"""Rewritten lookups whose tables are packed, against stock TensorFlow's in the plain ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.targets import PASSES, Target
from fusion.schema.names import SINGLE
from fusion.schema.row_formats import PACKED_FORMATS, pack_rows, unpack_rows
from tests.differential import stock
from tests.differential.case import Case
from tests.differential.strategies import PLAIN_REPORT, cases
from tests.ops.test_stock_sums import same
from tests.tiers import examples

v1 = tf.compat.v1

#: Of the lookups that become one op, which reads the table itself.
_DRAWN = cases(
    function=st.just("safe"),
    prune=st.just(True),
    version=st.just("pass"),
    mode=st.just("session"),
    dtype=st.just("float32"),
    dim=st.sampled_from((1, 2, 3, 8, 15, 17, 64, 130)),
    table=st.just("tensor"),
    shards=st.just(1),
    max_norm=st.just(None),
    odd_rows=st.just(()),
    odd_weights=st.just(()),
)


@settings(PLAIN_REPORT, max_examples=examples(40))
@given(case=_DRAWN, row_format=st.sampled_from(PACKED_FORMATS))
def test_packed_tables(case: Case, row_format: str) -> None:
    assume(case.is_fused)
    case = stock.as_stock_takes_it(case)
    packed = pack_rows(case.arrays.table, row_format)
    plain = unpack_rows(packed, row_format, case.dim)
    graph_def = _graph(case)
    rewritten = PASSES[Target.FUSED](preserve=frozenset({"out"})).apply(graph_def).graph_def
    wanted, of_plain = _run(graph_def, plain), _run(rewritten, plain)
    found = _run(_with_packed_rows(rewritten, row_format, case.dim), packed)
    assert (found is None) == (of_plain is None) == (wanted is None)
    if found is None:
        return
    same(found, of_plain)
    if case.is_exact:
        same(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def _graph(case: Case) -> graph_pb2.GraphDef:
    """The stock lookup in a table that is fed, with ids that are known."""
    arrays = case.arrays
    with tf.Graph().as_default() as graph:
        table = v1.placeholder(tf.float32, [None, case.dim], name="table")
        values, weights = v1.constant(arrays.values), v1.constant(arrays.weights)
        if case.ids == "ragged":
            splits = np.cumsum([0, *case.lengths])
            ids: Any = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        else:
            ids = tf.SparseTensor(arrays.indices, values, arrays.dense_shape)
        found = stock.lookup(case, table, ids, weights if case.weights else None)
        tf.identity(found, name="out")
        return graph.as_graph_def(add_shapes=True)


def _with_packed_rows(
    graph_def: graph_pb2.GraphDef, row_format: str, dim: int
) -> graph_pb2.GraphDef:
    """The same graph for a packed table."""
    changed = graph_pb2.GraphDef()
    changed.CopyFrom(graph_def)
    lookups = [node for node in changed.node if node.op == SINGLE]
    assert len(lookups) == 1
    for node in lookups:
        assert node.input[0] == "table"
        assert node.attr["dim"].i == dim
        node.attr["row_format"].s = row_format.encode()
        node.attr["Tpacked"].type = types_pb2.DT_UINT8
    for node in changed.node:
        if node.name == "table":
            node.attr["shape"].shape.dim[1].size = -1
            node.attr.pop("_output_shapes", None)
    return changed


def _run(graph_def: graph_pb2.GraphDef, table: Any) -> Any:
    """The result, or None if that is an error."""
    with tf.Graph().as_default():
        feed, out = tf.import_graph_def(graph_def, return_elements=["table:0", "out:0"], name="")
        with v1.Session() as session:
            try:
                return session.run(out, {feed: table})
            except tf.errors.OpError:
                return None
