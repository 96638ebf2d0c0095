"""Stock feature columns of every kind, rewritten by the pass: the same bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from fusion.feature_column import shared_embedding_columns
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.names import GROUPED_IDS, OP_NAMES, VOCABULARY_INDEX
from tests.feature_column.hosts import placeholders
from tests.feature_column.kinds import KINDS, Batch, Column, build, of_each_combiner
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
PASS = FuseLookups(preserve=frozenset({"out", "initialize"}))
TO_STOCK = LowerLookups(PASS.preserve)
_OF_VOCABULARIES = {GROUPED_IDS, VOCABULARY_INDEX}
PARITY = pytest.mark.parity


def graph_of(columns: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
    """The graph of a stock `input_layer`, and what to feed."""
    with tf.Graph().as_default() as graph:
        tensors, feed = placeholders(batch.features())
        result = v1.feature_column.input_layer(tensors, build(columns, None))
        tf.identity(result, name="out")
        tf.group(v1.global_variables_initializer(), v1.tables_initializer(), name="initialize")
    arrays: dict[str, Any] = {}
    for tensor, value in feed.items():
        if isinstance(tensor, tf.SparseTensor):
            parts = (tensor.indices, tensor.values, tensor.dense_shape)
            arrays |= {part.name: array for part, array in zip(parts, value, strict=True)}
        else:
            arrays[tensor.name] = value
    return graph.as_graph_def(add_shapes=True), arrays


def assert_same(columns: Any, fused: int, exact: bool = True) -> None:
    """Rewrites a graph of columns, of which so many are fused, and compares its results."""
    compare = np.testing.assert_array_equal if exact else partial(assert_allclose, rtol=1e-5)
    for seed in (0, 1):
        graph_def, feed = graph_of(columns, Batch((2, 1, 0, 3, 13), seed))
        result = PASS.apply(graph_def)
        assert result.report.fused_count == fused, str(result.report)
        expected = stock.run(graph_def, feed)
        compare(stock.run(result.graph_def, feed), expected)
        lowered = TO_STOCK.apply(graph_def)
        assert lowered.report.fused_count == fused, str(lowered.report)
        np.testing.assert_array_equal(stock.run(lowered.graph_def, feed), expected)
        lowered = TO_STOCK.apply(result.graph_def)
        assert lowered.report.fused_count == fused, str(lowered.report)
        left = {node.op for node in lowered.graph_def.node} & {*OP_NAMES}
        # Stock ops do not read an index of vocabularies.
        assert left == (_OF_VOCABULARIES if VOCABULARY_INDEX in left else set())
        np.testing.assert_array_equal(stock.run(lowered.graph_def, feed), expected)


@PARITY("column: {kind}", "pass")
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_kind_are_fused(kind: str) -> None:
    assert_same(of_each_combiner(kind), fused=3, exact=not kind.startswith("weighted"))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"dimension": 1}, marks=PARITY("columns of dimension 1", "pass")),
        pytest.param({"trainable": False}, marks=PARITY("columns with trainable=False", "pass")),
        pytest.param({"max_norm": 0.8}, marks=PARITY("columns with max_norm", "pass")),
        pytest.param(
            {"safe": False}, marks=PARITY("columns with use_safe_embedding_lookup=False", "pass")
        ),
    ],
    ids=str,
)
def test_options_of_columns_that_are_fused(options: dict[str, Any]) -> None:
    kind = "identity" if options.get("safe", True) else "hash of words"
    assert_same(of_each_combiner(kind, **options), fused=3, exact="max_norm" not in options)


@PARITY("shared_embedding_columns", "pass")
def test_columns_that_share_a_table_are_fused() -> None:
    assert_same([Column("identity", key, sharing=shared_embedding_columns) for key in "xy"], 2)
