"""Tables that are variables: read in one op, before whatever changes them as a whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.lookup.grouped import Lookup, grouped_lookup
from fusion.lookup.options import LookupOptions
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.targets import PASSES, Target

ROWS, DIM = 50, 4
IDS = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, 2, 3], tf.int64), [3, 2])
TABLE = tf.Variable(np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32))


def tied() -> tf.Tensor:
    """A table whose value is also what scores are made with."""
    table = tf.convert_to_tensor(TABLE)
    hidden = tf.nn.embedding_lookup_sparse(table, IDS, None, combiner="mean")
    return tf.matmul(hidden, table, transpose_b=True)


def regularized() -> tf.Tensor:
    table = tf.convert_to_tensor(TABLE)
    return tf.nn.safe_embedding_lookup_sparse([table], IDS) + tf.nn.l2_loss(table)


def assigned() -> tf.Tensor:
    """A value that is looked up in before the variable gets another one."""
    table = TABLE.read_value()
    looked_up = tf.nn.safe_embedding_lookup_sparse([table], IDS)
    head = tf.reduce_sum(table[:3])
    TABLE.assign(TABLE + 0)
    return looked_up + head


@pytest.mark.parametrize("model", [tied, regularized, assigned])
def test_a_value_that_others_need_too_is_read_once(model: Callable[[], tf.Tensor]) -> None:
    """By the stock op, for which alone an assignment waits."""
    function = tf.function(model, autograph=False)
    stock = function()
    graph_def = function.get_concrete_function().graph.as_graph_def()
    before = graph_def.SerializeToString(deterministic=True)
    result = FuseLookups(preserve=frozenset({"Identity"})).apply(graph_def)
    assert graph_def.SerializeToString(deterministic=True) == before
    assert result.report.fused_count == 1
    assert "ReadEmbeddingTables" not in {node.op for node in result.graph_def.node}
    np.testing.assert_array_equal(fusion.fuse_function(function.get_concrete_function())(), stock)
    with fusion.fused():
        np.testing.assert_array_equal(tf.function(model, autograph=False)(), stock)


@pytest.mark.parametrize("target", Target)
def test_an_assignment_waits_for_all_that_is_read_before_it(target: Target) -> None:
    first, second = (tf.Variable(tf.ones([ROWS, DIM])) for _ in range(2))

    @tf.function(autograph=False)
    def model() -> tf.Tensor:
        columns = [Lookup(table, IDS, None, LookupOptions()) for table in (first, second)]
        looked_up = grouped_lookup(columns)
        first.assign(first + 1)
        second.assign(second + 1)
        return looked_up

    graph_def = model.get_concrete_function().graph.as_graph_def()
    rewritten = PASSES[target](preserve=frozenset({"Identity"})).apply(graph_def)
    view = GraphView.of_graph(rewritten.graph_def)
    reads = {"ReadEmbeddingTables", "ReadVariableOp"}
    assigns = [*view.named("AssignVariableOp")]
    assert len(assigns) == 2
    for assign in assigns:
        handle = view.inputs(assign)[0]
        own = [
            node.name
            for node in rewritten.graph_def.node
            if node.op in reads and handle in view.inputs(node.name)
        ]
        assert own
        assert set(own) <= before(view, assign)


def before(view: GraphView, name: str) -> set[str]:
    """All that has run before a node."""
    found: set[str] = set()
    stack = [name]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [tensor.node for tensor in view.inputs(node)]
            stack += view.controls(node)
    return found
