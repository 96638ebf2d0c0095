"""FusedEmbeddingUpdate: what an optimizer does to a table and to its slots, in place, in one op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion.ops import cpu
from fusion.ops.cpu.updates.layout import Code, UpdateState
from fusion.ops.cpu.updates.lowering import Lowered, lower, may_skip
from fusion.runtime.native.objects import address
from fusion.runtime.tensorflow import variable_access
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.runtime.threads.pool import pool_address
from fusion.schema import names
from fusion.schema.attributes import IDS_ATTR, ROW_UPDATE_DTYPES
from fusion.schema.update_program import Program, parse


def _state(values: Mapping[str, Any], device: str) -> list[int]:
    """The state of a node, see `UpdateState`.

    Raises:
      ValueError: a program that is none, or that its inputs and outputs do not go with; lists of
        other lengths than the numbers of what they are of; an offset below -1; results of values
        that are summed first.
    """
    program = parse(values["program"])
    variables, scalars = values["num_variables"], values["num_scalars"]
    program.check(variables, values["num_values"], scalars, values["num_results"])
    for name, count in (("offsets", values["num_values"]), ("sparse", variables)):
        if len(values[name]) != count:
            raise ValueError(f"{name} has {len(values[name])} items, not {count}")
    if min(values["offsets"], default=0) < -1:
        raise ValueError(f"offsets must not be below -1, got {list(values['offsets'])}")
    if values["deduplicate"] and program.result_count:
        raise ValueError("program must not have results with deduplicate")
    head = [0] * UpdateState.SIZE
    _put_attrs(head, values, program)
    access = variable_access.update_functions(values["T"])
    head[UpdateState.access : UpdateState.access + len(access)] = access
    words: list[int] = []
    for field, has_entries in ((UpdateState.with_entries, True), (UpdateState.without, False)):
        lowered = lower(
            program,
            variables,
            scalars,
            has_entries=has_entries,
            sums_values=values["deduplicate"],
        )
        head[field : field + Code.SIZE] = _code(lowered, len(head) + len(words))
        words += [word for instruction in lowered.instructions for word in instruction]
    head[UpdateState.offsets] = len(head) + len(words)
    head[UpdateState.sparse] = len(head) + len(words) + values["num_values"]
    return [*head[State.SIZE :], *words, *values["offsets"], *map(int, values["sparse"])]


def _put_attrs(head: list[int], values: Mapping[str, Any], program: Program) -> None:
    head[UpdateState.pool] = pool_address()
    head[UpdateState.kernel_of_blocks] = block_kernel_address(values["T"])
    head[UpdateState.item_bytes] = DTYPES[values["T"]].item_bytes
    head[UpdateState.ids_dtype] = DTYPES[values["Tid"]].code
    head[UpdateState.variable_count] = values["num_variables"]
    head[UpdateState.value_count] = values["num_values"]
    head[UpdateState.scalar_count] = values["num_scalars"]
    head[UpdateState.result_count] = values["num_results"]
    head[UpdateState.dim] = values["dim"]
    head[UpdateState.is_sweep] = int(program.is_sweep)
    head[UpdateState.needs_rows] = int(program.needs_rows)
    head[UpdateState.may_skip] = int(program.is_sweep and may_skip(program))
    head[UpdateState.deduplicates] = int(values["deduplicate"])
    head[UpdateState.wraps_negative] = int(values["wrap_negative"])
    head[UpdateState.sparse_count] = sum(map(bool, values["sparse"]))


def _code(lowered: Lowered, offset: int) -> list[int]:
    words = [0] * Code.SIZE
    words[Code.offset], words[Code.instruction_count] = offset, len(lowered.instructions)
    words[Code.row_buffers], words[Code.entry_buffers] = lowered.row_buffers, lowered.entry_buffers
    words[Code.scalar_buffers] = lowered.scalar_buffers
    return words


def block_kernel_address(dtype: str) -> int:
    """The address of the interpreter for rows of a dtype."""
    name = f"update_{dtype}"

    def compile_it() -> bytes:
        from fusion.cpu_ops.updates.blocks import block_kernel
        from fusion.runtime.native.compiler import compile_object

        return compile_object(block_kernel(dtype), 1, name)

    return address(name, compile_it)


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
        Attr("T", "type", allowed=ROW_UPDATE_DTYPES, doc="dtype of the variables"),
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
        Attr("program", "string", doc="see above"),
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
    kernels={"CPU": cpu.kernel("updates.update_kernel")},
    kernel_types={"T": ROW_UPDATE_DTYPES},
    custom=_state,
    gradient=NOT_DIFFERENTIABLE,
    is_stateful=True,
)
