"""What all row-sparse optimizers have in common, and what they share with the stock ones."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from fusion.optimizers import rows
from tests.optimizers import runs
from tests.optimizers.runs import BATCHES, CASES, FULL_BATCHES, KERNEL, OPTIMIZERS, ROWS, TABLE

#: Those of Keras, once each.
EAGER = [(way, rule) for way, rule in CASES if way in ("keras3 eager", "tf_keras eager")]


@pytest.mark.parametrize(
    ("way", "rule"), [(w, r) for w, r in CASES if r in ("momentum", "nesterov", "ftrl")]
)
def test_they_do_what_legacy_optimizers_do(way, rule):
    lazy, legacy, stock = (
        runs.train(way, which, BATCHES, rule) for which in ("lazy", "legacy", "stock")
    )
    runs.assert_close([lazy, legacy])
    assert np.any(lazy.table != stock.table)


@pytest.mark.parametrize(("way", "rule"), CASES)
def test_other_rows_keep_their_bits(way, rule):
    before = runs.train(way, "lazy", BATCHES[:5], rule)
    after = runs.train(way, "lazy", BATCHES, rule)  # one batch more, with one row
    others = np.delete(np.arange(ROWS), BATCHES[5].ids)
    names = [name for name in after.moments if name.endswith("of table")]
    assert names
    for old, new in [(before.table, after.table)] + [
        (before.moments[name], after.moments[name]) for name in names
    ]:
        np.testing.assert_array_equal(new[others], old[others])
        assert not np.any(new[BATCHES[5].ids] == old[BATCHES[5].ids])
    untouched = runs.untouched(BATCHES)
    np.testing.assert_array_equal(after.table[untouched], TABLE[untouched])


@pytest.mark.parametrize(("way", "rule"), CASES)
def test_they_are_stock_where_every_row_is_in_every_batch(way, rule):
    states = [runs.train(way, which, FULL_BATCHES, rule) for which in ("lazy", "stock")]
    exact = rule in ("adam", "momentum")
    (runs.assert_same if exact else runs.assert_close)(states)
    assert np.all(states[0].table != TABLE)


@pytest.mark.parametrize(("way", "rule"), CASES)
def test_dense_variables_move_as_with_stock(way, rule):
    lazy, stock = (runs.train(way, which, BATCHES, rule) for which in ("lazy", "stock"))
    np.testing.assert_array_equal(lazy.kernel, stock.kernel)
    for name in lazy.moments:
        if name.endswith("of kernel"):
            np.testing.assert_array_equal(lazy.moments[name], stock.moments[name])
    assert np.all(lazy.kernel != KERNEL)


@pytest.mark.parametrize(("way", "rule"), CASES)
def test_values_of_one_id_are_summed_but_for_adagrad(way, rule):
    batch = runs.Batch.random([4, 7, 4], 1)
    sums = np.stack([batch.values[0] + batch.values[2], batch.values[1]])
    summed = runs.Batch(np.array([4, 7]), sums, batch.kernel)
    states = [runs.train(way, "lazy", [b, *BATCHES[:2]], rule) for b in (batch, summed)]
    if rule == "adagrad":  # as Keras's does, it squares them one by one
        assert np.all(states[0].table[4] != states[1].table[4])
    else:
        runs.assert_same(states)


@pytest.mark.parametrize(
    ("way", "rule", "name"),
    [
        (way, rule, name)
        for way, rule in EAGER
        for name in ("clipnorm", "clipvalue", "global_clipnorm", "weight_decay")
        if (rule, name) != ("adagrad", "weight_decay")  # refused
    ],
)
def test_arguments_act_on_rows_as_stock_on_all(way, rule, name):
    given = {name: 0.2}
    # Stock adds up the squares of a norm in the order of the table, not of the batch.
    lazy, stock = (
        runs.train(way, which, FULL_BATCHES, rule, **given) for which in ("lazy", "stock")
    )
    runs.assert_close([lazy, stock])
    assert np.any(lazy.table != runs.train(way, "lazy", FULL_BATCHES, rule).table)
    some = runs.train(way, "lazy", BATCHES, rule, **given)
    untouched = runs.untouched(BATCHES)
    np.testing.assert_array_equal(some.table[untouched], TABLE[untouched])


@pytest.mark.parametrize(
    ("dtype", "id_type", "error"),
    [(tf.float16, tf.int32, 2e-3), (tf.bfloat16, tf.int64, 2e-2), (tf.float64, tf.int32, 1e-12)],
    ids=["float16", "bfloat16", "float64"],
)
@pytest.mark.parametrize(("way", "rule"), EAGER)
def test_tables_of_other_types(way, rule, dtype, id_type, error):
    given = {"beta_2": 0.9} if rule == "adam" else {}  # the default is 1 in bfloat16

    def train(which):
        table = tf.Variable(tf.cast(TABLE, dtype))
        optimizer = OPTIMIZERS[f"{runs.WAYS[way][0]} {rule}"].make(which, **given)
        for batch in FULL_BATCHES:
            values, ids = tf.cast(batch.values, dtype), tf.cast(batch.ids, id_type)
            optimizer.apply_gradients([(runs.slices(values, ids), table)])
        return tf.cast(table, tf.float64).numpy()

    lazy = train("lazy")
    np.testing.assert_allclose(lazy, train("stock"), rtol=error, atol=error)
    assert np.max(np.abs(lazy - TABLE)) > 10 * error


FUSED = [(way, rule) for way, rule in CASES if way[:2] != "v1"]
OPTIONS: dict[str, list[dict]] = {
    rule: [{}, {"weight_decay": 0.1}, {"clipnorm": 0.5}] for rule in ("momentum", "nesterov")
}
OPTIONS["adam"] = [*OPTIONS["momentum"], {"amsgrad": True}, {"amsgrad": True, "weight_decay": 0.1}]
OPTIONS["ftrl"] = [*OPTIONS["momentum"], {"l1_regularization_strength": 0.0}]
OPTIONS["adagrad"] = [{}, {"clipnorm": 0.5}]


@pytest.mark.parametrize(
    ("way", "rule", "options"),
    [(way, rule, options) for way, rule in FUSED for options in OPTIONS[rule]],
)
def test_one_op_gives_the_bits_of_other_ops(way, rule, options, monkeypatch):
    fused = runs.train(way, "lazy", BATCHES, rule, **options)
    monkeypatch.setattr(rows, "has_fused_update", lambda variable: False)
    others = runs.train(way, "lazy", BATCHES, rule, **options)
    # TensorFlow's optimizer of graphs makes a product of the quotient of stock's ops.
    is_rearranged = rule == "adagrad" and "function" in way
    (runs.assert_close if is_rearranged else runs.assert_same)([fused, others])


STOCK_OPS = {"Unique", "UnsortedSegmentSum", "ResourceGather", "ResourceScatterUpdate"}


def operations(name, **arguments):
    """How many of each type there are in the graph of a step for a table and a kernel."""
    table, kernel = tf.Variable(TABLE), tf.Variable(KERNEL)
    step = runs.step_function(OPTIMIZERS[name].make("lazy", **arguments), table, kernel)
    found = runs.compile_step(step).get_concrete_function().graph.get_operations()
    return Counter(op.type for op in found)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name[:2] != "v1"])
def test_one_op_per_table(name):
    found = operations(name)
    assert found["FusedEmbeddingUpdate"] == 1
    assert not STOCK_OPS & {*found}
    if not name.endswith("adagrad"):
        decaying = operations(name, weight_decay=0.1)
        assert decaying["FusedEmbeddingUpdate"] == 1
        assert not decaying["ResourceScatterUpdate"]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name[:2] != "v1"])
def test_tables_have_stock_ops_where_ops_go_to_a_gpu(name, monkeypatch):
    monkeypatch.setattr(rows, "DEVICES", SimpleNamespace(home="GPU"))
    found = operations(name)
    assert not any(op.startswith("FusedEmbedding") for op in found)
    assert found["ResourceSparseApplyFtrlV2"] == name.endswith("ftrl")
    assert found["Unique"] == (not name.endswith("adagrad"))


@pytest.mark.parametrize("family", ["keras3", "tf_keras"])
def test_what_has_no_fused_update(family):
    found = operations(f"{family} ftrl", learning_rate_power=-0.4)
    assert found["ResourceSparseApplyFtrlV2"] == 1
    assert not found["FusedEmbeddingUpdate"]


@pytest.mark.parametrize("home", ["CPU", "GPU"])
@pytest.mark.parametrize("device", ["", "/device:CPU:0"])
def test_fused_updates_are_for_cpus(home, device, monkeypatch):
    monkeypatch.setattr(rows, "DEVICES", SimpleNamespace(home=home))
    variable = SimpleNamespace(device=device, dtype=tf.float32, shape=tf.TensorShape([5, 3]))
    assert rows.has_fused_update(variable) == (home == "CPU")
    monkeypatch.setattr(rows, "is_updated_in_place", lambda dtype: False)
    assert not rows.has_fused_update(variable)


@pytest.mark.parametrize("name", ["keras3 adam", "keras3 momentum", "keras3 nesterov"])
def test_xla_compiles_them(name):
    batch = FULL_BATCHES[0]

    def train(**options):
        table = tf.Variable(TABLE)
        optimizer = OPTIMIZERS[name].make("lazy")
        optimizer.build([table])

        @tf.function(**options)
        def step(ids, values):
            optimizer.apply_gradients([(runs.slices(values, ids), table)])

        step(tf.constant(batch.ids), tf.constant(batch.values))
        return table.numpy()

    np.testing.assert_allclose(train(jit_compile=True), train(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("device", "dtype", "shape", "expected"),
    [
        ("", tf.float32, [5, 3], True),
        ("/job:localhost/replica:0/task:0/device:CPU:0", tf.float64, [5, 3], True),
        ("/job:worker/replica:0/task:1/device:CPU:0", tf.float32, [5, 3], True),
        ("/job:ps/replica:0/task:1/device:CPU:0", tf.float32, [5, 3], False),
        ("/job:localhost/replica:0/task:0/device:GPU:0", tf.float32, [5, 3], False),
        ("", tf.float16, [5, 3], False),
        ("", tf.bfloat16, [5, 3], False),
        ("", tf.float32, [5], False),
        ("", tf.float32, [5, 3, 2], False),
    ],
)
def test_which_tables_have_a_fused_update(device, dtype, shape, expected):
    variable = SimpleNamespace(device=device, dtype=dtype, shape=tf.TensorShape(shape))
    assert rows.has_fused_update(variable) == expected


def whole_reads(variable, concrete):
    """The operations of a function that read all of a variable."""
    (handle,) = (inner for outer, inner in concrete.graph.captures if outer is variable.handle)
    assert handle.consumers()
    return [op for op in handle.consumers() if op.type == "ReadVariableOp"]


CLIPPED = {"weight_decay": 0.1, "clipnorm": 1.0}
READERS: list[tuple[str, dict]] = [(name, {}) for name in OPTIMIZERS] + [
    (name, {**CLIPPED, **({"amsgrad": True} if name.endswith("adam") else {})})
    for name in OPTIMIZERS
    if name not in ("v1 adam", "keras3 adagrad")
]


@pytest.mark.parametrize("which", ["lazy", "stock"])
@pytest.mark.parametrize(("name", "arguments"), READERS)
def test_no_step_reads_a_whole_table(name, arguments, which):
    table, kernel = tf.Variable(TABLE), tf.Variable(KERNEL)
    optimizer = OPTIMIZERS[name].make(which, **arguments)
    step = runs.step_function(optimizer, table, kernel)
    if name == "v1 adam":  # makes its slots in the first step
        runs.train_variables(optimizer, table, kernel, BATCHES[:1])
    moments = runs.moments(optimizer, table, kernel)
    concrete = runs.compile_step(step).get_concrete_function()
    of_table = [table, *(m for name, m in moments.items() if name.endswith("of table"))]
    count = {"adam": 3, "ftrl": 3}.get(name.partition(" ")[2], 2)
    assert len(of_table) == count + ("amsgrad" in arguments)
    reads = [whole_reads(variable, concrete) for variable in of_table]
    shapes = [out.shape for op in concrete.graph.get_operations() for out in op.outputs]
    assert any(reads) == (which == "stock")
    assert (tf.TensorShape(TABLE.shape) in shapes) == (which == "stock")
