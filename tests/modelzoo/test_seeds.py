"""The experiments of the documents that this project began with, on stock TensorFlow."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from modelzoo import criteo
from modelzoo.criteo.convert import generate
from modelzoo.deepfm.__main__ import MODEL as DEEPFM
from modelzoo.layers import Columns, Inputs, KerasLayers
from modelzoo.options import Architecture, Model, Options
from modelzoo.training import loop
from modelzoo.training.setup import build, sources
from modelzoo.training.steps import KerasSteps

#: HugeCTR's notebook for its plugin: 8 rows of 4 elements; ids of 4 samples in 3 slots, -1: none.
TABLE = np.arange(1, 33, dtype=np.float32).reshape(8, 4)
KEYS = np.array(
    [
        [[0, -1], [1, -1], [2, 6]],
        [[0, -1], [1, -1], [-1, -1]],
        [[0, -1], [1, -1], [6, -1]],
        [[0, -1], [1, -1], [2, -1]],
    ],
    np.int64,
)
FIRST = [
    [[1, 2, 3, 4], [5, 6, 7, 8], [34, 36, 38, 40]],
    [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]],
    [[1, 2, 3, 4], [5, 6, 7, 8], [25, 26, 27, 28]],
    [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]],
]
#: After a step of Adam, which its notebook shows for the original ops.
SECOND_ROW = [0.90024906, 1.9002491, 2.900249, 3.900249]
SECOND_SUM = [33.800995, 35.800995, 37.800995, 39.800995]


def sparse(keys: Any) -> tf.SparseTensor:
    """The ids of each row of a matrix, without -1."""
    places = np.argwhere(keys != -1)
    return tf.SparseTensor(places, keys[keys != -1], keys.shape)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("kind", ["one table", "distributed", "localized"])
def test_forward_before_and_after_a_step_of_adam(kind: str, version: str) -> None:
    """Seed 000, "Verify Accuracy".

    Its distributed tables have their rows on GPUs by turns: shards by mod. Its localized ones have
    the slots on GPUs: a table of its own for each slot.
    """
    if kind == "localized":
        tables = [tf.Variable(TABLE) for _ in range(3)]
    elif kind == "distributed":
        tables = [tf.Variable(TABLE[shard::2]) for shard in range(2)]
    else:
        tables = [tf.Variable(TABLE)]

    @tf.function
    def forward() -> Any:
        if kind == "localized":
            slots = [
                fusion.fused_safe_embedding_lookup_sparse(
                    [table], sparse(KEYS[:, slot]), combiner="sum", fusion_version=version
                )
                for slot, table in enumerate(tables)
            ]
            return tf.stack(slots, axis=1)
        found = fusion.fused_safe_embedding_lookup_sparse(
            tables,
            sparse(KEYS.reshape(12, 2)),
            combiner="sum",
            partition_strategy="mod",
            fusion_version=version,
        )
        return tf.reshape(found, [4, 3, 4])

    with tf.GradientTape() as tape:
        first = forward()
    assert first.numpy().tolist() == FIRST
    optimizer = keras.optimizers.Adam(learning_rate=0.1, beta_1=0.9, beta_2=0.99, epsilon=1e-3)
    optimizer.apply_gradients(zip(tape.gradient(first, tables), tables, strict=True))
    second = forward().numpy()
    np.testing.assert_allclose(second[0, 0], SECOND_ROW, rtol=1e-5)
    np.testing.assert_allclose(second[0, 2], SECOND_SUM, rtol=1e-5)
    assert not second[1, 2].any()


def test_the_same_of_original_ops_as_they_are() -> None:
    """Seed 000, the cell with `tf.nn.embedding_lookup_sparse`, fused by the pass."""
    table = tf.Variable(TABLE)
    ids = sparse(KEYS.reshape(12, 2))

    def forward() -> Any:
        return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")

    results = []
    for scope in (nullcontext(), fusion.fused()):
        with scope:
            results.append(tf.function(forward)().numpy())
    assert results[0].tolist() == results[1].tolist()
    assert results[0].reshape(4, 3, 4).tolist() == FIRST


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_embedding_column_in_a_session(version: str) -> None:
    """Seed 001, example a, with a column of identities in the place of DeepRec's own kind."""
    v1 = tf.compat.v1
    losses = {}
    for do_fusion in (None, version):
        with tf.Graph().as_default(), v1.Session() as session:
            ids = tf.feature_column.categorical_column_with_identity("col_emb", 8)
            ones = tf.ones_initializer()
            if do_fusion is None:
                column = tf.feature_column.embedding_column(ids, 3, initializer=ones)
            else:
                column = fusion.feature_column.embedding_column(
                    ids, 3, initializer=ones, do_fusion=do_fusion
                )
            given = tf.SparseTensor(
                [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]],
                tf.constant([1, 2, 3, 4, 5], tf.int64),
                [5, 5],
            )
            embedded = v1.feature_column.input_layer({"col_emb": given}, [column])
            loss = tf.reduce_sum(tf.multiply(embedded, 2.0))
            optimizer = v1.train.FtrlOptimizer(
                0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001
            )
            step = optimizer.apply_gradients(optimizer.compute_gradients(loss))
            session.run(v1.global_variables_initializer())
            losses[do_fusion] = [session.run([embedded, step, loss])[::2] for _ in range(3)]
    for (embedded, loss), (wanted, wanted_loss) in zip(losses[version], losses[None], strict=True):
        assert (embedded == wanted).all()
        assert loss == wanted_loss
    assert losses[None][0][1] == 30.0


