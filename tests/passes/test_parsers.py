"""Ops that parse tf.Examples become fused ones in graphs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.fuse_parsers import fuse_parsers
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.view import GraphView
from fusion.passes.lower_lookups import LowerLookups, remaining_fused_ops
from fusion.passes.report.front import ParserReport
from fusion.schema.names import OP_NAMES, PARSE_EXAMPLE
from tests.passes import stock_graphs as stock
from tests.passes.parser_graphs import (
    KEEP,
    OPS,
    PASS,
    ROWS,
    assert_equal,
    build,
    only,
    ops,
    outputs,
    parser,
    v1,
    with_lookups,
)
from tests.reference import assert_same_bits


@pytest.mark.parametrize("op", OPS)
def test_a_parser_of_a_graph_is_fused_and_comes_back(op: str) -> None:
    before = build(op)
    result = PASS.apply(before)
    assert result.modified
    after = result.graph_def
    assert ops(after)[PARSE_EXAMPLE] == 1
    assert not ops(after)[op]
    assert only(after, PARSE_EXAMPLE).name == only(before, op).name == "parse"
    assert_equal(outputs(after, op), outputs(before, op))
    (report,) = result.report.parsers
    count = 3 if op == "ParseSingleExample" else 4
    assert report == ParserReport("parse", "", count)

    again = PASS.apply(after)
    assert not again.modified
    assert again.graph_def is after
    (report,) = again.report.parsers
    assert report == ParserReport("parse", "", count, fused_before=True)

    lowered = LowerLookups(preserve=KEEP).apply(after)
    assert lowered.modified
    assert not {*ops(lowered.graph_def)} & {*OP_NAMES}
    assert ops(lowered.graph_def)["ParseExampleV2"] == 1
    assert remaining_fused_ops(lowered.graph_def, lowered.report) is None
    for node in lowered.graph_def.node:
        if node.op == "Const":  # also those of strings without elements
            tensor_util.MakeNdarray(node.attr["value"].tensor)
    assert_equal(outputs(lowered.graph_def, op), outputs(before, op))
    assert ops(PASS.apply(lowered.graph_def).graph_def)[PARSE_EXAMPLE] == 1


def test_ragged_features() -> None:
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], "examples")
        features = {
            name: tf.io.RaggedFeature(dtype, row_splits_dtype=splits)
            for name, dtype, splits in (("bag", tf.int64, tf.int32), ("text", tf.string, tf.int64))
        }
        parsed = tf.io.parse_example(serialized, features)
        for index, one in enumerate(tf.nest.flatten(parsed, expand_composites=True)):
            tf.identity(one, f"out{index}")
        tf.no_op("initialize")
        before = graph.as_graph_def()
    after = PASS.apply(before).graph_def
    assert ops(after)[PARSE_EXAMPLE] == 1
    assert_equal(outputs(after, "ParseExampleV2"), outputs(before, "ParseExampleV2"))


@pytest.mark.parametrize("op", OPS)
def test_shapes_are_known_as_before(op: str) -> None:
    before = build(op)
    after = PASS.apply(before).graph_def
    before_and_after = []
    for view in map(GraphView.of_graph, (before, after)):
        names = sorted(name for name in view.nodes if name.startswith("out"))
        before_and_after.append([view.shape(view.inputs(name)[0]) for name in names])
    assert before_and_after[0] == before_and_after[1]
    assert (2,) in before_and_after[0] or (None, 2) in before_and_after[0]


@pytest.mark.parametrize("op", OPS)
def test_a_fetched_parser_keeps_its_name(op: str) -> None:
    before = build(op)
    after = FuseLookups(preserve=frozenset({"parse"})).apply(before).graph_def
    assert only(after, PARSE_EXAMPLE).name == "parse"
    fed = np.array(ROWS[0], object) if op == "ParseSingleExample" else np.array(ROWS, object)
    fetches = [f"parse:{index}" for index in range(5)]
    found, expected = (
        stock.run(one, {"examples:0": fed}, fetches, optimize=False) for one in (after, before)
    )
    assert_equal(found, expected)


def test_control_dependencies_stay() -> None:
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], "examples")
        counter = v1.get_variable("counter", initializer=0, use_resource=True)
        with tf.control_dependencies([counter.assign_add(1)]):
            parsed = parser("ParseExampleV2", serialized)
        with tf.control_dependencies([graph.get_operation_by_name("parse")]):
            tf.no_op("behind")
        tf.identity(parsed["id"], "out")
        tf.group(counter.initializer, name="initialize")
        before = graph.as_graph_def()
    node = only(before, "ParseExampleV2")
    # Of keys that are constants, too, which the fused op has no inputs for.
    node.input.append("^parse/sparse_keys")
    after = PASS.apply(before).graph_def
    fused = only(after, PARSE_EXAMPLE)
    controls = {text for text in fused.input if text.startswith("^")}
    assert controls >= {text for text in node.input if text.startswith("^")}
    (behind,) = (one for one in after.node if one.name == "behind")
    assert [*behind.input] == ["^parse"]


def test_notes_of_tensorflow_stay() -> None:
    before = build("ParseExampleV2")
    node = only(before, "ParseExampleV2")
    node.device = "/device:CPU:0"
    node.attr["_output_shapes"].list.shape.add()
    after = only(PASS.apply(before).graph_def, PARSE_EXAMPLE)
    assert after.device == node.device
    assert after.attr["_output_shapes"] == node.attr["_output_shapes"]


# With lookups


def test_lookups_behind_a_parser_are_fused_with_it_and_known_again() -> None:
    before = with_lookups()
    result = PASS.apply(before)
    assert result.report.fused_count == len(result.report.columns) == 2
    found = ops(result.graph_def)
    assert found[PARSE_EXAMPLE] == found["GroupedEmbeddingLookup"] == 1
    again = PASS.apply(result.graph_def)
    assert not again.modified
    assert all(column.is_fused_already for column in again.report.columns)
    feed = {"examples:0": np.array(ROWS, object)}
    assert_same_bits(*stock.run(result.graph_def, feed), *stock.run(before, feed))

    lowered = LowerLookups(preserve=KEEP).apply(result.graph_def).graph_def
    assert not {*ops(lowered)} & {*OP_NAMES}
    assert_same_bits(*stock.run(lowered, feed), *stock.run(before, feed))


def test_lookups_behind_a_fused_parser_are_known() -> None:
    """As in a model whose parser was fused when its lookups were not."""
    before = with_lookups()
    edit = GraphEdit(GraphView.of_graph(before))
    (report,) = fuse_parsers(edit, "", None)
    assert report.fused
    alone = apply_edits(before, {"": edit})
    assert ops(alone)[PARSE_EXAMPLE] == 1
    result = PASS.apply(alone)
    assert result.report.fused_count == len(result.report.columns) == 2
    together = PASS.apply(before).graph_def  # in which sparse features have become ragged
    assert ops(result.graph_def) - Counter(Const=9) == ops(together) - Counter(Const=9)
    feed = {"examples:0": np.array(ROWS, object)}
    assert_same_bits(*stock.run(result.graph_def, feed), *stock.run(before, feed))
