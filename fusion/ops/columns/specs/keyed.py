"""The ops for whole columns some of whose tables are embedding variables.

GroupedKeyedEmbeddingPreLookUp stands for GroupedEmbeddingPreLookUp, see `training`, and for the
KeyedEmbeddingGather of each such column; other columns are gathered after it.
GroupedKeyedEmbeddingLookup is GroupedEmbeddingLookup for them, for inference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusion import ops as fused_ops
from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.row_kernels import GATHERS
from fusion.ops.columns.attr_errors import attr_errors
from fusion.ops.columns.builders import columns_constants
from fusion.ops.columns.cpu.layout import FULL as FULL_ROLE
from fusion.ops.columns.cpu.layout import PRE as PRE_ROLE
from fusion.ops.columns.cpu.layout import KeyedConstants
from fusion.ops.columns.gradients import (
    ColumnCall,
    column_gradients,
    columns_of,
    is_wanted,
    split_columns,
    weights_gradient,
)
from fusion.ops.columns.specs.lookup import GROUPED
from fusion.ops.columns.specs.training import PRE
from fusion.ops.tables.builders import accessed_dtypes
from fusion.ops.tables.specs import GATHER_DOC, row_slices
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.private import ops
from fusion.runtime.tensorflow.spec import Arg, Attr, Builder, Constants, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import UPDATE_DTYPES
from fusion.schema.columns import COLUMN_ATTRS, POST_ATTRS, PRE_ATTRS, list_attrs

_BUILDER = "build_keyed_columns_state"
_MODULE = "fusion.ops.columns.cpu.keyed_states"

#: What the op before gathers has in addition to that of plain columns.
_DIMS = {"dims": COLUMN_ATTRS["dims"]}


def _constants(role: int, lists: dict[str, Attr]) -> Constants:
    """The words of `KeyedConstants` for ops of a role, with these attrs of columns."""
    of_columns = columns_constants(role, lists)

    def words(spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]) -> list[Word]:
        attrs = [attr.name for attr in spec.attrs]
        result = of_columns(spec, device, access)
        result += [attrs.index(name) for name in ("keyed", "num_keyed", "is_training")]
        result += accessed_dtypes(device, access)
        assert len(result) == KeyedConstants.SIZE
        return result

    return words


def _mark_training(op: Any, columns: Sequence[int]) -> None:
    """Has a node give rows to the keys of columns from now on."""
    flags = list(op.get_attr("is_training")) or [False] * op.get_attr("num_columns")
    for column in columns:
        flags[column] = True
    values = tf.compat.v1.AttrValue.ListValue(b=flags)
    op._set_attr("is_training", tf.compat.v1.AttrValue(list=values))


def _keyed_columns(op: Any) -> list[int]:
    return [index for index, flag in enumerate(op.get_attr("keyed")) if flag]


def _trained(op: Any, first: int) -> list[int]:
    """Which of the embedding variables may be trained, and have a gradient that is needed.

    Args:
      first: the number of the first input that is a table.
    """
    trainable = op.get_attr("trainable")
    return [
        number
        for number, column in enumerate(_keyed_columns(op))
        if trainable[column] and is_wanted(op, first + number)
    ]


def _pre_gradient(op: tf.Operation, *grads: Any) -> list[Any]:
    """Gradients of tables, as of KeyedEmbeddingGather, and of weights.

    One op has all columns: `is_training` says of each whether it is trained, which it is if its
    gradient is needed and it is trainable.
    """
    count, keyed = op.get_attr("num_columns"), op.get_attr("num_keyed")
    columns, of_rows = _keyed_columns(op), grads[count + 3 : count + 3 + keyed]
    result = weights_gradient(op, grads[count + 2]) + [None] * (3 * keyed + 1)
    trained = [number for number in _trained(op, 4 * count) if of_rows[number] is not None]
    outputs = op.outputs[count + 3 + keyed :]
    if not isinstance(outputs[0], ops.EagerTensor):
        _mark_training(outputs[0].op, [columns[number] for number in trained])
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
    Attr("is_training", "list(bool)", default=(), doc="see above; of no column if empty"),
)

_KEYED = {"keyed": Attr("keyed", "bool")}

PRE_SPEC = OpSpec(
    name=names.GROUPED_KEYED_PRE,
    doc="GroupedEmbeddingPreLookUp, which also finds and gathers rows of embedding variables.\n\n"
    "The columns of `keyed` are of embedding variables; their `embeddings` are the rows of their\n"
    "unique_keys. " + GATHER_DOC + " Where they are to be seen\n"
    "several times, a key of a column is seen as often as it has entries, else once.",
    inputs=(*PRE.inputs, *_VARIABLES),
    outputs=(
        *PRE.outputs,
        Arg("embeddings", "T", "[?, ?]", length="num_keyed", doc="[u, D]"),
        Arg("rows", "int64", "[?]", length="num_keyed", doc="[u], -1 for keys without one"),
    ),
    attrs=(
        *(_T if attr.name == "T" else attr for attr in PRE.attrs),
        *list_attrs(_DIMS),
        *_KEYED_ATTRS,
    ),
    kernels={"CPU": cpu_body("columns", "keyed_unique_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=Builder(_BUILDER, _MODULE, _constants(PRE_ROLE, PRE_ATTRS | _DIMS)),
    names=PRE.names,
    gradient=_pre_gradient,
    attr_error=attr_errors("pre", PRE_ATTRS | _DIMS | _KEYED),
    is_stateful=True,
)


def _lookup_gradient(op: tf.Operation, *top_grads: tf.Tensor) -> list[Any]:
    """Gradients of tables and weights; the columns are computed again by the ops for training.

    As the gradient of KeyedEmbeddingGather it has the op give rows to keys.
    """
    columns, own = columns_of(op), _keyed_columns(op)
    count, keyed = len(columns), len(own)
    parts = split_columns(op, columns, top_grads)
    result: list[Any] = [None] * len(op.inputs)
    for index, column in enumerate(columns):
        if index not in own:
            result[index], result[4 * count + index] = column_gradients(column, parts[index])
    trained, output = _trained(op, 5 * count), op.outputs[0]
    dependencies: list[Any] = []
    if not isinstance(output, ops.EagerTensor):
        _mark_training(output.op, [own[number] for number in trained])
        dependencies += [output.op] * (output.graph is tf.compat.v1.get_default_graph())
    with tf.control_dependencies(dependencies):  # then keys have their rows
        tops = [parts[index] for index in own]
        again = [columns[index] for index in own]
        rows, of_rows, of_weights = _again(again, op.inputs[5 * count :], tops)
        for number in trained:
            table, index = op.inputs[5 * count + number], op.inputs[5 * count + 2 * keyed + number]
            slices = row_slices(table, index, rows[number], of_rows[number])
            result[5 * count + number] = slices
    for number, index in enumerate(own):
        if columns[index].column.use_sparse_weights:
            result[4 * count + index] = of_weights[number]
    return result


def _again(
    columns: Sequence[ColumnCall], variables: Sequence[tf.Tensor], tops: Sequence[tf.Tensor]
) -> list[Any]:
    """The rows of columns of embedding variables, and the gradients of gathered rows and weights.

    Args:
      columns: their keys have their rows.
      variables: the inputs of the op after those of its columns.
      tops: the gradients of the columns.
    """
    count, weights = len(columns), [column.weights for column in columns]
    attrs = {
        name: [getattr(call.column, attr.name, attr.default) for call in columns]
        for name, attr in {**PRE_ATTRS, **POST_ATTRS}.items()
    }
    with tf.GradientTape() as tape:
        tape.watch(weights)
        entries = fused_ops.grouped_keyed_embedding_pre_look_up(
            ids=[column.ids for column in columns],
            entry_rows=[column.entry_rows for column in columns],
            dense_shapes=[column.dense_shape for column in columns],
            weights=weights,
            keyed_tables=variables[:count],
            initials=variables[count : 2 * count],
            indices=variables[2 * count : 3 * count],
            steps=variables[3 * count],
            Tkeys=[tf.int64] * count,
            boundaries=[limit for column in columns for limit in column.boundaries],
            boundary_counts=[len(column.boundaries) for column in columns],
            keyed=[True] * count,
            trainable=[False] * count,
            **{name: attrs[name] for name in (*PRE_ATTRS, *_DIMS)},
        )
        tape.watch(entries.embeddings)
        limits = [call.column.max_norm for call in columns]
        rows = [
            gathered if limit < 0 else tf.clip_by_norm(gathered, limit, axes=[1])
            for gathered, limit in zip(entries.embeddings, limits, strict=True)
        ]
        results = fused_ops.grouped_embedding_post_look_up(
            emb_rows=rows,
            unique_idxs=entries.unique_idxs,
            row_splits=entries.row_splits,
            entry_weights=entries.entry_weights,
            num_others=count - 1,
            output_columns=[1] * count,
            **{name: attrs[name] for name in POST_ATTRS} | {"copied": [False] * count},
        )
    return [entries.rows, *tape.gradient(results, [entries.embeddings, weights], tops)]


LOOKUP_SPEC = OpSpec(
    name=names.GROUPED_KEYED,
    doc="GroupedEmbeddingLookup, with columns of embedding variables, for inference.\n\n"
    "Of the columns of `keyed` ids are keys of embedding variables, and `tables` items [0, D]. "
    + GATHER_DOC,
    inputs=(*GROUPED.inputs, *_VARIABLES),
    outputs=GROUPED.outputs,
    attrs=(*(_T if attr.name == "T" else attr for attr in GROUPED.attrs), *_KEYED_ATTRS),
    kernels={"CPU": cpu_body("columns", "keyed_lookup_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=Builder(_BUILDER, _MODULE, _constants(FULL_ROLE, COLUMN_ATTRS), GATHERS),
    names=GROUPED.names,
    resized=GROUPED.resized,
    gradient=_lookup_gradient,
    attr_error=attr_errors("full", COLUMN_ATTRS | _KEYED),
    is_stateful=True,
)
