"""What tables of keys show, and that none is read whole that takes too much memory.

The large one has a table of 2**40 bytes: what reads it whole fails on any machine.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.tables.initial_rows import ZerosOnDemand, max_rows, takes_too_much
from tests.embedding_variables.ways import DENSE, eager

v1 = tf.compat.v1

CAPACITY, DIM = 2**30, 256
KEYS = tf.constant([7, 8, 9], tf.int64)
SHOWN = "3 keys, 3 rows, 3,132 bytes"
WHOLE = "would take 1,024.0 GiB: .* capacity of 1073741824 keys"


def trained(capacity: int | None = CAPACITY, dimension: int = DIM, **options: Any) -> Any:
    """An embedding variable whose keys have rows of ones."""
    variable = fusion.EmbeddingVariable(
        "t", dimension, initializer=tf.ones_initializer(), capacity=capacity, **options
    )
    with tf.GradientTape():
        variable.embedding_lookup(KEYS)
    return variable


@pytest.fixture(scope="module")
def large() -> Any:
    return trained()


def in_function(read: Any) -> Any:
    return lambda table: tf.function(lambda: read(table), autograph=False)()


READS = {
    "numpy": lambda table: table.numpy(),
    "array": np.array,
    "value": lambda table: table.value(),
    "read_value": lambda table: table.read_value(),
    "convert_to_tensor": tf.convert_to_tensor,
    "identity": tf.identity,
    "add": lambda table: table + 1,
    "equal": lambda table: table == 0,
    "slice": lambda table: table[:3],
    "reduce_sum": tf.reduce_sum,
    "square": tf.square,
    "l2_loss": tf.nn.l2_loss,
    "norm": tf.norm,
    "concat": lambda table: tf.concat([table, table], 0),
    "clip_by_norm": lambda table: tf.clip_by_norm(table, 1.0),
    "print": lambda table: tf.print(table, output_stream="file:///dev/null"),
    "check_numerics": lambda table: tf.debugging.check_numerics(table, "table"),
    "zeros_like": tf.zeros_like,
    "another variable": tf.Variable,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "in a function": in_function(tf.reduce_sum),
    "as an argument": tf.function(tf.reduce_sum),
    "after an update": lambda table: table.scatter_add(
        tf.IndexedSlices(tf.zeros([1, DIM]), [0])
    ).numpy(),
    "after an update in a function": in_function(
        lambda table: table.scatter_add(tf.IndexedSlices(tf.zeros([1, DIM]), [0])).read_value()
    ),
}


@pytest.mark.parametrize("read", READS)
def test_a_large_table_is_not_read_whole(large, read):
    with pytest.raises(ValueError, match=f"reading variable 't:0' whole {WHOLE}"):
        READS[read](large.table)


def test_other_variables_of_its_capacity_are_not_read_whole(large):
    slot = tf.Variable(ZerosOnDemand()(large.table.shape), name="slot")
    large.add_slot(slot)
    assert "numpy=" not in repr(slot)
    assert ", 3 keys, 3 rows, 3,072 bytes>" in repr(slot)
    assert repr(large.index).endswith("dtype=float64, 3 keys>")
    for variable in (slot, large.index):
        with pytest.raises(ValueError, match="whole would take"):
            tf.square(variable)


def test_reprs(large):
    table = f"<tf.Variable 't:0' shape=(1073741824, 256) dtype=float32, {SHOWN}>"
    assert repr(large.table) == table
    assert str(large.variables) == f"({table},)"
    assert repr(large) == f"<EmbeddingVariable 't' dimension=256 dtype=float32, {SHOWN}>"
    in_a_function: list[str] = []
    tf.function(lambda: in_a_function.append(repr(large.table)), autograph=False)()
    assert in_a_function == [table.replace(f", {SHOWN}", "")]
    assert repr(trained(50, 4).table).endswith("3 keys, 3 rows, 108 bytes>")


def test_partitions_show_what_each_has():
    variable = fusion.tables.PartitionedEmbeddingVariable("p", 4, 2, capacity=50)
    with tf.GradientTape():
        variable.embedding_lookup(KEYS)
    about = "'p' dimension=4 dtype=float32"
    parts = "0, 1 keys, 1 rows, 36 bytes; 1, 2 keys, 2 rows, 72 bytes"
    assert repr(variable) == f"<PartitionedEmbeddingVariable {about}, partitions: {parts}>"


#: Ways to a dense gradient.
DENSE_GRADIENTS = DENSE | {"slices": lambda table, keys: tf.add(eager(table, keys), 1.0)}


@pytest.mark.parametrize("way", DENSE_GRADIENTS)
def test_a_dense_gradient_of_a_large_table_is_refused(large, way: str):
    """When it is made, or traced, before zeros of the whole capacity are."""
    text = f"a dense gradient of variable 't:0' {WHOLE}. .* look up the rows before that"
    error: type[Exception] = tf.errors.ResourceExhaustedError
    if way == "recomputed":  # which reads the table first, and TensorFlow hides why that fails
        error, text = TypeError, "<NOT CONVERTIBLE TO TENSOR>.* 't:0'"
    with pytest.raises(error, match=text):
        DENSE_GRADIENTS[way](large, KEYS)


def test_a_dense_gradient_of_another_variable_is_none_of_a_large_table(large):
    plain = tf.Variable(tf.ones([5, DIM]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(plain, [2, 2]))
    assert tf.reduce_sum(tf.convert_to_tensor(tape.gradient(loss, plain))).numpy() == 2 * DIM


def test_rows_that_are_looked_up_before_a_loop_have_a_sparse_gradient(large):
    @tf.function
    def gradient(keys: tf.Tensor) -> tf.IndexedSlices:
        with tf.GradientTape() as tape:
            rows = large.embedding_lookup(keys)
            loss = tf.reduce_sum(tf.map_fn(lambda row: row * row, rows))
        return tape.gradient(loss, large.table)

    assert (gradient(KEYS).values.numpy() == 2).all()


def test_a_table_of_a_strategy():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        variable = trained()
    assert SHOWN in repr(variable.table)
    assert SHOWN in repr(variable)
    for read in (tf.reduce_sum, lambda table: table.numpy()):
        with pytest.raises(ValueError, match=WHOLE):
            read(variable.table)


def test_what_a_large_table_can_do(large):
    """As optimizers, lookups and checkpoints do it."""
    first = tf.nn.embedding_lookup(large.table, [0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(large.embedding_lookup(KEYS))
    gradient = tape.gradient(loss, large.table)
    large.table.scatter_sub(gradient)
    large.table.scatter_add(gradient)
    assert (tf.gather(large.table, [0]).numpy() == first.numpy()).all()
    assert large.table.shape == [CAPACITY, DIM]


def test_a_small_table_is_read_whole():
    variable = trained(50, 4)
    rows = np.zeros([50, 4], np.float32)
    rows[:3] = 1
    assert (variable.table.numpy() == rows).all()
    assert tf.reduce_sum(variable.table).numpy() == 12
    assert tf.function(lambda: tf.reduce_sum(variable.table))().numpy() == 12
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(variable.table))
    assert (tape.gradient(loss, variable.table).numpy() == 2 * rows).all()
    updated = variable.table.scatter_add(tf.IndexedSlices(tf.ones([1, 4]), [1]))
    assert updated.numpy()[1].tolist() == [2, 2, 2, 2]


def test_what_takes_too_much():
    assert takes_too_much(max_rows(4), 4)  # a default capacity, however small rows are
    assert not takes_too_much(max_rows(4) // 2, 4)
    assert takes_too_much(2**20, 2**20)
    assert not takes_too_much(2**20, 4)


def test_in_a_graph_of_tensorflow_1():
    with tf.Graph().as_default(), v1.Session() as session:
        variable = fusion.EmbeddingVariable("t", DIM, capacity=CAPACITY)
        loss = tf.reduce_sum(variable.embedding_lookup(KEYS.numpy()))
        (gradient,) = tf.gradients(loss, variable.table)
        updated = variable.table.scatter_sub(gradient)
        with tf.control_dependencies([variable.table, updated]):
            train = tf.identity(loss)
        session.run(v1.global_variables_initializer())
        before = session.run(train)
        session.run(tf.group(updated))
        assert session.run(loss) == pytest.approx(before - 2 * 3 * DIM, rel=1e-5)
        for fetched in (variable.table, updated, v1.global_variables()):
            with pytest.raises(tf.errors.InvalidArgumentError, match="whole would take"):
                session.run(fetched)
        with pytest.raises(tf.errors.InvalidArgumentError, match=WHOLE):
            variable.table.eval(session)
        with pytest.raises(ValueError, match=WHOLE):
            tf.reduce_sum(variable.table)


def test_a_small_table_in_a_graph_of_tensorflow_1():
    with tf.Graph().as_default(), v1.Session() as session:
        variable = fusion.EmbeddingVariable("t", 2, capacity=5)
        session.run(v1.global_variables_initializer())
        assert session.run(variable.table).shape == (5, 2)
        assert session.run(tf.reduce_sum(variable.table)) == 0
        updated = variable.table.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), [0]))
        assert session.run(updated)[0].tolist() == [1, 1]


def test_a_loaded_table(tmp_path: Path, large):
    module = tf.Module()
    module.variable = large
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path)).variable
    assert SHOWN in repr(loaded.table)
    for variable in (loaded.table, loaded.index):
        with pytest.raises(ValueError, match="whole would take"):
            tf.reduce_sum(variable)
