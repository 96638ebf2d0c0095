"""Lookups that are one fused op, which reads the table itself."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.ops.lookup import SINGLE
from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.match import Match, NoMatch, Stage
from fusion.passes.recognise_table import table_name
from fusion.passes.spec import (
    BucketsSpec,
    DenseIds,
    IdsSpec,
    LookupSpec,
    RaggedIds,
    RowIds,
    ShardSpec,
    SparseIds,
    TableSpec,
    WeightsSpec,
)

WHOLE = SINGLE.name
"""The op; those of groups are taken apart into such ones first, see `ungroup`."""


@dataclass(frozen=True, kw_only=True)
class Whole(Match):
    """One op that is all of a lookup.

    Attributes:
        spec: what it computes.
    """

    spec: LookupSpec


def match_whole(view: GraphView, name: str) -> Whole | NoMatch:
    """Says what a FusedEmbeddingLookup without boundaries looks up."""
    inputs = view.inputs(name)
    counts = view.text_attr(name, "row_count") == "dense_shape"
    if view.flag_attr(name, "fill_empty_row") and not counts:
        return NoMatch("empty rows are filled, but only up to the last with an entry", name)
    default, limit = view.int_attr(name, "default_id"), view.float_attr(name, "max_norm")
    default_id = default if view.flag_attr(name, "fill_empty_row") and default >= 0 else None
    weights = None
    if view.flag_attr(name, "use_sparse_weights"):
        prunes = view.flag_attr(name, "prune_sparse_weights")
        weights = WeightsSpec(inputs[4], prunes, view.float_attr(name, "default_weight"))
    count = view.int_attr(name, "num_buckets")
    spec = LookupSpec(
        anchor=name,
        ids=_ids(view, name, counts),
        dtype=view.type_attr(name, "Tids"),
        buckets=BucketsSpec(count, view.int_attr(name, "bucket_default")) if count else None,
        weights=weights,
        table=_table(view, name, inputs[0], limit if limit >= 0 else None),
        prune=view.flag_attr(name, "prune"),
        fill=counts,
        default_id=default_id,
        combiner=view.text_attr(name, "combiner"),
        divide_no_nan=view.flag_attr(name, "divide_no_nan"),
        output=Tensor(name),
    )
    passed = (alias for tensor in inputs for alias in view.aliases(tensor))
    return Whole(stage=Stage.OUTPUT, nodes=(name,), front=tuple(dict.fromkeys(passed)), spec=spec)


def _ids(view: GraphView, name: str, counts: bool) -> IdsSpec:
    _, ids, rows, shape, _ = view.inputs(name)
    form, rows_dtype = view.text_attr(name, "form"), view.type_attr(name, "Trows")
    if form == "indices":
        return SparseIds(ids, rows, shape if counts else None, flattened=False)
    if form == "row_splits":
        return RaggedIds(ids, rows, rows_dtype)
    if form == "row_ids":
        return RowIds(ids, rows, rows_dtype, shape if counts else None)
    ignored = view.int_attr(name, "ignored_id") if view.flag_attr(name, "use_ignored_id") else None
    dtype = view.type_attr(name, "Tids")
    return DenseIds(ids, dtype, ignored, view.int_attr(name, "column_stride"))


def _table(view: GraphView, name: str, table: Tensor, max_norm: float | None) -> TableSpec:
    shape, node = view.shape(table), view.nodes[table.node]
    rows, dim = shape if shape is not None and len(shape) == 2 else (None, None)
    groups = node.attr["_class"].list.s if "_class" in node.attr else ()
    shard = ShardSpec(
        kind="tensor",
        tensor=table,
        rows=rows,
        dim=dim,
        gather="",
        device=node.device,
        colocation=tuple(group.decode() for group in groups),
    )
    dtype = view.type_attr(name, "T")
    return TableSpec((shard,), "", (), dtype, max_norm, table_name(view, table, name))
