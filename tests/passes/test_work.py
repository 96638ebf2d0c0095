"""The pass does work for each column, and not for each pair of them: counted, not timed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from tests.passes.planned_graphs import forms, graph_of, table
from tests.passes.stock_graphs import optimized

v1 = tf.compat.v1

KEPT = ("out", "step")
FEW, MANY = 20, 40
"""Numbers of columns; from 17 on stock takes the gradient of a concat apart in another way."""


def _model(columns: int, same_ids: bool, trained: bool) -> graph_pb2.GraphDef:
    """Columns side by side, of ids of their own or of the same, as TensorFlow optimizes them."""

    def build() -> tf.Tensor:
        ids = [v1.sparse_placeholder(tf.int64, [None, None]) for _ in range(columns)]
        tables = [table(f"table_{number}") for number in range(columns)]
        pairs = zip(tables, ids[:1] * columns if same_ids else ids, strict=True)
        rows = [tf.nn.safe_embedding_lookup_sparse(*pair) for pair in pairs]
        loss: tf.Tensor = tf.reduce_sum(tf.concat(rows, 1) ** 2)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        v1.group(optimizer.minimize(loss) if trained else (), name="step")
        return loss

    found: graph_pb2.GraphDef = optimized(graph_of(build), KEPT)
    return found


def _calls(graph_def: graph_pb2.GraphDef, form: str) -> int:
    """How many functions the pass calls."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    rewrite = FuseLookups(preserve=frozenset(KEPT))
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = rewrite.apply(graph_def)
    finally:
        sys.setprofile(before)
    assert {*forms(result)} == {form}
    return count


@pytest.mark.parametrize("same_ids", [False, True])
@pytest.mark.parametrize("form", ["grouped", "trained"])
def test_work_grows_as_the_number_of_columns(same_ids: bool, form: str) -> None:
    few, many = (_calls(_model(n, same_ids, form == "trained"), form) for n in (FEW, MANY))
    assert many <= 1.02 * few * MANY / FEW
