"""The update of a table by its gradient, and of the optimizer's variables beside it.

What TensorFlow runs op by op, each over the whole table, becomes a *program* for one op
(`FusedEmbeddingUpdate`): the same elementwise operations in an order in which each reads of the
variables what it read in the graph, before or after a write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fusion.passes.analysis.order import Order
from fusion.passes.graph.tensor import ALIAS_OPS, Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.ids import are_distinct, raw_ids, summed
from fusion.passes.recognise.updates.program import Stage, scheduled
from fusion.passes.recognise.updates.writes import Write, ids_of
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.schema.attributes import ID_TYPES
from fusion.schema.update_program import MAX_BYTES, Program, parse

_ASSIGNED = re.compile(r"assign\((v\d+),")
_BYTES = {dtype.enum: dtype.item_bytes for dtype in DTYPES.values()}


@dataclass(frozen=True)
class TableUpdate:
    """An update that one op can do, or several with stock ops in between.

    Attributes:
        name: the write that comes last.
        ids: of the entries, a tensor of n elements.
        deduplicates: whether the values of repeated ids are summed first.
        wraps_negative: whether an id in [-rows, 0) stands for id + rows.
        stages: what each op does.
        handles: by where they come from; in a branch, behind its Switch.
        dim: D.
        rows: of the table.
        dtype: of the variables.
        reads: nodes that read the variables, which the programs do themselves.
    """

    name: str
    ids: Tensor
    deduplicates: bool
    wraps_negative: bool
    stages: tuple[Stage, ...]
    handles: Mapping[Tensor, Tensor]
    dim: int
    rows: int
    dtype: int
    reads: tuple[str, ...]

    @property
    def writes(self) -> tuple[str, ...]:
        """The stock ops that are replaced."""
        return tuple(write for stage in self.stages for write in stage.writes)

    @property
    def program(self) -> str:
        """What is done, for people."""
        return " | ".join(stage.program for stage in self.stages)

    @property
    def moves(self) -> Moves:
        """What it does to rows that are not in the batch."""
        programs = [stage.program for stage in self.stages]
        return moves_of(programs, len(self.handles), self.rows, self.dim * _BYTES[self.dtype])


class Moves(NamedTuple):
    """What an update does to rows that are not in the batch.

    Attributes:
        size: the bytes of them that a step writes, of all variables.
        row_size: those of one of them.
        lazy: the optimizer of fusion that does the same to the rows of the batch alone.
    """

    size: int
    row_size: int
    lazy: str | None


def moves_of(programs: Sequence[str], variables: int, rows: int, size: int) -> Moves:
    """Returns what programs do to rows that are not in the batch.

    Args:
        programs: one for each stage.
        variables: how many there are.
        rows: of each.
        size: the bytes of a row of each.
    """
    moved = size * sum(len({*_ASSIGNED.findall(program)}) for program in programs)
    lazy = _lazy(parse(programs[0]), variables - 1) if moved and len(programs) == 1 else None
    return Moves(rows * moved, moved, lazy)


def _lazy(program: Program, slots: int) -> str | None:
    """The optimizer of fusion that does the same to the rows of the batch alone, if it is known."""
    below: dict[str, set[str]] = {}
    ops_of_slots: set[str] = set()
    for line in program.instructions:
        ops = {line.op}.union(*(below.get(arg, ()) for arg in line.operands))
        if line.is_write and line.target:
            ops_of_slots |= ops
        below[line.name] = ops
    ops = {line.op for line in program.instructions}
    if not ops.isdisjoint({"sign", "take"}):
        return None
    if {"min", "max"} <= ops:
        return "LazyFtrl" if slots == 2 else None
    # What Adam keeps are means of the gradient and of its square; RMSprop's have roots in them.
    if not ops_of_slots.isdisjoint({"div", "sqrt", "rsqrt"}):
        return None
    if "sqrt" in ops:
        return "LazyAdam" if slots == 2 else None
    return "LazyMomentum" if slots == 1 and ops.isdisjoint({"rsqrt", "square"}) else None


def fused_moves(view: GraphView, name: str) -> Moves:
    """Returns what an op that is fused already does to rows that are not in the batch."""
    variables, text = view.int_attr(name, "num_variables"), view.text_attr(name, "program")
    rows, dim = view.variable_shape(view.inputs(name)[0]) or (0, 0)
    size = (dim or 0) * _BYTES[view.type_attr(name, "T")]
    try:
        return moves_of([text], variables, rows or 0, size)
    except ValueError:  # the text is for readers, and may be any
        return Moves(0, 0, None)


def match_update(
    view: GraphView,
    table: Tensor,
    writes: Sequence[Write],
    order: Order,
    shape: tuple[int, int],
    dtype: int,
) -> TableUpdate | NoMatch:
    """Explains all changes of a table and of the variables that it is computed with.

    Args:
        view: the graph, without loops.
        table: where its handle comes from.
        writes: all changes of these variables, in any order.
        order: of all nodes that are given one of the variables.
        shape: [rows, D] of all of them.
        dtype: of all of them.
    """
    writes = sorted(writes, key=lambda write: order.number(write.node))
    last = writes[-1].node
    handles = _handles(view, writes)
    if isinstance(handles, NoMatch):
        return handles
    if len({order.conditions(write.node) for write in writes}) > 1:
        return NoMatch("the update is partly inside a branch", last)
    lists = {tensor for write in writes for tensor in ids_of(write)}
    if len(lists) != 1:
        return NoMatch("rows of several lists of ids are updated together", last)
    (indices,) = lists
    if view.dtype(indices) not in ID_TYPES:
        return NoMatch("the dtype of the ids is not known", indices.node)
    if len(view.shape(indices) or ()) != 1:
        return NoMatch("it is not known whether the ids are a vector", indices.node)
    if any(write.needs_distinct for write in writes) and not are_distinct(Value(view, indices)):
        return NoMatch("ids may be repeated", last)
    variables = tuple(dict.fromkeys((table, *(write.variable for write in writes))))
    stages = scheduled(writes, variables, order)
    if isinstance(stages, NoMatch):
        return stages
    if any(len(stage.program) > MAX_BYTES for stage in stages):
        return NoMatch("the update has more operations than one op may have", last)
    values = {value: None for write in writes for value in write.value.walk()}
    reads = dict.fromkeys(node for v in values if v.op == "read" for node in v.nodes)
    update = TableUpdate(
        name=last,
        ids=indices,
        deduplicates=False,
        wraps_negative=False,
        stages=stages,
        handles=handles,
        dim=shape[1],
        rows=shape[0],
        dtype=dtype,
        reads=tuple(reads),
    )
    return _of_raw_inputs(view, update)


def _of_raw_inputs(view: GraphView, update: TableUpdate) -> TableUpdate:
    """The update with ids and values as they were before stock ops prepared them."""
    *before, stage = update.stages
    ids, sums = Value(view, update.ids), None
    if not before:
        entries = [Value(view, tensor) for tensor in stage.entries]
        sums = summed(ids, entries, {*stage.nodes, *stage.writes})
    if sums is not None:
        values = tuple(value.tensor for value in sums.values)
        stage = replace(stage, entries=values, nodes=(*stage.nodes, *sums.nodes))
        update, ids = replace(update, deduplicates=True), sums.ids
    raw = raw_ids(ids, update.rows)
    stage = replace(stage, nodes=tuple(dict.fromkeys((*stage.nodes, *raw.nodes))))
    stages = (*before, stage)
    return replace(update, ids=raw.ids.tensor, wraps_negative=raw.wraps, stages=stages)


def _handles(view: GraphView, writes: Sequence[Write]) -> dict[Tensor, Tensor] | NoMatch:
    """Returns the handle of each variable; refuses what is not all in one branch."""
    used = {(write.variable, write.handle): write.node for write in writes}
    for write in writes:
        for value in write.value.walk():
            if value.variable is not None and value.handle is not None:
                used.setdefault((value.variable, value.handle), value.source.node)
    handles: dict[Tensor, Tensor] = {}
    branches = set()
    for (variable, handle), node in used.items():
        first = handles.setdefault(variable, handle)
        branch = _branch(view, handle)
        branches.add(branch)
        if len(branches) > 1 or _branch(view, first) != branch:
            return NoMatch("the update is partly inside a branch", node)
    return handles


def _branch(view: GraphView, handle: Tensor) -> tuple[Tensor, int] | None:
    """What the innermost Switch that a handle comes through tests, and its output; None: none."""
    while view.op(handle.node) in ALIAS_OPS:
        handle = view.inputs(handle.node)[0]
    if view.op(handle.node) != "Switch":
        return None
    return view.resolve(view.inputs(handle.node)[1]), handle.index
