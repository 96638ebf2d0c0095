"""Training through the lookups: optimizers, shared tables, and the fused ops in the graph."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion import fused_safe_embedding_lookup_sparse as fused
from fusion.ops import OP_NAMES
from tests import reference, tables

TABLE = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
LOOKUPS = {"fused": fused, "stock": tf.compat.v1.nn.safe_embedding_lookup_sparse}


def batches(steps, seed=0):
    rng = np.random.default_rng(seed)
    lengths = [[*rng.integers(0, 6, 12)] for _ in range(steps)]
    return [reference.sparse(rng, n, 30, negative=0.1) for n in lengths]


def sparse_tensor(arrays):
    return tf.SparseTensor(arrays["indices"], arrays["values"], arrays["dense_shape"])


V1_OPTIMIZERS = {
    "sgd": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf.compat.v1.train.AdamOptimizer(0.1),
    "momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    "rmsprop": lambda: tf.compat.v1.train.RMSPropOptimizer(0.1),
    "ftrl": lambda: tf.compat.v1.train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=1e-5
    ),
}


def train_v1(lookup, make, optimizer):
    """The losses of five steps and the table after them, in a v1 session."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = make()
        feeds = {
            "indices": tf.compat.v1.placeholder(tf.int64, [None, 2]),
            "values": tf.compat.v1.placeholder(tf.int64, [None]),
            "dense_shape": tf.compat.v1.placeholder(tf.int64, [2]),
        }
        loss = tf.reduce_sum(tf.sin(lookup(table, tf.SparseTensor(**feeds), combiner="mean")))
        step = V1_OPTIMIZERS[optimizer]().minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        losses = []
        for arrays in batches(5):
            feed = {placeholder: arrays[name] for name, placeholder in feeds.items()}
            losses.append(session.run([loss, step], feed)[0])
        return losses, np.concatenate(session.run(reference.sources(table)))


