"""SavedModels with the graphs of old TensorFlow versions keep working and are fused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.saved_model import fuse_saved_model
from tests.dumps import dumps

v1 = tf.compat.v1

#: The versions of graphs that old programs wrote.
PRODUCERS = {"1.4": 24, "1.13": 27, "1.15": 134, "2.4": 561}
PROGRAMS = [
    ("1.4", "legacy_tf1.15_ref_mean"),
    ("1.4", "legacy_tf1.15_ref_sqrtn_weighted"),
    ("1.13", "legacy_tf1.13_resource_mean"),
    ("1.15", "legacy_tf1.15_ref_sum"),
    ("1.15", "legacy_tf1.15_ref_mean_weighted"),
    ("1.15", "legacy_tf1.15_ref_mean_maxnorm"),
    ("1.15", "legacy_tf1.15_resource_mean_part3"),
    ("2.4", "legacy_tf2.4_ref_mean_defaultid"),
    ("2.4", "legacy_tf2.4_resource_sqrtn_weighted"),
]


def of_version(graph_def: graph_pb2.GraphDef, version: str) -> graph_pb2.GraphDef:
    """The graph as that version would have written it."""
    graph_def.versions.producer = PRODUCERS[version]
    if version == "1.4":
        for node in graph_def.node:
            if node.op == "GatherV2":
                _as_gather(node)
    return graph_def


def _as_gather(node: node_def_pb2.NodeDef) -> None:
    node.op = "Gather"
    del node.input[2]
    for key in ("Taxis", "batch_dims"):
        del node.attr[key]
    node.attr["validate_indices"].b = True


def save(graph_def: graph_pb2.GraphDef, path: Path) -> dict[str, Any]:
    """Writes the model, whose variables an initializer sets; returns what it computes."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        inits = [_assign(op) for op in graph.get_operations() if op.type in _VARIABLES]
        init = tf.group(*inits, name="initialize")
        out = graph.get_tensor_by_name("out:0")
        inputs = {
            op.name.replace("/", "_"): op.outputs[0]
            for op in graph.get_operations()
            if op.type in ("Placeholder", "PlaceholderWithDefault")
        }
        signature = v1.saved_model.predict_signature_def(inputs, {"out": out})
        with v1.Session(graph=graph) as session:
            session.run(init)
            builder = v1.saved_model.Builder(str(path))
            builder.add_meta_graph_and_variables(
                session, ["serve"], {"serving_default": signature}, main_op=init
            )
            result = session.run(out, {inputs[key]: value for key, value in feed(inputs).items()})
    builder.save()
    return {"out": result}


_VARIABLES = {"VariableV2": "Assign", "VarHandleOp": "AssignVariableOp"}


def _assign(op: tf.Operation) -> Any:
    shape = [dim.size for dim in op.get_attr("shape").dim]
    rng = np.random.default_rng(len(op.name))
    value = tf.constant(rng.normal(size=shape), tf.float32)
    if op.type == "VarHandleOp":
        return tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=value)
    return tf.raw_ops.Assign(ref=op.outputs[0], value=value)


def feed(inputs: Any) -> dict[str, Any]:
    indices = np.array([[0, 0], [0, 1], [0, 2], [2, 0], [3, 0], [3, 1]], np.int64)
    found = {
        "ids_indices": indices,
        "ids_values": np.array([3, 99, 3, -1, 7, 50], np.int64),
        "ids_shape": np.array([5, 3], np.int64),
        "weights_values": np.array([0.5, 2.0, 1.0, 1.0, -1.0, 0.25], np.float32),
    }
    return {key: value for key, value in found.items() if key in inputs}


def run(path: Path) -> Any:
    with tf.Graph().as_default(), v1.Session() as session:
        meta = v1.saved_model.load(session, ["serve"], str(path))
        signature = meta.signature_def["serving_default"]
        fed = {signature.inputs[k].name: v for k, v in feed(signature.inputs).items()}
        ops = {node.op for node in meta.graph_def.node}
        return session.run(signature.outputs["out"].name, fed), ops


@pytest.mark.parametrize(("version", "name"), PROGRAMS)
def test_an_old_model_is_fused_and_answers_as_before(
    version: str, name: str, tmp_path: Path
) -> None:
    graph_def = of_version(dumps()[name].graph("raw"), version)
    before = save(graph_def, tmp_path / "stock")
    report = fuse_saved_model(tmp_path / "stock", tmp_path / "fused", verify=False)
    assert report.fused_count == len(report.columns) == 1, str(report)
    after, ops = run(tmp_path / "fused")
    assert ops & {"FusedEmbeddingLookup", "FusedEmbeddingSparsePostLookUpV2"}
    assert not {op for op in ops if op.startswith("SparseSegment") or op == "SegmentSum"}
    is_exact = "weighted" not in name and "maxnorm" not in name
    compare = np.testing.assert_array_equal if is_exact else np.testing.assert_allclose
    compare(after, before["out"])
    loaded = tf.saved_model.load(str(tmp_path / "fused"))
    signature = loaded.signatures["serving_default"]
    feeds = {
        key: tf.constant(value)
        for key, value in feed(signature.structured_input_signature[1]).items()
    }
    compare(signature(**feeds)["out"], before["out"])


def test_an_old_model_is_verified_before_it_is_written(tmp_path: Path) -> None:
    graph_def = of_version(dumps()["legacy_tf1.15_ref_sum"].graph("raw"), "1.15")
    save(graph_def, tmp_path / "stock")
    assert fuse_saved_model(tmp_path / "stock", tmp_path / "fused").fused_count == 1
