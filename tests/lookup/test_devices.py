"""Shards on different devices: two logical CPUs, in a process of their own."""

from __future__ import annotations

import sys

import pytest

from fusion.lookup import VERSIONS
from tests import zygote

PROGRAM = """
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)

import fusion
from fusion.lookup import VERSIONS

rows = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
shards = []
for device, part in enumerate(np.array_split(rows, 2)):
    with tf.device(f"CPU:{device + 1}"):
        shards.append(tf.Variable(part))
assert [shard.device[-5:] for shard in shards] == ["CPU:1", "CPU:2"]
ids = tf.SparseTensor(
    [[0, 0], [0, 1], [2, 0], [2, 1]], tf.constant([3, 17, 3, 11], tf.int64), [4, 2]
)


def step(lookup):
    with tf.GradientTape() as tape:
        result = lookup(shards, ids)
    return [result, *map(tf.convert_to_tensor, tape.gradient(result, shards))]


expected = step(tf.compat.v1.nn.safe_embedding_lookup_sparse)
for version in VERSIONS:
    def fused(shards, ids):
        return fusion.fused_safe_embedding_lookup_sparse(shards, ids, fusion_version=version)

    function = tf.function(lambda: step(fused))
    for actual in (step(fused), function()):
        for ours, stock in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(ours, stock)
    print(version, "same")
"""


@pytest.mark.parity("shards on devices of their own", *VERSIONS)
def test_shards_on_two_devices_give_stocks_numbers():
    done = zygote.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == [VERSIONS[-1], "same"]


MANY = """
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import fusion

rng, tables = np.random.default_rng(0), []
for number in range(5):
    with tf.device(f"CPU:{number % 2}"):
        tables.append(tf.Variable(rng.standard_normal((20, 3 + number)).astype(np.float32)))
ids = [tf.ragged.constant([[3, 7 + number], [3], [11]]) for number in range(5)]


def fused():
    return fusion.lookup_sparse(tables, ids)


def stock():
    pairs = zip(tables, ids, strict=True)
    return [tf.nn.embedding_lookup_sparse(t, i.to_sparse(), None, "mean") for t, i in pairs]


def step(lookup):
    with tf.GradientTape() as tape:
        results = lookup()
    gradients = tape.gradient(results, tables)
    return [*results, *map(tf.convert_to_tensor, gradients)]


for run in (lambda given: given, tf.function):
    for function in (lambda lookup: lookup(), step):
        for ours, theirs in zip(run(function)(fused), run(function)(stock), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        print("same")

# In a graph of TensorFlow 1 that is built on another device than the tables'.
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    with tf.device("CPU:0"):
        made = [tf.compat.v1.get_variable(name, [9, 4], use_resource=True) for name in "ab"]
    with tf.device("CPU:1"):
        given = tf.SparseTensor([[0, 0]], tf.constant([5], tf.int64), [1, 1])
        results = fusion.lookup_sparse(made, [given, given])
        gradients = tf.gradients(results, made)
    session.run(tf.compat.v1.global_variables_initializer())
    for gradient in session.run([g.values for g in gradients]):
        np.testing.assert_array_equal(gradient, np.ones([1, 4]))
print("same")
"""


def test_many_tables_on_two_devices():
    done = zygote.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-5:] == ["same"] * 5


REPLICAS = """
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import fusion
from fusion.feature_column import DenseFeatures, embedding_column
from fusion.lookup import VERSIONS

rows = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
ids = tf.sparse.from_dense(tf.constant([[3, 17], [0, 0], [3, 11]], tf.int64))
category = tf.feature_column.categorical_column_with_identity("ids", 20)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    table = tf.Variable(rows)
    column = embedding_column(category, 4, initializer=lambda *_, **__: rows, do_fusion="v2")
    layer = DenseFeatures([column])
    layer.build({"ids": (None, 2)})
    keys = [tf.feature_column.categorical_column_with_identity(key, 20) for key in "ab"]
    of_all = DenseFeatures(
        [embedding_column(k, 4, initializer=lambda *_, **__: rows, do_fusion="v2") for k in keys]
    )
    # Outside of the replicas, where a variable of all of them has no handle.
    given = {"a": tf.constant([[1], [2]]), "b": tf.constant([[3], [4]])}
    inferred = of_all(given, training=False)
np.testing.assert_array_equal(inferred, np.concatenate([rows[1:3], rows[3:5]], 1))


def step(lookup):
    with tf.GradientTape() as tape:
        result = lookup()
    return [result, tf.convert_to_tensor(tape.gradient(result, table_of[lookup]))]


def stock():
    return tf.nn.safe_embedding_lookup_sparse(table, ids)


def features():
    return layer({"ids": ids}, training=True)


def fused(version):
    return lambda: fusion.fused_safe_embedding_lookup_sparse(table, ids, fusion_version=version)


table_of = {stock: table, features: layer.trainable_variables[0].value}
table_of |= {fused(version): table for version in VERSIONS}
results = {}
for lookup in table_of:
    function = tf.function(lambda: strategy.run(step, (lookup,)))
    ops = {op.type for op in function.get_concrete_function().graph.get_operations()}
    assert ("ReadVariableOp" in ops) == (lookup is stock), ops
    results[lookup] = [strategy.experimental_local_results(part) for part in function()]
for result in results.values():
    for ours, theirs in zip(result, results[stock], strict=True):
        assert len(ours) == 2
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
print(len(results), "same")
"""


@pytest.mark.parity("variables with replicas", *VERSIONS)
def test_replicas_gather_from_their_own_variables():
    done = zygote.run([sys.executable, "-c", REPLICAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{2 + len(VERSIONS)} same"
