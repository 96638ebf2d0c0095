"""Turns planned lookups into nodes: fused ops around a stock gather beside its table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes, tensor_util

from fusion.passes.edit import GraphEdit
from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.match import Stage
from fusion.passes.plan import Plan
from fusion.passes.recognise import Recognition
from fusion.passes.spec import LookupSpec

AttrValue = bool | int | float | str


def emit(view: GraphView, plan: Plan) -> GraphEdit:
    """Returns the edit that replaces every lookup of the plan."""
    emitter = _Emitter(GraphEdit(view))
    for group in plan.groups:
        for lookup in group.lookups:
            emitter.lookup(lookup)
    return emitter.edit


@dataclass
class _Emitter:
    """Emits lookups one by one; equal nodes are emitted once and shared.

    Each lookup becomes

        PruneInvalidAndFillEmptyRows -> UniqueWithCountsV3 -> gather of the unique rows
            -> FusedEmbeddingSparsePostLookUpV2

    with the gather the stock one, on its device and beside its table.
    """

    edit: GraphEdit
    shared: dict[tuple[object, ...], str] = field(default_factory=dict)

    def lookup(self, lookup: Recognition) -> None:
        """Emits one lookup and takes its stock nodes out."""
        spec = lookup.spec
        assert spec is not None, "only fully recognised lookups are planned"
        base = spec.output.node
        weights = self._weights(spec)
        prune = self._prune(lookup, spec, weights)
        unique = self._unique(spec, prune)
        gather = self._gather(spec, unique)
        self._post_lookup(spec, prune, unique, gather, weights)
        self.edit.remove(lookup.nodes(Stage.IDS), prune)
        self.edit.remove(lookup.nodes(Stage.ROWS), gather)
        self.edit.remove(lookup.nodes(Stage.OUTPUT), base)
        self.edit.replace(spec.output, Tensor(base))

    def _prune(self, lookup: Recognition, spec: LookupSpec, weights: Tensor) -> str:
        view, ids = self.edit.view, spec.ids
        nodes = (*lookup.front(), *lookup.nodes(Stage.IDS))
        waits = tuple(dict.fromkeys(w for name in nodes for w in view.controls(name)))
        device = view.nodes[spec.anchor].device
        default_id = -1 if spec.default_id is None else spec.default_id
        key = ("prune", ids, default_id, spec.table.dtype, device, waits)
        if key not in self.shared:
            node = self._node(spec, "prune_and_fill", "PruneInvalidAndFillEmptyRows", device)
            self._set_inputs(node, ids.values, ids.indices, ids.dense_shape, weights)
            _set_types(node, Tid=ids.dtype, Tw=spec.table.dtype)
            _set_attrs(
                node,
                fill_empty_row=spec.fill,
                prune=spec.prune,
                default_id=default_id,
                use_sparse_weights=False,
                prune_sparse_weights=False,
                default_weight=1.0,
            )
            self.edit.add(node, at=spec.output.node)
            self.edit.wait(node.name, waits)
            self.shared[key] = node.name
        return self.shared[key]

    def _unique(self, spec: LookupSpec, prune: str) -> str:
        key = ("unique", prune)
        if key not in self.shared:
            device = self.edit.added[prune].device
            node = self._node(spec, "unique", "UniqueWithCountsV3", device)
            self._set_inputs(node, Tensor(prune, 0))
            _set_types(node, Tid=spec.ids.dtype)
            self.edit.add(node, at=spec.output.node)
            self.shared[key] = node.name
        return self.shared[key]

    def _gather(self, spec: LookupSpec, unique: str) -> str:
        table = spec.table
        node = self._node(spec, "gather", "GatherV2", table.device)
        keys = Tensor(unique, 0)
        if table.gather:
            stock = self.edit.view.nodes[table.gather]
            name = node.name
            node.CopyFrom(stock)
            node.name = name
            data = [self.edit.view.text(t) for t in self.edit.view.inputs(table.gather)]
            data[1] = self.edit.text(keys)
            del node.input[:]
            node.input.extend(data)
        else:
            axis = self._constant(spec, "axis", np.array(0, np.int32), table.device)
            self._set_inputs(node, table.tensor, keys, axis)
            _set_types(node, Tparams=table.dtype, Tindices=spec.ids.dtype, Taxis=types_pb2.DT_INT32)
            _set_attrs(node, batch_dims=0)
            if table.colocation:
                node.attr["_class"].list.s.extend(group.encode() for group in table.colocation)
        self.edit.add(node, at=spec.output.node)
        return node.name

    def _post_lookup(
        self, spec: LookupSpec, prune: str, unique: str, gather: str, weights: Tensor
    ) -> None:
        stock = self.edit.view.nodes[spec.output.node]
        node = node_def_pb2.NodeDef(
            name=stock.name, op="FusedEmbeddingSparsePostLookUpV2", device=stock.device
        )
        no_partitions = np.zeros((1, 2), np.int32)
        permutation = self._constant(spec, "permutation", no_partitions, stock.device)
        self._set_inputs(
            node,
            Tensor(gather),
            permutation,
            spec.ids.dense_shape,
            Tensor(prune, 1),
            Tensor(prune, 3),
            Tensor(unique, 1),
            weights,
        )
        _set_types(node, T=spec.table.dtype, Tw=spec.table.dtype)
        _set_attrs(
            node,
            num_partitions=1,
            partition_axis=0,
            fill_empty_row=spec.fill,
            default_id=-1 if spec.default_id is None else spec.default_id,
            combiner=spec.combiner,
            max_norm=-1.0,
            use_sparse_weights=False,
            row_count="dense_shape",
        )
        _keep_shape(stock, node)
        if stock.HasField("experimental_debug_info"):
            node.experimental_debug_info.CopyFrom(stock.experimental_debug_info)
        self.edit.add(node, at=spec.output.node)

    def _weights(self, spec: LookupSpec) -> Tensor:
        value = np.ones(1, dtypes.as_dtype(spec.table.dtype).as_numpy_dtype)
        return self._constant(spec, "no_weights", value, self.edit.view.nodes[spec.anchor].device)

    def _constant(
        self, spec: LookupSpec, role: str, value: npt.NDArray[np.generic], device: str
    ) -> Tensor:
        """Emits a constant once per role, type and device."""
        wait = self._frame_anchor(spec)
        key = ("constant", role, value.dtype.name, device, wait)
        if key not in self.shared:
            node = self._node(spec, role, "Const", device)
            proto = tensor_util.make_tensor_proto(value)
            node.attr["value"].tensor.CopyFrom(proto)
            _set_types(node, dtype=proto.dtype)
            self.edit.add(node, at=spec.output.node)
            self.edit.wait(node.name, wait)
            self.shared[key] = node.name
        return Tensor(self.shared[key])

    def _frame_anchor(self, spec: LookupSpec) -> tuple[str, ...]:
        """Returns what a constant waits for so that it lives in the lookup's while loop.

        In a v1 loop a node without inputs belongs to no iteration. Elsewhere nothing is needed.
        """
        return (spec.ids.values.node,) if self.edit.view.has_loops else ()

    def _node(self, spec: LookupSpec, role: str, op: str, device: str) -> node_def_pb2.NodeDef:
        name = self.edit.unique_name(f"{spec.output.node}/{role}")
        return node_def_pb2.NodeDef(name=name, op=op, device=device)

    def _set_inputs(self, node: node_def_pb2.NodeDef, *tensors: Tensor) -> None:
        node.input.extend(self.edit.text(tensor) for tensor in tensors)


def _set_types(node: node_def_pb2.NodeDef, **types: int) -> None:
    for key, value in types.items():
        node.attr[key].type = value


def _set_attrs(node: node_def_pb2.NodeDef, **attrs: AttrValue) -> None:
    for key, value in attrs.items():
        if isinstance(value, bool):
            node.attr[key].b = value
        elif isinstance(value, int):
            node.attr[key].i = value
        elif isinstance(value, float):
            node.attr[key].f = value
        else:
            node.attr[key].s = value.encode()


def _keep_shape(stock: node_def_pb2.NodeDef, node: node_def_pb2.NodeDef) -> None:
    """Copies the replaced tensor's recorded static shape; the second output has one per row."""
    if "_output_shapes" not in stock.attr:
        return
    result = stock.attr["_output_shapes"].list.shape[0]
    shapes = node.attr["_output_shapes"].list.shape
    shapes.add().CopyFrom(result)
    if result.unknown_rank or not result.dim:
        shapes.add().unknown_rank = True
    else:
        shapes.add().dim.add().size = result.dim[0].size
