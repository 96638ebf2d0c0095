"""Texts that one op splits are split by stock ops again; GroupedIds makes ids of their parts."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.graph.edit import GraphEdit, with_replaced
from fusion.passes.graph.fused_columns import list_attr
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.splitting import INDICES, PARTS, SHAPE
from fusion.schema.attributes import STOCK_SPLITS
from fusion.schema.names import GROUPED_IDS, GROUPED_SPLIT

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64
#: Attrs of the op that splits, which GroupedIds has not.
_OF_SPLIT = ("delimiters", "parts", "forms")


def with_stock_splits(
    graph_def: graph_pb2.GraphDef, preserved: frozenset[str] = frozenset()
) -> graph_pb2.GraphDef:
    """Returns the graph without our op that splits texts; see `with_replaced`."""
    return with_replaced(graph_def, preserved, GROUPED_SPLIT, _replace)


def _replace(edit: GraphEdit, name: str) -> None:
    """Puts stock ops, and one that makes ids, in the place of an op that splits."""
    view, count = edit.view, edit.view.int_attr(name, "num_columns")
    texts = view.inputs(name)
    build = NodeBuilder(edit, name, view.nodes[name].device, texts[0].node)
    ids = build.copy("ids", name)
    ids.op = GROUPED_IDS
    del ids.input[:]
    for key in _OF_SPLIT:
        ids.attr.pop(key, None)
    delimiters, parts, forms = (list_attr(view, name, key).s for key in _OF_SPLIT)
    set_types(ids, Tvalues=[types_pb2.DT_STRING] * count)
    splits = [_split(build, texts[k], delimiters[k], parts[k].decode()) for k in range(count)]
    build.inputs(ids, *(Tensor(split, PARTS) for split in splits), *texts[count:])
    build.add(ids)
    for k, split in enumerate(splits):
        rows, shape = Tensor(split, INDICES), Tensor(split, SHAPE)
        if forms[k] == b"row_splits":
            rows = _row_splits(build, rows, shape)
        for part, tensor in enumerate((Tensor(ids.name, k), rows, shape)):
            edit.replace(Tensor(name, part * count + k), tensor)
    edit.remove([name], ids.name)


def _split(build: NodeBuilder, texts: Tensor, delimiter: bytes, parts: str) -> str:
    """Adds the stock op that splits texts; returns its name."""
    op = next(op for op, kinds in STOCK_SPLITS.items() if parts in kinds)
    node = build.node("split", op)
    build.inputs(node, texts, build.text("delimiter", delimiter))
    if len(STOCK_SPLITS[op]) > 1:
        set_attrs(node, skip_empty=STOCK_SPLITS[op].index(parts) == 1)
    else:
        set_attrs(node, maxsplit=-1)
    return build.add(node)


def _row_splits(build: NodeBuilder, indices: Tensor, shape: Tensor) -> Tensor:
    """Adds what counts the row splits of sorted indices."""
    begin, end, strides = (
        build.constant(role, np.array(values, np.int32))
        for role, values in (("begin", [0, 0]), ("end", [0, 1]), ("strides", [1, 1]))
    )
    rows = _strided(build, indices, (begin, end, strides), begin_mask=1, end_mask=1, mask=2)
    zeroth, one = (build.constant("first", np.array([k], np.int32)) for k in range(2))
    row_count = _strided(build, shape, (zeroth, one, one), mask=1)
    ones = _node(build, "OnesLike", (rows,), T=_INT64)
    types = {"T": _INT64, "Tindices": _INT64, "Tnumsegments": _INT64}
    counts = _node(build, "UnsortedSegmentSum", (ones, rows, row_count), **types)
    axis = build.constant("axis", np.array(0, np.int32))
    sums = _node(build, "Cumsum", (counts, axis), T=_INT64, Tidx=_INT32)
    zero = build.constant("zero", np.zeros(1, np.int64))
    node = build.node("row_splits", "ConcatV2")
    build.inputs(node, zero, sums, axis)
    set_types(node, T=_INT64, Tidx=_INT32)
    set_attrs(node, N=2)
    return Tensor(build.add(node))


def _strided(
    build: NodeBuilder, values: Tensor, slices: tuple[Tensor, ...], *, mask: int, **masks: int
) -> Tensor:
    node = build.node("slice", "StridedSlice")
    build.inputs(node, values, *slices)
    set_types(node, T=_INT64, Index=_INT32)
    set_attrs(node, shrink_axis_mask=mask, **masks)
    return Tensor(build.add(node))


def _node(build: NodeBuilder, op: str, inputs: tuple[Tensor, ...], **types: int) -> Tensor:
    node = build.node(op.lower(), op)
    build.inputs(node, *inputs)
    set_types(node, **types)
    return Tensor(build.add(node))
