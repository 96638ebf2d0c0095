"""The fused op in the place of one that parses Examples."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import node_def_pb2

from fusion.passes.emit.node_builder import set_attrs, set_lists, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.recognise.parsing import ParseSpec
from fusion.runtime.tensorflow.private import tensor_util
from fusion.schema.names import PARSE_EXAMPLE


def emit_parser(
    edit: GraphEdit, name: str, spec: ParseSpec, *, is_renumbered: bool = False
) -> None:
    """Puts the fused op in the place of a stock one, under its name.

    Args:
        edit: of the graph.
        name: of the stock op.
        spec: what the fused op is asked for.
        is_renumbered: whether it has other outputs than the stock one.
    """
    stock = edit.view.nodes[name]
    node = node_def_pb2.NodeDef(name=name, op=PARSE_EXAMPLE, device=stock.device)
    names = _no_names(edit, name) if spec.names is None else edit.text(spec.names.tensor)
    node.input.extend([edit.text(spec.serialized.tensor), names])
    defaults = [feature.default for feature in spec.dense if feature.default is not None]
    node.input.extend(edit.text(default.tensor) for default in defaults)
    set_attrs(node, num_sparse=len(spec.sparse))
    set_types(
        node,
        sparse_types=[feature.dtype for feature in spec.sparse],
        Tdense=[feature.dtype for feature in spec.dense],
        Tdefaults=[feature.dtype for feature in spec.dense if feature.default is not None],
        ragged_value_types=[feature.dtype for feature in spec.ragged],
        ragged_split_types=[feature.split_dtype for feature in spec.ragged],
    )
    set_lists(
        node,
        sparse_keys=[feature.key for feature in spec.sparse],
        dense_keys=[feature.key for feature in spec.dense],
        ragged_keys=[feature.key for feature in spec.ragged],
        dense_ranks=[len(feature.shape) for feature in spec.dense],
        dense_dims=[-1 if size is None else size for one in spec.dense for size in one.shape],
        required=[feature.default is None for feature in spec.dense],
    )
    for key, value in stock.attr.items():
        # What TensorFlow notes, such as shapes of outputs.
        if key.startswith("_") and not (is_renumbered and key == "_output_shapes"):
            node.attr[key].CopyFrom(value)
    if stock.HasField("experimental_debug_info"):
        node.experimental_debug_info.CopyFrom(stock.experimental_debug_info)
    edit.add(node, at=name)
    edit.remove([name], name)


def _no_names(edit: GraphEdit, name: str) -> str:
    """Adds an empty vector of names; its input text."""
    node = node_def_pb2.NodeDef(name=edit.unique_name(f"{name}/names"), op="Const")
    node.device = edit.view.nodes[name].device
    value = tensor_util.make_tensor_proto(np.array([], object), "string", [0])
    node.attr["value"].tensor.CopyFrom(value)
    node.attr["dtype"].type = value.dtype
    edit.add(node, at=name)
    return f"{node.name}:output:0" if edit.view.function else node.name
