"""Writes the nodes of a new graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from fusion.passes.emit.node_builder import AttrValue, set_attrs, set_types
from fusion.passes.graph.tensor import Tensor
from fusion.runtime.tensorflow.private import tensor_util

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64


class Writer:
    """A GraphDef that is being written.

    Attributes:
        graph: it.
    """

    def __init__(self, reserved: Sequence[str]) -> None:
        """Begins an empty graph.

        Args:
            reserved: names that only copies of nodes with these names get.
        """
        self.graph = graph_pb2.GraphDef()
        self._names = set(reserved)
        self._constants: dict[bytes, Tensor] = {}
        self._joined: dict[tuple[object, ...], Tensor] = {}

    def copy(
        self,
        node: node_def_pb2.NodeDef,
        name: str,
        inputs: Sequence[Tensor],
        controls: Sequence[str],
    ) -> str:
        """Adds a copy of a node with other inputs and returns its name."""
        copy = self.graph.node.add()
        copy.CopyFrom(node)
        copy.name = name
        copy.attr.pop("_output_shapes", None)
        del copy.input[:]
        copy.input.extend([*map(str, inputs), *(f"^{before}" for before in controls)])
        return name

    def free_name(self, wish: str) -> str:
        """Returns a name that no node has or gets."""
        name, number = wish, 0
        while name in self._names:
            number += 1
            name = f"{wish}_{number}"
        self._names.add(name)
        return name

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor],
        types: Mapping[str, int | Sequence[int]],
        attrs: Mapping[str, AttrValue] | None = None,
        controls: Sequence[str] = (),
    ) -> Tensor:
        """Adds a node and returns its first output."""
        node = self.graph.node.add(name=self.free_name(name), op=op)
        node.input.extend([*map(str, inputs), *(f"^{before}" for before in controls)])
        set_types(node, **types)
        set_attrs(node, **(attrs or {}))
        return Tensor(node.name)

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int32) -> Tensor:
        """Returns a constant, one for all that need it."""
        array: npt.NDArray[Any] = np.asarray(value, dtype)
        proto = tensor_util.make_tensor_proto(array, shape=array.shape)
        key = proto.SerializeToString(deterministic=True)
        if key not in self._constants:
            tensor = self.add("request/constant", "Const", (), {"dtype": proto.dtype})
            self.graph.node[-1].attr["value"].tensor.CopyFrom(proto)
            self._constants[key] = tensor
        return self._constants[key]

    def gather(self, name: str, table: Tensor, ids: Tensor, axis: int, dtype: int) -> Tensor:
        """Adds what takes parts of a tensor along an axis; ids are int64."""
        inputs = (table, ids, self.constant(axis))
        types = {"Tparams": dtype, "Tindices": _INT64, "Taxis": _INT32}
        return self.add(name, "GatherV2", inputs, types, {"batch_dims": 0})

    def reshape(self, name: str, tensor: Tensor, shape: Sequence[int], dtype: int) -> Tensor:
        """Adds a tensor of other sizes, one of which may be -1."""
        inputs, types = (tensor, self.constant([*shape])), {"T": dtype, "Tshape": _INT32}
        return self.add(name, "Reshape", inputs, types)

    def concat(self, name: str, parts: Sequence[Tensor], axis: int, dtype: int) -> Tensor:
        """Adds what joins tensors, once for all that need it; one alone stays."""
        if len(parts) == 1:
            return parts[0]
        key = (*parts, axis)
        if key not in self._joined:
            inputs, attrs = (*parts, self.constant(axis)), {"N": len(parts)}
            types = {"T": dtype, "Tidx": _INT32}
            self._joined[key] = self.add(name, "ConcatV2", inputs, types, attrs)
        return self._joined[key]

    def sum_of(self, name: str, terms: Sequence[Tensor], dtype: int) -> Tensor:
        """Adds up tensors, which are broadcast, from the first on."""
        total = terms[0]
        for term in terms[1:]:
            total = self.add(name, "AddV2", (total, term), {"T": dtype})
        return total

    def sizes(self, name: str, tensor: Tensor, dtype: int, out: int = _INT32) -> Tensor:
        """Adds the shape of a tensor."""
        return self.add(name, "Shape", (tensor,), {"T": dtype, "out_type": out})

    def part(self, name: str, vector: Tensor, begin: int, end: int | None, dtype: int) -> Tensor:
        """Adds a part of a vector; all from `begin` on if `end` is None."""
        bounds = ([begin], [0 if end is None else end], [1])
        inputs = (vector, *map(self.constant, bounds))
        types, attrs = {"T": dtype, "Index": _INT32}, {"end_mask": int(end is None)}
        return self.add(name, "StridedSlice", inputs, types, attrs)

    def rows(
        self, name: str, matrix: Tensor, begin: int, size: int, width: int, dtype: int
    ) -> Tensor:
        """Adds some rows of a matrix, which share its memory."""
        inputs = (matrix, self.constant([begin, 0]), self.constant([size, width]))
        return self.add(name, "Slice", inputs, {"T": dtype, "Index": _INT32})

    def text(self, value: str) -> Tensor:
        """Returns a constant of one text."""
        proto = tensor_util.make_tensor_proto(value)
        tensor = self.add("request/text", "Const", (), {"dtype": proto.dtype})
        self.graph.node[-1].attr["value"].tensor.CopyFrom(proto)
        return tensor
