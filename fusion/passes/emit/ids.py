"""One op in the place of several that hash values into buckets."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework import node_def_pb2

from fusion.passes.emit.node_builder import set_attrs, set_lists, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.hashing import HashSpec
from fusion.schema.names import GROUPED_IDS


def emit_ids(edit: GraphEdit, name: str, specs: Sequence[HashSpec]) -> str:
    """Puts one op in the place of those that hash; returns its name, which begins so."""
    first = specs[0].node.name
    node = node_def_pb2.NodeDef(name=edit.unique_name(name), op=GROUPED_IDS)
    node.device = edit.view.nodes[first].device
    node.input.extend(edit.text(spec.values.tensor) for spec in specs)
    keys = [word for spec in specs for word in spec.key]
    set_attrs(node, num_columns=len(specs))
    set_types(node, Tvalues=[spec.values.dtype for spec in specs])
    set_lists(
        node,
        hashes=[spec.hash for spec in specs],
        num_buckets=[spec.buckets for spec in specs],
        keys=keys if any(keys) else [],
    )
    edit.add(node, at=first)
    for index, spec in enumerate(specs):
        edit.replace(Tensor(spec.node.name, 0), Tensor(node.name, index))
        edit.remove([spec.node.name], node.name)
    return node.name
