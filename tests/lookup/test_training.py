"""Training through the lookups: optimizers, shared tables, and the fused ops in the graph."""

from __future__ import annotations

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
import fusion.optimizers.keras3
import fusion.optimizers.tf_keras
from fusion import fused_safe_embedding_lookup_sparse as fused
from fusion.lookup import VERSIONS
from fusion.schema.names import OP_NAMES
from tests import reference, tables, training

v1 = tf.compat.v1

TABLE = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
STOCK = v1.nn.safe_embedding_lookup_sparse
FUSED = {version: functools.partial(fused, fusion_version=version) for version in VERSIONS}
LOOKUPS = {**FUSED, "stock": STOCK}


def batches(steps, seed=0):
    rng = np.random.default_rng(seed)
    lengths = [[*rng.integers(0, 6, 12)] for _ in range(steps)]
    return [reference.sparse(rng, n, 30, negative=0.1) for n in lengths]


def sparse_tensor(arrays):
    return tf.SparseTensor(arrays["indices"], arrays["values"], arrays["dense_shape"])


V1_OPTIMIZERS = {
    "sgd": lambda _: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda _: v1.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda _: v1.train.AdagradOptimizer(0.1),
    "adam": lambda _: v1.train.AdamOptimizer(0.1),
    "ftrl": lambda _: v1.train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=1e-5
    ),
    "nesterov": lambda _: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "rmsprop": lambda _: v1.train.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
    "adadelta": lambda _: v1.train.AdadeltaOptimizer(0.5),
    "adagrad_da": lambda step: v1.train.AdagradDAOptimizer(0.1, step),
    "proximal_sgd": lambda _: v1.train.ProximalGradientDescentOptimizer(0.1, 0.01, 0.01),
    "proximal_adagrad": lambda _: v1.train.ProximalAdagradOptimizer(0.1, 0.1, 0.01, 0.01),
    "lazy_adam": lambda _: fusion.optimizers.LazyAdamOptimizer(0.1),
}


