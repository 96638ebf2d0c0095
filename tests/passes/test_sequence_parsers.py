"""Ops that parse tf.SequenceExamples become fused ones, in graphs and where functions run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.report.front import SEQUENCES, ParserReport
from fusion.schema.names import OP_NAMES, PARSE_SEQUENCE
from tests.example_bytes import floats, ints, sequence_of, strings
from tests.grappler.executed import executed
from tests.passes import stock_graphs as stock
from tests.passes.parser_graphs import only, ops
from tests.reference import assert_same_bits

v1 = tf.compat.v1
KEEP = frozenset({"initialize", *(f"out{index}" for index in range(40))})
PASS = FuseLookups(preserve=KEEP)
OPS = ("ParseSequenceExample", "ParseSequenceExampleV2")

ROWS = (
    sequence_of(
        {"id": ints([3]), "rate": floats([0.5, 1.5]), "bag": ints([1, 2, 3])},
        {"steps": [ints([1]), ints([2])], "words": [strings([b"one", b"two"]), b""]},
    ),
    sequence_of({"id": ints([5]), "tags": strings([b"a", b"b"])}, {"steps": []}),
    sequence_of(
        {"id": ints([0]), "bag": ints([19])},
        {
            "steps": [ints([7])],
            "pairs": [floats([1, 2]), floats([3, 4]), floats([5, 6])],
            "seen": [ints([4, 5]), ints([]), ints([6])],
        },
    ),
)


def parser(op: str, serialized: tf.Tensor, name: str = "parse", **changes: Any) -> list[tf.Tensor]:
    """Builds one of the stock ops, for features of all forms that it knows; its outputs."""
    arguments: dict[str, Any] = {
        "debug_name": tf.constant([], tf.string),
        "context_sparse_keys": ["bag"],
        "context_sparse_types": [tf.int64],
        "context_dense_keys": ["id", "rate"],
        "context_dense_defaults": [tf.constant([], tf.int64), tf.constant([7.0, 8.0])],
        "context_dense_shapes": [[], [2]],
        "feature_list_sparse_keys": ["words"],
        "feature_list_sparse_types": [tf.string],
        "feature_list_dense_keys": ["steps", "pairs"],
        "feature_list_dense_types": [tf.int64, tf.float32],
        "feature_list_dense_shapes": [[], [2]],
        "Ncontext_sparse": 1,
        "Nfeature_list_sparse": 1,
        "Nfeature_list_dense": 2,
        "name": name,
    }
    if op == "ParseSequenceExample":
        arguments |= {
            "feature_list_dense_missing_assumed_empty": ["pairs", "no such list"],
            "Ncontext_dense": 2,
        }
    else:
        arguments |= {
            "feature_list_dense_missing_assumed_empty": [False, True],
            "context_ragged_keys": ["tags"],
            "context_ragged_value_types": [tf.string],
            "context_ragged_split_types": [tf.int32],
            "feature_list_ragged_keys": ["seen"],
            "feature_list_ragged_value_types": [tf.int64],
            "feature_list_ragged_split_types": [tf.int64],
        }
    parsed = getattr(tf.raw_ops, op)(serialized=serialized, **{**arguments, **changes})
    return [tensor for tensors in parsed for tensor in tensors]


def count_of(op: str) -> int:
    """How many features `parser` asks for."""
    return 6 if op == "ParseSequenceExample" else 8


def build(op: str, **changes: Any) -> graph_pb2.GraphDef:
    """A graph whose outputs, `out0` and so on, are those of a stock op."""
    with tf.Graph().as_default() as graph:
        made = {key: one() if callable(one) else one for key, one in changes.items()}
        serialized = v1.placeholder(tf.string, [None], "examples")
        for index, one in enumerate(parser(op, serialized, **made)):
            tf.identity(one, f"out{index}")
        tf.no_op("initialize")
        return graph.as_graph_def()


def outputs(graph_def: graph_pb2.GraphDef) -> list[Any]:
    """What a graph gives."""
    count = sum(node.name.startswith("out") for node in graph_def.node)
    fetches = [f"out{index}:0" for index in range(count)]
    fed = {"examples:0": np.array(ROWS, object)}
    return stock.run(graph_def, fed, fetches, optimize=False)


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("op", OPS)
def test_a_parser_of_a_graph_is_fused_and_comes_back(op: str) -> None:
    before = build(op)
    result = PASS.apply(before)
    assert result.modified
    after = result.graph_def
    assert ops(after)[PARSE_SEQUENCE] == 1
    assert not ops(after)[op]
    assert only(after, PARSE_SEQUENCE).name == "parse"
    assert_equal(outputs(after), outputs(before))
    (report,) = result.report.parsers
    assert report == ParserReport("parse", "", count_of(op), records=SEQUENCES)
    said = f"fused  parse (tf.SequenceExamples, {count_of(op)} features)"
    assert f"  {said}" in str(result.report).splitlines()

    again = PASS.apply(after)
    assert not again.modified
    (report,) = again.report.parsers
    expected = ParserReport("parse", "", count_of(op), fused_before=True, records=SEQUENCES)
    assert report == expected
    assert f"  already {said}" in str(again.report).splitlines()

    lowered = LowerLookups(preserve=KEEP).apply(after)
    assert lowered.modified
    assert not {*ops(lowered.graph_def)} & {*OP_NAMES}
    assert ops(lowered.graph_def)["ParseSequenceExampleV2"] == 1
    assert_equal(outputs(lowered.graph_def), outputs(before))


def test_static_shapes_are_those_of_stock() -> None:
    after = PASS.apply(build("ParseSequenceExampleV2")).graph_def
    view = GraphView.of_graph(after)
    with tf.Graph().as_default():
        expected = parser("ParseSequenceExampleV2", v1.placeholder(tf.string, [None]))
    for index, tensor in enumerate(expected):
        found = view.shape(view.tensor(f"out{index}:0"))
        assert found is not None
        assert tf.TensorShape(found).is_compatible_with(tensor.shape)
        assert len(found) == tensor.shape.rank


Change = Callable[[node_def_pb2.NodeDef], None]


def with_node(change: Change) -> Callable[[], graph_pb2.GraphDef]:
    """A graph whose parser is changed."""

    def make() -> graph_pb2.GraphDef:
        graph_def = build("ParseSequenceExampleV2")
        change(only(graph_def, "ParseSequenceExampleV2"))
        return graph_def

    return make


def asked(op: str = "ParseSequenceExampleV2", **changes: Any) -> Callable[[], graph_pb2.GraphDef]:
    return lambda: build(op, **changes)


def _set_device(device: str) -> Change:
    def change(node: node_def_pb2.NodeDef) -> None:
        node.device = device

    return change


def _set_shape(key: str, *sizes: int | None) -> Change:
    """Changes the second shape of an attr, to one that TensorFlow makes no node of."""

    def change(node: node_def_pb2.NodeDef) -> None:
        shape = tf.TensorShape(sizes or None).as_proto()
        node.attr[key].list.shape[1].CopyFrom(shape)

    return change


def _set_dtype(node: node_def_pb2.NodeDef) -> None:
    node.attr["feature_list_sparse_types"].list.type[0] = types_pb2.DT_INT32


def _drop_shape(node: node_def_pb2.NodeDef) -> None:
    del node.attr["feature_list_dense_shapes"].list.shape[-1]


def _default(rate: Callable[[], tf.Tensor]) -> Callable[[], list[tf.Tensor]]:
    return lambda: [tf.constant([], tf.int64), rate()]


REFUSED = {
    "keys of the context that are fed": (
        asked(context_sparse_keys=lambda: v1.placeholder(tf.string, [1])),
        "the keys are no constants",
    ),
    "keys of lists that are fed": (
        asked(feature_list_ragged_keys=lambda: v1.placeholder(tf.string, [1])),
        "the keys are no constants",
    ),
    "what may be missing is fed": (
        asked(feature_list_dense_missing_assumed_empty=lambda: v1.placeholder(tf.bool, [2], "may")),
        "which feature lists may be missing is no constant",
    ),
    "two features of one key": (
        asked(context_sparse_keys=["id"]),
        "two features have one key",
    ),
    "two lists of one key": (
        asked("ParseSequenceExample", feature_list_sparse_keys=["steps"]),
        "two features have one key",
    ),
    "a default of an unknown shape": (
        asked(context_dense_defaults=_default(lambda: v1.placeholder(tf.float32, None))),
        "the shape of the default of rate is not known",
    ),
    "a default of another shape": (
        asked(context_dense_defaults=_default(lambda: tf.constant([1.0, 2.0, 3.0]))),
        "the default of rate has another shape",
    ),
    "a shape that is not known": (
        with_node(_set_shape("context_dense_shapes")),
        "the shape of rate is not known",
    ),
    "a size that is not known": (
        with_node(_set_shape("context_dense_shapes", None)),
        "the shape of rate is not known",
    ),
    "a shape of rows that is not known": (
        with_node(_set_shape("feature_list_dense_shapes", None)),
        "the shape of pairs is not known",
    ),
    "rows without values": (
        asked(feature_list_dense_shapes=[[], [2, 0]]),
        "rows of pairs have no values",
    ),
    "shapes of another number": (
        with_node(_drop_shape),
        "keys, dtypes and shapes are not of one number",
    ),
    "another dtype": (with_node(_set_dtype), "values of Examples have another dtype"),
    "a GPU": (
        with_node(_set_device("/device:GPU:0")),
        "placed on /device:GPU:0; the fused ops run on CPU",
    ),
}
"""What makes each graph, and the reason."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    before = make()
    result = PASS.apply(before)
    assert not result.modified
    (report,) = result.report.parsers
    assert report == ParserReport("parse", "", reason=reason, node="parse", records=SEQUENCES)
    assert str(result.report).endswith(f"  stock  parse (tf.SequenceExamples)\n         {reason}")


