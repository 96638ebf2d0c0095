"""Vocabularies of functions, and of Sessions: one index for each, and where it is not known."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.kernel_names import plain_name
from fusion.schema.names import GROUPED_IDS
from tests.passes.vocabulary_graphs import (
    ALONE,
    CHANGES,
    KEYS,
    TEXTS,
    WORDS,
    VocabularyGraph,
    bucketed,
    fast,
    find,
    fused,
    long,
    looked_up,
    masked,
    raw,
    stays,
    v1,
    words,
)


@pytest.fixture
def graph():
    made = VocabularyGraph()
    with made.graph.as_default():
        yield made


def called(texts, *captured, jit=None):
    """Lookups in a function of the main graph, whose handles are its arguments."""

    @tf.function(autograph=False, jit_compile=jit)
    def lookup(texts, tables):
        return looked_up(*(find(one, texts, 3) for one in tables), fast(texts))

    return lookup(texts, captured)


def test_functions_that_are_given_tables(graph):
    tf.identity(called(graph.texts, words(), words("b")), name="out")
    graph.check(3, 2)


def test_a_function_that_is_called_with_two_tables_stays(graph):
    @tf.function(autograph=False)
    def lookup(texts, table):
        return looked_up(find(table, texts, 3), fast(texts), fast(texts))

    first = lookup(graph.texts, words())
    second = lookup(graph.texts, words("b", [b"zz"]))
    tf.concat([first, second], 1, name="out")
    graph.check(2, 0, CHANGES)


def test_a_function_that_is_called_with_two_defaults_stays(graph):
    @tf.function(autograph=False)
    def lookup(texts, table, default):
        return looked_up(find(table, texts, default), fast(texts), fast(texts))

    table = words()
    calls = [lookup(graph.texts, table, long(default)) for default in (3, 4)]
    tf.concat(calls, 1, name="out")
    graph.check(2, 0, CHANGES)


def test_a_function_that_is_called_twice_with_equal_defaults(graph):
    @tf.function(autograph=False)
    def lookup(texts, table, default):
        return looked_up(find(table, texts, default), fast(texts), fast(texts))

    table = words()
    tf.concat([lookup(graph.texts, table, long(3)) for _ in range(2)], 1, name="out")
    graph.check(3, 1)


def test_a_function_that_nothing_calls_has_arguments_of_unknown_origin(graph):
    tf.identity(called(graph.texts, words()), name="out")
    graph_def = graph.graph.as_graph_def()
    del graph_def.node[:]
    result = FuseLookups(frozenset()).apply(graph_def)
    assert not fused(result)
    assert stays(result) == {CHANGES, ALONE}


def test_what_xla_compiles_stays(graph):
    tf.identity(called(graph.texts, words(), words("b"), jit=True), name="out")
    result = graph.result()
    assert not fused(result)
    assert stays(result) == {"the function is compiled by XLA"}


def test_a_table_that_is_not_initialized_is_the_error_of_stock(graph):
    looked_up(find(words(), graph.texts, 3), fast(graph.texts))
    result = graph.result()
    expected = graph.run(graph.graph.as_graph_def())
    with tf.Graph().as_default() as other:
        tf.import_graph_def(result.graph_def, name="")
        with v1.Session(graph=other) as session:
            for _ in range(2):
                with pytest.raises(
                    tf.errors.FailedPreconditionError, match="Table not initialized"
                ):
                    session.run("out:0", graph.feeds)
            session.run(graph.initializers())
            for _ in range(2):
                np.testing.assert_array_equal(session.run("out:0", graph.feeds), expected[0])


def test_sessions_have_their_own_index(graph):
    """The same graph with tables of other keys, which are fed."""
    keys = v1.placeholder_with_default(tf.constant(KEYS), [4], name="keys")
    table = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="t")
    filled = raw.LookupTableImportV2(
        table_handle=table, keys=keys, values=tf.range(4, dtype=tf.int64)
    )
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, filled)
    looked_up(find(table, graph.texts, 9), fast(graph.texts))
    graph_def = graph.check(2, 1)
    for names_ in (KEYS, [b"a", b"zz", b"mask", b"q"]):
        results = []
        for one in (graph.graph.as_graph_def(), graph_def):
            with tf.Graph().as_default() as other:
                tf.import_graph_def(one, name="")
                with v1.Session(graph=other) as session:
                    session.run(graph.initializers(), {"keys:0": names_})
                    results.append(session.run("out:0", graph.feeds))
        np.testing.assert_array_equal(*results)


def test_twice_is_once(graph):
    looked_up(find(words(), graph.texts, 3), fast(graph.texts))
    result = graph.result()
    preserved = frozenset({"out", *graph.initializers()})
    again = FuseLookups(preserved).apply(result.graph_def)
    assert not again.modified
    assert (fused(again), stays(again)) == ([(2, 1)], set())
    assert again.report.ids[0].fused_before


def test_reports_have_vocabularies_and_why_others_stay(graph):
    tf.identity(find(words(), graph.texts, 3, "unread"), name="more")
    looked_up(find(words(), graph.texts, 3), fast(graph.texts))
    report = graph.result(("out", "more")).report
    assert "joined/ids (ids of 2 columns, 1 by vocabularies)" in str(report)
    why = "no fused lookup reads its ids"
    assert f"stock  unread (1 op that makes ids)\n         {why}" in str(report)
    one, other = report.to_dict()["ids"]
    assert (one["vocabularies"], one["fused"]) == (1, True)
    assert (other["reason"], other["node"], other["fused"]) == (why, "unread", False)


def test_sessions_under_enable_take_several_fetches_in_turn(graph):
    texts, table = graph.texts, words()
    first = find(table, texts, 3, "first")
    second = masked(texts, find(table, texts, 4), b"a", 2)
    third = bucketed(find(words("b", [b"zz"]), texts, 3), fast(texts), default=3)
    out = looked_up(first, second, third, fast(texts))
    fetches = [[out], [out, first], [out, second], [first], [out, third, second], [out]]

    def run(metadata=None):
        options = v1.RunOptions(output_partition_graphs=metadata is not None)
        with v1.Session() as session:
            session.run(graph.initializers())
            for one in fetches:
                yield session.run(one, {texts: TEXTS}, options, metadata)

    expected = [*run()]
    metadata = v1.RunMetadata()
    with fusion.fused():
        for one, other in zip(expected, run(metadata), strict=True):
            for array, of_stock in zip(other, one, strict=True):
                np.testing.assert_array_equal(array, of_stock)
    nodes = [node for part in metadata.partition_graphs for node in part.node]
    assert [plain_name(node.name) for node in nodes if node.op == GROUPED_IDS] == ["joined/ids"]


def test_fetches_that_leave_other_vocabularies_have_other_variables(graph):
    """Two columns of one table: what is fetched of the one leaves the other one to the op."""
    texts, table = graph.texts, words()
    first = find(table, texts, 3, "first")
    second = find(table, texts, 4, "second")
    out = looked_up(first, second, fast(texts))
    with v1.Session() as session:
        session.run(graph.initializers())
        expected = session.run(out, {texts: TEXTS})
        with fusion.fused(), v1.Session() as ours:
            ours.run(graph.initializers())
            for one in (first, second, first, second):
                rows, _ = ours.run([out, one], {texts: TEXTS})
                np.testing.assert_array_equal(rows, expected)


def test_functions_under_enable_have_handles_of_unknown_origin():
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(KEYS), tf.range(4, dtype=tf.int64)
    )
    table = tf.lookup.StaticHashTable(initializer, 9)

    def model(texts):
        return looked_up(table.lookup(texts), fast(texts), fast(texts, 7))

    texts = tf.constant(WORDS)
    expected = tf.function(model)(texts)
    with fusion.fused():
        np.testing.assert_array_equal(tf.function(model)(texts), expected)
    report = fusion.stats().last_report
    assert report is not None
    (one, other) = report.ids
    assert (one.columns, one.vocabularies, other.columns, other.reason) == (2, 0, 1, CHANGES)
