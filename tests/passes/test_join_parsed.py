"""Which dense features of Examples the parser writes side by side."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.names import PARSE_EXAMPLE
from tests.passes.test_hash_parsed import count

v1 = tf.compat.v1
raw = tf.raw_ops
FLOAT, INT, TEXT = tf.float32, tf.int64, tf.string
FEATURES = {
    "a": tf.io.FixedLenFeature([1], FLOAT),
    "b": tf.io.FixedLenFeature([3], FLOAT, [1.0, 2.0, 3.0]),
    "c": tf.io.FixedLenFeature([1], FLOAT, 0.5),
    "scalar": tf.io.FixedLenFeature([], FLOAT),
    "other": tf.io.FixedLenFeature([], FLOAT),
    "matrix": tf.io.FixedLenFeature([2, 2], FLOAT, [[1.0, 2.0], [3.0, 4.0]]),
    "padded": tf.io.FixedLenSequenceFeature([1], FLOAT, allow_missing=True),
    "id": tf.io.FixedLenFeature([1], INT, 7),
    "second": tf.io.FixedLenFeature([1], INT, 8),
    "word": tf.io.FixedLenFeature([1], TEXT, "none"),
    "text": tf.io.FixedLenFeature([1], TEXT, "other"),
    "bag": tf.io.VarLenFeature(INT),
    "ragged": tf.io.RaggedFeature(INT),
}


def example(number):
    made = tf.train.Example()
    feature = made.features.feature
    for k, key in enumerate(("a", "scalar", "other")):
        feature[key].float_list.value.append(number + 0.25 * k)
    if number % 2:
        feature["c"].float_list.value.append(-number)
        feature["second"].int64_list.value.append(number)
        feature["word"].bytes_list.value.append(b"w" * number)
    if number % 3:
        feature["b"].float_list.value.extend([number, 0, 1])
        feature["text"].bytes_list.value.append(b"%d" % number)
    feature["id"].int64_list.value.append(-number)
    feature["bag"].int64_list.value.extend(range(number % 4))
    feature["ragged"].int64_list.value.extend(range(number % 5))
    return made.SerializeToString()


EXAMPLES = [example(number) for number in range(30)]


def graph_of(make, *keys, fetches=("out",)):
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], name="serialized")
        parsed = tf.io.parse_example(serialized, {key: FEATURES[key] for key in keys}, name="p")
        results = make(*(parsed[key] for key in keys))
        for name, result in zip(fetches, results if len(fetches) > 1 else [results], strict=True):
            tf.identity(result, name=name)
        return graph.as_graph_def()


def run(graph_def, fetches, examples):
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with v1.Session(graph=graph) as session:
            return session.run([f"{name}:0" for name in fetches], {"serialized:0": examples})


def checked(before, joined, fetches=("out",)):
    """Rewrites; so many features share outputs, and results are equal, the way back's too."""
    result = FuseLookups(frozenset(fetches)).apply(before)
    (parser,) = (node for node in result.graph_def.node if node.op == PARSE_EXAMPLE)
    numbers = [*parser.attr["dense_outputs"].list.i]
    assert sum(numbers.count(number) > 1 for number in numbers) == joined
    stock = LowerLookups(frozenset(fetches)).apply(result.graph_def)
    assert not count(stock.graph_def, PARSE_EXAMPLE)
    for examples in (EXAMPLES, EXAMPLES[:1], []):
        expected = run(before, fetches, examples)
        for graph_def in (result.graph_def, stock.graph_def):
            for one, other in zip(run(graph_def, fetches, examples), expected, strict=True):
                np.testing.assert_array_equal(one, other)
    again = FuseLookups(frozenset(fetches)).apply(result.graph_def)
    assert not again.modified
    return result.graph_def


def join(*features):
    return tf.concat(features, 1)


def test_what_one_concat_joins_in_any_order():
    after = checked(graph_of(lambda a, b, c: join(c, b, a), "a", "b", "c"), 3)
    assert not count(after, "ConcatV2")


def test_numbers_of_a_stack():
    after = checked(graph_of(lambda one, two: tf.stack([two, one], 1), "scalar", "other"), 2)
    assert not count(after, "Pack")


def test_what_stands_side_by_side_in_a_longer_concat():
    def make(a, b, c, scalar):
        return join(tf.abs(c), a, b, scalar[:, None], tf.square(a), c + 1)

    checked(graph_of(make, "a", "b", "c", "scalar"), 0)  # one is read twice
    after = checked(
        graph_of(lambda a, b, c, s: join(s[:, None], b, a, c + 1), "a", "b", "c", "scalar"), 2
    )
    (concat,) = (node for node in after.node if node.op == "ConcatV2")
    assert concat.attr["N"].i == 3


def test_beside_lists_and_lookups():
    def make(a, b, bag, ragged):
        table = tf.random.stateless_normal([50, 4], [1, 2])
        rows = tf.nn.safe_embedding_lookup_sparse(table, bag)
        others = tf.cast(tf.RaggedTensor.to_tensor(ragged, shape=[None, 5]), tf.float32)
        return join(rows, a, b, others)

    after = checked(graph_of(make, "a", "b", "bag", "ragged"), 2)
    assert not count(after, "SparseSegmentMean")