GOOD = {
    "keys that are constants": asked(context_sparse_keys=lambda: tf.constant(["other"])),
    "one key in the context and of a list": asked(context_sparse_keys=["steps"]),
    "a default that is fed, of a known shape": asked(
        context_dense_defaults=_default(lambda: v1.placeholder(tf.float32, [2]))
    ),
    "features without values": asked(
        context_dense_shapes=[[], [0]],
        context_dense_defaults=_default(lambda: tf.zeros([0])),
    ),
    "a CPU": with_node(_set_device("/device:CPU:0")),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_nearly_refused(name: str) -> None:
    result = PASS.apply(GOOD[name]())
    (report,) = result.report.parsers
    assert report.fused, str(result.report)
    assert ops(result.graph_def)[PARSE_SEQUENCE] == 1


def test_the_op_of_tensorflow_1_for_one_is_another() -> None:
    """It reads protocol buffers by another parser, and stays."""
    with tf.Graph().as_default() as graph:
        tf.raw_ops.ParseSingleSequenceExample(
            serialized=v1.placeholder(tf.string, []),
            feature_list_dense_missing_assumed_empty=[],
            context_sparse_keys=["bag"],
            context_dense_keys=[],
            feature_list_sparse_keys=[],
            feature_list_dense_keys=[],
            context_dense_defaults=[],
            debug_name="",
            context_sparse_types=[tf.int64],
        )
    result = PASS.apply(graph.as_graph_def())
    assert not result.modified
    assert not result.report.parsers


# Functions and pipelines

CONTEXT = {
    "id": tf.io.FixedLenFeature([], tf.int64),
    "rate": tf.io.FixedLenFeature([2], tf.float32, [7.0, 8.0]),
    "bag": tf.io.VarLenFeature(tf.int64),
    "tags": tf.io.RaggedFeature(tf.string),
}
LISTS = {
    "steps": tf.io.FixedLenSequenceFeature([], tf.int64),
    "pairs": tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
    "words": tf.io.VarLenFeature(tf.string),
    "seen": tf.io.RaggedFeature(tf.int64),
}


def parse(serialized: tf.Tensor) -> Any:
    return tf.io.parse_sequence_example(serialized, CONTEXT, LISTS)


def parse_one(serialized: tf.Tensor) -> Any:
    return tf.io.parse_single_sequence_example(serialized, CONTEXT, LISTS)


def arrays(parsed: Any) -> list[Any]:
    return [tensor.numpy() for tensor in tf.nest.flatten(parsed, expand_composites=True)]


@pytest.fixture
def running() -> Iterator[None]:
    with fusion.fused():
        yield


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("is_single", [False, True])
def test_functions_that_run(is_single: bool) -> None:
    call = parse_one if is_single else parse
    serialized = tf.constant(ROWS[2] if is_single else ROWS)
    expected, before = arrays(call(serialized)), fusion.stats().parsers_fused
    function = tf.function(call)
    with executed() as ran:
        found = arrays(function(serialized))
    assert ran[PARSE_SEQUENCE] == 1
    assert not ran["ParseSequenceExampleV2"]
    assert_equal(found, expected)
    stats = fusion.stats()
    assert stats.parsers_fused == before + 1
    assert stats.last_report is not None
    (report,) = stats.last_report.parsers
    assert (report.fused, report.features, report.records) == (True, 8, SEQUENCES)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("is_single", [False, True])
def test_pipelines(is_single: bool) -> None:
    rows = tf.data.Dataset.from_tensor_slices(tf.constant((ROWS[0], ROWS[2]) * 20))
    source = rows if is_single else rows.batch(7)
    call = parse_one if is_single else parse
    calls = {one.op: one.calls for one in fusion.stats().ops}.get(PARSE_SEQUENCE, 0)
    found = [arrays(one) for one in source.map(call, num_parallel_calls=2)]
    assert {one.op: one.calls for one in fusion.stats().ops}[PARSE_SEQUENCE] == calls + len(found)
    for one, serialized in zip(found, source, strict=True):
        assert_equal(one, arrays(call(serialized)))


@pytest.mark.usefixtures("running")
def test_errors_of_functions_name_the_node() -> None:
    function = tf.function(lambda one: parser("ParseSequenceExampleV2", one, "my_parser"))
    text = "Feature list 'steps' is required but could not be found"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text) as error:
        function(tf.constant([ROWS[0], sequence_of({"id": ints([1])})]))
    assert "my_parser" in str(error.value)


