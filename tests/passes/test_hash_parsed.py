"""Which strings of Examples the parser hashes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.analysis.value_ranges import Range, range_of
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.report.front import ParserReport
from fusion.schema.names import GROUPED_IDS, PARSE_EXAMPLE

v1 = tf.compat.v1
raw = tf.raw_ops
BUCKETS, DIM = 50, 4
TEXT = tf.string
FEATURES = {
    "dense": tf.io.FixedLenFeature([1], TEXT, ["none"]),
    "scalar": tf.io.FixedLenFeature([], TEXT),
    "two": tf.io.FixedLenFeature([2], TEXT, ["a", "b"]),
    "padded": tf.io.FixedLenSequenceFeature([], TEXT, allow_missing=True),
    "sparse": tf.io.VarLenFeature(TEXT),
    "ragged": tf.io.RaggedFeature(TEXT),
    "number": tf.io.VarLenFeature(tf.int64),
}
FETCHES = ("out",)


def example(number):
    made = tf.train.Example()
    feature = made.features.feature
    feature["scalar"].bytes_list.value.append(b"text " * (number % 9))
    feature["number"].int64_list.value.append(number)
    if number % 2:
        feature["dense"].bytes_list.value.append(b"\0" * number)
    for key, count in (("padded", 3), ("sparse", 4), ("ragged", 5)):
        texts = (b"%s %d" % (key.encode() * k, number) for k in range(number % count))
        feature[key].bytes_list.value.extend(texts)
    return made.SerializeToString()


EXAMPLES = [example(number) for number in range(40)]


def fast(values, buckets=BUCKETS, name=None):
    return tf.strings.to_hash_bucket_fast(values, buckets, name)


def graph_of(make, *keys):
    """What `make` makes of some parsed features, as texts, "out"."""
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], name="serialized")
        parsed = tf.io.parse_example(serialized, {key: FEATURES[key] for key in keys}, name="p")
        results = make(*(parsed[key] for key in keys))
        texts = [tf.strings.format("{}", one, summarize=-1) for one in tf.nest.flatten(results)]
        tf.stack(texts, name="out")
        return graph.as_graph_def()


def fused(graph_def, fetches=FETCHES):
    return FuseLookups(frozenset(fetches)).apply(graph_def)


def run(graph_def, fetches=FETCHES):
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with v1.Session(graph=graph) as session:
            names = [f"{name}:0" for name in fetches]
            return session.run(names, {"serialized:0": EXAMPLES})


def checked(before, hashed, fetches=FETCHES):
    """Rewrites; so many features are hashed, and results are equal, the way back's too."""
    result = fused(before, fetches)
    (parser,) = result.report.parsers
    assert parser.hashed == hashed
    stock = LowerLookups(frozenset(fetches)).apply(result.graph_def)
    expected = run(before, fetches)
    for graph_def in (result.graph_def, stock.graph_def):
        for one, other in zip(run(graph_def, fetches), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    ops = [node.op for node in stock.graph_def.node]
    assert not [op for op in ops if "Fused" in op]
    return result


def count(graph_def, op):
    return sum(node.op == op for node in graph_def.node)


@pytest.mark.parametrize("key", ["dense", "scalar"])
def test_rows_of_one_string(key):
    result = checked(graph_of(fast, key), 1)
    assert not count(result.graph_def, "StringToHashBucketFast")
    again = fused(result.graph_def)
    assert not again.modified
    assert again.report.parsers[0].hashed == 1


def test_lists():
    def make(sparse, ragged):
        hashed = tf.RaggedTensor.from_row_splits(fast(ragged.values), ragged.row_splits)
        return [fast(sparse.values, 7), sparse.indices, sparse.dense_shape, hashed]

    checked(graph_of(make, "sparse", "ragged"), 2)


def test_lookups_have_row_splits_and_buckets():
    def make(sparse, dense, number):
        rows = []
        for k, ids in enumerate((sparse, number)):
            table = np.random.default_rng(k).normal(size=[BUCKETS, DIM]).astype(np.float32)
            values = fast(ids.values) if ids.dtype == tf.string else ids.values
            hashed = tf.SparseTensor(ids.indices, values, ids.dense_shape)
            rows.append(tf.nn.safe_embedding_lookup_sparse(tf.constant(table), hashed))
        table = tf.random.stateless_normal([BUCKETS, DIM], [1, 2])
        rows.append(tf.gather(table, tf.squeeze(fast(dense), 1)))
        return tf.concat(rows, 1)

    result = checked(graph_of(make, "sparse", "dense", "number"), 2)
    assert count(result.graph_def, "GroupedEmbeddingLookup") == 1
    assert not count(result.graph_def, GROUPED_IDS)
    (parser,) = (node for node in result.graph_def.node if node.op == PARSE_EXAMPLE)
    assert sorted(parser.attr["ragged_keys"].list.s) == [b"number", b"sparse"]
    assert sorted(parser.attr["ragged_buckets"].list.i) == [0, BUCKETS]
    assert [*parser.attr["dense_buckets"].list.i] == [BUCKETS]


def test_hashes_of_one_number_of_buckets_are_one():
    checked(graph_of(lambda dense: [fast(dense), fast(dense)], "dense"), 1)


STAY = {
    "two numbers of buckets": (lambda dense: [fast(dense), fast(dense, 9)], "dense"),
    "the strings are read": (lambda dense: [fast(dense), dense], "dense"),
    "other strings": (lambda dense: fast(tf.strings.upper(dense)), "dense"),
    "two strings in a row": (fast, "two"),
    "rows that are filled up": (fast, "padded"),
    "another hash": (
        lambda dense: tf.strings.to_hash_bucket_strong(dense, BUCKETS, [1, 2]),
        "dense",
    ),
    "the legacy hash": (
        lambda dense: raw.StringToHashBucket(string_tensor=dense, num_buckets=BUCKETS),
        "dense",
    ),
    "integers as text": (lambda number: fast(tf.strings.as_string(number.values)), "number"),
}


@pytest.mark.parametrize("why", STAY)
def test_others_stay(why):
    make, key = STAY[why]
    checked(graph_of(make, key), 0)


def test_a_hash_that_is_fetched_or_waited_for_stays():
    def make(dense, sparse):
        hashed = fast(dense, name="hashed")
        other = fast(sparse.values)
        with tf.control_dependencies([other]):
            return [hashed, tf.identity(sparse.indices), other]

    result = checked(graph_of(make, "dense", "sparse"), 0, ("out", "hashed"))
    assert count(result.graph_def, "StringToHashBucketFast") == 2


def test_a_parser_that_is_fetched_stays():
    before = graph_of(fast, "dense")
    name = next(node.name for node in before.node if node.op == "ParseExampleV2")
    checked(before, 0, ("out", name))


def test_a_hash_on_another_device_stays():
    def make(dense):
        with tf.device("/device:GPU:0"):
            return fast(dense)

    (parser,) = fused(graph_of(make, "dense")).report.parsers
    assert parser.hashed == 0


def test_reports_and_ranges():
    result = fused(graph_of(lambda dense, number: [fast(dense), number.values], "dense", "number"))
    (parser,) = result.report.parsers
    assert parser == ParserReport("p/p", "", 2, hashed=1)
    assert "fused  p/p (tf.Examples, 2 features, 1 hashed)" in str(result.report)
    view = GraphView.of_graph(result.graph_def)
    node = Node(view, "p/p")
    ranges = [range_of(node.output(index)) for index in range(3)]
    assert ranges == [Range(0, BUCKETS - 1), Range(), Range()]  # the number is ragged, as is read


def test_one_example_and_functions():
    spec = {"dense": FEATURES["dense"], "sparse": FEATURES["sparse"]}

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def one(serialized):
        parsed = tf.io.parse_single_example(serialized, spec)
        return fast(parsed["dense"]), fast(parsed["sparse"].values)

    expected = [one(text) for text in EXAMPLES]
    with fusion.fused():
        before = fusion.stats()
        again = tf.function(one.python_function, input_signature=one.input_signature)
        for text, wanted in zip(EXAMPLES, expected, strict=True):
            for tensor, other in zip(again(text), wanted, strict=True):
                np.testing.assert_array_equal(tensor, other)
    after = fusion.stats()
    assert after.ids_fused == before.ids_fused + 2
    assert after.last_report is not None
    assert [parser.hashed for parser in after.last_report.parsers] == [2]


def test_a_pipeline_of_data():
    spec = {"sparse": FEATURES["sparse"], "scalar": FEATURES["scalar"]}

    def parse(batch):
        parsed = tf.io.parse_example(batch, spec)
        return fast(parsed["sparse"].values), fast(parsed["scalar"])

    def batches():
        return [*tf.data.Dataset.from_tensor_slices(EXAMPLES).batch(8).map(parse)]

    expected = batches()
    with fusion.fused():
        found = batches()
    for one, other in zip(found, expected, strict=True):
        for tensor, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(tensor, wanted)


def test_errors_are_those_of_strings():
    before = graph_of(fast, "scalar")
    wrong = tf.train.Example()
    wrong.features.feature["scalar"].int64_list.value.append(5)
    for graph_def in (before, fused(before).graph_def):
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
            with v1.Session(graph=graph) as session:
                for text in (b"", wrong.SerializeToString()):
                    with pytest.raises(tf.errors.InvalidArgumentError, match="string"):
                        session.run("out:0", {"serialized:0": [text]})