def test_lookup_sparse_of_two_tables() -> None:
    """Seed 002: the numbers that its comments show, and the rows that a step moves."""
    v1 = tf.Variable(np.arange(17 * 3).reshape(17, 3).astype(np.float32))
    v2 = tf.Variable(np.arange(7 * 5).reshape(7, 5).astype(np.float32))
    ids1 = tf.SparseTensor(
        [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]], tf.constant([1, 1, 3, 4, 5], tf.int64), [2, 3]
    )
    ids2 = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], tf.constant([1, 2, 3], tf.int64), [2, 2])
    with tf.GradientTape() as tape:
        found = [
            fusion.fused_embedding_lookup_sparse_v2(table, ids, combiner="sum")
            for table, ids in ((v1, ids1), (v2, ids2))
        ]
        loss = tf.add_n([tf.reduce_sum(one) for one in found])
    assert found[0].numpy().tolist() == [[6, 8, 10], [36, 39, 42]]
    assert found[1].numpy().tolist() == [[5, 6, 7, 8, 9], [25, 27, 29, 31, 33]]
    gradients = [tf.IndexedSlices(g.values, g.indices) for g in tape.gradient(loss, [v1, v2])]
    # On one device a table has the gradients of its localized mode: a row for each distinct id.
    assert [tuple(one.values.shape) for one in gradients] == [(4, 3), (3, 5)]
    before = v1.numpy()
    keras.optimizers.SGD(1.0).apply_gradients(zip(gradients, [v1, v2], strict=True))
    moved = before - v1.numpy()
    assert moved[:, 0].tolist() == [0, 2, 0, 1, 1, 1] + [0] * 11


