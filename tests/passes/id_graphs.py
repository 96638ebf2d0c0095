"""Graphs of lookups whose ids are made of texts and numbers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from fusion.passes.fuse_lookups import FuseLookups

v1 = tf.compat.v1
raw = tf.raw_ops
BUCKETS, DIM = 50, 4
TEXTS = np.array([b"a", b"bb", b"", b"a"], object)
NUMBERS = np.array([5, -7, 123456789012, 5])
TAGS = np.array([b"a|bb", b"", b"|bb||a text of more than 16 bytes", b"a"], object)
LABELS = np.array([b"x|y|z|x|y", b"red|z", b"a", b""], object)


def table(index):
    values = np.random.default_rng(index).normal(size=[BUCKETS, DIM])
    return tf.constant(values.astype(np.float32))


def looked_up(columns):
    """A concat of gathers of the ids, named "out"."""
    rows = [tf.gather(table(k), ids) for k, ids in enumerate(columns)]
    return tf.identity(tf.concat(rows, 1, name="joined"), name="out")


class IdGraph:
    """A graph of lookups of ids that are made of its inputs.

    Attributes:
        texts, numbers: vectors.
        tags, labels: vectors of texts with several parts each.
    """

    def __init__(self):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.texts = v1.placeholder(tf.string, [None], name="texts")
            self.numbers = v1.placeholder(tf.int64, [None], name="numbers")
            self.tags = v1.placeholder(tf.string, [None], name="tags")
            self.labels = v1.placeholder(tf.string, [None], name="labels")

    def result(self, preserve=("out",), **options):
        return FuseLookups(frozenset(preserve), **options).apply(self.graph.as_graph_def())

    def run(self, graph_def, fetches=("out:0",)):
        feeds = {"texts:0": TEXTS, "numbers:0": NUMBERS, "tags:0": TAGS, "labels:0": LABELS}
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
            present = {key: value for key, value in feeds.items() if key[:-2] in names(graph_def)}
            with v1.Session(graph=graph) as session:
                return session.run(list(fetches), present)

    def check(self, *reasons, preserve=("out",), fetches=("out:0",)):
        """Rewrites; results are equal. Returns the hashes of the report, and the graph.

        Args:
            reasons: why others stay.
            preserve: of the pass.
            fetches: whose results are compared.
        """
        before = self.graph.as_graph_def()
        result = self.result(preserve)
        for one, other in zip(
            self.run(before, fetches), self.run(result.graph_def, fetches), strict=True
        ):
            np.testing.assert_array_equal(one, other)
        assert stays(result.report) == {*reasons}
        return [one for one in result.report.ids if one.fused], result.graph_def


def stays(report):
    return {one.reason for one in report.ids if not one.fused}


def names(graph_def):
    return {node.name for node in graph_def.node}


def ops_of(graph_def):
    return sorted(node.op for node in graph_def.node)


def fast(values, name=None):
    return tf.strings.to_hash_bucket_fast(values, BUCKETS, name)


def text(values, **attrs):
    return raw.AsString(input=values, **attrs)