def test_fuse_function() -> None:
    function = tf.function(parse).get_concrete_function(tf.TensorSpec([None], tf.string))
    fused = fusion.fuse_function(function)
    with executed() as ran:
        found = arrays(fused(tf.constant(ROWS)))
    assert ran[PARSE_SEQUENCE] == 1
    assert_equal(found, arrays(parse(tf.constant(ROWS))))


# With lookups


def with_lookups() -> graph_pb2.GraphDef:
    """A graph of a parser, and of lookups of a feature of the context and of a ragged list."""
    with tf.Graph().as_default() as graph:
        context, lists, _ = parse(v1.placeholder(tf.string, [None], "examples"))
        table = tf.constant(stock.table_values(), name="table")
        bag = tf.nn.safe_embedding_lookup_sparse(table, context["bag"], combiner="sum")
        seen = tf.nn.safe_embedding_lookup_sparse(
            table, lists["seen"].merge_dims(1, 2).to_sparse(), combiner="mean"
        )
        tf.concat([bag, seen], 1, name="out")
        tf.no_op("initialize")
        return graph.as_graph_def(add_shapes=True)


def test_lookups_behind_a_parser_are_fused_with_it() -> None:
    keep = replace(PASS, preserve=frozenset({"out", "initialize"}))
    before = with_lookups()
    result = keep.apply(before)
    assert result.report.fused_count == len(result.report.columns) == 2, str(result.report)
    assert ops(result.graph_def)[PARSE_SEQUENCE] == 1
    again = keep.apply(result.graph_def)
    assert not again.modified
    feed = {"examples:0": np.array(ROWS, object)}
    assert_same_bits(*stock.run(result.graph_def, feed), *stock.run(before, feed))
    lowered = LowerLookups(preserve=keep.preserve).apply(result.graph_def).graph_def
    assert not {*ops(lowered)} & {*OP_NAMES}
    assert_same_bits(*stock.run(lowered, feed), *stock.run(before, feed))
