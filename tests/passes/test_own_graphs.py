"""Every kind of graph that this package builds is known to its pass, for both targets."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.analysis.variables import VariableSearch
from fusion.passes.lower_lookups import LowerLookups, remaining_fused_ops
from fusion.passes.report.report import FusionReport
from fusion.passes.targets import PASSES, Target
from fusion.running.functions import Library, _Rebuild
from fusion.schema.names import OP_NAMES
from tests.passes.own_graphs import OWN, Own, updated

KEPT = (
    "it is fused already, around a gather: its table is in shards",
    "it is fused already, around a gather: its rows are clipped by stock ops",
    "it is fused already, around a gather: empty rows are neither filled nor left out",
    "it is a part of one fused op already",
    "it is fused for training already, around a gather",
)
"""What is true of lookups that stay as they are in inference."""
TRAINED = (*KEPT[3:], "around a gather: its gradient is in the graph")


def rewritten(function: Any, target: Target) -> tuple[Any, FusionReport, graph_pb2.GraphDef]:
    """A function that calls what the pass makes of it, the report, and the graph."""
    library = Library.of(function)
    search = VariableSearch(library.graph_def, library.captured_variables(function))
    fuse = PASSES[target](variables=search.known)
    result = fuse.apply(library.graph_def)
    assert fuse.explain(library.graph_def).columns == result.report.columns
    bodies = result.graph_def.library.function
    held = {(body.signature.name, node.name) for body in bodies for node in body.node_def}
    assert {
        (column.function, column.op) for column in result.report.columns if column.op is not None
    } <= held
    names = {f.signature.name for f in result.graph_def.library.function}
    new = _Rebuild(library, result.graph_def, names).function(function)
    again = fuse.apply(result.graph_def)
    assert not again.modified
    return new, result.report, result.graph_def


@cache
def built(own: Own, trains: bool) -> tuple[Any, list[Any]]:
    """The function, with the gradients of all tables if it trains, and what it is given.

    It is the same for both targets, and is traced once.
    """
    look_up, inputs, variables = own.make()
    sources = [getattr(variable, "value", variable) for variable in variables]
    sources = [
        one if isinstance(one, tf.Variable) else variable
        for one, variable in zip(sources, variables, strict=True)
    ]

    @tf.function(autograph=False)
    def run(*given: Any) -> Any:
        if not trains:
            return look_up(*given)
        with tf.GradientTape() as tape:
            result = look_up(*given)
            factors = tf.cos(tf.range(tf.size(result), dtype=tf.float32))
            loss = tf.reduce_sum(tf.reshape(tf.cast(result, tf.float32), [-1]) * factors)
        return result, [tf.convert_to_tensor(g) for g in tape.gradient(loss, sources)]

    run.variables_alive = variables
    return run, inputs


def assert_same(mine: Any, theirs: Any, exact: bool) -> None:
    for one, other in zip(tf.nest.flatten(mine), tf.nest.flatten(theirs), strict=True):
        assert one.dtype == other.dtype
        if exact:
            np.testing.assert_array_equal(one, other)
        else:
            rtol = 2e-2 if one.dtype.size == 2 else 1e-5
            wide = tf.cast(one, tf.float64), tf.cast(other, tf.float64)
            np.testing.assert_allclose(*wide, rtol=rtol, atol=rtol / 10)


def left(graph_def: graph_pb2.GraphDef) -> set[str]:
    return {n.op for f in graph_def.library.function for n in f.node_def} & {*OP_NAMES}


@pytest.mark.parametrize("own", OWN, ids=str)
def test_inference(own: Own) -> None:
    function, inputs = built(own, trains=False)
    concrete = function.get_concrete_function(*inputs)
    expected = function(*inputs)
    new, report, _ = rewritten(concrete, Target.FUSED)
    assert len(report.columns) == own.columns, str(report)
    assert len(fusion.explain(concrete, under="rewrite").columns) == own.columns
    for column in report.columns:
        assert (column.form or "") in own.forms, str(report)
        assert column.fused or column.reason in KEPT, str(report)
    assert_same(new(*inputs), expected, own.is_exact)
    again = fusion.explain(new, under="rewrite")
    assert len(again.columns) == own.columns, str(again)
    assert not again.fused_count


@pytest.mark.parametrize("own", OWN, ids=str)
def test_inference_by_stock_ops(own: Own) -> None:
    function, inputs = built(own, trains=False)
    expected = function(*inputs)
    new, report, graph_def = rewritten(function.get_concrete_function(*inputs), Target.STOCK)
    assert not left(graph_def), remaining_fused_ops(graph_def, report)
    assert report.fused_count == len(report.columns) == own.columns, str(report)
    assert_same(new(*inputs), expected, own.is_exact)


@pytest.mark.parametrize("own", [own for own in OWN if own.has_gradient], ids=str)
def test_training(own: Own) -> None:
    function, inputs = built(own, trains=True)
    concrete = function.get_concrete_function(*inputs)
    expected = function(*inputs)
    new, report, _ = rewritten(concrete, Target.FUSED)
    assert len(report.columns) == own.columns, str(report)
    for column in report.columns:
        is_refused = any(text in str(column.reason) for text in TRAINED)
        assert column.form == "trained" or is_refused, str(report)
    assert_same(new(*inputs), expected, own.is_exact)


@pytest.mark.parametrize("own", [own for own in OWN if own.has_gradient], ids=str)
def test_training_by_stock_ops(own: Own) -> None:
    function, inputs = built(own, trains=True)
    expected = function(*inputs)
    new, report, graph_def = rewritten(function.get_concrete_function(*inputs), Target.STOCK)
    message = remaining_fused_ops(graph_def, report)
    if not own.is_trained_by_stock:
        assert str(message).endswith("; leave steps of training out of what is exported")
        return
    assert message is None
    assert not left(graph_def)
    for column in report.columns:
        assert column.fused or "its gradient is in the graph" in str(column.reason), str(report)
    assert_same(new(*inputs), expected, own.is_exact)


def test_updates_of_rows_are_left_out_of_what_is_exported() -> None:
    step, inputs, variables = updated()
    concrete = tf.function(step).get_concrete_function(*inputs)
    library = Library.of(concrete)
    result = LowerLookups().apply(library.graph_def)
    message = remaining_fused_ops(result.graph_def, result.report)
    assert message is not None
    assert message.endswith("leave steps of training out of what is exported")
    del variables
