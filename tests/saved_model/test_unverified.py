"""What a verification cannot vouch for is said, and never passed off as equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf

from fusion.saved_model import (
    VerificationError,
    explain_saved_model,
    fuse_saved_model,
    rewrite_saved_model,
)

IDS = tf.SparseTensorSpec([None, None], tf.int64)


class Model(tf.Module):
    """A table with lookups in functions of their own."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.items = tf.Variable(tf.random.stateless_normal([40, 8], [1, 2]), name="items")
        self.noise = noise

    @tf.function(input_signature=[IDS])
    def serve(self, ids: tf.SparseTensor) -> dict[str, tf.Tensor]:
        result = tf.nn.safe_embedding_lookup_sparse(self.items, ids)
        return {"out": result + self.noise * tf.random.normal([])}

    @tf.function(input_signature=[IDS])
    def other(self, ids: tf.SparseTensor) -> tf.Tensor:
        return tf.nn.safe_embedding_lookup_sparse(self.items, ids, combiner="sum")

    @tf.function(input_signature=[IDS])
    def read(self, ids: tf.SparseTensor) -> tf.Tensor:
        return tf.nn.safe_embedding_lookup_sparse(self.items.read_value(), ids)


def test_a_model_of_noise_is_not_called_equal(tmp_path: Path) -> None:
    model = Model(noise=1.0)
    tf.saved_model.save(model, str(tmp_path / "src"), signatures=model.serve)
    with pytest.raises(VerificationError, match=r"nothing written.*vary.*--no-verify"):
        fuse_saved_model(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()
    report = fuse_saved_model(tmp_path / "src", tmp_path / "dst", verify=False)
    assert report.fused_count == 1
    assert [lookup.fused for lookup in report.lookups] == [True] * 3


def test_a_model_without_signatures_says_what_to_do(tmp_path: Path) -> None:
    tf.saved_model.save(Model(), str(tmp_path / "src"))
    with pytest.raises(VerificationError, match=r"no callable signature.*--no-verify"):
        fuse_saved_model(tmp_path / "src", tmp_path / "dst")


def test_functions_that_no_signature_runs_are_named(tmp_path: Path) -> None:
    model = Model()
    tf.saved_model.save(model, str(tmp_path / "src"), signatures=model.serve)
    done = rewrite_saved_model(tmp_path / "src", tmp_path / "dst")
    assert done.verification is not None
    assert done.verification.same
    names = [name.rpartition("_")[0] for name in done.unchecked]
    assert sorted(names) == ["__inference_other", "__inference_read"]
    record = json.loads((tmp_path / "dst" / "fusion.json").read_text())
    assert record["unchecked_functions"] == list(done.unchecked)


def test_functions_that_signatures_run_are_not_named(tmp_path: Path) -> None:
    model = Model()
    signatures = {name: getattr(model, name) for name in ("serve", "other", "read")}
    signatures |= {
        name: tf.function(lambda ids, call=call: {"out": call(ids)}, input_signature=[IDS])
        for name, call in list(signatures.items())[1:]
    }
    tf.saved_model.save(model, str(tmp_path / "src"), signatures=signatures)
    assert rewrite_saved_model(tmp_path / "src", tmp_path / "dst").unchecked == ()


def test_a_table_that_is_read_before_the_lookup_keeps_its_name(tmp_path: Path) -> None:
    model = Model()
    tf.saved_model.save(model, str(tmp_path / "src"), signatures=model.serve)
    columns = explain_saved_model(tmp_path / "src").columns
    assert {column.name for column in columns} == {"items"}
    assert all(column.fused for column in columns)
