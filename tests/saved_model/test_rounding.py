"""Lookups that round otherwise than stock are compared within rounding, all others to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.cli.app import main
from fusion.saved_model import compare_models, rewrite_saved_model
from fusion.saved_model.rewriting.verification import ROUNDING
from fusion.saved_model.verify.values import nearly_same


class Weighted(tf.Module):
    def __init__(self, scale: float = 1.0) -> None:
        rows = np.random.default_rng(1).normal(size=(100, 16)) * scale
        self.table = tf.Variable(rows, dtype=tf.float32)

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def __call__(self, ids: Any) -> Any:
        weights = tf.SparseTensor(ids.indices, tf.cast(ids.values % 7, tf.float32), ids.dense_shape)
        return tf.nn.safe_embedding_lookup_sparse(self.table, ids, weights, combiner="sqrtn")


def saved(path: Path, scale: float = 1.0) -> Path:
    model = Weighted(scale)
    tf.saved_model.save(model, str(path), signatures=model.__call__)
    return path


def test_a_model_with_weights_is_verified_within_rounding(tmp_path: Path) -> None:
    done = rewrite_saved_model(saved(tmp_path / "stock"), tmp_path / "fused")
    assert done.report.fused_count == len(done.report.columns) > 0
    assert done.verification is not None
    assert done.verification.same
    assert done.verification.tolerance == ROUNDING
    assert f"within {ROUNDING:g} of the largest" in done.verification.summary()
    assert done.verification.to_dict()["tolerance"] == ROUNDING


def test_models_are_compared_with_the_tolerance_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", 1 + 1e-4)
    assert not compare_models(a, b).same
    assert not compare_models(a, b, tolerance=1e-5).same
    assert compare_models(a, b, tolerance=1e-3).same
    assert main(["verify", str(a), str(b), "--tolerance", "1e-3"]) == 0
    assert "within 0.001 of the largest" in capsys.readouterr().out


class Scaled(tf.Module):
    """A column, of which an output is a multiple."""

    def __init__(self, scale: float, of_rows: float = 1.0) -> None:
        rows = np.random.default_rng(1).normal(size=(100, 16)) * of_rows
        self.table = tf.Variable(rows, dtype=tf.float32)
        self.scale = tf.Variable(scale)

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def __call__(self, ids: Any) -> Any:
        found = tf.nn.safe_embedding_lookup_sparse(self.table, ids, combiner="sum")
        return found * self.scale


@pytest.mark.parametrize(
    ("scale", "of_rows", "same"),
    [(1 + 1e-6, 1.0, True), (1 + 1e-3, 1.0, False), (1.0, 1 + 1e-6, False)],
)
def test_rounding_is_allowed_behind_columns_that_are_equal(
    tmp_path: Path, scale: float, of_rows: float, same: bool
) -> None:
    for name, model in (("a", Scaled(1.0)), ("b", Scaled(scale, of_rows))):
        tf.saved_model.save(model, str(tmp_path / name), signatures=model.__call__)
    models = tmp_path / "a", tmp_path / "b"
    assert not compare_models(*models).same
    found = compare_models(*models, rounding=1e-5)
    assert found.same == same
    if same:
        assert "within 1e-05 of the largest, 1 column to the bit" in found.summary()


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([1.0, 100.0], [1.0005, 100.0], [True, True]),
        ([1.0, 100.0], [1.1, 100.0], [False, True]),
        ([1.0, np.inf], [1.0005, np.inf], [False, False]),
        ([np.nan, 100.0], [1.0, 100.0], [False, True]),
        ([0.0], [1e-30], [False]),
        ([], [], []),
    ],
)
def test_rounding_is_measured_by_the_largest_finite_number(
    a: list[float], b: list[float], same: list[bool]
) -> None:
    found = nearly_same(np.array(a), np.array(b), 1e-5)
    assert found.tolist() == same


def test_coarse_dtypes_may_differ_by_four_units() -> None:
    one = np.array([1.0], tf.bfloat16.as_numpy_dtype)
    for step, same in ((4, True), (5, False)):
        assert nearly_same(one, one + one * step / 128, 1e-5).tolist() == [same]
