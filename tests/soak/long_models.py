"""Models of the zoo with all of their features, of which tests take few; and one client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import RewriteOptions, rewrite_saved_model
from modelzoo import criteo
from modelzoo.training import loop
from modelzoo.training.export import export_keras
from modelzoo.training.scores import auc
from modelzoo.training.setup import build, columns_of, sources
from modelzoo.training.steps import KerasSteps
from tests.benchmarks.test_latency import check_answers
from tests.modelzoo import test_exports, test_training
from tests.modelzoo.small import MODELS, SMALL

STYLES = ["keras", "graph"]


@pytest.fixture
def all_features(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (test_exports, test_training):
        monkeypatch.setattr(module, "few", sources)
        monkeypatch.setattr(module, "FEW", tuple(criteo.CATEGORICAL))
    monkeypatch.setattr(test_training, "COMMAND", ("modelzoo.dlrm",))


@pytest.mark.usefixtures("all_features")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", MODELS)
def test_models_learn_the_same_with_fusion(name: str, style: str) -> None:
    test_training.test_models_learn_the_same_with_fusion(name, style)


@pytest.mark.usefixtures("all_features")
def test_replicas_train_as_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_training.test_replicas_train_as_one_device(tmp_path, monkeypatch)


@pytest.mark.usefixtures("all_features")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("chosen", [{}, {"do_fusion": "v2"}])
def test_exports_answer_as_the_model(tmp_path: Path, style: str, chosen: dict[str, str]) -> None:
    test_exports.test_exports_answer_as_the_model(tmp_path, {"style": style, **chosen})


def test_a_rewritten_keras_model_is_verified(tmp_path: Path) -> None:
    """TensorFlow may order the arithmetic behind its lookups otherwise, of which it is told."""
    options = replace(SMALL, deterministic=True)
    source, _ = sources(options)
    steps = build(MODELS["wide_deep"], options, source)
    assert isinstance(steps, KerasSteps)
    for batch in loop.first_batches(source, 32, 5):
        steps.train(*batch)
    export_keras(steps, columns_of(options, source).inputs, tmp_path / "model")
    done = rewrite_saved_model(tmp_path / "model", tmp_path / "fused")
    assert done.verification is not None
    assert done.verification.same
    if done.verification.columns is not None:
        assert "52 columns to the bit" in done.verification.summary()


@pytest.mark.parametrize("name", MODELS)
def test_packed_tables_rank_as_plain_ones(name: str, tmp_path: Path) -> None:
    options = replace(SMALL, cap=20_000)
    source, held_out = sources(options)
    steps = build(MODELS[name], options, source)
    assert isinstance(steps, KerasSteps)
    for batch in loop.first_batches(source, 512, 300):
        steps.train(*batch)
    export_keras(steps, columns_of(options, source).inputs, tmp_path / "float32")
    batches = list(loop.first_batches(held_out, 1024, 40))

    def area(dtype: str) -> float:
        serve = tf.saved_model.load(str(tmp_path / dtype)).signatures["serving_default"]
        scores = [serve(**features)["logits"] for features, _ in batches]
        return auc(np.concatenate([labels for _, labels in batches]), np.concatenate(scores))

    plain = area("float32")
    assert plain > 0.6
    for dtype, most in (("float16", 1e-4), ("bfloat16", 1e-3), ("int8", 1e-3)):
        chosen = RewriteOptions(dtype=dtype, least_table_bytes=1)
        done = rewrite_saved_model(tmp_path / "float32", tmp_path / dtype, chosen)
        assert sum(not table.refusal for table in done.packed) >= 52
        assert {table.dimension for table in done.packed if table.refusal} <= {1}
        assert abs(area(dtype) - plain) <= most


def test_one_client_gets_stock_s_answers() -> None:
    check_answers(clients=1)