@pytest.mark.parametrize("do_fusion", [None, "v1", "v2"])
def test_deepfm_is_the_sum_of_its_parts(do_fusion: str | None) -> None:
    """Seed 000, the model: first order, second order with the sign of the paper, and layers."""
    options = Options(cap=50, dim=10, do_fusion=do_fusion)
    source, _ = sources(options)
    steps = build(DEEPFM, options, source)
    assert isinstance(steps, KerasSteps)
    ((features, _),) = loop.first_batches(source, 40, 1)
    model, embedded = steps.model, steps.embeddings({n: features[n] for n in criteo.CATEGORICAL})
    counts = np.log1p(np.maximum(np.hstack([features[n] for n in sorted(criteo.NUMERIC)]), 0))

    def dense(inputs: Any, name: str) -> Any:
        kernel, bias = model.get_layer(name).get_weights()
        return inputs @ kernel + bias

    first = dense(counts, "first_order") + np.sum(embedded["weights"], axis=1, keepdims=True)
    (vectors,) = model.get_layer("count_vectors").get_weights()
    fields = np.concatenate(
        [counts[..., None] * vectors, embedded["vectors"].numpy().reshape(40, 26, 10)], 1
    )
    pairs = np.einsum("nid,njd->nij", fields, fields)
    second = np.triu(pairs, 1).sum(axis=(1, 2))[:, None]
    hidden = fields.reshape(40, -1)
    for place in range(3):
        hidden = np.maximum(dense(hidden, f"hidden_{place}"), 0)
    wanted = first + second + dense(hidden, "deep")
    np.testing.assert_allclose(model(features), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("do_fusion", [None, "v2"])
def test_lookup_and_dense_model_apart_give_the_same_logits(
    tmp_path: Path, do_fusion: str | None
) -> None:
    """Seed 003: the model in two, as an inference server has it, and together."""
    rows = dict.fromkeys(criteo.CATEGORICAL, 50)
    layers = KerasLayers(Columns(Inputs(rows), do_fusion))
    (vectors,) = layers.embeddings(vectors=16)
    hidden = layers.dense(vectors, 256, "fc_1")
    hidden = layers.dense(hidden, 128, "fc_2")
    whole = keras.Model(layers.features, layers.dense(hidden, 1, "fc_3"))
    read = {name: layers.features[name] for name in criteo.CATEGORICAL}
    lookup = keras.Model(read, vectors)
    given = keras.Input([26 * 16])
    dense = keras.Model(
        given, whole.get_layer("fc_3")(whole.get_layer("fc_2")(whole.get_layer("fc_1")(given)))
    )
    batch = criteo.CriteoData(cap=50, missing=0.1).batch(64).features
    features = {name: tf.constant(value) for name, value in batch.items()}
    wanted = whole(features).numpy()
    lookup.export(tmp_path / "lookup", verbose=False)
    dense.export(tmp_path / "dense", verbose=False)
    served = [
        tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        for name in ("lookup", "dense")
    ]
    embedded = served[0](**{name: features[name] for name in read})["output_0"]
    (name,) = served[1].structured_input_signature[1]
    found = served[1](**{name: embedded})["output_0"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def nvtabular(layers: Any, shape: Architecture) -> Any:
    """Seed 004: vectors alone, under three layers of 128 units."""
    (hidden,) = layers.embeddings(vectors=shape.dim)
    for place, units in enumerate(shape.hidden):
        hidden = layers.dense(hidden, units, f"hidden_{place}", "relu")
    return layers.dense(hidden, 1, "output")


def test_a_model_of_parquet_files(tmp_path: Path) -> None:
    """Seed 004, on synthetic files."""
    generate(tmp_path / "train", criteo.CriteoData(cap=100, seed=1), 3000)
    options = Options(data=str(tmp_path / "train"), batch_size=500, dim=8, optimizer="sgd")
    model = Model("nvtabular", nvtabular, Architecture(8, (128, 128, 128)))
    source, _ = sources(options)
    batches = loop.first_batches(source, 500, 6)
    losses = {}
    for do_fusion in (None, "v1", "v2"):
        steps = build(model, replace(options, do_fusion=do_fusion), source)
        losses[do_fusion] = [steps.train(*batch)[0] for batch in batches * 3]
    assert losses[None][-1] < losses[None][0]
    np.testing.assert_allclose(losses["v1"], losses[None], rtol=1e-5)
    np.testing.assert_allclose(losses["v2"], losses[None], rtol=1e-5)
