"""Models that TensorFlow itself cannot load or run: the reason comes first, and what to do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import saved_model_pb2

from fusion.saved_model import (
    ModelError,
    VerificationError,
    bench_models,
    compare_models,
    fuse_saved_model,
)

v1, fc = tf.compat.v1, tf.feature_column
#: An op without a kernel for CPUs, as those that TensorFlow has given up, and one that it forgot.
NO_KERNEL, UNKNOWN = "TPUReplicatedInput", "RetiredOp"
REASONS = {
    NO_KERNEL: rf"No OpKernel was registered to support Op '{NO_KERNEL}' used by \{{\{{node ",
    UNKNOWN: f"Op type not registered '{UNKNOWN}'",
}


def save_session(folder: Path, where: str) -> None:
    """A v1 model with a Snapshot behind its columns, or in what initializes it."""
    with tf.Graph().as_default(), v1.Session() as session:
        features = {key: v1.placeholder(tf.int64, [None, 1], key) for key in "AB"}
        kinds = [fc.categorical_column_with_identity(key, 10) for key in features]
        layer = v1.feature_column.input_layer(features, [fc.embedding_column(k, 4) for k in kinds])
        started = None
        with tf.name_scope("head"):
            if where == "result":
                layer = tf.raw_ops.Snapshot(input=layer)
            else:
                started = tf.group(tf.raw_ops.Snapshot(input=tf.ones([1])).op)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(
            session, str(folder), features, {"out": layer}, legacy_init_op=started
        )


class Module(tf.Module):
    """A lookup in a function, with a Snapshot behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.ones([10, 4]), name="table")

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.int64)])
    def look_up(self, ids: Any) -> Any:
        found = tf.nn.safe_embedding_lookup_sparse(self.table, tf.sparse.from_dense(ids))
        return {"out": tf.raw_ops.Snapshot(input=found)}


def nodes_of(proto: saved_model_pb2.SavedModel) -> Iterator[node_def_pb2.NodeDef]:
    for meta in proto.meta_graphs:
        yield from meta.graph_def.node
        for function in meta.graph_def.library.function:
            yield from function.node_def


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models KIND, which run, and KIND-OP, whose Snapshot is of another op."""
    folder = tmp_path_factory.mktemp("models")
    save_session(folder / "result", "result")
    save_session(folder / "start", "start")
    module = Module()
    tf.saved_model.save(module, str(folder / "function"), signatures=module.look_up)
    for kind in ("result", "start", "function"):
        for op in REASONS:
            shutil.copytree(folder / kind, folder / f"{kind}-{op}")
            file = folder / f"{kind}-{op}" / "saved_model.pb"
            proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
            for node in nodes_of(proto):
                if node.op == "Snapshot":
                    node.op = op
                    node.attr["N"].i = 1
            for meta in proto.meta_graphs:
                for listed in meta.meta_info_def.stripped_op_list.op:
                    listed.name = op if listed.name == "Snapshot" else listed.name
            file.write_bytes(proto.SerializeToString())
    return folder


@pytest.mark.parametrize("op", REASONS)
@pytest.mark.parametrize("kind", ["result", "start", "function"])
def test_a_rewrite_says_why_and_offers_to_do_without(
    models: Path, tmp_path: Path, kind: str, op: str
) -> None:
    with pytest.raises(VerificationError) as caught:
        fuse_saved_model(models / f"{kind}-{op}", tmp_path / "new")
    text = str(caught.value)
    assert text.startswith("nothing written: ")
    assert "most recent call last" not in text
    assert text.endswith("--no-verify (verify=False) does without")
    caught.match(REASONS[op])
    assert fuse_saved_model(models / f"{kind}-{op}", tmp_path / "new", verify=False).fused_count
    assert (tmp_path / "new" / "saved_model.pb").is_file()


def test_without_a_model_that_runs_there_is_no_such_offer(models: Path, tmp_path: Path) -> None:
    assert fuse_saved_model(models / "result", tmp_path / "new").fused_count == 2
    with pytest.raises(ModelError, match=REASONS[NO_KERNEL]) as caught:
        compare_models(models / "result", models / f"result-{NO_KERNEL}")
    assert "--no-verify" not in str(caught.value)
    assert str(caught.value).startswith("cannot verify: ")


def test_a_rewritten_model_that_does_not_load_is_no_reason_to_do_without(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusion.saved_model.rewriting import models as rewriting

    broken = (models / f"result-{NO_KERNEL}" / "saved_model.pb").read_bytes()
    monkeypatch.setattr(rewriting, "_serialized", lambda proto, source: broken)
    with pytest.raises(VerificationError, match="the rewritten model cannot be loaded") as caught:
        fuse_saved_model(models / "result", tmp_path / "new")
    assert "--no-verify" not in str(caught.value)


@pytest.mark.parametrize("kind", ["start", "function"])
def test_a_measurement_says_why(models: Path, kind: str) -> None:
    with pytest.raises(ModelError, match=REASONS[NO_KERNEL]) as caught:
        bench_models(models / f"{kind}-{NO_KERNEL}", batches=[1], seconds=0.01)
    assert "most recent call last" not in str(caught.value)
