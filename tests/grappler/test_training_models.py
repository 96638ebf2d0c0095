"""Whole models trained with fusion on: feature columns in tf_keras, compat.v1 graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from tests.grappler.executed import executed
from tests.grappler.training_steps import GRADIENT, STOCK, TRAINED

fc = tf.feature_column
v1 = tf.compat.v1
ROWS, BATCH = 50, 16

Trained = tuple[np.ndarray, list[np.ndarray], Counter[str]]


def both(run: Callable[[], Trained]) -> tuple[Trained, Trained]:
    """Without fusion and with it."""
    stock = run()
    with fusion.fused():
        return stock, run()


def assert_same(stock: Trained, fused: Trained) -> None:
    """The same losses and variables, to the bit, from fused ops alone."""
    np.testing.assert_array_equal(stock[0], fused[0])
    assert len({*stock[0].tolist()}) == len(stock[0])
    for theirs, mine in zip(stock[1], fused[1], strict=True):
        np.testing.assert_array_equal(theirs, mine)
    assert sum(stock[2][op] for op in (*TRAINED, GRADIENT)) == 0
    assert all(fused[2][op] for op in (*TRAINED, GRADIENT))
    # These optimizers look for repeated ids themselves.
    assert sum(fused[2][op] for op in STOCK if op != "Unique") == 0


def feature_columns() -> list[Any]:
    identity = fc.categorical_column_with_identity
    sparse = [
        *(identity(f"id{n}", ROWS, default_value=0) for n in range(3)),
        fc.categorical_column_with_hash_bucket("word", 30),
        fc.bucketized_column(fc.numeric_column("number"), [0.0, 1.0, 2.0]),
        fc.weighted_categorical_column(identity("weighted", ROWS), "weights"),
    ]
    combiners = ("mean", "sum", "sqrtn")
    columns = [fc.embedding_column(c, 4, combiners[n % 3]) for n, c in enumerate(sparse)]
    return [*columns, fc.numeric_column("dense", 2)]


def features(rng: np.random.Generator) -> dict[str, Any]:
    ids = tf.sparse.from_dense(rng.integers(0, ROWS, (BATCH, 3)))
    weights = rng.random(ids.indices.shape[0]).astype(np.float32)
    return {
        **{f"id{n}": tf.constant(rng.integers(-1, ROWS, (BATCH, 3))) for n in range(3)},
        "word": tf.constant(rng.choice(["a", "b", "", "d"], (BATCH, 2))),
        "number": tf.constant(rng.normal(size=(BATCH, 1)), tf.float32),
        "dense": tf.constant(rng.normal(size=(BATCH, 2)), tf.float32),
        "weighted": ids,
        "weights": tf.SparseTensor(ids.indices, weights, ids.dense_shape),
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_feature_columns_in_tf_keras(optimizer: str) -> None:
    def run() -> Trained:
        tf_keras.utils.set_random_seed(1)
        layers = tf_keras.layers
        embed = layers.DenseFeatures(feature_columns())
        model = tf_keras.Sequential([embed, layers.Dense(8, "relu"), layers.Dense(1)])
        model.compile(optimizer, "mse")
        rng = np.random.default_rng(0)
        batches = [(features(rng), rng.random((BATCH, 1))) for _ in range(5)]
        losses = [model.train_on_batch(*batch) for batch in batches[:-1]]
        with executed() as ran:
            losses.append(model.train_on_batch(*batches[-1]))
        return np.array(losses), [weight.numpy() for weight in model.trainable_variables], ran

    assert_same(*both(run))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
}


@pytest.mark.parametrize(("shards", "strategy"), [(1, "div"), (3, "div"), (4, "mod")])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_graphs_of_compat_v1(optimizer: str, shards: int, strategy: str) -> None:
    def run() -> Trained:
        rng = np.random.default_rng(0)
        with tf.Graph().as_default(), v1.Session() as session:
            ids = [v1.sparse_placeholder(tf.int64, [None, None]) for _ in range(3)]
            dense, labels = (v1.placeholder(tf.float32, [None, width]) for width in (3, 1))
            vectors = []
            for n, one in enumerate(ids):
                with v1.variable_scope(f"column{n}", use_resource=True):
                    table = v1.get_variable(
                        "table",
                        [ROWS, 4],
                        initializer=v1.random_normal_initializer(0, 0.1, seed=n),
                        partitioner=v1.fixed_size_partitioner(shards) if shards > 1 else None,
                    )
                vectors.append(
                    v1.nn.safe_embedding_lookup_sparse(
                        table,
                        one,
                        combiner=("mean", "sum", "sqrtn")[n],
                        partition_strategy=strategy,
                    )
                )
            joined = tf.concat([dense, *vectors], 1)
            start = rng.standard_normal((15, 1)).astype(np.float32)
            kernel = v1.get_variable("kernel", initializer=start, use_resource=True)
            logits = joined @ kernel
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
            step = OPTIMIZERS[optimizer]().minimize(loss)
            session.run(v1.global_variables_initializer())
            losses = []
            with executed() as ran:
                for _ in range(4):
                    feeds = {one: _sparse(rng) for one in ids}
                    feeds |= {dense: rng.random((BATCH, 3)), labels: rng.random((BATCH, 1))}
                    losses.append(session.run([loss, step], feeds)[0])
            return np.array(losses), session.run(v1.trainable_variables()), ran

    stock, fused = both(run)
    assert_same(stock, fused)
    assert [fused[2][op] for op in (*TRAINED, GRADIENT)] == [4, 4, 4]


def _sparse(rng: np.random.Generator) -> Any:
    rows = np.repeat(np.arange(BATCH), rng.integers(0, 5, BATCH))
    indices = np.stack([rows, np.arange(len(rows))], 1)
    return v1.SparseTensorValue(indices, rng.integers(-1, ROWS, len(rows)), [BATCH, 100])
