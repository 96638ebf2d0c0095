"""Which hashes of ids become one op, and which stay."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.names import GROUPED_IDS
from tests.passes.id_graphs import (
    BUCKETS,
    NUMBERS,
    TEXTS,
    IdGraph,
    fast,
    looked_up,
    ops_of,
    stays,
    table,
    text,
)
from tests.passes.rewritten_graphs import plainly_named

v1 = tf.compat.v1
raw = tf.raw_ops


def bags_of(ids):
    """Means of bags of two, named "out"."""
    places = tf.constant([[0, 0], [0, 1], [1, 0], [1, 1]], tf.int64)
    sparse = tf.SparseTensor(places, ids, [2, 2])
    rows = tf.nn.safe_embedding_lookup_sparse(table(0), sparse, combiner="mean")
    return tf.identity(rows, name="out")


@pytest.fixture
def graph():
    made = IdGraph()
    with made.graph.as_default():
        yield made


def test_texts_and_numbers_of_one_lookup_are_one_op(graph):
    legacy = raw.StringToHashBucket(string_tensor=graph.texts, num_buckets=BUCKETS)
    strong = tf.strings.to_hash_bucket_strong(graph.texts, BUCKETS, [1, 2])
    looked_up([fast(graph.texts), fast(text(graph.numbers)), legacy, strong])
    hashes, graph_def = graph.check()
    assert [(one.columns, one.fused_before) for one in hashes] == [(4, False)]
    ops = ops_of(graph_def)
    assert ops.count(GROUPED_IDS) == 1
    assert not {"AsString", "StringToHashBucketFast", "StringToHashBucket"} & {*ops}
    (node,) = (node for node in graph_def.node if node.op == GROUPED_IDS)
    assert node.attr["keys"].list.i[-2:] == [1, 2]
    assert "joined/ids (ids of 4 columns)" in str(graph.result().report)


def test_one_number_alone_gains_and_one_text_does_not(graph):
    bags_of(fast(text(graph.numbers)))
    hashes, graph_def = graph.check()
    assert [one.columns for one in hashes] == [1]
    assert "AsString" not in ops_of(graph_def)
    other = IdGraph()
    with other.graph.as_default():
        bags_of(fast(other.texts))
    hashes, graph_def = other.check("one op for the ids of one column gains nothing")
    assert not hashes
    assert "StringToHashBucketFast" in ops_of(graph_def)


@pytest.mark.parametrize(
    "attrs", [{"width": 5}, {"width": 5, "fill": "0"}, {"precision": 3}, {"scientific": True}]
)
def test_other_texts_of_numbers_are_written_by_stock(graph, attrs):
    values = graph.numbers
    if attrs.keys() & {"precision", "scientific"}:
        values = tf.cast(values, tf.float32)  # stock has them of floats alone
    looked_up([fast(text(values, **attrs)), fast(graph.texts)])
    hashes, graph_def = graph.check()
    assert [one.columns for one in hashes] == [2]
    assert "AsString" in ops_of(graph_def)


def test_a_hash_that_is_fetched_or_waited_for_stays(graph):
    first, second = fast(graph.texts, "first"), fast(text(graph.numbers))
    with tf.control_dependencies([second]):
        tf.identity(graph.texts, name="after")
    looked_up([first, second, fast(graph.texts), fast(text(graph.numbers))])
    hashes, graph_def = graph.check(
        "its ids are fetched",
        "there is a control dependency",
        preserve=("out", "first", "after"),
        fetches=("out:0", "first:0"),
    )
    assert [one.columns for one in hashes] == [2]
    assert ops_of(graph_def).count("StringToHashBucketFast") == 2


def test_a_mask_behind_a_hash_stays_and_the_hash_is_taken(graph):
    """As Keras's Hashing has it: bucket 0 is that of the mask."""
    one = tf.constant(1, tf.int64)
    texts = tf.where(tf.equal(graph.texts, b"a"), 0 * one, fast(graph.texts) + one)
    hashed = tf.math.minimum(fast(text(graph.numbers)) + one, BUCKETS - 1)
    numbers = tf.where(tf.equal(graph.numbers, 5), tf.zeros_like(hashed), hashed)
    looked_up([tf.math.minimum(texts, BUCKETS - 1), numbers])
    hashes, graph_def = graph.check()
    assert [one.columns for one in hashes] == [2]
    assert ops_of(graph_def).count("SelectV2") == 2
    assert "AsString" not in ops_of(graph_def)


