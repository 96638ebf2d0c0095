"""Sparse features of Examples that lookups alone read become ragged ones.

A row split for each Example stands for two indices of each value: the parser writes, and the
lookup reads, that much less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.node_builder import NodeBuilder
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor, Use
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.parsing import ParseSpec
from fusion.schema.names import GROUPED, SINGLE

#: Which list of the inputs of a lookup for many columns has what.
IDS, ENTRY_ROWS, DENSE_SHAPES = 1, 2, 3
#: Features that a lookup reads by indices, by their numbers: the lookups' inputs with these.
Reads = Mapping[int, list[Use]]


def sparse_reads(view: GraphView, name: str, spec: ParseSpec) -> Reads:
    """Returns which sparse features of a parser may be ragged: what it reads, and where.

    The indices and the shape of such a feature are read by columns of fused lookups that have as
    many rows as there are Examples, and by nothing else.
    """
    batch, count = spec.serialized.shape, len(spec.sparse)
    if batch is None or len(batch) != 1 or name in view.preserved or view.has_loops:
        return {}
    found: dict[int, list[Use]] = {}
    for number in range(count):
        uses = row_reads(view, Tensor(name, number), Tensor(name, 2 * count + number))
        if uses is not None:
            found[number] = uses
    return found


def row_reads(view: GraphView, indices: Tensor, shape: Tensor) -> list[Use] | None:
    """Returns what reads the indices and the dense shape of entries, if row splits may be there.

    They are read by columns of lookups alone that have as many rows as the shape has.
    """
    rows, shapes = view.tensor_uses(indices), view.tensor_uses(shape)
    are_rows = all(is_read(view, use, ENTRY_ROWS) for use in rows)
    are_shapes = all(is_read(view, use, DENSE_SHAPES) for use in shapes)
    columns = {(use.node, column_of(view, use)) for use in rows}
    is_whole = columns == {(use.node, column_of(view, use)) for use in shapes}
    return [*rows, *shapes] if are_rows and are_shapes and is_whole else None


def column_of(view: GraphView, use: Use) -> int:
    """Returns the column that an input of a lookup is of."""
    return use.position % _column_count(view, use.node)


def weighs(view: GraphView, use: Use) -> bool:
    """Whether the column that an input of a lookup is of has weights."""
    if view.op(use.node) == SINGLE:
        return view.flag_attr(use.node, "use_sparse_weights")
    attr = view.attr(use.node, "use_sparse_weights")
    return attr is not None and attr.list.b[column_of(view, use)]


def _column_count(view: GraphView, name: str) -> int:
    return view.int_attr(name, "num_columns") if view.op(name) == GROUPED else 1


def is_read(view: GraphView, use: Use, which: int) -> bool:
    """Whether it is that input of a column with indices, whose rows are those of its shape."""
    op, count = view.op(use.node), 1
    if op not in (GROUPED, SINGLE) or use.node in view.preserved:
        return False
    count = _column_count(view, use.node)
    column = use.position % count
    form, rows = (_text(view, use.node, key, column) for key in ("form", "row_count"))
    return use.position // count == which and form == "indices" and rows == "dense_shape"


def _text(view: GraphView, name: str, key: str, column: int) -> str:
    """Returns an attr of a column of a lookup."""
    if view.op(name) == SINGLE:
        return view.text_attr(name, key)
    attr = view.attr(name, f"{key}s")
    return "" if attr is None else attr.list.s[column].decode()


def as_ragged(spec: ParseSpec, reads: Reads) -> ParseSpec:
    """Returns what a parser is asked for when features are ragged."""
    kept = (feature for number, feature in enumerate(spec.sparse) if number not in reads)
    more = (spec.sparse[number] for number in reads)
    ragged = (replace(one, split_dtype=types_pb2.DT_INT64) for one in more)
    return replace(spec, sparse=tuple(kept), ragged=(*spec.ragged, *ragged))


def read_splits(edit: GraphEdit, name: str, spec: ParseSpec, reads: Reads) -> None:
    """Lets lookups read row splits.

    Args:
        edit: that has the new parser already.
        name: of both.
        spec: what the old one was asked for.
        reads: what is ragged now.
    """
    build = NodeBuilder(edit, name, edit.view.nodes[name].device, spec.serialized.node)
    for number in reads:
        shape = build.constant("unused_shape", np.ones(1, np.int64))
        edit.replace(Tensor(name, 2 * len(spec.sparse) + number), shape)
    for use in (use for uses in reads.values() for use in uses):
        count = _column_count(edit.view, use.node)
        if use.position // count == ENTRY_ROWS:
            set_form(edit, use.node, use.position % count, "row_splits")


def renumber(edit: GraphEdit, name: str, numbers: Mapping[int, int]) -> None:
    """Lets all who read a parser read the one in its place."""
    for old, new in numbers.items():
        edit.replace(Tensor(name, old), Tensor(name, new))


def new_numbers(spec: ParseSpec, ragged: list[int]) -> dict[int, int]:
    """Returns the new numbers of outputs by the old ones: of indices those of row splits.

    Those of dense features that have no output of their own are not among them.

    Args:
        spec: what the stock parser was asked for, with `outputs` of the new one.
        ragged: sparse features that are ragged now.
    """
    kept = [number for number in range(len(spec.sparse)) if number not in ragged]
    old, count = len(spec.sparse), len(kept)
    numbers = {
        part * old + number: part * count + place
        for part in range(3)
        for place, number in enumerate(kept)
    }
    outputs = [number for number, _ in spec.outputs] or [*range(len(spec.dense))]
    own = {k: number for k, number in enumerate(outputs) if outputs.count(number) == 1}
    dense, before = len(spec.dense), len(spec.ragged)
    values = 3 * count + len({*outputs})  # of ragged features, those from before first
    splits = values + before + len(ragged)
    numbers |= {3 * old + k: 3 * count + number for k, number in own.items()}
    numbers |= {3 * old + dense + k: values + k for k in range(before)}
    numbers |= {3 * old + dense + before + k: splits + k for k in range(before)}
    for k, number in enumerate(ragged):
        numbers[number] = splits + before + k
        numbers[old + number] = values + before + k
    return numbers


def set_form(edit: GraphEdit, lookup: str, column: int, form: str) -> None:
    """Has a column of a lookup read ids in this form, where it has read indices."""
    node = edit.changed(lookup)
    if node.op == SINGLE:
        node.attr["form"].s = form.encode()
    else:
        node.attr["forms"].list.s[column] = form.encode()
