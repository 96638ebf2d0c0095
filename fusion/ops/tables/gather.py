"""KeyedEmbeddingGather: the rows of keys, which are given rows in training."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from fusion.ops import cpu
from fusion.ops.cpu.tables.constants import AccessedDtype, GatherAttrs
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import IDS_ATTR, UPDATE_DTYPES


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    """The words of `GatherConstants`."""
    attrs = [attr.name for attr in spec.attrs]
    words: list[Word] = [attrs.index(name) for name in inspect.get_annotations(GatherAttrs)]
    for dtype in UPDATE_DTYPES:
        request = AccessRequest(dtype, device, updates=True)
        words += [DTYPES[dtype].enum, DTYPES[dtype].item_bytes, access(request)]
    assert len(words) == len(inspect.get_annotations(GatherAttrs)) + 2 * AccessedDtype.SIZE
    return words


def _compile_builder() -> bytes:
    from fusion.ops.cpu.tables.gather_state import build_gather_state
    from fusion.runtime.native.compiler import compile_object

    return compile_object(build_gather_state, 1, "build_gather_state")


def _gradient(op: tf.Operation, of_rows: Any, _: Any) -> list[Any]:
    """That of the table: slices of its rows; keys that have no row get nothing.

    Whose gradient is asked for is trained: from now on the op gives rows to keys.
    """
    rows = op.outputs[1]
    if not isinstance(rows, ops.EagerTensor):  # TensorFlow gives tapes no ops, but their tensors
        rows.op._set_attr("is_training", tf.compat.v1.AttrValue(b=True))
    known = tf.where(rows >= 0)[:, 0]
    shape = tf.raw_ops.VariableShape(input=op.inputs[0], out_type=tf.int64)
    slices = tf.IndexedSlices(tf.gather(of_rows, known), tf.gather(rows, known), shape)
    return [slices, *[None] * (len(op.inputs) - 1)]


SPEC = OpSpec(
    name=names.KEYED_GATHER,
    doc="Gathers the rows of an embedding variable that keys have.\n\n"
    "In training keys are noted as seen, and one that was seen as often as the index asks for\n"
    "gets a row, whose values depend on the key and the seed alone. A key without a row has the\n"
    "default row, and -1 in `rows`. That there is no room for a key is a ResourceExhaustedError,\n"
    "unless keys wait.",
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
    kernels={"CPU": cpu.kernel("tables.gather_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=Builder("build_gather_state", _compile_builder, _constants),
    gradient=_gradient,
    is_stateful=True,
)
