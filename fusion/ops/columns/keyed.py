"""The ops for whole columns some of whose tables are embedding variables.

GroupedKeyedEmbeddingPreLookUp stands for GroupedEmbeddingPreLookUp, see `training`, and for the
KeyedEmbeddingGather of each such column; other columns are gathered from behind it.
GroupedKeyedEmbeddingLookup is GroupedEmbeddingLookup for them, for inference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from fusion.ops import cpu
from fusion.ops.columns.builders import columns_constants
from fusion.ops.columns.gradients import (
    Column,
    column_gradients,
    columns_of,
    is_wanted,
    split_columns,
    weights_gradient,
)
from fusion.ops.columns.lookup import GROUPED
from fusion.ops.columns.row_kernels import GATHERS
from fusion.ops.columns.training import PRE
from fusion.ops.cpu.columns.layout import FULL as FULL_ROLE
from fusion.ops.cpu.columns.layout import PRE as PRE_ROLE
from fusion.ops.cpu.columns.layout import KeyedConstants
from fusion.ops.tables.access import accessed_dtypes
from fusion.ops.tables.gather import DOC as GATHER_DOC
from fusion.ops.tables.gather import row_slices
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.spec import Arg, Attr, Builder, Constants, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import UPDATE_DTYPES
from fusion.schema.columns import COLUMN_ATTRS, POST_ATTRS, PRE_ATTRS, list_attrs

_BUILDER = "build_keyed_columns_state"

#: What the op before gathers has besides that of plain columns.
_DIMS = {"dims": COLUMN_ATTRS["dims"]}


def _constants(role: int, lists: dict[str, Attr]) -> Constants:
    """The words of `KeyedConstants` for ops of a role, with these attrs of columns."""
    of_columns = columns_constants(role, lists)

    def words(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
        attrs = [attr.name for attr in spec.attrs]
        result = of_columns(spec, device, access)
        for name in ("keyed", "num_keyed", "is_training"):
            result.append(attrs.index(name) if name in attrs else -1)
        result += accessed_dtypes(device, access)
        assert len(result) == KeyedConstants.SIZE
        return result

    return words


def _compile_builder() -> bytes:
    from fusion.ops.cpu.columns.keyed_states import build_keyed_columns_state
    from fusion.runtime.native.compiler import compile_object

    return compile_object(build_keyed_columns_state, 1, _BUILDER)


def _pre_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
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


_VARIABLES = (
    Arg("keyed_tables", "resource", "[...]", length="num_keyed", doc="[capacity, D]", on_host=True),
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
)
_T = Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of tables and weights")
_KEYED_ATTRS = (
    Attr("num_keyed", "int", minimum=1, doc="number of columns of embedding variables"),
    Attr("keyed", "list(bool)", doc="whether a column is of one, in the order of these"),
    Attr("trainable", "list(bool)", doc="whether the gradient of its table may be asked for"),
)

PRE_SPEC = OpSpec(
    name=names.GROUPED_KEYED_PRE,
    doc="GroupedEmbeddingPreLookUp, which also finds and gathers rows of embedding variables.\n\n"
    "The columns of `keyed` are of embedding variables; their `embeddings` are the rows of their\n"
    "unique_keys. " + GATHER_DOC + " Where they are to be seen\n"
    "several times, a key of a column is seen as often as it has entries, else once.",
    inputs=(
        *PRE.inputs,
        *_VARIABLES,
    ),
    outputs=(
        *PRE.outputs,
        Arg("embeddings", "T", "[?, ?]", length="num_keyed", doc="[u, D]"),
        Arg("rows", "int64", "[?]", length="num_keyed", doc="[u], -1 for keys without one"),
    ),
    attrs=(
        *(_T if attr.name == "T" else attr for attr in PRE.attrs),
        *list_attrs(_DIMS),
        *_KEYED_ATTRS,
        Attr("is_training", "list(bool)", default=(), doc="see above; of no column if empty"),
    ),
    kernels={"CPU": cpu.kernel("columns.keyed_unique_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=Builder(_BUILDER, _compile_builder, _constants(PRE_ROLE, PRE_ATTRS | _DIMS)),
    names=PRE.names,
    gradient=_pre_gradient,
    is_stateful=True,
)


def _lookup_gradient(op: tf.Operation, top_grad: tf.Tensor) -> list[Any]:
    """Those of tables and of weights, from columns that are computed again by the ops for training.

    It is this that gives rows to keys: the op itself changes nothing.
    """
    columns, flags = columns_of(op), op.get_attr("keyed")
    count, keyed = len(columns), op.get_attr("num_keyed")
    parts = split_columns(columns, top_grad)
    result: list[Any] = [None] * len(op.inputs)
    for index, column in enumerate(columns):
        if not flags[index]:
            result[index], result[4 * count + index] = column_gradients(column, parts[index])
    own = [index for index, flag in enumerate(flags) if flag]
    trainable = [op.get_attr("trainable")[index] for index in own]
    sources = [*op.inputs[5 * count : 5 * count + keyed], *(columns[i].weights for i in own)]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        found = _again([columns[index] for index in own], op.inputs[5 * count :], trainable)
    tops = tf.concat([parts[index] for index in own], 1)
    gradients = tape.gradient(found, sources, tops)
    for number, index in enumerate(own):
        result[5 * count + number] = gradients[number]
        if columns[index].attrs["use_sparse_weights"]:
            result[4 * count + index] = gradients[keyed + number]
    return result


def _again(
    columns: Sequence[Column], variables: Sequence[tf.Tensor], trainable: Sequence[bool]
) -> tf.Tensor:
    """The columns of embedding variables side by side, by the ops for training."""
    from fusion import ops as fused

    count = len(columns)
    attrs = {
        name: [column.attrs.get(attr.name, attr.default) for column in columns]
        for name, attr in {**PRE_ATTRS, **POST_ATTRS}.items()
    }
    entries = fused.grouped_keyed_embedding_pre_look_up(
        ids=[column.ids for column in columns],
        entry_rows=[column.entry_rows for column in columns],
        dense_shapes=[column.dense_shape for column in columns],
        weights=[column.weights for column in columns],
        keyed_tables=variables[:count],
        initials=variables[count : 2 * count],
        indices=variables[2 * count : 3 * count],
        steps=variables[3 * count],
        Tkeys=[tf.int64] * count,
        boundaries=[limit for column in columns for limit in column.attrs["boundaries"]],
        boundary_counts=[len(column.attrs["boundaries"]) for column in columns],
        keyed=[True] * count,
        trainable=trainable,
        is_training=trainable,
        **{name: attrs[name] for name in (*PRE_ATTRS, *_DIMS)},
    )
    rows = []
    for column, gathered in zip(columns, entries.embeddings, strict=True):
        limit = column.attrs["max_norm"]
        rows.append(gathered if limit < 0 else tf.clip_by_norm(gathered, limit, axes=[1]))
    return fused.grouped_embedding_post_look_up(
        emb_rows=rows,
        unique_idxs=entries.unique_idxs,
        row_splits=entries.row_splits,
        entry_weights=entries.entry_weights,
        **{name: attrs[name] for name in POST_ATTRS} | {"copied": [False] * count},
    )


LOOKUP_SPEC = OpSpec(
    name=names.GROUPED_KEYED,
    doc="GroupedEmbeddingLookup, with columns of embedding variables, for inference.\n\n"
    "Of the columns of `keyed` ids are keys of embedding variables, and `tables` items [0, D]. A\n"
    "key without a row has the default row. Nothing is changed; but computing the\n"
    "gradient gives rows to keys as training does.",
    inputs=(*GROUPED.inputs, *_VARIABLES),
    outputs=GROUPED.outputs,
    attrs=(*(_T if attr.name == "T" else attr for attr in GROUPED.attrs), *_KEYED_ATTRS),
    kernels={"CPU": cpu.kernel("columns.keyed_lookup_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=Builder(_BUILDER, _compile_builder, _constants(FULL_ROLE, COLUMN_ATTRS), GATHERS),
    names=GROUPED.names,
    gradient=_lookup_gradient,
    is_stateful=True,
)
