"""What stock optimizers do to tables, in one op for each table: the same bits."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.passes.analysis import stock_bits
from fusion.passes.report.report import FusionReport
from tests.grappler.executed import executed

v1 = tf.compat.v1
UPDATE = "FusedEmbeddingUpdate"
WRITES = ("ResourceScatterAdd", "ResourceScatterSub")
ROWS, DIM, TABLES, BATCH = 40, 8, 3, 24


def optimizers(module: Any) -> dict[str, Callable[[], Any]]:
    """Those of either Keras."""
    k = module.optimizers
    return {
        "sgd": lambda: k.SGD(0.1),
        "momentum": lambda: k.SGD(0.1, momentum=0.9),
        "nesterov": lambda: k.SGD(0.1, momentum=0.9, nesterov=True),
        "adagrad": lambda: k.Adagrad(0.1),
        "adam": lambda: k.Adam(0.01),
        "adamw": lambda: k.AdamW(0.01),
        "amsgrad": lambda: k.Adam(0.01, amsgrad=True),
        "rmsprop": lambda: k.RMSprop(0.01),
        "adadelta": lambda: k.Adadelta(0.1),
        "adamax": lambda: k.Adamax(0.01),
        "nadam": lambda: k.Nadam(0.01),
        "ftrl": lambda: k.Ftrl(0.1),
        "lion": lambda: k.Lion(0.01),
        "schedule": lambda: k.Adam(k.schedules.ExponentialDecay(0.01, 2, 0.5)),
        "clipvalue": lambda: k.Adagrad(0.1, clipvalue=0.01),
        "clipnorm": lambda: k.SGD(0.1, clipnorm=0.01),
    }


def trained(make: Callable[[], Any], steps: int = 4) -> tuple[list[np.ndarray], Any]:
    """The variables after some steps, the optimizer's too, and what ran in the last one."""
    rng = np.random.default_rng(0)
    tables = [tf.Variable(rng.normal(size=(ROWS, DIM)).astype(np.float32)) for _ in range(TABLES)]
    kernel = tf.Variable(rng.normal(size=(DIM * TABLES, 1)).astype(np.float32))
    optimizer = make()
    if hasattr(optimizer, "build"):
        optimizer.build([*tables, kernel])

    @tf.function(input_signature=[tf.TensorSpec([None, TABLES], tf.int32)])
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = [tf.gather(table, ids[:, n]) for n, table in enumerate(tables)]
            loss = tf.reduce_mean(tf.square(tf.concat(rows, 1) @ kernel - 1.0))
        gradients = tape.gradient(loss, [*tables, kernel])
        optimizer.apply_gradients(zip(gradients, [*tables, kernel], strict=True))
        return loss

    batches = [tf.constant(rng.integers(0, ROWS // 2, (BATCH, TABLES)), tf.int32)] * steps
    for batch in batches[1:]:
        step(batch)
    with executed() as ran:
        step(batches[0])
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    values = [tf.convert_to_tensor(v).numpy() for v in (*tables, *variables)]
    return values, ran


def last_report() -> FusionReport:
    report = fusion.stats().last_report
    assert report is not None
    return report


def check(make: Callable[[], Any], ops: int = TABLES) -> FusionReport:
    """Trains without fusion and with it."""
    stock, _ = trained(make)
    with fusion.fused():
        fused, ran = trained(make)
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    report = last_report()
    assert [update.reason for update in report.updates] == [None] * TABLES
    assert ran[UPDATE] == ops
    assert sum(ran[op] for op in WRITES) == 0
    return report


@pytest.mark.parametrize("name", optimizers(keras))
def test_keras_3(name: str) -> None:
    check(optimizers(keras)[name])


@pytest.mark.parametrize("name", optimizers(tf_keras))
def test_tf_keras(name: str) -> None:
    check(optimizers(tf_keras)[name])


#: Those of tf_keras that take Rsqrt, and whether it is of rows of the batch alone.
WITH_RSQRT = {"adagrad": True, "rmsprop": True, "adadelta": False}


@pytest.mark.parametrize("name", WITH_RSQRT)
@pytest.mark.parametrize("dim", [DIM, DIM + 1])
def test_rsqrt_is_fused_where_tensors_are_whole_vectors(
    name: str, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dim == DIM:
        # As a TensorFlow that was compiled for other processors.
        monkeypatch.setattr(stock_bits, "_agrees", lambda op, dtype: False)
    else:
        monkeypatch.setattr(sys.modules[__name__], "DIM", dim)
    stock, _ = trained(optimizers(tf_keras)[name])
    with fusion.fused():
        fused, ran = trained(optimizers(tf_keras)[name])
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ran["Rsqrt"]
    if WITH_RSQRT[name]:
        # One before it, and one behind.
        assert ran[UPDATE] == 2 * TABLES
    else:
        assert "Rsqrt is not fused into an update" in {u.reason for u in last_report().updates}


@pytest.mark.parametrize("initial", [0.1, 0.0])
def test_adagrad_of_the_legacy_tf_keras(initial: float) -> None:
    """ResourceSparseApplyAdagradV2."""
    check(lambda: tf_keras.optimizers.legacy.Adagrad(0.1, initial_accumulator_value=initial))


@pytest.mark.parametrize("name", ["momentum", "adam", "adamax", "lion"])
def test_values_of_repeated_ids_are_summed_by_the_op(name: str) -> None:
    with fusion.fused():
        _, ran = trained(optimizers(tf_keras)[name])
    assert ran[UPDATE] == TABLES
    assert not ran["Unique"]
    assert not ran["UnsortedSegmentSum"]


@pytest.mark.parametrize("deduplicate", [False, True])
def test_negative_ids_of_an_embedding_of_keras_3(deduplicate: bool) -> None:
    ids = tf.constant([[1, -1, 3], [-ROWS, 1, ROWS - 1]])

    def train() -> tuple[list[np.ndarray], Any]:
        layer = keras.layers.Embedding(ROWS, DIM, embeddings_initializer="ones")
        layer.build()
        table = layer.trainable_variables[0].value
        slot = tf.Variable(tf.zeros_like(table))

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
        def step(ids: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids) ** 3)
            gradient = tape.gradient(loss, table)
            rows, values = gradient.indices, gradient.values
            if deduplicate:
                rows, index = tf.unique(rows)
                values = tf.math.unsorted_segment_sum(values, index, tf.size(rows))
            slot.scatter_add(tf.IndexedSlices(tf.square(values), rows))
            scale = tf.raw_ops.ResourceGather(resource=slot.handle, indices=rows, dtype=tf.float32)
            table.scatter_sub(tf.IndexedSlices(values * scale, rows))

        for _ in range(2):
            step(ids)
        with executed() as ran:
            step(ids)
        return [table.numpy(), slot.numpy()], ran

    stock, _ = train()
    with fusion.fused():
        fused, ran = train()
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ran[UPDATE] == 1
    assert not ran["Unique"]
    assert [u.reason for u in last_report().updates] == [None]


def test_what_the_report_says_of_optimizers_that_move_all_rows() -> None:
    text = str(check(optimizers(keras)["adam"]))
    size = 3 * TABLES * 4 * ROWS * DIM / 1e6
    assert f"  {TABLES} of {TABLES} updates of tables fused\n" in text
    assert f"every row moves in {TABLES} of them, {size:.1f} MB in each step\n" in text
    row = 3 * TABLES * 4 * DIM / 1e3
    assert f"fusion.optimizers.LazyAdam would move {row:.2g} kB for an id in each" in text
    assert "LazyMomentum" in str(check(optimizers(keras)["momentum"]))
    assert "LazyFtrl" in str(check(optimizers(keras)["ftrl"]))
    assert "every row" not in str(check(optimizers(keras)["adagrad"]))
    lion = str(check(optimizers(keras)["lion"]))
    assert "every row" in lion
    assert "Lazy" not in lion


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "ftrl"])
def test_a_v1_session(name: str) -> None:
    """Adagrad's one op is taken in; those of momentum and Ftrl stay as they are."""
    make: Callable[[], Any] = {
        "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
        "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
        "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
    }[name]
    rng = np.random.default_rng(0)
    start = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    ids = rng.integers(0, ROWS, BATCH)

    def train() -> tuple[list[np.ndarray], Any]:
        with tf.Graph().as_default(), v1.Session() as session:
            table = v1.get_variable("table", initializer=start, use_resource=True)
            rows = tf.nn.embedding_lookup(table, v1.placeholder_with_default(ids, [None]))
            step = make().minimize(tf.reduce_sum(rows**2))
            session.run(v1.global_variables_initializer())
            for _ in range(2):
                session.run(step)
            with executed() as ran:
                session.run(step)
            return session.run(v1.global_variables()), ran

    stock, _ = train()
    with fusion.fused():
        fused, ran = train()
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    is_fused = name in ("sgd", "adagrad", "adam")
    assert ran[UPDATE] == int(is_fused)
    if is_fused:
        assert not ran["Unique"]
        assert not any("Apply" in op for op in ran)


@pytest.mark.parametrize(
    "op", [v1.raw_ops.ResourceSparseApplyAdagrad, v1.raw_ops.ResourceSparseApplyAdagradV2]
)
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("distinct", None),
        ("repeated", "ids may be repeated"),
        ("kept slots", "leaves its slots"),
        ("rounds", "rounds in another way here"),
        ("twice", "one variable is changed twice"),
    ],
)
def test_when_an_op_that_applies_a_gradient_is_taken_in(
    op: Any, what: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "rounds":
        monkeypatch.setattr(stock_bits, "_agrees", lambda op, dtype: False)
    rng = np.random.default_rng(0)
    start = rng.normal(size=(2, ROWS, DIM)).astype(np.float32)
    ids = tf.constant(rng.integers(0, ROWS // 3, BATCH))

    def train() -> tuple[list[np.ndarray], Any]:
        table, slot = tf.Variable(start[0]), tf.Variable(np.abs(start[1]))

        @tf.function(autograph=False)
        def step(ids: tf.Tensor) -> None:
            grad = tf.gather(table, ids) ** 2
            if what != "repeated":
                ids, index = tf.unique(ids)
                grad = tf.math.unsorted_segment_sum(grad, index, tf.size(ids))
            more = {"epsilon": 1e-7} if op.__name__.endswith("_v2") else {}
            accum = table if what == "twice" else slot
            op(
                var=table.handle,
                accum=accum.handle,
                lr=0.1,
                grad=grad,
                indices=ids,
                update_slots=what != "kept slots",
                **more,
            )

        for _ in range(2):
            step(ids)
        with executed() as ran:
            step(ids)
        return [table.numpy(), slot.numpy()], ran

    stock, _ = train()
    with fusion.fused():
        fused, ran = train()
    if what != "repeated":
        # Threads of the stock op add to the same row in any order.
        for mine, theirs in zip(fused, stock, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert ran[UPDATE] == (reason is None)
    (update,) = last_report().updates
    assert (update.reason or "").endswith(reason or "")


def test_row_updates_is_ignored_with_a_warning() -> None:
    with (
        pytest.warns(DeprecationWarning, match="row_updates is ignored"),
        fusion.fused(row_updates=True),
    ):
        check(optimizers(keras)["sgd"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fusion.fused():
            pass


def test_nothing_that_other_threads_add_is_lost() -> None:
    """Each of them adds 1 to the same rows, which no number of threads does another way."""
    table = tf.Variable(tf.zeros([ROWS, DIM]))
    ids, ones = tf.range(ROWS), tf.ones([ROWS, DIM])

    @tf.function
    def step() -> None:
        table.scatter_add(tf.IndexedSlices(ones * tf.reduce_min(ones), ids))

    with fusion.fused():
        step()
        with executed() as ran:
            step()
    assert ran[UPDATE] == 1
    threads = [threading.Thread(target=lambda: [step() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(table.numpy(), 202)


def test_only_the_branch_that_is_taken_updates() -> None:
    def train_by(first: bool) -> tuple[list[np.ndarray], int]:
        tables = [tf.Variable(tf.ones([5, 3]) * (n + 1)) for n in range(3)]
        ids = tf.constant([1, 2])

        def update(table: tf.Variable) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids) ** 2)
            gradient = tape.gradient(loss, table)
            table.scatter_sub(tf.IndexedSlices(gradient.values * 0.1, gradient.indices))

        @tf.function
        def step(first: tf.Tensor) -> None:
            update(tables[2])
            if first:
                update(tables[0])
            else:
                update(tables[1])

        for _ in range(2):
            step(tf.constant(first))
        with executed() as ran:
            step(tf.constant(first))
        return [table.numpy() for table in tables], ran[UPDATE]

    for first in (True, False):
        stock, _ = train_by(first)
        with fusion.fused():
            fused, count = train_by(first)
        assert count > 0
        np.testing.assert_array_equal(fused, stock)
        moved = [bool(np.any(table != n + 1)) for n, table in enumerate(fused)]
        assert moved == [first, not first, True]


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_factors_that_tensorflow_moves_in_its_second_round(module: Any, name: str) -> None:
    """A number times the gradient of a table goes into the optimizer's products."""
    ids = tf.constant(np.random.default_rng(0).integers(0, ROWS, BATCH))

    def train() -> list[np.ndarray]:
        table = tf.Variable(tf.random.stateless_normal([ROWS, DIM], [1, 2]))
        optimizer = optimizers(module)[name]()
        optimizer.build([table])

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids) ** 3)
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
            return loss

        for _ in range(3):
            step()
        return [table.numpy()]

    stock = train()
    with fusion.fused():
        fused = train()
    assert [update.reason for update in last_report().updates] == [None]
    np.testing.assert_array_equal(fused, stock)


@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_global_clipnorm(module: Any, name: str) -> None:
    """Keras 3 sums such gradients up to dense ones; whatever is fused has stock's bits."""

    def make() -> Any:
        return getattr(module.optimizers, name)(0.1, global_clipnorm=0.01)

    stock, _ = trained(make)
    with fusion.fused():
        fused, _ = trained(make)
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
