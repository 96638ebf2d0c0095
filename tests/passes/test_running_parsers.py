"""Ops that parse tf.Examples become fused ones in functions, Sessions and pipelines that run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.schema.names import PARSE_EXAMPLE
from tests.grappler.executed import executed
from tests.passes import stock_graphs as stock
from tests.passes.parser_graphs import (
    OPS,
    PASS,
    ROWS,
    assert_equal,
    embedded,
    flat,
    ops,
    parser,
    v1,
    with_lookups,
)

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
