"""Models of the zoo with all of their features, of which tests take few; and one client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import RewriteOptions, rewrite_saved_model, split_saved_model
from modelzoo import bench, criteo
from modelzoo.export import export_graph, export_keras
from modelzoo.layers import Embeddings, GraphLayers, placeholders
from modelzoo.models import MODELS, compile_model, keras_model
from tests.benchmarks.test_latency import check_answers
from tests.modelzoo.test_models import flags_of

v1 = tf.compat.v1


def trained_keras(
    name: str, embeddings: Embeddings, batches: list[criteo.Batch], path: Path
) -> None:
    """Trains a Keras model and exports it."""
    model, lookup = keras_model(name, embeddings)
    compile_model(model, "lazy-adam", None)
    for batch in batches:
        model.train_on_batch(batch.features, batch.labels)
    export_keras(model, lookup, path)


def new_graph(name: str, embeddings: Embeddings, batches: Any, path: Path) -> None:
    """Exports a compat.v1 model that is not trained."""
    del batches
    with tf.Graph().as_default(), v1.Session() as session:
        MODELS[name](GraphLayers(embeddings, placeholders(embeddings)))
        session.run(v1.global_variables_initializer())
        saved = v1.train.Saver().save(session, str(path.with_name("weights")))
    export_graph(name, embeddings, saved, path)


def batches_of(cap: int, size: int, count: int, first: int = 0) -> list[criteo.Batch]:
    data = criteo.CriteoData(cap, missing=0.02)
    return [data.batch(size, first + index) for index in range(count)]


@pytest.mark.parametrize("style", ["keras", "graph"])
@pytest.mark.parametrize("name", MODELS)
def test_models_learn_the_same_with_fusion(name: str, style: str) -> None:
    """All variants of the command that measures steps, which compares losses."""
    names = [*bench.VARIANTS][2 if style == "graph" else 0 :]
    assert [*bench.measure(flags_of(name, style, dim=None, hidden=None), names)] == names


@pytest.mark.parametrize("export", [trained_keras, new_graph])
@pytest.mark.parametrize("do_fusion", [None, "v2"])
@pytest.mark.parametrize("name", MODELS)
def test_exports_are_split(tmp_path: Path, name: str, do_fusion: str | None, export: Any) -> None:
    """Lookups and the dense model behind them are compared with the export."""
    embeddings = Embeddings(criteo.cardinalities(100), do_fusion=do_fusion)
    export(name, embeddings, batches_of(100, 32, 2), tmp_path / "model")
    done = split_saved_model(tmp_path / "model", tmp_path / "split")
    assert len(done.cuts) >= len(done.tables) >= len(criteo.CATEGORICAL)
    assert done.verification is not None
    assert done.verification.same


def test_a_rewritten_keras_model_is_verified(tmp_path: Path) -> None:
    """TensorFlow may order the arithmetic behind its lookups otherwise, which is reported."""
    embeddings = Embeddings(criteo.cardinalities(100))
    trained_keras("wide_deep", embeddings, batches_of(100, 32, 5), tmp_path / "model")
    done = rewrite_saved_model(tmp_path / "model", tmp_path / "fused")
    assert done.verification is not None
    assert done.verification.same
    if done.verification.columns is not None:
        assert "52 columns to the bit" in done.verification.summary()


@pytest.mark.parametrize("name", MODELS)
def test_packed_tables_rank_as_plain_ones(name: str, tmp_path: Path) -> None:
    embeddings = Embeddings(criteo.cardinalities(20_000))
    trained_keras(name, embeddings, batches_of(20_000, 512, 300), tmp_path / "float32")
    held_out = batches_of(20_000, 1024, 40, first=1000)

    def area(dtype: str) -> float:
        serve = tf.saved_model.load(str(tmp_path / dtype)).signatures["serving_default"]
        metric = keras.metrics.AUC(num_thresholds=10_000, from_logits=True)
        for batch in held_out:
            tensors = {name: tf.constant(array) for name, array in batch.features.items()}
            metric.update_state(batch.labels, serve(**tensors)["logits"])
        return float(np.asarray(metric.result()))

    plain = area("float32")
    assert plain > 0.6
    for dtype, limit in (("float16", 1e-4), ("bfloat16", 1e-3), ("int8", 1e-3)):
        chosen = RewriteOptions(dtype=dtype, least_table_bytes=1)
        done = rewrite_saved_model(tmp_path / "float32", tmp_path / dtype, chosen)
        assert sum(not table.refusal for table in done.packed) >= 52
        assert {table.dimension for table in done.packed if table.refusal} <= {1}
        assert abs(area(dtype) - plain) <= limit


def test_one_client_gets_stock_s_answers() -> None:
    check_answers(clients=1)
