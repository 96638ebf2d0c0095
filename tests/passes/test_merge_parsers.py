"""Which ops that parse the same Examples become one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.report.front import ParserReport
from fusion.passes.targets import PASSES, Target
from fusion.schema.names import PARSE_EXAMPLE

v1 = tf.compat.v1
FLOAT, INT, TEXT = tf.float32, tf.int64, tf.string
NUMBERS = {
    "age": tf.io.FixedLenFeature([2], FLOAT),
    "bag": tf.io.VarLenFeature(INT),
}
TEXTS = {
    "word": tf.io.FixedLenFeature([], TEXT, "none"),
    "steps": tf.io.RaggedFeature(INT),
    "more": tf.io.FixedLenSequenceFeature([], INT, allow_missing=True, default_value=7),
    "bag": tf.io.VarLenFeature(INT),
}


def example(number):
    made = tf.train.Example()
    feature = made.features.feature
    feature["age"].float_list.value.extend([number, -0.5])
    for key, count in (("bag", number % 3), ("steps", number % 4), ("more", number % 5)):
        feature[key].int64_list.value.extend(range(count))
    if number % 2:
        feature["word"].bytes_list.value.append(b"word %d" % number)
    return made.SerializeToString()


EXAMPLES = [example(number) for number in range(17)]


def flat(parsed):
    """All tensors of what was parsed, by name."""
    tensors: dict[str, tf.Tensor] = {}
    for key, value in parsed.items():
        parts = tf.nest.flatten(value, expand_composites=True)
        tensors |= {f"{key}{index}": part for index, part in enumerate(parts)}
    return tensors


def text_of(parsed):
    """A text for each tensor of what was parsed, in one tensor: all are needed for it."""
    tensors = flat(parsed)
    shown = [tf.strings.format("{}", tensors[name], summarize=-1) for name in sorted(tensors)]
    return tf.stack(shown)


def graph_of(*specs, joined=True, **options):
    """Parsers of one tensor, and what they give, "out", or "out0" and so on."""
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], name="serialized")
        texts = [
            text_of(tf.io.parse_example(serialized, spec, name=f"parse{k}", **options))
            for k, spec in enumerate(specs)
        ]
        if joined:
            tf.concat(texts, 0, name="out")
        else:
            for k, text in enumerate(texts):
                tf.identity(text, name=f"out{k}")
        return graph.as_graph_def()


def run(graph_def, fetches, examples=EXAMPLES):
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with v1.Session(graph=graph) as session:
            return session.run(fetches, {"serialized:0": examples})


def parsers(graph_def):
    nodes = graph_def.node if hasattr(graph_def, "node") else graph_def.node_def
    return sum(node.op in ("ParseExampleV2", PARSE_EXAMPLE) for node in nodes)


@pytest.mark.parametrize("target", Target)
def test_parsers_of_one_result_are_one(target):
    before = graph_of(NUMBERS, TEXTS)
    result = PASSES[target](frozenset({"out"})).apply(before)
    assert result.modified
    assert (parsers(before), parsers(result.graph_def)) == (2, 1)
    np.testing.assert_array_equal(run(before, "out:0"), run(result.graph_def, "out:0"))
    again = PASSES[target](frozenset({"out"})).apply(result.graph_def)
    assert not again.modified


def test_the_report_counts_a_feature_of_both_once():
    report = FuseLookups(frozenset({"out"})).apply(graph_of(NUMBERS, TEXTS)).report
    assert report.parsers == (ParserReport("parse0/parse0", "", 5),)


def test_three_parsers_are_one_and_one_that_asks_in_another_way_stays():
    other = {"age": tf.io.FixedLenFeature([2], FLOAT, [1.0, 2.0])}
    before = graph_of(NUMBERS, other, TEXTS, {"word": TEXTS["word"]})
    result = FuseLookups(frozenset({"out"})).apply(before)
    assert parsers(result.graph_def) == 2
    np.testing.assert_array_equal(run(before, "out:0"), run(result.graph_def, "out:0"))


OTHER_WAYS = {
    "sparse": {"bag": tf.io.RaggedFeature(INT)},
    "dtype": {"bag": tf.io.VarLenFeature(FLOAT)},
    "shape": {"age": tf.io.FixedLenFeature([1, 2], FLOAT)},
    "default": {"age": tf.io.FixedLenFeature([2], FLOAT, [1.0, 2.0])},
}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_feature_that_is_asked_for_in_two_ways(way):
    result = LowerLookups(frozenset({"out"})).apply(graph_of(NUMBERS, OTHER_WAYS[way]))
    assert not result.modified


def test_what_other_results_need_stays_apart():
    """An Example without labels has features, as where a model is served."""
    features, labels = {"bag": NUMBERS["bag"]}, {"age": NUMBERS["age"]}
    before = graph_of(features, labels, joined=False)
    after = FuseLookups(frozenset({"out0", "out1"})).apply(before).graph_def
    assert parsers(after) == 2
    empty = [b""]
    np.testing.assert_array_equal(run(before, "out0:0", empty), run(after, "out0:0", empty))
    with pytest.raises(tf.errors.InvalidArgumentError, match="age"):
        run(after, "out1:0", empty)


def test_results_of_functions_stay_apart():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def apart(serialized):
        one = tf.io.parse_example(serialized, {"bag": NUMBERS["bag"]})
        other = tf.io.parse_example(serialized, {"age": NUMBERS["age"]})
        return one["bag"].values, other["age"]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def together(serialized):
        one, other = apart(serialized)
        again = tf.io.parse_example(serialized, {"word": TEXTS["word"]})
        more = tf.io.parse_example(serialized, {"more": TEXTS["more"]})
        found = tf.reduce_sum(more["more"]) + tf.cast(tf.size(again["word"]), tf.int64)
        return tf.reduce_sum(one) + found, other

    expected = together(tf.constant(EXAMPLES))
    fused = fusion.fuse_function(together.get_concrete_function())
    graph_def = fused.graph.as_graph_def()
    assert [parsers(function) for function in graph_def.library.function] == [2]
    assert parsers(graph_def) == 1
    for one, other in zip(fused(tf.constant(EXAMPLES)), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def _waiting():
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], name="serialized")
        one = tf.io.parse_example(serialized, {"age": NUMBERS["age"]}, name="parse0")["age"]
        with tf.control_dependencies([tf.print("effect", output_stream="file:///dev/null")]):
            other = tf.io.parse_example(serialized, {"word": TEXTS["word"]}, name="parse1")["word"]
        tf.strings.join([tf.strings.format("{}", one), tf.strings.reduce_join(other)], name="out")
        return graph.as_graph_def()


def _other_examples():
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], name="serialized")
        one = text_of(tf.io.parse_example(serialized, NUMBERS))
        other = text_of(tf.io.parse_example(tf.reverse(serialized, [0]), TEXTS))
        tf.concat([one, other], 0, name="out")
        return graph.as_graph_def()


def _names():
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], name="serialized")
        one = text_of(tf.io.parse_example(serialized, NUMBERS))
        names = tf.strings.as_string(tf.range(tf.size(serialized)))
        other = text_of(tf.io.parse_example(serialized, TEXTS, example_names=names))
        tf.concat([one, other], 0, name="out")
        return graph.as_graph_def()


@pytest.mark.parametrize("make", [_waiting, _other_examples, _names])
def test_others_stay_apart(make):
    before = make()
    result = LowerLookups(frozenset({"out"})).apply(before)
    assert not result.modified
    assert parsers(before) == 2


@pytest.mark.parametrize("is_parsed", [False, True])
def test_a_default_that_the_other_parses_keeps_them_apart(is_parsed):
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], name="serialized")
        one = tf.io.parse_example(serialized, NUMBERS)
        default = v1.placeholder_with_default(tf.constant([b"none"]), [1])
        if is_parsed:
            default = tf.strings.format("{}", one["age"])[None]
        other = tf.raw_ops.ParseExampleV2(
            serialized=serialized,
            names=[],
            sparse_keys=[],
            dense_keys=["word"],
            ragged_keys=[],
            dense_defaults=[default],
            num_sparse=0,
            sparse_types=[],
            ragged_value_types=[],
            ragged_split_types=[],
            dense_shapes=[[1]],
        )
        text = text_of({"word": other.dense_values[0]})
        tf.concat([text_of(one), text], 0, name="out")
    before = graph.as_graph_def()
    result = LowerLookups(frozenset({"out"})).apply(before)
    assert parsers(result.graph_def) == 1 + is_parsed
    np.testing.assert_array_equal(run(before, "out:0"), run(result.graph_def, "out:0"))


def test_errors_are_those_of_either():
    before = graph_of(NUMBERS, TEXTS)
    after = LowerLookups(frozenset({"out"})).apply(before).graph_def
    for graph_def in (before, after):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Feature: age "):
            run(graph_def, "out:0", [b""])


def test_lookups_of_both_read_the_one(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            make = tf.random.stateless_normal
            self.tables = [tf.Variable(make([50, 4], [k, 1])) for k in range(2)]

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, examples):
            bags = [
                tf.io.parse_example(examples, {key: tf.io.VarLenFeature(INT)})[key]
                for key in ("bag", "more")
            ]
            lookup = tf.nn.safe_embedding_lookup_sparse
            return {
                "out": tf.concat([lookup(*one) for one in zip(self.tables, bags, strict=True)], 1)
            }

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "stock"), signatures=model.serve)
    for target in ("fused", "stock"):
        folder = tmp_path / f"to-{target}"
        done = fusion.fuse_saved_model(tmp_path / "stock", folder, target=target)
        assert done.fused_count == 2
        served = tf.saved_model.load(folder).signatures["serving_default"]
        result = served(examples=tf.constant(EXAMPLES))["out"]
        expected = model.serve(tf.constant(EXAMPLES))["out"]
        np.testing.assert_array_equal(result, expected)
        op = PARSE_EXAMPLE if target == "fused" else "ParseExampleV2"
        for function in served.graph.as_graph_def().library.function:
            parsers_of = [node.op for node in function.node_def if "Parse" in node.op]
            assert parsers_of in ([], [op])
