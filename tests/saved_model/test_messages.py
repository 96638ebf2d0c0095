"""What a rewritten model says of bad input, and of models that say less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from fusion.saved_model import fuse_saved_model

v1, fc = tf.compat.v1, tf.feature_column
KEYS = ("B", "C17", "D")
OPS = {"GroupedEmbeddingLookup", "FusedEmbeddingLookup"}


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tables of 10 rows side by side."""
    folder = tmp_path_factory.mktemp("columns")
    with tf.Graph().as_default(), v1.Session() as session:
        features = {key: v1.placeholder(tf.int64, [None, 1], key) for key in KEYS}
        kinds = [fc.categorical_column_with_identity(key, 10) for key in KEYS]
        vectors = v1.feature_column.input_layer(
            features, [fc.embedding_column(k, 4) for k in kinds]
        )
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / "stock"), features, {"out": vectors})
    fuse_saved_model(folder / "stock", folder / "fused", verify=False)
    return folder / "fused"


def call(model: Path, **given: Any) -> Any:
    signature = tf.saved_model.load(str(model)).signatures["serving_default"]
    features = {key: tf.constant([[1], [2]], tf.int64) for key in KEYS}
    return signature(**features | given)["out"].numpy()


def test_an_id_outside_its_table_is_told_with_its_column(fused: Path) -> None:
    text = (
        r"column 1 \(input_layer/C17_embedding/C17_embedding_weights of table "
        r"input_layer/C17_embedding/embedding_weights\): indices\[1\] = 50 is not in \[0, 10\), "
        r"the rows of the table, in row 1 of the batch"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        call(fused, C17=tf.constant([[1], [50]], tf.int64))


def test_a_model_from_before_there_were_names_loads(fused: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    tf.io.gfile.makedirs(str(old / "variables"))
    for file in (fused / "variables").iterdir():
        (old / "variables" / file.name).write_bytes(file.read_bytes())
    proto = saved_model_pb2.SavedModel.FromString((fused / "saved_model.pb").read_bytes())
    (meta,) = proto.meta_graphs
    bodies = [meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function)]
    nodes = [node for body in bodies for node in body if node.op in OPS]
    assert nodes
    for node in nodes:
        for key in [key for key in node.attr if key.startswith("column_name")]:
            del node.attr[key]
    for op in meta.meta_info_def.stripped_op_list.op:
        attrs = [attr for attr in op.attr if not attr.name.startswith("column_name")]
        del op.attr[:]
        op.attr.extend(attrs)
    (old / "saved_model.pb").write_bytes(proto.SerializeToString())
    np.testing.assert_array_equal(call(old), call(fused))
    text = r"column 1: indices\[1\] = 50 is not in \[0, 10\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        call(old, C17=tf.constant([[1], [50]], tf.int64))
    # The pass can read it, too.
    fuse_saved_model(old, tmp_path / "stock", target="stock")
