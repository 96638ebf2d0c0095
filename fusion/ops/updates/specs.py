"""FusedEmbeddingUpdate: what an optimizer does to a table and to its slots, in place, in one op."""

from __future__ import annotations

from fusion.ops.base.bodies import cpu_body
from fusion.ops.updates.cpu.constants import constants
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.tensorflow.spec import (
    NOT_DIFFERENTIABLE,
    Arg,
    Attr,
    Builder,
    OpSpec,
    RowKernel,
    RowKernels,
)
from fusion.schema import names
from fusion.schema.attributes import IDS_ATTR, UPDATE_DTYPES


def _block_kernel_at(index: int) -> RowKernel:
    """The interpreter for rows of a dtype."""
    dtype = UPDATE_DTYPES[index]
    name = f"update_{dtype}"

    blocks = "fusion.ops.updates.cpu_kernels.blocks"
    return RowKernel(name, Compilation(blocks, "block_kernel", 1, name, (dtype,)))


BLOCK_KERNELS = RowKernels("block_kernels", len(UPDATE_DTYPES), _block_kernel_at)


SPEC = OpSpec(
    name=names.UPDATE,
    doc="Executes a program of elementwise operations on a table and the variables beside it\n"
    "(slots), in place: what an optimizer does with a gradient of ids and values.\n\n"
    "The lines of `program` are separated by `;` and executed in order: `name=op(args)`, or\n"
    "`op(args)` for those without a value. `v<k>` are the rows of variable k as they are at\n"
    "that line, `x<k>` the entries of value k, `s<k>` is scalar k. A value is rows [rows, D] or\n"
    "entries [n, D]; a scalar goes with both.\n"
    "- add, sub, mul, div, max, min (of two, not both scalars), neg, square, sqrt, rsqrt, abs,\n"
    "  sign: as stock's AddV2, Sub, Mul, RealDiv, Maximum, Minimum, Neg, Square, Sqrt, Rsqrt, Abs\n"
    "  and Sign; rsqrt of float32 as of a tensor that ends with a whole vector of 8 elements;\n"
    "- sum(entries): rows, as of UnsortedSegmentSum by ids;\n"
    "- take(rows): the row of each entry's id;\n"
    "- assign(v<k>, rows) replaces a variable;\n"
    "- scatter_add(v<k>, entries), scatter_sub, scatter_update: as ResourceScatterAdd,\n"
    "  ResourceScatterSub and ResourceScatterUpdate, one entry after the other;\n"
    "- result(entries): the next of `results`.\n\n"
    "Entries are always taken in their order. An id that is not in [0, rows) is an\n"
    "InvalidArgumentError; but without take, scatter and result entries of negative ids are left\n"
    "out. Variables are locked meanwhile, and unchanged after an error of ids or shapes.",
    inputs=(
        Arg(
            "handles",
            "resource",
            "[...]",
            length="num_variables",
            doc="of the table, then of slots; all of the same size rows * D, none twice",
            on_host=True,
        ),
        Arg("ids", "Tid", "[...]", doc="row of each of n entries"),
        Arg("values", "T", "[?, ?]", length="num_values", doc="entries, see offsets"),
        Arg("scalars", "T", "[...]", length="num_scalars", doc="of one element each"),
    ),
    outputs=(Arg("results", "T", "[?, ?]", length="num_results", doc="each [n, D]"),),
    attrs=(
        Attr("num_variables", "int", minimum=1, doc="number of variables"),
        Attr("num_values", "int", minimum=0, doc="number of values"),
        Attr("num_scalars", "int", minimum=0, doc="number of scalars"),
        Attr("num_results", "int", minimum=0, doc="number of results"),
        Attr("T", "type", allowed=UPDATE_DTYPES, doc="dtype of the variables"),
        IDS_ATTR,
        Attr("dim", "int", minimum=1, doc="D"),
        Attr(
            "offsets",
            "list(int)",
            doc="of each value the first of its D columns in the first n rows of a matrix that "
            "may have more of both; -1: it is [n, D]",
        ),
        Attr(
            "sparse",
            "list(bool)",
            doc="whether a variable is changed as by scatters, where it is; else as by "
            "AssignAddVariableOp, in a copy if its value is used elsewhere",
        ),
        Attr("program", "string", doc="see above; for those who read the node"),
        Attr(
            "code",
            "string",
            doc="what is executed: the program as the function `lower` writes it",
        ),
        Attr(
            "deduplicate",
            "bool",
            default=False,
            doc="whether values of repeated ids are summed first, in their order, as by Unique "
            "and UnsortedSegmentSum: the program has one entry for each id, and no results",
        ),
        Attr(
            "wrap_negative",
            "bool",
            default=False,
            doc="whether an id in [-rows, 0) stands for id + rows",
        ),
    ),
    kernels={"CPU": cpu_body("updates", "update_kernel")},
    kernel_types={"T": UPDATE_DTYPES},
    builder=Builder(
        "build_update_state", "fusion.ops.updates.cpu.states", constants, BLOCK_KERNELS
    ),
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)
