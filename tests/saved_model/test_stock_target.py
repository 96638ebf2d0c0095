"""SavedModels and frozen graphs whose lookups become fewer stock ops, and stock ones again."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import fusion
from fusion.cli.app import main
from fusion.feature_column import DenseFeatures, embedding_column
from fusion.optimizers import LazyAdam
from fusion.saved_model import ModelError, RewriteOptions, rewrite_saved_model
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import OP_NAMES
from tests.saved_model import frozen_graphs

KINDS = ("v1_ref", "v1_resource", "tf2", "keras", "example")


def ops(path: Path) -> set[str]:
    metas = read_saved_model(path).meta_graphs
    return {op for meta in metas for op in used_ops(meta)}


@pytest.fixture(scope="module")
def lowered(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each model with fewer stock ops: verified to the bit in fresh processes."""
    folder = tmp_path_factory.mktemp("lowered")
    for kind in KINDS:
        done = rewrite_saved_model(models / kind, folder / kind, RewriteOptions("stock"))
        assert done.report.fused_count == len(done.report.columns) > 0, str(done.report)
        assert done.report.nodes_after < done.report.nodes_before
        assert done.verification is not None
        assert done.verification.same
        assert done.verification.tolerance == 0
    return {kind: folder / kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_no_op_is_needed_that_tensorflow_does_not_have(lowered: dict[str, Path], kind: str) -> None:
    assert not ops(lowered[kind]) & {*OP_NAMES}
    for meta in read_saved_model(lowered[kind]).meta_graphs:
        listed = {op.name for op in meta.meta_info_def.stripped_op_list.op}
        assert not listed & {*OP_NAMES}
        assert "Unique" not in listed
    record = json.loads((lowered[kind] / "fusion.json").read_text())
    assert record["options"]["target"] == "stock"
    assert record["ops"] == []
    assert record["load"] == "This model uses no op of fusion: it loads like any SavedModel."


@pytest.mark.parametrize("kind", ["v1_ref", "keras"])
def test_a_fused_model_becomes_a_stock_one_again(models: Path, tmp_path: Path, kind: str) -> None:
    fusion.fuse_saved_model(models / kind, tmp_path / "fused", verify=False)
    assert ops(tmp_path / "fused") & {*OP_NAMES}
    done = rewrite_saved_model(tmp_path / "fused", tmp_path / "stock", RewriteOptions("stock"))
    assert done.verification is not None
    assert done.verification.same
    assert not ops(tmp_path / "stock") & {*OP_NAMES}
    assert fusion.saved_model.compare_models(models / kind, tmp_path / "stock").same


def test_a_second_run_writes_the_same_bytes(
    models: Path, lowered: dict[str, Path], tmp_path: Path
) -> None:
    fusion.fuse_saved_model(models / "keras", tmp_path / "again", "stock")
    for name in ("saved_model.pb", "fingerprint.pb", "fusion.json"):
        one, other = (folder / name for folder in (tmp_path / "again", lowered["keras"]))
        assert one.read_bytes() == other.read_bytes()


class Trained(tf.Module):
    """Steps with gradients in them."""

    def __init__(self) -> None:
        self.table = tf.Variable(tf.reshape(tf.range(15.0), [5, 3]), name="table")
        self.optimizer = LazyAdam(0.1)
        self.optimizer.build([self.table])

    def gradient(self, matrix: tf.Tensor) -> tf.IndexedSlices:
        ids = tf.sparse.from_dense(matrix % 5)
        with tf.GradientTape() as tape:
            found = fusion.fused_safe_embedding_lookup_sparse(self.table, ids)
            loss = tf.reduce_sum(found**2)
        return tape.gradient(loss, self.table)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)])
    def update(self, matrix: tf.Tensor) -> tf.Tensor:
        self.optimizer.apply_gradients([(self.gradient(matrix), self.table)])
        return tf.shape(matrix)


def test_gradients_become_stock_ops_too(tmp_path: Path) -> None:
    trained, module = Trained(), tf.Module()
    module.table = trained.table
    spec = tf.TensorSpec([None, 2], tf.int64)
    module.step = tf.function(
        lambda matrix: tf.convert_to_tensor(trained.gradient(matrix)), input_signature=[spec]
    )
    tf.saved_model.save(module, str(tmp_path / "trained"), module.step)
    report = fusion.fuse_saved_model(tmp_path / "trained", tmp_path / "stock", "stock")
    assert report.fused_count == len(report.columns) > 0
    assert not ops(tmp_path / "stock") & {*OP_NAMES}


def test_what_cannot_become_stock_ops_is_an_error(tmp_path: Path) -> None:
    """What an optimizer of rows does has no stock form; and what to do about it depends."""
    module = Trained()
    tf.saved_model.save(module, str(tmp_path / "trained"), module.update)
    for advice in ("leave steps of training out of what is exported", "use the model that was"):
        with pytest.raises(ModelError, match=r"cannot become stock ops.*; " + advice) as caught:
            fusion.fuse_saved_model(tmp_path / "trained", tmp_path / "stock", "stock")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "stock").exists()
        (tmp_path / "trained" / "fusion.json").write_text("{}")


def test_a_keras_export_of_single_ids_is_known_to_both_targets(tmp_path: Path) -> None:
    """Nobody says training=False, so that each column has ops of its own."""
    identity = tf.feature_column.categorical_column_with_identity
    columns = [embedding_column(identity(name, 10), 4, do_fusion="v2") for name in ("a", "b")]
    inputs = {name: keras.Input((1,), dtype="int64", name=name) for name in ("a", "b")}
    keras.Model(inputs, DenseFeatures(columns)(inputs)).export(tmp_path / "model", verbose=False)
    for target, form in (("fused", "grouped"), ("stock", "stock")):
        report = fusion.fuse_saved_model(tmp_path / "model", tmp_path / target, target)
        assert {column.form for column in report.columns} == {form}
    assert not ops(tmp_path / "stock") & {*OP_NAMES}
    again = fusion.explain(tmp_path / "fused")
    assert {column.reason for column in again.columns} == {"it is a part of one fused op already"}


def test_a_frozen_graph_becomes_one_gather_for_all_columns(tmp_path: Path) -> None:
    source = frozen_graphs.write(frozen_graphs.v1_graph(), tmp_path / "model.pb")
    assert main(["rewrite", "--target", "stock", str(source), str(tmp_path / "stock.pb")]) == 0
    assert not ops(tmp_path / "stock.pb") & {*OP_NAMES}
    assert (tmp_path / "stock.pb").stat().st_size < source.stat().st_size


def test_the_command_says_what_is_needed_to_load(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rewrite", "--no-verify", str(models / "tf2"), str(tmp_path / "dst")]
    assert main([*arguments, "--target", "stock"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "columns made of fewer stock ops" in lines[0]
    assert lines[-1].endswith("it needs TensorFlow alone")
    loaded = saved_model_pb2.SavedModel.FromString((tmp_path / "dst/saved_model.pb").read_bytes())
    assert loaded.meta_graphs