def in_turn(cases, both):
    """Cases with the version that is their turn, those of `both` with either.

    What an optimizer does with a gradient has nothing to do with the version that made it.
    """
    return [
        (*case, version)
        for number, case in enumerate(cases)
        for version in (VERSIONS if case in both else [VERSIONS[(number + number // 2) % 2]])
    ]


#: Those that also train partitioned tables, of which each shard is one more resource variable.
PARTITIONED = ["sgd", "momentum", "adagrad", "adam", "ftrl", "lazy_adam"]
KINDS = ("variable", "ref", "partitioned")


@functools.cache
def stock_session(optimizer, kind):
    return training.train_session([STOCK] * 3, V1_OPTIMIZERS[optimizer], kind)


@pytest.mark.parity("optimizers of compat.v1")
@pytest.mark.parametrize(
    ("optimizer", "kind", "version"),
    in_turn(
        [(name, kind) for name in V1_OPTIMIZERS for kind in ("variable", "ref")]
        + [(name, "partitioned") for name in PARTITIONED],
        both=[
            (name, kind) for name in ("sgd", "adam") for kind in ("variable", "ref", "partitioned")
        ],
    ),
)
def test_v1_optimizers_give_the_numbers_of_stock(optimizer, kind, version):
    ours = training.train_session([FUSED[version]] * 3, V1_OPTIMIZERS[optimizer], kind)
    ours.assert_same(stock_session(optimizer, kind))


#: Classes beside the optimizers in their modules that wrap others.
WRAPPERS = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap"}


def keras_optimizers():
    """Makers of every optimizer that Keras 3 and tf_keras have, and of some with arguments."""
    modules = {
        "keras": keras.optimizers,
        "tf_keras": tf_keras.optimizers,
        "legacy": tf_keras.optimizers.legacy,
    }
    found = {
        f"{module_name} {name}": functools.partial(getattr(module, name), learning_rate=0.05)
        for module_name, module in modules.items()
        for name in set(dir(module)) - WRAPPERS
        if inspect.isclass(getattr(module, name))
    }
    for name, module in modules.items():
        found[f"{name} momentum"] = functools.partial(module.SGD, 0.05, momentum=0.9)
        found[f"{name} nesterov"] = functools.partial(module.SGD, 0.05, momentum=0.9, nesterov=True)
        found[f"{name} amsgrad"] = functools.partial(module.Adam, 0.05, amsgrad=True)
        found[f"{name} centered"] = functools.partial(
            module.RMSprop, 0.05, momentum=0.5, centered=True
        )
    for name, lazy in ("keras", fusion.optimizers.keras3), ("tf_keras", fusion.optimizers.tf_keras):
        found[f"{name} lazy"] = functools.partial(lazy.LazyAdam, 0.05)
        found[f"{name} lazy momentum"] = functools.partial(lazy.LazyMomentum, 0.05, 0.9)
        found[f"{name} lazy ftrl"] = functools.partial(lazy.LazyFtrl, 0.05)
    return dict(sorted(found.items()))


KERAS_OPTIMIZERS = keras_optimizers()
#: Those that are also run in a tf.function: one for each way of handling sparse gradients.
COMPILED = ["keras SGD", "keras Adagrad", "keras Adam", "keras Ftrl", "keras lazy", "tf_keras Adam"]


#: These take rsqrt of the rows gathered, and rsqrt rounds the last elements of a tensor otherwise
#: than those before them: the order of the ids, which is not stock's, shows.
ROUNDING = ["tf_keras RMSprop", "tf_keras centered"]


@functools.cache
def stock_keras(optimizer, compiled):
    return training.train_keras([STOCK] * 3, KERAS_OPTIMIZERS[optimizer](), compiled)


@pytest.mark.parity("optimizers of Keras 3 and tf_keras")
@pytest.mark.parametrize(
    ("optimizer", "compiled", "version"),
    in_turn(
        [(name, False) for name in KERAS_OPTIMIZERS] + [(name, True) for name in COMPILED],
        both=[(name, compiled) for name in COMPILED for compiled in (False, True)],
    ),
)
def test_keras_optimizers_give_the_numbers_of_stock(optimizer, compiled, version):
    ours = training.train_keras([FUSED[version]] * 3, KERAS_OPTIMIZERS[optimizer](), compiled)
    if optimizer in ROUNDING:
        ours.assert_close(stock_keras(optimizer, compiled))
    else:
        ours.assert_same(stock_keras(optimizer, compiled))


def test_all_optimizers_of_keras_are_found():
    names = {name.partition(" ")[2] for name in KERAS_OPTIMIZERS}
    assert names >= {"SGD", "Adagrad", "Adam", "AdamW", "Ftrl", "RMSprop", "Adafactor", "Lion"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("package", [keras, tf_keras])
def test_the_norm_of_a_sparse_gradient_may_round_otherwise(package, version):
    """A sum of squares in the order of the ids, which is not stock's: filled rows come last."""

    def train(lookup):
        optimizer = package.optimizers.SGD(0.05, clipnorm=0.02)
        return training.train_keras([lookup] * 3, optimizer, compiled=False)

    train(FUSED[version]).assert_close(train(STOCK))


@pytest.mark.parity("fused beside stock lookups of one table")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first_is_fused", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_and_stock_lookups_of_one_table_mix(kind, first_is_fused, version):
    pair = [FUSED[version], STOCK] if first_is_fused else [STOCK, FUSED[version]]
    lookups = [*pair, pair[0]]
    ours = training.train_session(lookups, V1_OPTIMIZERS["adam"], kind)
    ours.assert_same(stock_session("adam", kind))
    if kind == "variable":
        adam = KERAS_OPTIMIZERS["keras Adam"]()
        training.train_keras(lookups, adam, compiled=True).assert_same(
            stock_keras("keras Adam", True)
        )


@pytest.mark.parity("persistent tapes")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_persistent_tape_gives_each_gradient_again_and_again(version):
    def gradients(lookup):
        table = tf.Variable(TABLE)
        first, second = map(sparse_tensor, batches(2))
        with tf.GradientTape(persistent=True) as tape:
            out = lookup(table, first)
            losses = [tf.reduce_sum(tf.sin(out)), tf.reduce_sum(out**2 * lookup(table, second))]
        found = [tape.gradient(loss, table) for loss in [*losses, losses[0], losses[1]]]
        return [tf.convert_to_tensor(gradient).numpy() for gradient in found]

    ours, stock = gradients(FUSED[version]), gradients(STOCK)
    np.testing.assert_array_equal(ours, stock)
    np.testing.assert_array_equal(ours[:2], ours[2:])
    assert np.any(ours[0] != ours[1])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("n_shards", [1, 3])
def test_gradients_are_slices_with_distinct_ids(n_shards, version):
    shards = [tf.Variable(shard) for shard in tables.split(TABLE, n_shards)]
    ids = tf.SparseTensor(
        [[0, 0], [0, 1], [1, 0], [4, 0]], tf.constant([7, 7, 29, 7], tf.int64), [5, 2]
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(FUSED[version](shards, ids))
    gradients = tape.gradient(loss, shards)
    found = []
    for gradient, start in zip(gradients, range(0, 30, 30 // n_shards), strict=True):
        assert isinstance(gradient, tf.IndexedSlices)
        found += (gradient.indices.numpy() + start).tolist()
    # Id 0 is there for the empty rows, with a gradient of zero, as in stock.
    assert sorted(found) == [0, 7, 29]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_gradient_of_a_tensor_is_sparse_too(version):
    table = tf.constant(TABLE)
    with tf.GradientTape() as tape:
        tape.watch(table)
        loss = tf.reduce_sum(FUSED[version](table, sparse_tensor(batches(1)[0])))
    gradient = tape.gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices)
    assert len(set(gradient.indices.numpy())) == len(gradient.indices)


@pytest.mark.parity("several lookups of one table")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", reference.MODES)
def test_one_table_in_two_lookups(mode, version):
    first, second = batches(2)

    def of(lookup):
        def call(table, ids, weights):
            other = lookup(table, sparse_tensor(second), combiner="sum")
            mine = lookup(table, ids)
            return mine * (1 + tf.reduce_sum(other))

        return reference.outcome(mode, call, lambda: tf.Variable(TABLE), first)

    ours, stock = of(FUSED[version]), of(STOCK)
    np.testing.assert_array_equal(ours.output, stock.output)
    np.testing.assert_array_equal(ours.tables[0], stock.tables[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_weights_can_be_trained(version):
    arrays = batches(1)[0]
    weights = tf.Variable(arrays["weights"])
    table = tf.Variable(TABLE)
    gradients = []
    for lookup in (FUSED[version], STOCK):
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


#: The ops of each family. The v2 op also copies rows for the v1 ops.
COPY = "FusedEmbeddingSparsePostLookUpV2"
PRE = {"v1": "FusedEmbeddingSparsePreLookUp", "v2": "PruneInvalidAndFillEmptyRows"}
POST = {"v1": "FusedEmbeddingSparsePostLookUp", "v2": COPY}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("training", [False, True])
def test_the_fused_ops_are_in_the_graph_and_the_stock_ops_are_not(training, version):
    table = tf.Variable(TABLE)
    types = op_types(concrete(FUSED[version], table, training).graph)
    expected = {PRE[version], "UniqueWithCountsV3", POST[version], COPY}
    if training:
        expected |= {f"{POST[version]}Grad", f"{COPY}Grad"}
    assert set(types) & set(OP_NAMES) == expected
    assert all(types.count(name) == 1 for name in expected)
    assert not STOCK_OPS & set(types)
    assert "ReadVariableOp" not in types


def test_the_stock_lookup_has_no_fused_op():
    types = set(op_types(concrete(LOOKUPS["stock"], tf.Variable(TABLE)).graph))
    assert not types & set(OP_NAMES)
    assert types >= STOCK_OPS - {"Unique"}


@pytest.mark.parametrize("version", VERSIONS)
def test_shards_are_gathered_from_one_by_one(version):
    shards = [tf.Variable(shard) for shard in tables.split(TABLE, 2)]
    function = tf.function(lambda: FUSED[version](shards, sparse_tensor(batches(1)[0])))
    types = op_types(function.get_concrete_function().graph)
    assert types.count("PartitionWithPermutation") == (version == "v2")
    assert types.count(PRE[version]) == types.count(POST[version]) == 1
    assert types.count("ResourceGather") == 2


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("training", [False, True])
def test_the_graph_is_much_smaller_than_stocks(n_shards, training, version):
    def nodes(lookup):
        shards = [tf.Variable(shard) for shard in tables.split(TABLE, n_shards)]

        def call(indices, values, dense_shape):
            with tf.GradientTape() as tape:
                out = lookup(shards, tf.SparseTensor(indices, values, dense_shape))
            return [out, *tape.gradient(out, shards)] if training else out

        signature = [
            tf.TensorSpec([None, 2], tf.int64),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([2], tf.int64),
        ]
        graph = tf.function(call).get_concrete_function(*signature).graph
        return sum(kind not in ("Const", "Placeholder", "Identity") for kind in op_types(graph))

    assert nodes(FUSED[version]) < 0.7 * nodes(STOCK)


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
    ran = {node for node in OP_NAMES if f" = {node}(" in labels}
    expected = set()
    if name != "stock":
        expected = {PRE[name], "UniqueWithCountsV3", POST[name], COPY}
    assert optimized & set(OP_NAMES) == expected
    assert ran == expected
    assert ("SparseFillEmptyRows" in optimized) == (name == "stock")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_gather_is_on_the_device_of_its_shard(version):
    with tf.Graph().as_default() as graph:
        shards = []
        for task, shard in enumerate(tables.split(TABLE, 2)):
            with tf.device(f"/job:ps/task:{task}/device:CPU:0"):
                shards.append(tf.Variable(shard))
        with tf.device("/job:worker/task:0/device:CPU:0"):
            FUSED[version](shards, sparse_tensor(batches(1)[0]))
        devices = [op.device for op in graph.get_operations() if op.type == "ResourceGather"]
        assert devices == [shard.device for shard in shards]
        ours = {op.device for op in graph.get_operations() if op.type in OP_NAMES}
        assert ours == {"/job:worker/task:0/device:CPU:0"}