def test_numbers_beside_lookups_are_one_column_to_copy():
    def make(a, b, c, bag):
        tables = [tf.random.stateless_normal([50, 4], [k, 2]) for k in range(2)]
        rows = [tf.nn.safe_embedding_lookup_sparse(table, bag) for table in tables]
        return join(*rows, a, b, c)

    after = checked(graph_of(make, "a", "b", "c", "bag"), 3)
    (lookup,) = (node for node in after.node if node.op == "GroupedEmbeddingLookup")
    assert [*lookup.attr["forms"].list.s].count(b"copy") == 1


def test_integers_and_hashes():
    def make(id_, second, word, text):
        hashed = (tf.strings.to_hash_bucket_fast(one, 9) for one in (word, text))
        return join(id_, *hashed, second)

    after = checked(graph_of(make, "id", "second", "word", "text"), 4)
    assert not count(after, "ConcatV2")
    assert not count(after, "StringToHashBucketFast")


def test_twins_of_a_hash():
    """Layers of equal bins write such: one of both is joined, and what the other reads stays."""

    def make(word, id_):
        one, other = (tf.strings.to_hash_bucket_fast(word, 9) for _ in range(2))
        return [join(one, id_), tf.abs(other)]

    checked(graph_of(make, "word", "id", fetches=("one", "other")), 0, ("one", "other"))


def test_runs_of_two_parsers_in_a_concat():
    with tf.Graph().as_default() as graph:
        serialized = v1.placeholder(tf.string, [None], name="serialized")
        spec = {key: FEATURES[key] for key in ("a", "b", "c")}
        rows = []
        for texts in (serialized, tf.reverse(serialized, [0])):
            parsed = tf.io.parse_example(texts, spec)
            rows += [parsed["a"], parsed["b"], tf.abs(parsed["c"])]
        tf.concat([*rows[:2], *rows[3:5], rows[5], rows[2]], 1, name="out")
    before = graph.as_graph_def()
    after = FuseLookups(frozenset({"out"})).apply(before).graph_def
    (concat,) = (node for node in after.node if node.op == "ConcatV2")
    assert concat.attr["N"].i == 4
    np.testing.assert_array_equal(*(run(one, ["out"], EXAMPLES)[0] for one in (before, after)))


STAY = {
    "read elsewhere": (lambda a, b: [join(a, b), tf.reduce_sum(a)], ("a", "b"), 2),
    "one alone": (lambda a, id_: [join(a, tf.cast(id_, FLOAT))], ("a", "id"), 1),
    "another axis": (lambda a, c: [tf.concat([a, c], 0)], ("a", "c"), 1),
    "the same twice": (lambda a, c: [join(a, a), c], ("a", "c"), 2),
    "rows of matrices": (lambda m, b: [tf.concat([m, m], 1), b], ("matrix", "b"), 2),
    "rows that are filled up": (lambda p, a: [join(p[:, :, 0], a)], ("padded", "a"), 1),
    "numbers on another axis": (lambda s, o: [tf.stack([s, o], 0)], ("scalar", "other"), 1),
}


@pytest.mark.parametrize("why", STAY)
def test_others_stay(why):
    make, keys, results = STAY[why]
    fetches = tuple(f"out{k}" for k in range(results)) if results > 1 else ("out",)
    before = graph_of(
        lambda *parsed: make(*parsed) if results > 1 else make(*parsed)[0], *keys, fetches=fetches
    )
    checked(before, 0, fetches)


def test_a_concat_that_is_fetched_or_waits_stays():
    def make(a, c):
        with tf.control_dependencies([tf.print("effect", output_stream="file:///dev/null")]):
            return tf.concat([a, c], 1, name="joined")

    checked(graph_of(make, "a", "c"), 0)
    before = graph_of(lambda a, c: tf.concat([a, c], 1, name="joined"), "a", "c")
    checked(before, 0, ("out", "joined"))


def test_a_concat_on_another_device_stays():
    def make(a, c):
        with tf.device("/device:GPU:0"):
            return tf.concat([a, c], 1)

    result = FuseLookups(frozenset({"out"})).apply(graph_of(make, "a", "c"))
    assert count(result.graph_def, "ConcatV2") == 1


def test_shapes_are_known():
    after = checked(graph_of(lambda a, b: tf.nn.relu(join(b, a)), "a", "b"), 2)
    (relu,) = (node.name for node in after.node if node.op == "Relu")
    view = GraphView.of_graph(after)
    assert Node(view, relu).input(0).shape == (None, 4)


def test_errors_name_what_stock_names():
    before = graph_of(lambda a, s, o: join(o[:, None], a, s[:, None]), "a", "scalar", "other")
    after = FuseLookups(frozenset({"out"})).apply(before).graph_def
    texts = []
    for graph_def in (before, after):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            run(graph_def, ["out"], [b""])
        texts.append(error.value.message.splitlines()[0])
    assert texts[0] == texts[1]


def test_functions_pipelines_and_one_example():
    spec = {key: FEATURES[key] for key in ("a", "b", "c")}

    def parse(batch):
        return join(*tf.io.parse_example(batch, spec).values())

    @tf.function(input_signature=[tf.TensorSpec([], TEXT)])
    def one(serialized):
        return tf.concat([*tf.io.parse_single_example(serialized, spec).values()], 0)

    def batches():
        return [*tf.data.Dataset.from_tensor_slices(EXAMPLES).batch(7).map(parse)]

    expected, alone = batches(), one(EXAMPLES[3])
    with fusion.fused():
        found = batches()
        again = tf.function(one.python_function, input_signature=one.input_signature)(EXAMPLES[3])
    np.testing.assert_array_equal(again, alone)
    for batch, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(batch, other)
