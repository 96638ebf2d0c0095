"""GroupedEmbeddingGather: the rows of many variables, in one op that shares them as gathers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.ops.base.bodies import cpu_body
from fusion.ops.columns.cpu.grouped_gather_layout import GatherConstants
from fusion.ops.tables.builders import accessed_dtypes
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.private import variable_shape
from fusion.runtime.tensorflow.spec import Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import IDS, UPDATE_DTYPES
from fusion.schema.columns import NAMES_ATTR

_BUILDER = "build_grouped_gather_state"


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    attrs = [attr.name for attr in spec.attrs]
    words: list[Word] = [0] * GatherConstants.dtypes
    for field, name in (
        (GatherConstants.T, "T"),
        (GatherConstants.num_columns, "num_columns"),
        (GatherConstants.dims, "dims"),
        (GatherConstants.Tkeys, "Tkeys"),
    ):
        words[field] = attrs.index(name)
    words += accessed_dtypes(device, access)
    assert len(words) == GatherConstants.SIZE
    return words


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Those of variables: slices of the rows that were gathered, as of ResourceGather."""
    count = op.get_attr("num_columns")
    tables, keys = op.inputs[:count], op.inputs[count:]
    # Copies of keys: a function for gradients alone cannot return what is in another.
    slices = [
        None if grad is None else tf.IndexedSlices(grad, tf.identity(own), variable_shape(table))
        for grad, own, table in zip(grads, keys, tables, strict=True)
    ]
    return [*slices, *[None] * count]


SPEC = OpSpec(
    name=names.GROUPED_GATHER,
    doc="Gathers rows of many variables, as a ResourceGather of each.\n\n"
    "Gradients are IndexedSlices of the rows, in their order. A key that is not in its table is\n"
    "an InvalidArgumentError, and a variable that was never assigned a FailedPreconditionError.",
    inputs=(
        Arg(
            "tables",
            "resource",
            "[...]",
            length="num_columns",
            doc="variables [rows, D]",
            on_host=True,
        ),
        Arg("keys", "Tkeys", "[u_p]", length="num_columns", doc="numbers of rows"),
    ),
    outputs=(Arg("rows", "T", "[u_p, ?]", length="num_columns", doc="[u, D]"),),
    attrs=(
        Attr("num_columns", "int", minimum=1, doc="number of variables"),
        Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of variables"),
        Attr("Tkeys", "list(type)", allowed=IDS, minimum=1, doc="dtypes of keys"),
        Attr("dims", "list(int)", doc="D of each, at least 1"),
        NAMES_ATTR,
    ),
    kernels={"CPU": cpu_body("columns", "grouped_gather_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=Builder(_BUILDER, "fusion.ops.columns.cpu.grouped_gather_state", _constants),
    names=NAMES_ATTR.name,
    gradient=_gradient,
    is_stateful=True,
)