@pytest.mark.parametrize("optimizer", V1_OPTIMIZERS)
@pytest.mark.parametrize("kind", ["variable", "partitioned", "ref"])
def test_v1_training_gives_the_numbers_of_stock(optimizer, kind):
    makers = {**tables.EVERYWHERE, **tables.IN_SESSION}
    results = [
        train_v1(lookup, lambda: makers[kind](TABLE, "div"), optimizer)
        for lookup in LOOKUPS.values()
    ]
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert np.any(results[0][1] != TABLE)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
def test_keras_optimizers_give_the_numbers_of_stock(optimizer, compiled):
    results = []
    for lookup in LOOKUPS.values():
        table = tf.Variable(TABLE)
        update = getattr(tf.keras.optimizers, optimizer)(0.1)
        update.build([table])

        def step(indices, values, dense_shape, lookup=lookup, table=table, update=update):
            with tf.GradientTape() as tape:
                out = lookup(table, tf.SparseTensor(indices, values, dense_shape))
                loss = tf.reduce_sum(tf.sin(out))
            update.apply_gradients([(tape.gradient(loss, table), table)])

        signature = [
            tf.TensorSpec([None, 2], tf.int64),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([2], tf.int64),
        ]
        run = tf.function(step, input_signature=signature) if compiled else step
        for arrays in batches(4):
            run(*(tf.constant(arrays[name]) for name in ("indices", "values", "dense_shape")))
        results.append(table.numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("n_shards", [1, 3])
def test_gradients_are_slices_with_distinct_ids(n_shards):
    shards = [tf.Variable(shard) for shard in tables.split(TABLE, n_shards)]
    ids = tf.SparseTensor(
        [[0, 0], [0, 1], [1, 0], [4, 0]], tf.constant([7, 7, 29, 7], tf.int64), [5, 2]
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(fused(shards, ids))
    gradients = tape.gradient(loss, shards)
    found = []
    for gradient, start in zip(gradients, range(0, 30, 30 // n_shards), strict=True):
        assert isinstance(gradient, tf.IndexedSlices)
        found += (gradient.indices.numpy() + start).tolist()
    # Id 0 is there for the empty rows, with a gradient of zero, as in stock.
    assert sorted(found) == [0, 7, 29]


def test_the_gradient_of_a_tensor_is_sparse_too():
    table = tf.constant(TABLE)
    with tf.GradientTape() as tape:
        tape.watch(table)
        loss = tf.reduce_sum(fused(table, sparse_tensor(batches(1)[0])))
    gradient = tape.gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices)
    assert len(set(gradient.indices.numpy())) == len(gradient.indices)


@pytest.mark.parametrize("mode", reference.MODES)
def test_one_table_in_two_lookups(mode):
    first, second = batches(2)

    def of(lookup):
        def call(table, ids, weights):
            other = lookup(table, sparse_tensor(second), combiner="sum")
            mine = lookup(table, ids)
            return mine * (1 + tf.reduce_sum(other))

        return reference.outcome(mode, call, lambda: tf.Variable(TABLE), first)

    ours, stock = of(LOOKUPS["fused"]), of(LOOKUPS["stock"])
    np.testing.assert_array_equal(ours.output, stock.output)
    # Two gradients are added up, in an order that is TensorFlow's.
    np.testing.assert_allclose(ours.tables[0], stock.tables[0], rtol=1e-5, atol=1e-6)


def test_weights_can_be_trained():
    arrays = batches(1)[0]
    weights = tf.Variable(arrays["weights"])
    table = tf.Variable(TABLE)
    gradients = []
    for lookup in LOOKUPS.values():
        with tf.GradientTape() as tape:
            ids = sparse_tensor(arrays)
            given = tf.SparseTensor(ids.indices, tf.convert_to_tensor(weights), ids.dense_shape)
            loss = tf.reduce_sum(tf.sin(lookup(table, ids, given, combiner="sqrtn")))
        gradients.append(tf.convert_to_tensor(tape.gradient(loss, weights)).numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)
    assert gradients[0].any()
    assert not gradients[0][arrays["values"] < 0].any()


def op_types(graph):
    return [op.type for op in graph.get_operations()]


def concrete(lookup, table, training=False):
    def call(indices, values, dense_shape):
        with tf.GradientTape() as tape:
            out = lookup(table, tf.SparseTensor(indices, values, dense_shape))
        return (out, tape.gradient(out, table).values) if training else out

    return tf.function(call).get_concrete_function(
        tf.TensorSpec([None, 2], tf.int64),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([2], tf.int64),
    )


#: Stock ops that make up a lookup.
STOCK_OPS = {
    "SparseFillEmptyRows",
    "SparseSegmentMean",
    "Unique",
    "Where",
    "SparseReshape",
    "Tile",
}


@pytest.mark.parametrize("training", [False, True])
def test_the_fused_ops_are_in_the_graph_and_the_stock_ops_are_not(training):
    table = tf.Variable(TABLE)
    types = op_types(concrete(fused, table, training).graph)
    expected = {
        "PruneInvalidAndFillEmptyRows",
        "UniqueWithCountsV3",
        "FusedEmbeddingSparsePostLookUpV2",
    }
    if training:
        expected.add("FusedEmbeddingSparsePostLookUpV2Grad")
    assert set(types) & set(OP_NAMES) == expected
    assert all(types.count(name) == 1 for name in expected)
    assert not STOCK_OPS & set(types)
    assert "ReadVariableOp" not in types


def test_the_stock_lookup_has_no_fused_op():
    types = set(op_types(concrete(LOOKUPS["stock"], tf.Variable(TABLE)).graph))
    assert not types & set(OP_NAMES)
    assert types >= STOCK_OPS - {"Unique"}


def test_shards_add_the_partition_op():
    shards = [tf.Variable(shard) for shard in tables.split(TABLE, 2)]
    function = tf.function(lambda: fused(shards, sparse_tensor(batches(1)[0])))
    types = op_types(function.get_concrete_function().graph)
    assert types.count("PartitionWithPermutation") == 1
    assert types.count("ResourceGather") == 2


@pytest.mark.parametrize("name", LOOKUPS)
def test_what_runs_after_grappler(name):
    arrays = batches(1)[0]
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(
        trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.Variable(TABLE)
        feeds = {
            key: tf.compat.v1.placeholder(arrays[key].dtype, [None] * (arrays[key].ndim))
            for key in ("indices", "values", "dense_shape")
        }
        out = LOOKUPS[name](table, tf.SparseTensor(**feeds))
        session.run(tf.compat.v1.global_variables_initializer())
        feed = {placeholder: arrays[key] for key, placeholder in feeds.items()}
        session.run(out, feed, options=options, run_metadata=metadata)
    optimized = {node.op for graph in metadata.partition_graphs for node in graph.node}
    labels = " ".join(
        stats.timeline_label for dev in metadata.step_stats.dev_stats for stats in dev.node_stats
    )
    is_fused = name == "fused"
    assert ("FusedEmbeddingSparsePostLookUpV2" in optimized) == is_fused
    assert ("FusedEmbeddingSparsePostLookUpV2" in labels) == is_fused
    assert ("SparseFillEmptyRows" in optimized) != is_fused


def test_each_gather_is_on_the_device_of_its_shard():
    with tf.Graph().as_default() as graph:
        shards = []
        for task, shard in enumerate(tables.split(TABLE, 2)):
            with tf.device(f"/job:ps/task:{task}/device:CPU:0"):
                shards.append(tf.Variable(shard))
        with tf.device("/job:worker/task:0/device:CPU:0"):
            fused(shards, sparse_tensor(batches(1)[0]))
        devices = [op.device for op in graph.get_operations() if op.type == "ResourceGather"]
        assert devices == [shard.device for shard in shards]
        ours = {op.device for op in graph.get_operations() if op.type in OP_NAMES}
        assert ours == {"/job:worker/task:0/device:CPU:0"}
