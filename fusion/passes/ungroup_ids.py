"""Ids that one op looks up in vocabularies are looked up in their tables again, by stock ops.

What the op's index was made of is in the graph: the variable that holds it, and what fills that.
Hashes, also those of values that are in no table, are left to an op without vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.graph.edit import GraphEdit, with_replaced
from fusion.passes.graph.fused_columns import list_attr
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.vocabularies import FIND, THE_DEFAULT, THE_SIZE
from fusion.schema.names import GROUPED_IDS, VOCABULARY_INDEX

_INT64 = types_pb2.DT_INT64


def with_stock_vocabularies(
    graph_def: graph_pb2.GraphDef, preserved: frozenset[str] = frozenset()
) -> graph_pb2.GraphDef:
    """Returns the graph without lookups in vocabularies by our op; see `with_replaced`."""
    return with_replaced(graph_def, preserved, GROUPED_IDS, _replace)


def _replace(edit: GraphEdit, name: str) -> None:
    """Replaces an op if what its index was made of is known."""
    view = edit.view
    if view.int_attr(name, "num_indices") and (index := _index_of(view, name)) is not None:
        _Columns(edit, name, index).replace()


class _Vocabulary(NamedTuple):
    """What a vocabulary is made of."""

    table: Tensor
    default: Tensor
    mask: tuple[Tensor, Tensor] | None


class _Index(NamedTuple):
    """The vocabularies of an index, and the nodes that make and hold it."""

    vocabularies: list[_Vocabulary]
    nodes: list[str]


def _index_of(view: GraphView, name: str) -> _Index | None:
    """Returns what an op's index was made of; None if that is not known, see `emit.ids`."""
    read = view.inputs(name)[-1].node
    if view.op(read) != "ReadVariableOp":
        return None
    merge = view.inputs(read)[0].node
    parts = [tensor.node for tensor in view.inputs(merge)] if view.op(merge) == "Merge" else []
    fills = [fill for part in parts for fill in view.controls(part)]
    if len(fills) != 1 or view.op(fills[0]) != "AssignVariableOp":
        return None
    made = view.inputs(fills[0])[1].node
    if view.op(made) != VOCABULARY_INDEX:
        return None
    count, inputs = view.int_attr(made, "num_vocabularies"), view.inputs(made)
    contents = [tensor.node for tensor in inputs[:count]]
    masked, masks = [*list_attr(view, made, "masked").i], inputs[3 * count :]
    pairs = zip(masks[: len(masked)], masks[len(masked) :], strict=True)
    by_number = dict(zip(masked, pairs, strict=True))
    vocabularies = [
        _Vocabulary(view.inputs(table)[0], inputs[2 * count + k], by_number.get(k))
        for k, table in enumerate(contents)
    ]
    checks = [check for table in contents for check in view.controls(table)]
    around = [tensor.node for part in parts for tensor in view.inputs(part)]
    switches = [node for node in (*parts, *around) if view.op(node) == "Switch"]
    held = [tensor.node for switch in switches for tensor in view.inputs(switch)]
    nodes = [read, merge, *parts, *around, *held, fills[0], made, *contents, *checks]
    return _Index(vocabularies, [*dict.fromkeys(nodes)])


class _Columns:
    """Replaces an op by stock lookups, and an op that hashes.

    Args:
        edit: the rewrite.
        name: of the op.
        index: what it looks up.
    """

    def __init__(self, edit: GraphEdit, name: str, index: _Index) -> None:
        view = self._view = edit.view
        self._edit, self._name, self._index = edit, name, index
        self._count = view.int_attr(name, "num_columns")
        device, values = view.nodes[name].device, view.inputs(name)
        self._build = NodeBuilder(edit, name, device, values[0].node)
        self._values, self._dtypes = values, [*list_attr(view, name, "Tvalues").type]
        self._numbers = {
            key: [*list_attr(view, name, key).i]
            for key in ("num_buckets", "vocabularies", "replaced", "starts", "keys")
        }

    def replace(self) -> None:
        """Puts the others in its place."""
        buckets = dict(self._buckets())
        results = [self._column(k, buckets.get(k)) for k in range(self._count)]
        for k, result in enumerate(results):
            self._edit.replace(Tensor(self._name, k), result)
        self._edit.remove([self._name, *self._index.nodes], results[-1].node)

    def _buckets(self) -> Iterator[tuple[int, Tensor]]:
        """Adds an op that hashes; yields its outputs by columns."""
        columns = [k for k, buckets in enumerate(self._numbers["num_buckets"]) if buckets]
        if not columns:
            return
        node, hashes = self._build.node("hashes", GROUPED_IDS), self._view.nodes[self._name]
        kinds = [kind.decode() for kind in hashes.attr["hashes"].list.s]
        keys = self._numbers["keys"]
        self._build.inputs(node, *(self._values[k] for k in columns))
        set_attrs(node, num_columns=len(columns), num_indices=0)
        set_types(node, Tvalues=[self._dtypes[k] for k in columns])
        set_lists(
            node,
            hashes=[kinds[k] for k in columns],
            num_buckets=[self._numbers["num_buckets"][k] for k in columns],
            keys=[word for k in columns for word in keys[2 * k : 2 * k + 2]] if keys else [],
        )
        name = self._build.add(node)
        for place, k in enumerate(columns):
            yield k, Tensor(name, place)

    def _column(self, k: int, bucket: Tensor | None) -> Tensor:
        """Returns the ids of a column."""
        number = self._numbers["vocabularies"][k]
        if number < 0:
            assert bucket is not None, "a column without a vocabulary has buckets"
            return bucket
        vocabulary, values, dtype = (
            self._index.vocabularies[number],
            self._values[k],
            self._dtypes[k],
        )
        types = {"Tin": dtype, "Tout": _INT64}
        found = self._node(FIND, (vocabulary.table, values, vocabulary.default), **types)
        if vocabulary.mask is not None:
            key, value = vocabulary.mask
            found = self._node(
                "SelectV2", (self._equal(values, key, dtype), value, found), T=_INT64
            )
        if bucket is None:
            return found
        start, replaced = self._numbers["starts"][k], self._numbers["replaced"][k]
        first = self._number("start", start)
        if start == THE_SIZE:
            first = self._node("LookupTableSizeV2", (vocabulary.table,))
        other = vocabulary.default
        if replaced != THE_DEFAULT:
            other = self._number("replaced", replaced)
        # All releases of TensorFlow have these ops.
        added = self._node("Add", (bucket, first), T=_INT64)
        return self._node("Select", (self._equal(found, other, _INT64), added, found), T=_INT64)

    def _equal(self, one: Tensor, other: Tensor, dtype: int) -> Tensor:
        return self._node("Equal", (one, other), T=dtype)

    def _number(self, role: str, number: int) -> Tensor:
        return self._build.constant(role, np.array(number, np.int64))

    def _node(self, op: str, inputs: tuple[Tensor, ...], **types: int) -> Tensor:
        node = self._build.node(op.lower(), op)
        self._build.inputs(node, *inputs)
        set_types(node, **types)
        return Tensor(self._build.add(node))
