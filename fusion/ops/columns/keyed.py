"""GroupedKeyedEmbeddingPreLookUp: that op before gathers which embedding variables need no more.

It stands for GroupedEmbeddingPreLookUp, see `training`, and the KeyedEmbeddingGather of each column
whose table is one; other columns are gathered from behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from fusion.ops import cpu
from fusion.ops.columns.builders import columns_constants
from fusion.ops.columns.gradients import is_wanted, weights_gradient
from fusion.ops.columns.training import PRE
from fusion.ops.cpu.columns.layout import PRE as PRE_ROLE
from fusion.ops.cpu.columns.layout import KeyedConstants
from fusion.ops.tables.access import accessed_dtypes
from fusion.ops.tables.gather import DOC as GATHER_DOC
from fusion.ops.tables.gather import row_slices
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.spec import Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import UPDATE_DTYPES
from fusion.schema.columns import COLUMN_ATTRS, PRE_ATTRS, list_attrs


def _constants(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
    """The words of `KeyedConstants`."""
    attrs = [attr.name for attr in spec.attrs]
    words = columns_constants(PRE_ROLE, PRE_ATTRS | _DIMS)(spec, device, access)
    words += [attrs.index(name) for name in ("keyed", "num_keyed", "is_training")]
    words += accessed_dtypes(device, access)
    assert len(words) == KeyedConstants.SIZE
    return words


def _compile_builder() -> bytes:
    from fusion.ops.cpu.columns.keyed_states import build_keyed_columns_state
    from fusion.runtime.native.compiler import compile_object

    return compile_object(build_keyed_columns_state, 1, "build_keyed_columns_state")


def _gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Those of tables, as of KeyedEmbeddingGather, and of weights.

    The op is one for all columns: who is trained, of whom the gradient is asked for and who may
    be, `is_training` says for each.
    """
    count, keyed = op.get_attr("num_columns"), op.get_attr("num_keyed")
    columns = [index for index, flag in enumerate(op.get_attr("keyed")) if flag]
    trainable, of_rows = op.get_attr("trainable"), grads[count + 3 : count + 3 + keyed]
    result = weights_gradient(op, grads[count + 2]) + [None] * (3 * keyed + 1)
    trained = [
        number
        for number, column in enumerate(columns)
        if of_rows[number] is not None and trainable[column] and is_wanted(op, 4 * count + number)
    ]
    outputs = op.outputs[count + 3 + keyed :]
    if trained and not isinstance(outputs[0], ops.EagerTensor):
        flags = list(outputs[0].op.get_attr("is_training")) or [False] * count
        for number in trained:
            flags[columns[number]] = True
        values = tf.compat.v1.AttrValue.ListValue(b=flags)
        outputs[0].op._set_attr("is_training", tf.compat.v1.AttrValue(list=values))
    for number in trained:
        table, index = op.inputs[4 * count + number], op.inputs[4 * count + 2 * keyed + number]
        slices = row_slices(table, index, outputs[number], of_rows[number])
        result[4 * count + number] = slices
    return result


_DIMS = {"dims": COLUMN_ATTRS["dims"]}

SPEC = OpSpec(
    name=names.GROUPED_KEYED_PRE,
    doc="GroupedEmbeddingPreLookUp, which also finds and gathers rows of embedding variables.\n\n"
    "The columns of `keyed` are of embedding variables; their `embeddings` are the rows of their\n"
    "unique_keys. " + GATHER_DOC + " Where they are to be seen\n"
    "several times, a key of a column is seen as often as it has entries, else once.",
    inputs=(
        *PRE.inputs,
        Arg("tables", "resource", "[...]", length="num_keyed", doc="[capacity, D]", on_host=True),
        Arg(
            "initials",
            "resource",
            "[...]",
            length="num_keyed",
            doc="variables [1 + m, D] as of KeyedEmbeddingGather",
            on_host=True,
        ),
        Arg(
            "indices",
            "resource",
            "[...]",
            length="num_keyed",
            doc="variables of EmbeddingKeyIndex",
            on_host=True,
        ),
        Arg(
            "steps",
            "int64",
            "[...]",
            doc="[num_keyed] of training; negative: the index counts",
            on_host=True,
        ),
    ),
    outputs=(
        *PRE.outputs,
        Arg("embeddings", "T", "[?, ?]", length="num_keyed", doc="[u, D]"),
        Arg("rows", "int64", "[?]", length="num_keyed", doc="[u], -1 for keys without one"),
    ),
    attrs=(
        *(
            Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of tables and weights")
            if attr.name == "T"
            else attr
            for attr in PRE.attrs
        ),
        *list_attrs(_DIMS),
        Attr("num_keyed", "int", minimum=1, doc="number of columns of embedding variables"),
        Attr("keyed", "list(bool)", doc="whether a column is of one, in the order of `tables`"),
        Attr("trainable", "list(bool)", doc="whether the gradient of its table may be asked for"),
        Attr("is_training", "list(bool)", default=(), doc="see above; of no column if empty"),
    ),
    kernels={"CPU": cpu.kernel("columns.keyed_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=Builder("build_keyed_columns_state", _compile_builder, _constants),
    names=PRE.names,
    gradient=_gradient,
    is_stateful=True,
)
