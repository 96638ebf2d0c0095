"""ReadEmbeddingTables: variables whose rows may change while they are looked up, without a copy.

ReadVariableOp copies a variable whole once its rows have been gathered or changed one by one, and
where it does not, the next change of a row copies it. This op takes part in TensorFlow's sparse
access instead, as ResourceGather and the sparse optimizers do: nothing is copied, and a row
that is changed while it is looked up may be read half changed, as by a gather beside Keras's
optimizers. What replaces a variable as a whole leaves this op's result as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.ops.base.bodies import cpu_body
from fusion.ops.tables.cpu.access_layout import access_words
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.spec import Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import FLOATS, TABLE_ATTR


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    dtype_attr = [attr.name for attr in spec.attrs].index(TABLE_ATTR.name)
    return access_words(dtype_attr, FLOATS, device, access)


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """That of reading a variable: what comes goes on, IndexedSlices as they are."""
    return list(grads)


SPEC = OpSpec(
    name=names.READ_TABLES,
    doc="Reads variables without copying them, to look up rows in what it gives.\n\n"
    "Rows that are changed one by one meanwhile change in the result too; a variable that is\n"
    "assigned as a whole leaves the result as it was. A variable that was never assigned is a\n"
    "FailedPreconditionError and one of another dtype an InvalidArgumentError, as with\n"
    "ReadVariableOp.",
    inputs=(
        Arg("handles", "resource", "[...]", length="num_tables", doc="of variables", on_host=True),
    ),
    outputs=(Arg("tables", "T", "[?, ?]", length="num_tables"),),
    attrs=(
        Attr("num_tables", "int", minimum=1, doc="number of variables"),
        TABLE_ATTR,
    ),
    kernels={"CPU": cpu_body("tables", "read_tables"), "GPU": cpu_body("tables", "read_tables")},
    kernel_types={"T": FLOATS},
    builder=Builder(
        "build_read_tables_state", "fusion.ops.tables.cpu.read_tables_state", _constants
    ),
    gradient=_gradient,
    is_stateful=True,
)
