"""KeyedEmbeddingGather: the rows of keys, which are given rows in training."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.ops.base.bodies import cpu_body
from fusion.ops.tables.builders import BUILDER
from fusion.ops.tables.slots import note_gradient
from fusion.runtime.tensorflow.private import FuncGraph, ops, variable_shape
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import IDS_ATTR, UPDATE_DTYPES


def _gradient(op: tf.Operation, of_embeddings: Any, _: Any) -> list[Any]:
    """That of the table: slices of its rows; keys that have no row get nothing.

    Whose gradient is asked for is trained: from now on the op gives rows to keys.
    """
    table, index, rows = op.inputs[0], op.inputs[1], op.outputs[1]
    if not isinstance(rows, ops.EagerTensor):  # TensorFlow gives tapes no ops, but their tensors
        rows.op._set_attr("is_training", tf.compat.v1.AttrValue(b=True))
    slices = row_slices(table, index, rows, of_embeddings)
    return [slices, *[None] * (len(op.inputs) - 1)]


def row_slices(table: Any, index: Any, rows: Any, of_embeddings: Any) -> tf.IndexedSlices:
    """The gradient of a table from that of gathered rows, of keys that have one.

    Args:
      table, index: handles.
      rows: that keys have, an output of the op that has gathered them.
      of_embeddings: the gradient of what it has gathered.
    """
    known = tf.where(rows >= 0)[:, 0]
    if not isinstance(rows, ops.EagerTensor) and not isinstance(rows.graph, FuncGraph):
        note_gradient(table, index, rows.op, known.op)
    # As in the gradient of stock's gather: a constant, so that the table's handle is no result of
    # the function, whose gradient is dense; of int32, as in the other branches of a conditional.
    shape = variable_shape(table)
    return tf.IndexedSlices(tf.gather(of_embeddings, known), tf.gather(rows, known), shape)


DOC = (
    "In training keys are noted as seen, and one that was seen as often as the index asks for\n"
    "gets a row, whose values depend on the key and the seed alone. A key without a row has the\n"
    "default row, and -1 in `rows`. That there is no room for a key is a ResourceExhaustedError,\n"
    "unless keys wait."
)

SPEC = OpSpec(
    name=names.KEYED_GATHER,
    doc="Gathers the rows of an embedding variable that keys have.\n\n" + DOC,
    inputs=(
        Arg("table", "resource", "[...]", doc="variable [capacity, D]", on_host=True),
        Arg("index", "resource", "[...]", doc="variable of EmbeddingKeyIndex", on_host=True),
        Arg(
            "initial",
            "resource",
            "[...]",
            doc="variable [1 + m, D]: the default row, and m that elements of new rows are from",
            on_host=True,
        ),
        Arg("keys", "Tid", "[n]"),
        Arg("counts", "int32", "[...]", doc="how often each key was seen, or none for once"),
        Arg("step", "int64", "[...]", doc="of training; negative: the index counts", on_host=True),
    ),
    outputs=(
        Arg("embeddings", "T", "[?, ?]", doc="[n, D]"),
        Arg("rows", "int64", "[?]", doc="[n]"),
    ),
    attrs=(
        Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of the table"),
        IDS_ATTR,
        Attr("dim", "int", minimum=1, doc="D"),
        Attr("is_training", "bool", default=False, doc="see above"),
    ),
    kernels={"CPU": cpu_body("tables", "gather_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=BUILDER,
    gradient=_gradient,
    is_stateful=True,
)
