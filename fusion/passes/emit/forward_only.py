"""The form of a lookup whose gradient stays stock: one op behind stock's own gathers.

    stock's gathers of its distinct ids -> FusedEmbeddingSparsePostLookUpV2

All of the id side stays, and of what comes behind the gathers all that others read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.arguments import each_weight, unused
from fusion.passes.emit.node_builder import NodeBuilder
from fusion.passes.emit.split import Bags, one_shard, post_lookup, unfilled
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.plan.plan import Group
from fusion.passes.recognise.forward_only import Forward
from fusion.passes.recognise.match import Stage
from fusion.passes.recognise.spec import LookupSpec
from fusion.runtime.tensorflow.private import dtypes


@dataclass
class ForwardEmitter:
    """Emits lookups one by one."""

    edit: GraphEdit

    def group(self, group: Group) -> None:
        """Emits one lookup and removes the nodes that have no other consumers."""
        (lookup,), match = group.lookups, group.forward
        assert match is not None, "only lookups that this form fits are planned as such"
        spec = lookup.full_spec
        build = NodeBuilder.of(self.edit, spec)
        build = replace(build, frame=match.positions.node)
        is_row_empty, dense_shape = match.is_row_empty, match.dense_shape
        if is_row_empty is None or dense_shape is None:
            is_row_empty, dense_shape = unfilled(build)
        weights = self._weights(build, spec, match)
        bags = Bags(dense_shape, match.indices, is_row_empty, match.positions, weights)
        post_lookup(build, spec, [match.rows], one_shard(build), bags, clips=False)
        self.edit.remove(match.gone, build.base)
        self.edit.wait(build.base, lookup.control_deps.get(Stage.OUTPUT, ()))
        self.edit.replace(spec.output, Tensor(build.base))
        for tensor, dtype in match.measured:
            self.edit.replace(tensor, self._of_dtype(build, spec.table.dtype, dtype))
        for name in match.shapes:
            shape = self._shape(build, spec, match, self.edit.view.type_attr(name, "out_type"))
            self.edit.remove([name], shape.node)
            self.edit.replace(Tensor(name), shape)

    def _weights(self, build: NodeBuilder, spec: LookupSpec, match: Forward) -> Tensor:
        if match.weights is None:
            return unused(build, "weights", spec.table.dtype)
        return each_weight(build, spec, match.weights, match.positions, types_pb2.DT_INT32)

    def _of_dtype(self, build: NodeBuilder, dtype: int, new_dtype: int) -> Tensor:
        """Returns the result, or another tensor of its shape."""
        result = Tensor(build.base)
        if dtype == new_dtype:
            return result
        return build.shared("measured", "Cast", (result,), {"SrcT": dtype, "DstT": new_dtype})

    def _shape(self, build: NodeBuilder, spec: LookupSpec, match: Forward, dtype: int) -> Tensor:
        """Returns the shape of the rows of the entries, [m, D], without the rows."""
        types = {"T": types_pb2.DT_INT32, "out_type": dtype}
        length = build.shared("length", "Shape", (match.positions,), types)
        width = np.array([spec.table.shape[1]], dtypes.as_dtype(dtype).as_numpy_dtype)
        parts = (
            length,
            build.constant("width", width),
            build.constant("axis", np.array(0, np.int32)),
        )
        types = {"T": dtype, "Tidx": types_pb2.DT_INT32}
        return build.shared("entries_shape", "ConcatV2", parts, types, {"N": 2})