def test_other_consumers_read_the_new_op(graph):
    ids = fast(text(graph.numbers))
    more = tf.add(ids, 1)
    out = looked_up([ids, fast(graph.texts)])
    raw.IdentityN(input=[out, more], name="all")
    hashes, _ = graph.check(preserve=("all",), fetches=("all:0", "all:1"))
    assert [one.columns for one in hashes] == [2]


def test_a_hash_that_another_result_needs_stays(graph):
    """As of another signature, which need not have what the other hashes are of."""
    ids = fast(text(graph.numbers))
    tf.add(ids, 1, name="more")
    looked_up([ids, fast(graph.texts), fast(tf.strings.upper(graph.texts))])
    reason = "another result needs its ids, and not the lookup"
    hashes, graph_def = graph.check(reason, preserve=("out", "more"), fetches=("out:0", "more:0"))
    assert [one.columns for one in hashes] == [2]
    alone = graph_pb2.GraphDef()
    alone.CopyFrom(graph_def)
    with tf.Graph().as_default() as other:
        tf.import_graph_def(alone, name="")
        with v1.Session(graph=other) as session:  # without the texts
            session.run("more:0", {"numbers:0": NUMBERS})


def test_ops_of_two_lookups_that_would_wait_for_each_other(graph):
    numbers, other = graph.numbers, tf.reverse(graph.numbers, [0])
    first, second = fast(text(numbers)), fast(text(other))
    third, fourth = fast(text(first)), fast(text(second))
    one = tf.nn.safe_embedding_lookup_sparse
    places = tf.constant([[0, 0], [0, 1], [1, 0], [1, 1]], tf.int64)

    def bags(*columns):
        rows = [
            one(table(k), tf.SparseTensor(places, ids, [2, 2])) for k, ids in enumerate(columns)
        ]
        return tf.concat(rows, 1)

    tf.concat([bags(first, fourth), tf.abs(bags(third, second))], 0, name="out")
    hashes, graph_def = graph.check("ops for the ids of several lookups would wait for each other")
    assert not hashes
    assert ops_of(graph_def).count("StringToHashBucketFast") == 4


def test_hashes_that_others_are_made_of_stay_apart(graph):
    first = fast(text(graph.numbers))
    second = fast(tf.strings.join([text(first), graph.texts]))
    looked_up([first, second, fast(graph.texts)])
    hashes, graph_def = graph.check("other ids of the lookup are computed from its ids")
    assert [one.columns for one in hashes] == [2]
    assert "StringToHashBucketFast" in ops_of(graph_def)


def test_a_hash_without_a_lookup_stays(graph):
    tf.identity(fast(text(graph.numbers)), name="out")
    hashes, graph_def = graph.check("no fused lookup reads its ids")
    assert not hashes
    assert GROUPED_IDS not in ops_of(graph_def)


def test_devices_and_tasks_are_kept(graph):
    with tf.device("/device:GPU:0"):
        other = fast(graph.texts)
    looked_up([other, fast(graph.texts), fast(text(graph.numbers))])
    report = graph.result().report
    assert [one.columns for one in report.ids if one.fused] == [2]
    assert stays(report) == {"placed on /device:GPU:0; the fused ops run on CPU"}


def test_twice_is_once_and_back_are_stock_ops(graph):
    looked_up([fast(graph.texts), fast(text(graph.numbers))])
    before = graph.graph.as_graph_def()
    once = graph.result().graph_def
    again = FuseLookups(frozenset({"out"})).apply(once)
    assert not again.modified
    assert [one.fused_before for one in again.report.ids] == [True]
    stock = LowerLookups(frozenset({"out"})).apply(once).graph_def
    assert not {op for op in ops_of(stock) if op.startswith(("Grouped", "Fused"))}
    np.testing.assert_array_equal(graph.run(before), graph.run(stock))


def test_functions_and_enable():
    def model(texts, numbers):
        return looked_up([fast(texts), fast(text(numbers))])

    arguments = tf.constant(TEXTS), tf.constant(NUMBERS)
    expected = tf.function(model)(*arguments)
    with fusion.fused():
        np.testing.assert_array_equal(tf.function(model)(*arguments), expected)
    report = fusion.stats().last_report
    assert report is not None
    assert [one.columns for one in report.ids] == [2]
    assert report.to_dict()["ids"][0]["columns"] == 2


def test_names_have_no_digests(graph):
    looked_up([fast(graph.texts), fast(text(graph.numbers))])
    result = graph.result()
    assert plainly_named(result.graph_def) is not None
    assert [one.name for one in result.report.ids] == ["joined/ids"]
