"""The ops of tables in variables and files, and of the keys that embedding variables have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.ops.base.bodies import cpu_body
from fusion.ops.tables.builders import BUILDER
from fusion.ops.tables.cpu.access_layout import access_words
from fusion.ops.tables.cpu_kernels.layout import MAX_SLOTS
from fusion.ops.tables.slots import note_gradient
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.private import FuncGraph, ops, variable_shape
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, Builder, OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.schema import names
from fusion.schema.attributes import FLOATS, IDS_ATTR, TABLE_ATTR, UPDATE_DTYPES


def _reading_constants(
    spec: OpSpec, device: str, access: Callable[[AccessRequest], Word]
) -> list[Word]:
    dtype_attr = [attr.name for attr in spec.attrs].index(TABLE_ATTR.name)
    return access_words(dtype_attr, FLOATS, device, access)


def _gradient_of_reading(op: tf.Operation, *grads: Any) -> list[Any]:
    """That of reading a variable: what comes goes on, IndexedSlices as they are."""
    return list(grads)


# ReadVariableOp copies a variable whole once its rows have been gathered or changed one by one, and
# where it does not, the next change of a row copies it. This op takes part in TensorFlow's sparse
# access instead, as ResourceGather and the sparse optimizers do: nothing is copied, and a row that
# is changed while it is looked up may be read half changed, as by a gather in stock TensorFlow.
READ_TABLES = OpSpec(
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
        "build_read_tables_state", "fusion.ops.tables.cpu.read_tables_state", _reading_constants
    ),
    gradient=_gradient_of_reading,
    is_stateful=True,
)


#: Of tables, of their keys, and of the indices of these.
_FILE_DTYPES = (*FLOATS, "int64")

# What is mapped is no copy: all processes of a machine share its pages, which come from the file
# when they are used, and which the system takes back where memory is short. The variable owns it as
# any other value: what is written is this process's own, and does not change the file.
READ_FILE = OpSpec(
    name=names.READ_TABLE_FILE,
    doc="A table that is the content of a file, row by row, without a copy.\n\n"
    "The file must stay as it is as long as the table lives: what is to be changed becomes\n"
    "another file. That there is none is a NotFoundError, and that its size is another one a\n"
    "DataLossError.",
    inputs=(Arg("file", "string", "[]", doc="its path", on_host=True),),
    outputs=(Arg("table", "T", "[?, ?]", doc="[rows, width]"),),
    attrs=(
        Attr("T", "type", allowed=_FILE_DTYPES, doc="dtype of the table"),
        Attr("rows", "int", minimum=0, doc="how many there are"),
        Attr("width", "int", minimum=1, doc="elements of a row"),
        Attr(
            "in_memory",
            "bool",
            default=False,
            doc="whether all of the file is read, into memory of this process's own; else it is "
            "mapped",
        ),
        Attr(
            "mapped_bytes",
            "int",
            default=0,
            minimum=0,
            doc="of all tables that are mapped with it, as far as it is known. Where there is less "
            "memory the system reads what is looked up alone, and nothing ahead",
        ),
    ),
    kernels={"CPU": cpu_body("tables", "file_kernel")},
    kernel_types={"T": _FILE_DTYPES},
    gradient=NOT_DIFFERENTIABLE,
    # Who changes the memory must be alone with it.
    is_stateful=True,
)


ZEROS = OpSpec(
    name=names.ZEROS_ON_DEMAND,
    doc="Zeros [rows, D] that take memory page by page, when they are first written.",
    inputs=(Arg("shape", "int64", "[2]", doc="rows, D", on_host=True),),
    outputs=(Arg("zeros", "T", "[?, ?]"),),
    attrs=(Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of the zeros"),),
    kernels={"CPU": cpu_body("tables", "memory")},
    kernel_types={"T": UPDATE_DTYPES},
    gradient=NOT_DIFFERENTIABLE,
    # Who changes the memory must be alone with it.
    is_stateful=True,
)

INDEX = OpSpec(
    name=names.KEY_INDEX,
    doc="An empty index of keys, in memory as of ZerosOnDemand; its words are no numbers.",
    inputs=(Arg("capacity", "int64", "[1]", doc="the rows that keys can have", on_host=True),),
    outputs=(Arg("index", "float64", "[?]"),),
    attrs=(
        Attr("admission", "int", minimum=1, doc="how often a key is seen before it gets a row"),
        Attr("seed", "int", doc="which initial values keys have"),
        Attr("waits", "bool", doc="whether keys without room wait for it; else it is an error"),
    ),
    kernels={"CPU": cpu_body("tables", "index_memory")},
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)


def _gradient_of_gathering(op: tf.Operation, of_embeddings: Any, _: Any) -> list[Any]:
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


GATHER_DOC = (
    "In training keys are noted as seen, and one that was seen as often as the index asks for\n"
    "gets a row, whose values depend on the key and the seed alone. A key without a row has the\n"
    "default row, and -1 in `rows`. That there is no room for a key is a ResourceExhaustedError,\n"
    "unless keys wait."
)

GATHER = OpSpec(
    name=names.KEYED_GATHER,
    doc="Gathers the rows of an embedding variable that keys have.\n\n" + GATHER_DOC,
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
    gradient=_gradient_of_gathering,
    is_stateful=True,
)


FILL_SLOT = OpSpec(
    name=names.FILL_SLOT,
    doc="Writes the first values of a slot's rows that keys have got since the last time.\n\n"
    "A slot is a variable of zeros on demand beside a table.",
    inputs=(
        Arg("slot", "resource", "[...]", doc="variable [capacity, D]", on_host=True),
        Arg("index", "resource", "[...]", doc="variable of EmbeddingKeyIndex", on_host=True),
        Arg("values", "T", "[...]", doc="D elements, or one for all"),
    ),
    outputs=(Arg("filled", "int64", "[?]", doc="[1]: how many rows were filled"),),
    attrs=(
        Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of the slot"),
        Attr("dim", "int", minimum=1, doc="D"),
        Attr("number", "int", minimum=0, maximum=MAX_SLOTS - 1, doc="of the slot, of its table's"),
    ),
    kernels={"CPU": cpu_body("tables", "fill_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)


_INDEX = Arg("index", "resource", "[...]", doc="variable of EmbeddingKeyIndex", on_host=True)

ENTRIES = OpSpec(
    name=names.KEY_ENTRIES,
    doc="All keys of an index, as they are at one moment; lookups in training wait meanwhile.",
    inputs=(_INDEX,),
    outputs=(
        Arg("keys", "int64", "[?]", doc="[n]"),
        Arg("rows", "int64", "[?]", doc="[n], -1 for keys that have no row yet"),
        Arg("counts", "int32", "[?]", doc="[n], how often each was seen in training"),
        Arg("steps", "int64", "[?]", doc="[n], when it was seen last, -1 for those without a row"),
        Arg("pending", "int64", "[?]", doc="rows of removed keys, which no key has yet"),
        Arg("aged", "int64", "[?]", doc="[1], how many of these, the first, can be released"),
        Arg("clock", "int64", "[?]", doc="[1], how many lookups in training there were"),
    ),
    attrs=(),
    kernels={"CPU": cpu_body("tables", "entries_kernel")},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)

FIND = OpSpec(
    name=names.FIND_KEYS,
    doc="The rows that keys have at this moment; nothing changes, and nothing waits.",
    inputs=(_INDEX, Arg("keys", "int64", "[n]")),
    outputs=(Arg("rows", "int64", "[?]", doc="[n], -1 for keys without a row"),),
    attrs=(),
    kernels={"CPU": cpu_body("tables", "find_kernel")},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)

ADD = OpSpec(
    name=names.ADD_KEYS,
    doc="Puts keys into an index as EmbeddingKeyEntries has them; those with a step have a row,\n"
    "which becomes that of `values`, or without these zeros if the key had none. Lookups in\n"
    "training are counted from the last step on.\n\n"
    "Rows that are pending are released if there are no others. That there is no room for a key\n"
    "is a ResourceExhaustedError.",
    inputs=(
        Arg("table", "resource", "[...]", doc="variable [capacity, D]", on_host=True),
        _INDEX,
        Arg("keys", "int64", "[n]"),
        Arg("counts", "int32", "[n]", doc="0 leaves those of a key that has a row as they are"),
        Arg("steps", "int64", "[n]"),
        Arg("values", "T", "[?, ?]", doc="[keys with a step, D], or no elements"),
    ),
    outputs=(Arg("rows", "int64", "[?]", doc="[n]"),),
    attrs=(
        Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of the table"),
        Attr("dim", "int", minimum=1, doc="D"),
    ),
    kernels={"CPU": cpu_body("tables", "add_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)

REMOVE = OpSpec(
    name=names.REMOVE_KEYS,
    doc="Takes keys out of an index, whose rows are pending then.\n\n"
    "With `release` >= 0 it is an eviction: before, it releases the first rows that are pending,\n"
    "which other keys get from then on; and those that are pending after it can be released by\n"
    "the next one. Until then updates may be on their way to them.",
    inputs=(
        _INDEX,
        Arg("keys", "int64", "[n]"),
        Arg("release", "int64", "[...]", doc="how many rows to release, or -1", on_host=True),
    ),
    outputs=(Arg("rows", "int64", "[?]", doc="[n], -1 for keys without a row"),),
    attrs=(),
    kernels={"CPU": cpu_body("tables", "remove_kernel")},
    builder=BUILDER,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)
