"""No lookup copies its table, also after a sparse update, when a plain read would."""

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.lookup import VERSIONS

v1 = tf.compat.v1
ROWS, DIM = 100_000, 16
TABLE_BYTES = 4 * ROWS * DIM


def bytes_allocated(build, use_resource=True):
    """What the second run of `build(table)` allocates, after the table was updated sparsely.

    The first sparse update of a variable may copy it, once: also that of an optimizer's slot.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", [ROWS, DIM], use_resource=use_resource)
        update = v1.scatter_add(table, [3], tf.ones([1, DIM]))
        result = build(table)
        session.run(v1.global_variables_initializer())
        session.run(update)
        session.run(result)
        metadata = v1.RunMetadata()
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        session.run(result, options=options, run_metadata=metadata)
        return sum(
            memory.total_bytes
            for device in metadata.step_stats.dev_stats
            for node in device.node_stats
            for memory in node.memory
        )


def ids():
    return tf.SparseTensor(
        [[0, 0], [1, 0]], v1.placeholder_with_default(np.array([3, 4], np.int64), [2]), [2, 1]
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_lookup_allocates_next_to_nothing(shards, max_norm, version):
    def build(table):
        tables = [table, v1.get_variable("more", [ROWS, DIM], use_resource=True)][:shards]
        options = {"max_norm": max_norm, "fusion_version": version}
        return fusion.fused_safe_embedding_lookup_sparse(tables, ids(), **options)

    assert bytes_allocated(build) < TABLE_BYTES // 100


@pytest.mark.parametrize("columns", [1, 2])
def test_a_fused_graph_allocates_next_to_nothing(columns):
    with tf.Graph().as_default() as graph:
        table = v1.get_variable("table", [ROWS, DIM], use_resource=True)
        found = [tf.nn.safe_embedding_lookup_sparse(table, ids()) for _ in range(columns)]
        tf.concat(found, 1, name="out") if columns > 1 else tf.identity(found[0], name="out")
    result = fusion.fuse_graph(graph.as_graph_def(), ["out"])
    assert {column.form for column in result.report.columns} == {
        "grouped" if columns > 1 else "single"
    }

    def build(table):
        (out,) = tf.import_graph_def(
            result.graph_def, {"table": table.handle}, ["out:0"], name="fused"
        )
        return out

    assert bytes_allocated(build) < TABLE_BYTES // 100


@pytest.mark.parametrize("version", VERSIONS)
def test_a_training_step_allocates_next_to_nothing(version):
    def build(table):
        result = fusion.fused_safe_embedding_lookup_sparse(table, ids(), fusion_version=version)
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(result))

    assert bytes_allocated(build) < TABLE_BYTES // 100


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fused_step_of_stock_lookups_allocates_next_to_nothing(weighted, optimizer):
    def build(table):
        given = ids().with_values(tf.ones([2])) if weighted else None
        result = v1.nn.safe_embedding_lookup_sparse(table, ids(), given)
        loss = tf.reduce_sum(tf.square(result))
        return OPTIMIZERS[optimizer]().minimize(loss)

    with fusion.fused():
        before = fusion.stats().columns_fused
        assert bytes_allocated(build) < TABLE_BYTES // 100
        assert fusion.stats().columns_fused > before
    report = fusion.stats().last_report
    assert report is not None
    updates = [update.fused for update in report.updates]
    assert updates == ([] if optimizer == "ftrl" else [True])
    if not weighted:
        # TensorFlow's own optimizer lets the lookup read the whole table.
        assert bytes_allocated(build) > TABLE_BYTES


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_step_of_lazy_adam_allocates_next_to_nothing(use_resource):
    def step_of(optimizer):
        def build(table):
            result = fusion.fused_safe_embedding_lookup_sparse(table, ids())
            return optimizer(0.1).minimize(tf.reduce_sum(result))

        return bytes_allocated(build, use_resource)

    assert step_of(fusion.optimizers.LazyAdamOptimizer) < TABLE_BYTES // 100
    assert step_of(v1.train.AdamOptimizer) >= TABLE_BYTES


def test_a_plain_read_would_be_seen():
    assert bytes_allocated(lambda table: table.read_value()) >= TABLE_BYTES


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_of_gathers_allocates_next_to_nothing(optimizer):
    """Keras 3's layers read the table, and gather from what they read."""

    def build(table):
        rows = tf.gather(table.read_value(), ids().values)
        return OPTIMIZERS[optimizer]().minimize(tf.reduce_sum(tf.square(rows)))

    assert bytes_allocated(build) >= TABLE_BYTES
    with fusion.fused():
        assert bytes_allocated(build) < TABLE_BYTES // 100


def test_a_step_whose_table_others_read_copies_it():
    def build(table):
        value = table.read_value()
        loss = tf.reduce_sum(tf.gather(value, ids().values)) + tf.reduce_mean(value)
        return loss, v1.scatter_sub(table, ids().values, tf.zeros([2, DIM]) + loss)

    with fusion.fused():
        assert bytes_allocated(build) >= TABLE_BYTES


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_of_gathers_side_by_side_allocates_next_to_nothing(optimizer, reads):
    def build(table):
        other = v1.get_variable("other", [ROWS, DIM], use_resource=True)
        rows = [
            tf.gather(one.read_value() if reads else one, ids().values) for one in (table, other)
        ]
        joined = tf.concat(rows, 1)
        return OPTIMIZERS[optimizer]().minimize(tf.reduce_sum(tf.square(joined)))

    with fusion.fused():
        before = fusion.stats().columns_fused
        assert bytes_allocated(build) < TABLE_BYTES // 100
        assert fusion.stats().columns_fused == before + 2
