"""Models that differ from others in one thing."""

from __future__ import annotations

import shutil
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from fusion.saved_model.model.source import MODEL_FILE, read_saved_model


def with_table(model: Path, target: Path, name: str) -> Path:
    """Copies a model to `target` with other values in the variable whose key starts with `name`."""
    shutil.copytree(model, target)
    prefix = str(target / "variables" / "variables")
    reader = tf.train.load_checkpoint(prefix)
    keys = sorted(reader.get_variable_to_shape_map())
    (changed,) = (key for key in keys if key.startswith(name))
    tensors = [tf.constant(reader.get_tensor(key)) for key in keys]
    tensors = [t + 1 if key == changed else t for key, t in zip(keys, tensors, strict=True)]
    for file in (target / "variables").iterdir():
        file.unlink()
    slices = [""] * len(keys)
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=keys, shape_and_slices=slices, tensors=tensors)
    return target


def with_op(model: Path, target: Path, old: str, new: str) -> Path:
    """Copies a model to `target` with another op in the first node of op `old`."""
    proto = read_saved_model(model).proto
    next(node for node in _nodes(proto) if node.op == old).op = new
    shutil.copytree(model, target)
    (target / MODEL_FILE).write_bytes(proto.SerializeToString())
    return target


def _nodes(proto: saved_model_pb2.SavedModel) -> list[tf.compat.v1.NodeDef]:
    graph = proto.meta_graphs[0].graph_def
    return [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
