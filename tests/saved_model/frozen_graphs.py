"""Frozen GraphDefs as a user of stock TensorFlow makes them."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tests.saved_model.models import DIM, ROWS, Ranker

v1 = tf.compat.v1


def v1_graph(vocabulary: bool = False) -> graph_pb2.GraphDef:
    """Two columns and a score from sparse placeholders; `vocabulary`: the ids are looked up."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        rows = [
            v1.get_variable(name, [ROWS, DIM], initializer=v1.initializers.truncated_normal(seed=7))
            for name in ("items", "shops")
        ]
        shops = v1.sparse_placeholder(tf.int64, [None, None], name="shop")
        items = v1.sparse_placeholder(tf.int64, [None, None], name="item")
        if vocabulary:
            words = tf.constant(["red", "green", "blue"])
            table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(words, tf.range(3, dtype=tf.int64)), -1
            )
            texts = v1.sparse_placeholder(tf.string, [None, None], name="color")
            items = tf.SparseTensor(texts.indices, table.lookup(texts.values), texts.dense_shape)
        parts = [
            tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="sum")
            for table, ids in zip(rows, (items, shops), strict=True)
        ]
        layer = tf.concat(parts, axis=1, name="layer")
        tf.sigmoid(tf.reduce_sum(layer, 1), name="score")
        tf.group(*v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS), name="initialize")
        session.run(v1.global_variables_initializer())
        keep = ["score", "layer", "initialize"]
        return v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), keep)


def v2_graph() -> graph_pb2.GraphDef:
    """What convert_variables_to_constants_v2 makes of a function with a dict of outputs."""
    ranker = Ranker()
    concrete = ranker.rank.get_concrete_function()
    return convert_variables_to_constants_v2(concrete).graph.as_graph_def()


def write(graph_def: graph_pb2.GraphDef, path: Path) -> Path:
    """Writes a frozen graph to `path`."""
    path.write_bytes(graph_def.SerializeToString())
    return path
