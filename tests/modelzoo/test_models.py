"""The models: what they compute, with and without fusion, and their exports."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.saved_model import fuse_saved_model
from modelzoo import bench, criteo
from modelzoo.deepfm import second_order
from modelzoo.dlrm import products
from modelzoo.export import export_graph, export_keras
from modelzoo.layers import KINDS, Embeddings, GraphLayers, placeholders
from modelzoo.models import MODELS, compile_model, keras_model, training_step
from tests.modelzoo.small import CAP, FEW, SIZES, batches, few_features, small

v1 = tf.compat.v1


def test_the_second_order_is_the_sum_over_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 39, 4)).astype(np.float32)
    pairs = np.einsum("nid,njd->nij", vectors, vectors)
    wanted = np.triu(pairs, 1).sum(axis=(1, 2))
    found = second_order(tf.constant(vectors.reshape(5, -1)), 4)
    np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-4, atol=1e-4)


def test_products_are_those_of_all_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 27, 4)).astype(np.float32)
    found = products(tf.constant(vectors.reshape(5, -1)), 4).numpy()
    wanted = [vectors[:, i] * vectors[:, j] for i in range(27) for j in range(i)]
    np.testing.assert_allclose(found, np.stack(wanted, 1).sum(axis=2), rtol=1e-4, atol=1e-5)


def test_deepfm_is_the_sum_of_its_parts() -> None:
    """As HugeCTR's notebook has it, but for the sign of the second order, which is the paper's."""
    model, lookup = keras_model("deepfm", small(), **SIZES)
    features = batches(1)[0].features
    embedded = lookup({name: features[name] for name in FEW})
    counts = np.hstack([features[name] for name in sorted(criteo.NUMERIC)])
    counts = np.log1p(np.maximum(counts, 0))

    def dense(inputs: Any, name: str) -> Any:
        kernel, bias = model.get_layer(name).get_weights()
        return inputs @ kernel + bias

    first = dense(counts, "first_order") + np.sum(embedded["weights"], axis=1, keepdims=True)
    (vectors,) = model.get_layer("count_vectors").get_weights()
    of_ids = embedded["vectors"].numpy().reshape(32, len(FEW), 4)
    fields = np.concatenate([counts[..., None] * vectors, of_ids], 1)
    pairs = np.einsum("nid,njd->nij", fields, fields)
    second = np.triu(pairs, 1).sum(axis=(1, 2))[:, None]
    hidden = fields.reshape(32, -1)
    for index in range(2):
        hidden = np.maximum(dense(hidden, f"hidden_{index}"), 0)
    wanted = first + second + dense(hidden, "deep")
    np.testing.assert_allclose(model(features), wanted, rtol=1e-3, atol=1e-5)


def flags_of(model: str, style: str, **others: Any) -> argparse.Namespace:
    sizes = {"batch_size": 32, "cap": CAP, "optimizer": "sgd", "rate": None, "seed": 0, **SIZES}
    rounds = {"rounds": 2, "steps_per_round": 1}
    return argparse.Namespace(model=model, style=style, **{**sizes, **rounds, **others})


@pytest.mark.parametrize("style", ["keras", "graph"])
@pytest.mark.parametrize("model", MODELS)
def test_models_learn_the_same_with_fusion(model: str, style: str) -> None:
    """The command that measures steps compares losses; of all variants those of two run here."""
    names = ["stock", "v2"] if style == "keras" else ["stock", "enable"]
    before = fusion.stats().columns_fused
    with few_features():
        found = bench.measure(flags_of(model, style), names)
    assert [*found] == names
    assert found["stock"]["speedup"] == [1.0, 1.0, 1.0]
    assert all(one["milliseconds"] > 0 for one in found.values())
    if style == "graph":
        assert fusion.stats().columns_fused > before


def test_variants_with_other_losses_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = bench._embeddings

    def other(flags: argparse.Namespace, variant: bench.Variant) -> Embeddings:
        flags.seed = 1 if variant.do_fusion else 0
        return embeddings(flags, variant)

    monkeypatch.setattr(bench, "_embeddings", other)
    with few_features(), pytest.raises(RuntimeError, match=r"of step 1 with v2, .* with stock"):
        bench.measure(flags_of("dlrm", "keras"), ["stock", "v2"])


def losses(kind: str, seen: Sequence[criteo.Batch]) -> list[float]:
    """Those of the steps of a Keras model."""
    model, _ = keras_model("wide_deep", small(kind), **SIZES)
    compile_model(model, "lazy-adam", None)
    return [float(model.train_on_batch(batch.features, batch.labels)) for batch in seen]


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_of_each_kind_are_trained(kind: str) -> None:
    found = losses(kind, batches(2) * 6)
    assert found[-1] < 0.98 * found[0]


def test_kinds_are_refused_where_they_are_not_possible() -> None:
    with pytest.raises(ValueError, match=r"kind must be one of columns, .*, got 'rows'"):
        small("rows")
    with pytest.raises(ValueError, match="do_fusion is for feature columns, and kind is 'layers'"):
        small("layers", "v2")
    with tf.Graph().as_default(), pytest.raises(ValueError, match="'sharded' are for Keras 3"):
        GraphLayers(small("sharded"), placeholders(small()))


def trained_graph(embeddings: Embeddings, batch: criteo.Batch, path: Path) -> Any:
    """Trains a step of a compat.v1 model and exports it; returns its logits."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(0)
        features = placeholders(embeddings)
        logits = MODELS["deepfm"](GraphLayers(embeddings, features), **SIZES)
        _, train = training_step(logits, tf.constant(batch.labels), "sgd", None)
        session.run(v1.global_variables_initializer())
        feeds = {tensor: batch.features[name] for name, tensor in features.items()}
        session.run(train, feeds)
        saved = v1.train.Saver().save(session, str(path.with_name("weights")))
        wanted = session.run(logits, feeds)
    export_graph("deepfm", embeddings, saved, path, **SIZES)
    return wanted


