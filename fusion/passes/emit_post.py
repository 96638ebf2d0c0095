"""FusedEmbeddingSparsePostLookUpV2: the op behind the gathers of a lookup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fusion.passes.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.op_arguments import NONE, combine_attrs, fill_attrs
from fusion.passes.recognise_reduction import POST_V2
from fusion.passes.spec import LookupSpec
from fusion.passes.tensor import Tensor


class Bags(NamedTuple):
    """What the op reads beside the gathered rows, in its order."""

    dense_shape: Tensor
    indices: Tensor
    is_row_empty: Tensor
    positions: Tensor
    weights: Tensor


def post_lookup(
    build: NodeBuilder,
    spec: LookupSpec,
    rows: Sequence[Tensor],
    permutation: Tensor,
    bags: Bags,
    *,
    clips: bool,
) -> None:
    """Adds the op in the place of the result.

    Args:
        rows: those of each shard.
        permutation: where the distinct ids are in the shards, see `one_shard`.
        clips: whether the op does what max_norm asks for.
    """
    device = build.edit.view.nodes[build.base].device
    node = build.replacement(POST_V2, device)
    if "_output_shapes" in node.attr:
        _add_shape_of_counts(node.attr["_output_shapes"].list.shape)
    build.inputs(node, *rows, permutation, *bags)
    set_types(node, T=spec.table.dtype, Tw=spec.table.dtype)
    set_attrs(node, num_partitions=len(rows), partition_axis=0)
    set_attrs(node, use_sparse_weights=spec.weights is not None)
    set_attrs(node, **fill_attrs(spec), **combine_attrs(spec))
    if not clips:
        set_attrs(node, max_norm=float(NONE))
    build.add(node)


def one_shard(build: NodeBuilder) -> Tensor:
    """Returns the permutation of rows that come from one place, which nobody reads."""
    return build.constant("permutation", np.zeros((1, 2), np.int32))


def unfilled(build: NodeBuilder) -> tuple[Tensor, Tensor]:
    """Returns is_row_empty and dense_shape of entries whose last one ends the result."""
    no_flags = build.constant("no_flags", np.zeros(0, np.bool_))
    return no_flags, build.constant("no_shape", np.zeros(2, np.int64))


def _add_shape_of_counts(shapes: Any) -> None:
    """Appends the shape of the second output, which has one element for each row of the first."""
    result = shapes[0]
    if result.unknown_rank or not result.dim:
        shapes.add().unknown_rank = True
    else:
        shapes.add().dim.add().size = result.dim[0].size
