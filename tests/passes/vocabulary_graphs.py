"""Graphs of lookups whose ids come from vocabularies."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from fusion.passes.fuse_lookups import FuseLookups
from fusion.schema.names import VOCABULARY_INDEX

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, DIM = 60, 4
WORDS = [b"a", b"bb", b"", b"c" * 30, b"zz", b"a", b"mask"]
KEYS = [b"bb", b"a", b"c" * 30, b"d"]
TEXTS = np.array(WORDS, object)
NUMBERS = np.array([5, 7, 12, -3, 0, 9, 2**40])
NUMBER_KEYS = [7, 5, -3]
DEFAULT = -1

ALONE = "one op for the ids of one column gains nothing"
CHANGES = "its table may change, or may not be the same in all calls"
FETCHED = "its ids are fetched"
INSIDE = "what is looked up is read elsewhere as well"
NO_OP = "there is no fused op for what it does"
OTHER_OPS = "other ops are between its ids and the fused lookup"


def static(keys, values, name, dtype=None):
    """A static table's handle; what initializes it is in the collection of table initializers."""
    keys = tf.constant(keys, dtype)
    values = values if isinstance(values, tf.Tensor) else tf.constant([*values], tf.int64)
    table = raw.HashTableV2(key_dtype=keys.dtype, value_dtype=values.dtype, shared_name=name)
    filled = raw.LookupTableImportV2(table_handle=table, keys=keys, values=values)
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, filled)
    return table


def words(name="words", keys=KEYS):
    return static(keys, range(20, 20 + len(keys)), name)


def numbers(name="numbers"):
    return static(NUMBER_KEYS, range(30, 30 + len(NUMBER_KEYS)), name, tf.int64)


def find(table, values, default=DEFAULT, name=None):
    return raw.LookupTableFindV2(
        table_handle=table,
        keys=values,
        default_value=tf.cast(default, tf.int64) if tf.is_tensor(default) else long(default),
        name=name,
    )


def long(number):
    return tf.constant(number, tf.int64)


def select(test, one, other):
    return raw.SelectV2(condition=test, t=one, e=other)


def masked(values, ids, mask, value=0):
    return select(tf.equal(values, mask), long(value), ids)


def bucketed(ids, bucket, start=40, default=DEFAULT):
    return select(tf.equal(ids, long(default)), bucket + long(start), ids)


def fast(values, buckets=5):
    return tf.strings.to_hash_bucket_fast(values, buckets)


def text(values):
    return raw.AsString(input=values)


def looked_up(*columns):
    """A concat of gathers of the ids, named "out"."""
    rows = []
    for k, ids in enumerate(columns):
        table = np.random.default_rng(k).normal(size=[ROWS, DIM]).astype(np.float32)
        rows.append(tf.gather(tf.constant(table), ids))
    return tf.identity(tf.concat(rows, 1, name="joined"), name="out")


class VocabularyGraph:
    """A graph of lookups of ids.

    Attributes:
        texts, numbers: its inputs.
        feeds: what they are fed with.
    """

    def __init__(self):
        self.graph = tf.Graph()
        self.feeds = {"texts:0": TEXTS, "numbers:0": NUMBERS}
        with self.graph.as_default():
            self.texts = v1.placeholder(tf.string, [None], name="texts")
            self.numbers = v1.placeholder(tf.int64, [None], name="numbers")

    def result(self, preserve=("out",), **options):
        names = {op.name for op in self.graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)}
        return FuseLookups(frozenset(preserve) | names, **options).apply(self.graph.as_graph_def())

    def initializers(self):
        return [op.name for op in self.graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)]

    def run(self, graph_def, fetches=("out:0",), calls=2):
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
            with v1.Session(graph=graph) as session:
                session.run(self.initializers())
                feeds = {**self.feeds}
                feeds = {key: value for key, value in feeds.items() if key[:-2] in names(graph_def)}
                results = [session.run(list(fetches), feeds) for _ in range(calls)]
        for result in results[1:]:
            np.testing.assert_equal(result, results[0])
        return results[0]

    def check(
        self, columns, vocabularies, *reasons, preserve=("out",), fetches=("out:0",), **options
    ):
        """Rewrites; the op has so many columns, and results are equal. Returns the graph.

        Args:
            columns, vocabularies: the numbers in the report.
            reasons: why others stay.
            preserve, options: of the pass.
            fetches: whose results are compared.
        """
        result = self.result(preserve, **options)
        assert fused(result) == ([(columns, vocabularies)] if columns else []), str(result.report)
        assert stays(result) == {*reasons}
        before = self.run(self.graph.as_graph_def(), fetches)
        for one, other in zip(before, self.run(result.graph_def, fetches), strict=True):
            np.testing.assert_array_equal(one, other)
        made = ops_of(result.graph_def)
        assert made.count(VOCABULARY_INDEX) == bool(vocabularies)
        return result.graph_def


def fused(result):
    """How many columns fused ops have, and of how many vocabularies."""
    return [(one.columns, one.vocabularies) for one in result.report.ids if one.fused]


def stays(result):
    """Why others stay."""
    return {one.reason for one in result.report.ids if not one.fused}


def names(graph_def):
    return {node.name for node in graph_def.node}


def ops_of(graph_def):
    functions = (node for function in graph_def.library.function for node in function.node_def)
    return [node.op for node in (*graph_def.node, *functions)]


def node_of(graph_def, op):
    (node,) = (node for node in graph_def.node if node.op == op)
    return node
