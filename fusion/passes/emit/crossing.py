"""One op in the place of several that cross features."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework import node_def_pb2

from fusion.passes.emit.node_builder import set_attrs, set_lists, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.recognise.crossing import CrossSpec
from fusion.schema.names import GROUPED_CROSS


def emit_crosses(
    edit: GraphEdit, name: str, specs: Sequence[CrossSpec], forms: Sequence[str]
) -> str:
    """Adds one op for several crosses; returns its name, which begins so.

    Args:
        edit: of the graph.
        name: how the new name begins.
        specs: the crosses.
        forms: of the results of each.
    """
    first = specs[0].node.name
    node = node_def_pb2.NodeDef(name=edit.unique_name(name), op=GROUPED_CROSS)
    node.device = edit.view.nodes[first].device
    features = [feature for spec in specs for feature in spec.features]
    indices = [one.indices for one in features if one.indices is not None]
    shapes = [one.shape for one in features if one.shape is not None]
    inputs = (*(one.values for one in features), *indices, *shapes)
    node.input.extend(edit.text(value.tensor) for value in inputs)
    set_attrs(node, num_crosses=len(specs), num_sparse=len(indices))
    set_types(node, Tvalues=[one.values.dtype for one in features])
    is_masked = any(one.form == "masked" for one in features)
    set_lists(
        node,
        feature_counts=[len(spec.features) for spec in specs],
        feature_forms=[one.form for one in features],
        ignored=[one.ignored for one in features] if is_masked else [],
        hashes=[spec.hash for spec in specs],
        num_buckets=[spec.buckets for spec in specs],
        keys=[word for spec in specs for word in spec.key],
        forms=[*forms],
    )
    edit.add(node, at=first)
    return node.name
