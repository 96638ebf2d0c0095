"""Ops that parse tf.Examples become fused ones, in graphs, in functions and where these run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.fuse_parsers import fuse_parsers
from fusion.passes.graph.edit import GraphEdit, apply_edits
from fusion.passes.graph.view import GraphView
from fusion.passes.lower_lookups import LowerLookups, remaining_fused_ops
from fusion.passes.report.front import ParserReport
from fusion.schema.names import OP_NAMES, PARSE_EXAMPLE
from tests.example_bytes import floats, ints, of, strings
from tests.grappler.executed import executed
from tests.passes import stock_graphs as stock
from tests.reference import assert_same_bits

v1 = tf.compat.v1
KEEP = frozenset({"out", "initialize"})
PASS = FuseLookups(preserve=KEEP)
OPS = ("ParseExample", "ParseExampleV2", "ParseSingleExample")

ROWS = (
    of(id=ints([3]), rate=floats([0.5, 1.5]), bag=ints([1, 2, 3]), text=strings([b"one"])),
    of(id=ints([5]), bag=ints([])),
    of(id=ints([0]), rate=floats([1, 2]), bag=ints([19]), text=strings([b"two", b"three"])),
)


def parser(op: str, serialized: tf.Tensor, name: str = "parse", **changes: Any) -> dict[str, Any]:
    """Builds one of the stock ops, for features of some forms; its outputs."""
    arguments: dict[str, Any] = {
        "sparse_keys": ["bag"],
        "dense_keys": ["id", "rate"],
        "dense_defaults": [tf.constant([], tf.int64), tf.constant([7.0, 8.0])],
        "sparse_types": [tf.int64],
        "dense_shapes": [[], [2]],
        "name": name,
    }
    if op != "ParseSingleExample":
        arguments["names"] = tf.constant([], tf.string)
        arguments["dense_keys"] = ["id", "rate", "text"]
        arguments["dense_defaults"] += [tf.constant("")]
        arguments["dense_shapes"] = [[], [2], [None]]
    if op == "ParseSingleExample":
        arguments["num_sparse"] = 1
    if op == "ParseExampleV2":
        arguments |= {
            "num_sparse": 1,
            "ragged_keys": [],
            "ragged_value_types": [],
            "ragged_split_types": [],
        }
    parsed = getattr(tf.raw_ops, op)(serialized=serialized, **{**arguments, **changes})
    dense = dict(zip(arguments["dense_keys"], parsed.dense_values, strict=False))
    sparse = (parsed.sparse_indices[0], parsed.sparse_values[0], parsed.sparse_shapes[0])
    return {"bag": tf.SparseTensor(*sparse), **dense}


def flat(parsed: dict[str, Any]) -> list[tf.Tensor]:
    """All tensors of a parser."""
    return tf.nest.flatten(parsed, expand_composites=True)


def build(op: str, **changes: Any) -> graph_pb2.GraphDef:
    """A graph whose outputs, `out0` and so on, are those of a stock op."""
    with tf.Graph().as_default() as graph:
        shape = [] if op == "ParseSingleExample" else [None]
        for index, one in enumerate(
            flat(parser(op, v1.placeholder(tf.string, shape, "examples"), **changes))
        ):
            tf.identity(one, f"out{index}")
        tf.no_op("initialize")
        return graph.as_graph_def()


def ops(graph_def: graph_pb2.GraphDef) -> Counter[str]:
    found = Counter(node.op for node in graph_def.node)
    for function in graph_def.library.function:
        found.update(node.op for node in function.node_def)
    return found


def outputs(graph_def: graph_pb2.GraphDef, op: str) -> list[Any]:
    """What a graph gives."""
    count = sum(node.name.startswith("out") for node in graph_def.node)
    fed = np.array(ROWS[0], object) if op == "ParseSingleExample" else np.array(ROWS, object)
    fetches = [f"out{index}:0" for index in range(count)]
    return stock.run(graph_def, {"examples:0": fed}, fetches, optimize=False)


def only(graph_def: graph_pb2.GraphDef, op: str) -> node_def_pb2.NodeDef:
    (node,) = (node for node in graph_def.node if node.op == op)
    return node


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
    assert_equal(outputs(lowered.graph_def, op), outputs(before, op))
    assert ops(PASS.apply(lowered.graph_def).graph_def)[PARSE_EXAMPLE] == 1


def assert_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


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


# What is refused, beside what is not


Make = Callable[[], graph_pb2.GraphDef]


def with_node(change: Callable[[node_def_pb2.NodeDef], None]) -> Make:
    """A graph whose parser is changed."""

    def make() -> graph_pb2.GraphDef:
        graph_def = build("ParseExampleV2")
        change(only(graph_def, "ParseExampleV2"))
        return graph_def

    return make


def with_arguments(op: str = "ParseExampleV2", **changes: Any) -> Make:
    """A graph with other arguments, those of functions made in it."""

    def make() -> graph_pb2.GraphDef:
        with tf.Graph().as_default() as graph:
            shape = [] if op == "ParseSingleExample" else [None]
            serialized = v1.placeholder(tf.string, shape, "examples")
            made = {key: one() if callable(one) else one for key, one in changes.items()}
            parser(op, serialized, **made)
            return graph.as_graph_def()

    return make


def _set_device(device: str) -> Callable[[node_def_pb2.NodeDef], None]:
    def change(node: node_def_pb2.NodeDef) -> None:
        node.device = device

    return change


def _defaults(rate: Callable[[], tf.Tensor]) -> Callable[[], list[tf.Tensor]]:
    """Those of `parser`, but for that of the rates."""
    return lambda: [tf.constant([], tf.int64), rate(), tf.constant("")]


def _set_empty_strides(node: node_def_pb2.NodeDef) -> None:
    """Makes the shape of the text [?, 0], which TensorFlow refuses to build from 2.22 on."""
    shape = node.attr["dense_shapes"].list.shape[2]
    del shape.dim[:]
    for size in (-1, 0):
        shape.dim.add(size=size)


def _drop_shapes(node: node_def_pb2.NodeDef) -> None:
    del node.attr["dense_shapes"].list.shape[-1]


def _set_shape(*sizes: int | None) -> Callable[[node_def_pb2.NodeDef], None]:
    """Changes the shape of the rates, to one that TensorFlow makes no node of."""

    def change(node: node_def_pb2.NodeDef) -> None:
        shape = tf.TensorShape(sizes or None).as_proto()
        node.attr["dense_shapes"].list.shape[1].CopyFrom(shape)

    return change


REFUSED = {
    "keys that are fed": (
        with_arguments(sparse_keys=lambda: v1.placeholder(tf.string, [1], "keys")),
        "the keys are no constants",
    ),
    "a key of the first op that is fed": (
        with_arguments("ParseExample", sparse_keys=lambda: [v1.placeholder(tf.string, [])]),
        "the keys are no constants",
    ),
    "two features of one key": (
        with_arguments(sparse_keys=["id"]),
        "two features have one key",
    ),
    "two equal dense keys": (
        with_arguments("ParseSingleExample", dense_keys=["id", "id"]),
        "two features have one key",
    ),
    "a default of an unknown shape": (
        with_arguments(
            dense_defaults=_defaults(lambda: v1.placeholder(tf.float32, None, "default"))
        ),
        "the shape of the default of rate is not known",
    ),
    "a default of an unknown size": (
        with_arguments(
            dense_defaults=_defaults(lambda: v1.placeholder(tf.float32, [None], "default"))
        ),
        "the shape of the default of rate is not known",
    ),
    "a default of another shape": (
        with_arguments(dense_defaults=_defaults(lambda: tf.constant([1.0, 2.0, 3.0]))),
        "the default of rate has another shape",
    ),
    "a shape that is not known": (
        with_node(_set_shape()),
        "the shape of rate is not known",
    ),
    "a later size that is not known": (
        with_node(_set_shape(2, None)),
        "the shape of rate is not known",
    ),
    "rows filled up with two values": (
        with_arguments(
            dense_defaults=lambda: [tf.constant([], tf.int64), tf.zeros([2]), tf.constant(["", ""])]
        ),
        "rows of text are not filled up with one value",
    ),
    "strides without values": (
        with_node(_set_empty_strides),
        "rows of text are not filled up with one value",
    ),
    "shapes of another number": (
        with_node(_drop_shapes),
        "keys, dtypes and shapes are not of one number",
    ),
    "a GPU": (
        with_node(_set_device("/device:GPU:0")),
        "placed on /device:GPU:0; the fused ops run on CPU",
    ),
    "another process": (
        with_node(_set_device("/job:worker/replica:0/task:1/device:CPU:0")),
        "placed on /job:worker/replica:0/task:1/device:CPU:0, which may not know the fused ops",
    ),
}
"""What makes each graph, and the reason."""
TASKS = frozenset({"/job:localhost/replica:0/task:0"})


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    before = make()
    parse = next(node for node in before.node if node.op in OPS)
    result = replace(PASS, tasks=TASKS).apply(before)
    assert not result.modified
    (report,) = result.report.parsers
    assert report == ParserReport("parse", "", reason=reason, node="parse")
    assert not report.fused
    assert [parse.name in line for line in str(result.report).splitlines()][1:] == [True, False]


GOOD = {
    "keys that are constants": with_arguments(sparse_keys=lambda: tf.constant(["other"])),
    "a default that is fed, of a known shape": with_arguments(
        dense_defaults=_defaults(lambda: v1.placeholder(tf.float32, [2], "default"))
    ),
    "no default of a known shape": with_arguments(
        dense_defaults=_defaults(lambda: v1.placeholder(tf.float32, [0], "default"))
    ),
    "strides with values": with_arguments(dense_shapes=[[], [2], [None, 3]]),
    "this process": with_node(_set_device("/job:localhost/replica:0/task:0/device:CPU:0")),
    "a CPU": with_node(_set_device("/device:CPU:0")),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_nearly_refused(name: str) -> None:
    result = replace(PASS, tasks=TASKS).apply(GOOD[name]())
    (report,) = result.report.parsers
    assert report.fused, str(result.report)
    assert ops(result.graph_def)[PARSE_EXAMPLE] == 1


def test_another_dtype() -> None:
    before = build("ParseExampleV2")
    only(before, "ParseExampleV2").attr["sparse_types"].list.type[0] = types_pb2.DT_INT32
    (report,) = PASS.apply(before).report.parsers
    assert report.reason == "values of Examples have another dtype"


# Reports


def test_what_reports_say() -> None:
    result = PASS.apply(build("ParseExampleV2"))
    lines = str(result.report).splitlines()
    assert "  fused  parse (tf.Examples, 4 features)" in lines
    (found,) = json.loads(json.dumps(result.report.to_dict()))["parsers"]
    assert found == {
        "fused": True,
        "name": "parse",
        "function": "",
        "features": 4,
        "hashed": 0,
        "reason": None,
        "node": None,
        "fused_before": False,
        "served": True,
        "records": "tf.Examples",
    }
    again = str(PASS.apply(result.graph_def).report).splitlines()
    assert "  already fused  parse (tf.Examples, 4 features)" in again
    refused = str(PASS.apply(REFUSED["two features of one key"][0]()).report)
    assert refused.endswith("  stock  parse (tf.Examples)\n         two features have one key")


def test_what_no_signature_runs() -> None:
    before = build("ParseExampleV2")
    rewrite = FuseLookups(preserve=frozenset({"out0", "examples"}), fetched=frozenset({"examples"}))
    (report,) = rewrite.apply(before).report.parsers
    assert not report.served
    served = replace(rewrite, fetched=frozenset({"out0"}))
    (report,) = served.apply(before).report.parsers
    assert report.served


# Functions, Sessions and pipelines


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def parse_all(serialized: tf.Tensor) -> dict[str, Any]:
    return parser("ParseExampleV2", serialized)


def new_function(op: str, **options: Any) -> Any:
    """A function that TensorFlow has not optimized yet."""
    return tf.function(lambda one: parser(op, one), **options)


def fed(op: str) -> tf.Tensor:
    return tf.constant(ROWS[0] if op == "ParseSingleExample" else ROWS)


def test_a_parser_of_a_function() -> None:
    @tf.function
    def outer(serialized: tf.Tensor) -> list[tf.Tensor]:
        return flat(parse_all(serialized))

    concrete = outer.get_concrete_function(tf.TensorSpec([None], tf.string))
    graph_def = concrete.graph.as_graph_def()
    result = PASS.apply(graph_def)
    assert ops(result.graph_def)[PARSE_EXAMPLE] == 1
    (report,) = result.report.parsers
    assert report.fused
    (function,) = (one.signature.name for one in graph_def.library.function)
    assert report.function == function
    assert f"  fused  {function}: parse (tf.Examples, 4 features)" in str(result.report)
    again = PASS.apply(result.graph_def)
    assert not again.modified


def test_a_function_that_xla_compiles() -> None:
    concrete = parse_all.get_concrete_function()
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], "examples")
        tf.identity(concrete(serialized)["id"], "out")
        before = graph.as_graph_def()
    (function,) = before.library.function
    (report,) = PASS.apply(before).report.parsers
    assert report.fused
    function.attr["_XlaMustCompile"].b = True
    (report,) = PASS.apply(before).report.parsers
    assert report.reason == "the function is compiled by XLA"


@pytest.mark.parametrize("op", OPS)
def test_fuse_graph_and_fuse_function(op: str) -> None:
    function = new_function(op).get_concrete_function(fed(op))
    expected = [one.numpy() for one in flat(function(fed(op)))]
    fused = fusion.fuse_function(function)
    with executed() as ran:
        found = [one.numpy() for one in flat(fused(fed(op)))]
    assert ran[PARSE_EXAMPLE] == 1
    assert not ran[op]
    assert_equal(found, expected)


@pytest.fixture
def running() -> Iterator[None]:
    with fusion.fused():
        yield


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("op", OPS)
def test_functions_that_run(op: str) -> None:
    expected = [one.numpy() for one in flat(parser(op, fed(op)))]
    before = fusion.stats().parsers_fused
    function = new_function(op)
    with executed() as ran:
        found = [one.numpy() for one in flat(function(fed(op)))]
    assert ran[PARSE_EXAMPLE] == 1
    assert not ran[op]
    assert_equal(found, expected)
    stats = fusion.stats()
    assert stats.parsers_fused == before + 1
    assert stats.last_report is not None
    (report,) = stats.last_report.parsers
    assert report.fused
    assert not report.fused_before


@pytest.mark.usefixtures("running")
def test_errors_of_functions_name_the_node() -> None:
    function = tf.function(lambda one: flat(parser("ParseExampleV2", one, "my_parser")))
    text = "Feature: id .data type: int64. is required but could not be found"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text) as error:
        function(tf.constant([ROWS[0], b""]))
    assert "my_parser" in str(error.value)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("op", OPS)
def test_a_session(op: str) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        shape = [] if op == "ParseSingleExample" else [None]
        serialized = v1.placeholder(tf.string, shape)
        tensors = flat(parser(op, serialized))
        feed = {serialized: fed_array(op)}
        with executed() as ran:
            found = session.run(tensors, feed)
        fewer = session.run(tensors[3], feed)
    assert ran[PARSE_EXAMPLE] == 1
    expected = [one.numpy() for one in flat(parser(op, fed(op)))]
    assert_equal([np.asarray(one) for one in found], expected)
    np.testing.assert_array_equal(fewer, expected[3])


def fed_array(op: str) -> Any:
    return ROWS[0] if op == "ParseSingleExample" else np.array(ROWS, object)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("op", OPS)
def test_pipelines(op: str) -> None:
    rows = tf.data.Dataset.from_tensor_slices(tf.constant(ROWS * 20))
    source = rows if op == "ParseSingleExample" else rows.batch(7)
    calls = {one.op: one.calls for one in fusion.stats().ops}.get(PARSE_EXAMPLE, 0)
    data = source.map(lambda one: parser(op, one), num_parallel_calls=2)
    found = [[tensor.numpy() for tensor in flat(one)] for one in data]
    assert {one.op: one.calls for one in fusion.stats().ops}[PARSE_EXAMPLE] == calls + len(found)
    for one, serialized in zip(found, source, strict=True):
        assert_equal(one, [tensor.numpy() for tensor in flat(parser(op, serialized))])


# With lookups


def embedded(serialized: tf.Tensor, table: Any) -> tf.Tensor:
    parsed = parser("ParseExampleV2", serialized)
    bag = tf.nn.safe_embedding_lookup_sparse(table, parsed["bag"], combiner="sum")
    return tf.concat([bag, tf.nn.embedding_lookup(table, parsed["id"])], 1)


def with_lookups() -> graph_pb2.GraphDef:
    """A graph of a parser and of two lookups behind it."""
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], "examples")
        table = tf.constant(stock.table_values(), name="table")
        tf.identity(embedded(serialized, table), "out")
        tf.no_op("initialize")
        return graph.as_graph_def(add_shapes=True)


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


def test_what_would_be_fused_is_explained() -> None:
    function = parse_all.get_concrete_function()
    for model, under in ((function, "rewrite"), (function, "enable"), (with_lookups(), "enable")):
        (report,) = fusion.explain(model, under=under).parsers
        assert report.fused
        assert report.function == ""
        assert report.features == 4
    compiled = new_function("ParseExampleV2", jit_compile=True)
    (report,) = fusion.explain(compiled.get_concrete_function(fed("ParseExampleV2"))).parsers
    assert report.reason == "the function is compiled by XLA"


@pytest.mark.usefixtures("running")
def test_the_last_report_is_on_a_parser_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was fused before; and the log says which parsers stay."""
    table = tf.Variable(stock.table_values())
    tf.function(lambda one: embedded(one, table))(fed("ParseExampleV2"))
    with caplog.at_level("INFO", logger="fusion"):
        new_function("ParseExampleV2")(fed("ParseExampleV2"))
    report = fusion.stats().last_report
    assert report is not None
    assert (len(report.columns), len(report.parsers)) == (0, 1)
    assert not caplog.text
    keys = tf.Variable(["bag"])
    with caplog.at_level("INFO", logger="fusion"):
        tf.function(lambda one: flat(parser("ParseExampleV2", one, sparse_keys=keys)))(
            fed("ParseExampleV2")
        )
    assert "left alone: parse: the keys are no constants, at parse" in caplog.text