def trained_keras(embeddings: Embeddings, batch: criteo.Batch, path: Path) -> Any:
    """The same of a Keras model."""
    model, lookup = keras_model("deepfm", embeddings, **SIZES)
    compile_model(model, "sgd", None)
    model.train_on_batch(batch.features, batch.labels)
    export_keras(model, lookup, path)
    return model.predict_on_batch(batch.features)


@pytest.mark.parametrize(
    ("train", "kind", "do_fusion"),
    [
        (trained_keras, "columns", None),
        (trained_keras, "variables", "v2"),
        (trained_graph, "columns", None),
    ],
)
def test_exports_answer_as_the_model(
    tmp_path: Path, train: Any, kind: str, do_fusion: str | None
) -> None:
    (batch,) = batches(1)
    path = tmp_path / "model"
    wanted = train(small(kind, do_fusion), batch, path)
    paths = [path]
    if do_fusion is None:
        report = fuse_saved_model(path, tmp_path / "fused", verify=False)
        # Signatures of a graph share their lookups, those of Keras have their own.
        lookups = 2 * len(FEW) * (1 if train is trained_graph else 2)
        assert report.fused_count == len(report.columns) == lookups
        paths.append(tmp_path / "fused")
    for one in paths:
        signatures = tf.saved_model.load(str(one)).signatures
        tensors = {name: tf.constant(array) for name, array in batch.features.items()}
        served = signatures["serving_default"](**tensors)
        np.testing.assert_allclose(served["logits"], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            served["probabilities"], 1 / (1 + np.exp(-served["logits"])), rtol=1e-5
        )
        ids = {name: tensors[name] for name in FEW}
        shapes = {name: tensor.shape for name, tensor in signatures["embeddings"](**ids).items()}
        assert shapes == {"weights": (32, len(FEW)), "vectors": (32, len(FEW) * 4)}
