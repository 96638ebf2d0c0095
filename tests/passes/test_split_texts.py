"""Which texts are split by the op that makes ids of their parts, and which are split before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.names import GROUPED_IDS, GROUPED_SPLIT, VOCABULARY_INDEX
from tests.passes.id_graphs import LABELS, TAGS, IdGraph, fast, ops_of, stays, table
from tests.passes.rewritten_graphs import plainly_named

v1 = tf.compat.v1
raw = tf.raw_ops
SPLITS = {"StringSplit", "StringSplitV2"}


def sparse(texts, make=fast, split=v1.string_split, delimiter="|"):
    """Ids of parts, a SparseTensor."""
    parts = split(texts, delimiter)
    return tf.SparseTensor(parts.indices, make(parts.values), parts.dense_shape)


def bags(columns, lookup=tf.nn.safe_embedding_lookup_sparse):
    """Means of columns side by side, named "out"."""
    rows = [lookup(table(k), ids, None, combiner="mean") for k, ids in enumerate(columns)]
    return tf.identity(tf.concat(rows, 1, name="joined"), name="out")


def ragged(texts):
    return fast(tf.strings.split(texts, "|"))


@pytest.fixture
def graph():
    made = IdGraph()
    with made.graph.as_default():
        yield made


def nodes(graph_def, op=GROUPED_SPLIT):
    return [node for node in graph_def.node if node.op == op]


def forms(graph_def):
    (node,) = nodes(graph_def)
    return [form.decode() for form in node.attr["forms"].list.s]


@pytest.mark.parametrize("split", [v1.string_split, v1.strings.split])
def test_parts_have_row_splits_where_lookups_can_read_them(graph, split):
    bags([sparse(graph.tags, split=split), sparse(graph.labels, split=split)])
    ids, graph_def = graph.check()
    assert [(one.columns, one.split, one.vocabularies) for one in ids] == [(2, True, 0)]
    assert not SPLITS & {*ops_of(graph_def)}
    assert "StringToHashBucketFast" not in ops_of(graph_def)
    assert forms(graph_def) == ["row_splits"] * 2
    assert "joined/parts (parts of texts, ids of 2 columns)" in str(graph.result().report)


@pytest.mark.parametrize("skip_empty", [True, False])
def test_empty_parts(graph, skip_empty):
    def split(texts, delimiter):
        return v1.string_split(texts, delimiter, skip_empty)

    bags([sparse(graph.tags, split=split)])
    ids, graph_def = graph.check()
    assert [one.columns for one in ids] == [1]  # one alone gains: no string is made
    (node,) = nodes(graph_def)
    assert node.attr["parts"].list.s[0] == (b"nonempty" if skip_empty else b"of_texts")


def test_rows_that_end_with_the_last_entry_have_indices(graph):
    # An empty text has no row at the end.
    tags, labels = (tf.strings.join([one, "|b"]) for one in (graph.tags, graph.labels))
    bags([sparse(tags), sparse(labels)], tf.nn.embedding_lookup_sparse)
    _, graph_def = graph.check()
    assert forms(graph_def) == ["indices"] * 2


def test_ragged_parts(graph):
    lookups = tf.nn.embedding_lookup_sparse, tf.nn.safe_embedding_lookup_sparse
    rows = [
        lookups[0](table(0), ragged(graph.tags), None, combiner="sum"),
        lookups[1](table(1), ragged(graph.labels).to_sparse(), None, combiner="sum"),
    ]
    tf.concat([tf.pad(rows[0], [[0, 4 - tf.shape(rows[0])[0]], [0, 0]]), rows[1]], 1, name="out")
    ids, graph_def = graph.check()
    assert sum(one.columns for one in ids) == 2
    assert not SPLITS & {*ops_of(graph_def)}


@pytest.mark.parametrize("is_late", [True, False])
def test_ragged_parts_that_become_sparse_have_the_indices_of_the_split(graph, is_late):
    def ids(texts):
        parts = tf.strings.split(tf.strings.lower(texts), "|")
        if is_late:
            parts = parts.to_sparse()
            return parts.with_values(fast(parts.values))
        return fast(parts).to_sparse()

    bags([ids(graph.tags), ids(graph.labels)])
    found, graph_def = graph.check()
    assert [(one.columns, one.split) for one in found] == [(2, True)]
    assert forms(graph_def) == ["row_splits"] * 2
    assert not {"RaggedTensorToSparse", "Cumsum", "DenseBincount"} & {*ops_of(graph_def)}
    stock = LowerLookups(frozenset({"out"})).apply(graph.graph.as_graph_def()).graph_def
    assert "RaggedTensorToSparse" not in ops_of(stock)
    np.testing.assert_array_equal(graph.run(stock), graph.run(graph_def))


def test_other_ragged_values_that_become_sparse_have_their_own_indices(graph):
    parts = tf.strings.split(graph.labels, "|")
    others = tf.strings.split(graph.tags, "|")
    turned = tf.RaggedTensor.from_row_splits(tf.reverse(parts.values, [0]), parts.row_splits)
    # Splits of the one and values of the other.
    mixed = tf.RaggedTensor.from_row_splits(
        parts.values[: tf.size(others.values)], others.row_splits, validate=False
    )
    bags([fast(one).to_sparse() for one in (turned, mixed)])
    ids, graph_def = graph.check(*stays(graph.result().report))
    assert not [one for one in ids if one.split]
    assert ops_of(graph_def).count("RaggedTensorToSparse") == 2


def test_values_that_are_more_than_the_parts_have_their_own_indices(graph):
    """Each key of a table may have two numbers, and a condition may be a column."""
    keys = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=[1, 2])
    with tf.control_dependencies(
        [keys.insert(tf.constant(["a"]), tf.constant([[5, 6]], tf.int64))]
    ):
        tags = tf.identity(graph.tags)
    parts = tf.strings.split(tags, "|")
    pairs = parts.with_flat_values(keys.lookup(parts.flat_values)).to_sparse()
    hashes = fast(parts.flat_values)
    column = tf.ones([tf.size(hashes), 1], tf.bool)
    square = parts.with_flat_values(tf.where(column, tf.zeros([], tf.int64), hashes)).to_sparse()
    rows = [tf.gather(table(0), one.values) for one in (pairs, square)]
    results = [*rows, pairs.indices, pairs.dense_shape, square.indices, square.dense_shape]
    raw.IdentityN(input=results, name="all")
    fetches = [f"all:{k}" for k in range(len(results))]
    _, graph_def = graph.check(
        *stays(graph.result(("all",)).report), preserve=("all",), fetches=fetches
    )
    assert ops_of(graph_def).count("RaggedTensorToSparse") == 2


def test_graphs_without_lookups_stay_as_they_are(graph):
    tf.identity(tf.strings.split(graph.tags, "|").to_sparse().indices, name="out")
    assert not graph.result().modified


def test_indices_that_others_read_stay(graph):
    ids = sparse(graph.tags)
    bags([ids, sparse(graph.labels)])
    total = tf.reduce_sum(ids.indices, 0)
    raw.IdentityN(input=[graph.graph.get_tensor_by_name("out:0"), total], name="all")
    found, graph_def = graph.check(preserve=("all",), fetches=("all:0", "all:1"))
    assert [one.columns for one in found] == [2]
    assert sorted(forms(graph_def)) == ["indices", "row_splits"]


def test_parts_beside_whole_values(graph):
    whole = tf.sparse.from_dense(tf.expand_dims(fast(tf.strings.as_string(graph.numbers)) + 1, 1))
    bags([sparse(graph.tags), whole, sparse(graph.labels, split=v1.strings.split)])
    ids, graph_def = graph.check(*stays(graph.result().report))
    assert [(one.columns, one.split) for one in ids if one.split] == [(2, True)]
    assert not SPLITS & {*ops_of(graph_def)}


REASONS: dict[str, tuple[str, dict[str, Any]]] = {
    "white space": ("texts are split at white space, or into bytes", {"delimiter": ""}),
    "a set": ("there are several delimiters", {"delimiter": "|,"}),
    "a limit": (
        "texts are split a limited number of times",
        {"split": lambda texts, sep: v1.strings.split(texts, sep, maxsplit=1)},
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_the_op_does_not_do_is_done_before(graph, name):
    reason, options = REASONS[name]
    bags([sparse(graph.tags, **options), sparse(graph.labels)])
    # The hash alone gains nothing.
    ids, graph_def = graph.check(reason, "one op for the ids of one column gains nothing")
    assert [(one.columns, one.split) for one in ids] == [(1, True)]
    assert SPLITS & {*ops_of(graph_def)}


def test_a_delimiter_that_is_fed_stays(graph):
    delimiter = v1.placeholder_with_default(tf.constant("|"), [], name="delimiter")
    bags([sparse(graph.tags, delimiter=delimiter), sparse(graph.labels)])
    alone = "one op for the ids of one column gains nothing"
    graph.check("the delimiter is no constant", alone)


def test_parts_that_are_read_elsewhere_are_made(graph):
    parts = v1.string_split(graph.tags, "|")
    lengths = tf.strings.length(parts.values)
    out = bags([tf.SparseTensor(parts.indices, fast(parts.values), parts.dense_shape)])
    raw.IdentityN(input=[out, lengths], name="all")
    alone = "one op for the ids of one column gains nothing"
    reasons = "they are read elsewhere as well", alone
    ids, _ = graph.check(*reasons, preserve=("all",), fetches=("all:0", "all:1"))
    assert not ids


def test_two_hashes_of_the_same_parts_are_of_strings(graph):
    parts = v1.string_split(graph.tags, "|")
    other = tf.strings.to_hash_bucket_fast(parts.values, 7)
    bags(
        [
            tf.SparseTensor(parts.indices, one, parts.dense_shape)
            for one in (fast(parts.values), other)
        ]
    )
    ids, graph_def = graph.check("they are read elsewhere as well")
    assert [(one.columns, one.split) for one in ids] == [(2, False)]
    assert nodes(graph_def, GROUPED_IDS)
    assert sum(one.split for one in graph.result().report.ids) == 1


def test_parts_that_are_fetched_or_waited_for_are_made(graph):
    first, second = (v1.string_split(one, "|") for one in (graph.tags, graph.labels))
    with tf.control_dependencies([second.values]):
        tf.identity(graph.texts, name="after")
    tf.identity(first.values, name="parts")
    split = first.values.op.name
    bags(
        [tf.SparseTensor(one.indices, fast(one.values), one.dense_shape) for one in (first, second)]
    )
    ids, _ = graph.check(
        "they are fetched",
        "there is a control dependency",
        preserve=("out", "after", split),
        fetches=("out:0", f"{split}:1"),
    )
    assert [(one.columns, one.split) for one in ids] == [(2, False)]


def test_what_another_result_needs_is_split_before(graph):
    """As of another signature, which need not have the other texts."""
    ids = sparse(graph.tags)
    tf.reduce_sum(ids.indices, 0, name="total")
    bags([ids, sparse(graph.labels)])
    reason = "another result needs its ids, and not the lookup"
    alone = "one op for the ids of one column gains nothing"
    found, graph_def = graph.check(
        reason, alone, preserve=("out", "total"), fetches=("out:0", "total:0")
    )
    assert [one.columns for one in found] == [1]
    with tf.Graph().as_default() as other:
        tf.import_graph_def(graph_def, name="")
        with v1.Session(graph=other) as session:  # without the other texts
            session.run("total:0", {"tags:0": TAGS})


def test_ids_of_which_texts_are_made_do_not_wait_for_themselves(graph):
    first = v1.string_split(graph.tags, "|")
    ids = tf.SparseTensor(first.indices, fast(first.values), first.dense_shape)
    # What the second texts are made of is how many parts the first ones have.
    texts = tf.strings.as_string(tf.tile([first.dense_shape[1]], [4]))
    bags([ids, sparse(tf.strings.join([texts, graph.labels], "|"))])
    found, graph_def = graph.check(
        "other ids of the lookup are computed from them",
        "one op for the ids of one column gains nothing",
    )
    assert [(one.columns, one.split) for one in found] == [(1, True)]
    again = FuseLookups(frozenset({"out"})).apply(graph_def)
    assert not again.modified
    assert "one op makes other ids of the lookup already" in stays(again.report)


def static_table(words):
    pairs = tf.constant(words), tf.range(len(words), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(*pairs), 9)


def test_vocabularies_of_parts(graph):
    tables = [static_table(["a", "bb", ""]), static_table(["x", "a text of more than 16 bytes"])]
    bags(
        [
            sparse(graph.tags, tables[0].lookup, v1.strings.split),
            sparse(graph.labels, tables[1].lookup),
        ]
    )
    v1.tables_initializer(name="init")
    before = graph.graph.as_graph_def()
    result = graph.result(("out", "init"))
    assert [(one.columns, one.vocabularies, one.split) for one in result.report.ids] == [
        (2, 2, True)
    ]
    assert not SPLITS & {*ops_of(result.graph_def)}
    assert nodes(result.graph_def, VOCABULARY_INDEX)
    stock = LowerLookups(frozenset({"out", "init"})).apply(result.graph_def).graph_def
    assert not {op for op in ops_of(stock) if op.startswith(("Grouped", "Vocabulary", "Fused"))}
    feeds = {"tags:0": TAGS, "labels:0": LABELS}
    found = []
    for one in (before, result.graph_def, stock):
        with tf.Graph().as_default() as other:
            tf.import_graph_def(one, name="")
            with v1.Session(graph=other) as session:
                session.run("init")
                found += [session.run("out:0", feeds) for _ in range(2)][-1:]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_twice_is_once_and_back_are_stock_ops(graph):
    bags([sparse(graph.tags), sparse(graph.labels, split=v1.strings.split)])
    before = graph.graph.as_graph_def()
    once = graph.result().graph_def
    again = FuseLookups(frozenset({"out"})).apply(once)
    assert not again.modified
    assert [(one.fused_before, one.split) for one in again.report.ids] == [(True, True)]
    stock = LowerLookups(frozenset({"out"})).apply(once).graph_def
    assert not {op for op in ops_of(stock) if op.startswith(("Grouped", "Fused"))}
    assert ops_of(stock).count("StringSplitV2") == 1
    np.testing.assert_array_equal(graph.run(before), graph.run(stock))


def test_functions_and_enable():
    tables = [tf.Variable(table(k)) for k in range(2)]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    def call(*texts):
        rows = [
            tf.nn.safe_embedding_lookup_sparse(one, sparse(text), combiner="mean")
            for one, text in zip(tables, texts, strict=True)
        ]
        return tf.concat(rows, 1)

    inputs = tf.constant(TAGS.tolist()), tf.constant(LABELS.tolist())
    expected = call(*inputs).numpy()
    with fusion.fused():
        found = tf.function(call.python_function)(*inputs)
    np.testing.assert_array_equal(found, expected)
    report = fusion.stats().last_report
    assert report is not None
    assert [(one.columns, one.split) for one in report.ids] == [(2, True)]
    assert report.to_dict()["ids"][0]["split"]


def test_names_of_graphs_under_enable_are_plain(graph):
    bags([sparse(graph.tags), sparse(graph.labels)])
    result = graph.result()
    (node,) = nodes(plainly_named(result.graph_def))
    assert [one.name for one in result.report.ids] == [node.name] == ["joined/parts"]


def test_no_texts_and_one(graph):
    bags([sparse(graph.tags), sparse(graph.labels)])
    before, after = graph.graph.as_graph_def(), graph.result().graph_def
    for texts in ([], [b""], [b"a|b"]):
        feeds = {"tags:0": np.array(texts, object), "labels:0": np.array(texts, object)}
        found = []
        for one in (before, after):
            with tf.Graph().as_default() as other:
                tf.import_graph_def(one, name="")
                with v1.Session(graph=other) as session:
                    found.append(session.run("out:0", feeds))
        np.testing.assert_array_equal(*found)
