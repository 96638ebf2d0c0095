"""The fused op in the place of one that parses Examples."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import node_def_pb2

from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.recognise.parsing import ParseSpec
from fusion.schema.names import PARSE_EXAMPLE

#: Of Examples without names.
_NO_NAMES = np.array([], np.bytes_)


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
    build = NodeBuilder(edit, name, stock.device, spec.serialized.node)
    names = build.constant("names", _NO_NAMES) if spec.names is None else spec.names.tensor
    build.inputs(node, spec.serialized.tensor, names)
    defaults = [feature.default for feature in spec.dense if feature.default is not None]
    build.inputs(node, *(default.tensor for default in defaults))
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
