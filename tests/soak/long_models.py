"""Models of the zoo that take long to rewrite and verify, and the latency of one client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fusion.saved_model import rewrite_saved_model
from modelzoo.training import loop
from modelzoo.training.export import export_keras
from modelzoo.training.setup import build, columns_of, sources
from modelzoo.training.steps import KerasSteps
from tests.benchmarks.test_latency import check_answers
from tests.modelzoo.small import MODELS, SMALL


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


def test_one_client_gets_stock_s_answers() -> None:
    check_answers(clients=1)
