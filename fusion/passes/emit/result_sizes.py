"""Sizes of results that go: gradients need them, and get them from what stays.

The gradient of a concat is sliced by the sizes of its inputs, which become constants. Shapes that
others measure are made of those of the ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, Vector
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.liveness import dead_with
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.plan.joins import joined
from fusion.passes.plan.plan import Group, Lowering
from fusion.passes.plan.training_step import (
    dtype_of,
    rows_inside,
    shapes_between,
    shapes_of_concats,
)
from fusion.passes.recognise.backward.concat_slices import InputGradient, slices_of, splits_of
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch
from fusion.runtime.tensorflow.private import dtypes

_INT32 = types_pb2.DT_INT32
_LIKE = {"ZerosLike": 0, "OnesLike": 1}
"""Ops that fill the shape of a tensor with a number."""


@dataclass
class SizeEmitter:
    """Emits the sizes of what went.

    Attributes:
        edit: the rewrite, in which groups have been emitted.
        measures: nodes that read the sizes of results.
    """

    edit: GraphEdit
    measures: frozenset[str]
    _known: dict[Tensor, Vector] = field(default_factory=dict)

    def finish(self, groups: Sequence[Group]) -> None:
        """Takes out what measures results of grouped lookups."""
        if not self.measures:
            return
        view, joins = self.edit.view, dict[str, int]()
        for group in groups:
            for lookup in group.lookups:
                if group.form is Lowering.GROUPED:
                    self._known |= shapes_between(view, lookup, self.measures)
                    joins |= self._axes(lookup)
                elif group.form is Lowering.SINGLE:
                    # Its result stays a tensor of its own.
                    rows = rows_inside(view, lookup)
                    rows.pop(lookup.full_spec.output, None)
                    self._known |= rows
        concats = shapes_of_concats(view, self._known)
        self._known |= concats
        # What concats of concats are made of is known by now.
        for join, axis in (joins | {concat.node: 1 for concat in concats}).items():
            self._slice(join, axis)
        uses = (use.node for tensor in self._known for use in view.tensor_uses(tensor))
        nodes = dict.fromkeys(name for name in uses if name in self.measures)
        dead = dead_with(view, self.edit.removed, unseen=False)
        gone = dead.union(self.edit.removed)
        for name in nodes:
            if any(
                use.position < 0 or (use.node not in gone and view.is_live(use.node))
                for use in view.uses(name)
            ):
                self._measure(name)
        for name in sorted(dead):
            self.edit.removed.setdefault(name, name)

    def _axes(self, lookup: LookupMatch) -> dict[str, int]:
        """Returns the concats that a lookup's result goes to, each with its axis."""
        slots = joined(self.edit.view, lookup, self.measures)[0]
        if isinstance(slots, NoMatch):
            return {}
        return {slot.join: len(slot.lead) for slot in slots if slot.op == "ConcatV2"}

    # Gradients of concats

    def _slice(self, concat: str, axis: int) -> None:
        """Lets what slices gradients of a concat do so at constant offsets."""
        view = self.edit.view
        node = Node(view, concat)
        sizes = [self._size(tensor, axis) for tensor in view.inputs(concat)[:-1]]
        known = [size for size in sizes if size is not None]
        if len(known) == len(sizes):
            for name in dict.fromkeys(splits_of(node, axis)):
                self._split(name, view.inputs(name)[0], axis, known, [name])
        parts: dict[Tensor, list[InputGradient]] = {}
        for part in slices_of(node, axis):
            is_named = part.node in view.preserved or part.node in view.awaited
            if view.is_live(part.node) and not is_named:
                parts.setdefault(part.whole, []).append(part)
        for whole, of_whole in parts.items():
            if len(known) == len(sizes) and len(of_whole) > 1:
                self._split_at(whole, axis, known, of_whole)
                continue
            for part in of_whole:
                before = sizes[: part.index + 1]
                if None not in before:
                    self._constant_slice(part, axis, [size or 0 for size in before])

    def _size(self, tensor: Tensor, axis: int) -> int | None:
        """Returns the size of an input along the axis, if it is known."""
        shape: Vector | tuple[int | None, ...] | None = self._known.get(tensor)
        shape = self.edit.view.shape(tensor) if shape is None else shape
        size = None if shape is None else shape[axis]
        return size if isinstance(size, int) else None

    def _split_at(
        self, whole: Tensor, axis: int, sizes: Sequence[int], parts: Sequence[InputGradient]
    ) -> None:
        """Emits one split for all Slices; inputs that none of them takes are one piece."""
        wanted = {part.index for part in parts}
        pieces: list[int] = []
        piece_of: dict[int, int] = {}
        for index, size in enumerate(sizes):
            if pieces and index not in wanted and index - 1 not in wanted:
                pieces[-1] += size
            else:
                pieces.append(size)
            piece_of[index] = len(pieces) - 1
        names = [part.node for part in parts]
        split = self._split("", whole, axis, pieces, names)
        for part in parts:
            self.edit.replace(Tensor(part.node), Tensor(split, piece_of[part.index]))

    def _split(
        self, name: str, whole: Tensor, axis: int, sizes: Sequence[int], stock: Sequence[str]
    ) -> str:
        """Adds a split in the place of one, or of Slices, and returns its name."""
        edit, first = self.edit, self.edit.view.nodes[stock[0]]
        build = NodeBuilder(edit, stock[0], first.device, "")
        node = build.node("split", "SplitV")
        node.name = name or node.name
        lengths = build.constant("sizes", np.array(sizes, np.int32))
        build.inputs(node, whole, lengths, build.constant("axis", np.array(axis, np.int32)))
        set_types(node, T=edit.view.type_attr(stock[0], "T"), Tlen=_INT32)
        set_attrs(node, num_split=len(sizes))
        build.add(node)
        edit.remove(stock, node.name)
        if name:
            for index in range(len(sizes)):
                edit.replace(Tensor(name, index), Tensor(name, index))
        return node.name

    def _constant_slice(self, part: InputGradient, axis: int, before: Sequence[int]) -> None:
        edit, stock = self.edit, self.edit.view.nodes[part.node]
        shape = edit.view.shape(part.whole)
        rank = axis + 1 if shape is None else len(shape)
        build = NodeBuilder(edit, part.node, stock.device, "")
        begin, size = np.zeros(rank, np.int32), np.full(rank, -1, np.int32)
        begin[axis], size[axis] = sum(before[:-1]), before[-1]
        inputs = part.whole, build.constant("begin", begin), build.constant("size", size)
        types = {"T": edit.view.type_attr(part.node, "T"), "Index": _INT32}
        build.result("Slice", inputs, types)
        edit.remove([part.node], part.node)
        edit.replace(Tensor(part.node), Tensor(part.node))

    # Shapes

    def _measure(self, name: str) -> None:
        """Makes the shapes that a node measures."""
        edit, view = self.edit, self.edit.view
        build = NodeBuilder(edit, name, view.nodes[name].device, "")
        if view.op(name) in _LIKE:
            self._filled(build, name, _LIKE[view.op(name)])
            return
        if view.op(name) in ("Size", "Rank"):
            self._number(build, name)
            return
        dtype = view.type_attr(name, "out_type")
        for index, tensor in enumerate(view.inputs(name)):
            if not view.tensor_uses(Tensor(name, index)):
                continue
            shape = self._known.get(tensor)
            if shape is None:
                types = {"T": view.type_attr(name, "T"), "out_type": dtype}
                new = build.shared("shape", "Shape", (tensor,), types)
            else:
                new = self._vector(build, shape, dtype)
            edit.replace(Tensor(name, index), new)
        edit.removed[name] = name

    def _number(self, build: NodeBuilder, name: str) -> None:
        """Makes the number of elements or axes of something that goes."""
        edit, view = self.edit, self.edit.view
        shape = self._known[view.inputs(name)[0]]
        if view.op(name) == "Rank" or _are_numbers(shape):
            sizes = [size for size in shape if isinstance(size, int)]
            is_rank, dtype = view.op(name) == "Rank", view.type_attr(name, "out_type") or _INT32
            count = len(shape) if is_rank else math.prod(sizes)
            kind = dtypes.as_dtype(dtype).as_numpy_dtype
            edit.replace(Tensor(name), build.constant("count", np.array(count, kind)))
        else:
            dtype = view.type_attr(name, "out_type")
            axis = build.constant("axis", np.array(0, np.int32))
            types = {"T": dtype, "Tidx": _INT32}
            build.result("Prod", (self._vector(build, shape, dtype), axis), types)
            edit.replace(Tensor(name), Tensor(name))
        edit.removed[name] = name

    def _filled(self, build: NodeBuilder, name: str, number: int) -> None:
        """Makes a number in each place of something that goes."""
        edit, view = self.edit, self.edit.view
        dtype = view.type_attr(name, "T")
        sizes = self._vector(build, self._known[view.inputs(name)[0]], _INT32)
        value = build.constant("value", np.array(number, dtypes.as_dtype(dtype).as_numpy_dtype))
        build.result("Fill", (sizes, value), {"T": dtype, "index_type": _INT32})
        edit.removed[name] = name
        edit.replace(Tensor(name), Tensor(name))

    def _vector(self, build: NodeBuilder, shape: Vector, dtype: int) -> Tensor:
        """Returns sizes as a vector."""
        kind = dtypes.as_dtype(dtype).as_numpy_dtype
        if all(isinstance(size, int) for size in shape):
            return build.constant("shape", np.array(shape, kind))
        first = next(size for size in shape if isinstance(size, Dim))
        lead = ShapeMath().shape_of(Value(build.edit.view, first.tensor))
        if lead is not None and shape[: len(lead)] == lead and _are_numbers(shape[len(lead) :]):
            ids = self._shape(build, first.tensor, dtype)
            rest = build.constant("rest", np.array(shape[len(lead) :], kind))
            types = {"T": dtype, "Tidx": _INT32}
            axis = build.constant("axis", np.array(0, np.int32))
            return build.shared("shape", "ConcatV2", (ids, rest, axis), types, {"N": 2})
        sizes = tuple(
            self._element(build, size, dtype)
            if isinstance(size, Dim)
            else build.constant("size", np.array(size, kind))
            for size in shape
        )
        return build.shared("shape", "Pack", sizes, {"T": dtype}, {"N": len(sizes), "axis": 0})

    def _shape(self, build: NodeBuilder, tensor: Tensor, dtype: int) -> Tensor:
        types = {"T": dtype_of(self.edit.view, tensor), "out_type": dtype}
        return build.shared("shape", "Shape", (tensor,), types)

    def _element(self, build: NodeBuilder, size: Dim, dtype: int) -> Tensor:
        shape = self._shape(build, size.tensor, dtype)
        bounds = (
            build.constant("at", np.array([at], np.int32)) for at in (size.axis, size.axis + 1, 1)
        )
        types = {"T": dtype, "Index": _INT32}
        return build.shared(
            "size", "StridedSlice", (shape, *bounds), types, {"shrink_axis_mask": 1}
        )


def _are_numbers(shape: Vector) -> bool:
    return all(isinstance(size, int) for size in shape)
