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


class _Attrs:
    """The attrs of a node, by their kinds."""

    def __init__(self, view: GraphView, name: str) -> None:
        self._view, self._name = view, name

    def text(self, key: str) -> str:
        attr = self._view.attr(self._name, key)
        return "" if attr is None else attr.s.decode()

    def flag(self, key: str) -> bool:
        attr = self._view.attr(self._name, key)
        return attr is not None and bool(attr.b)

    def number(self, key: str) -> float:
        attr = self._view.attr(self._name, key)
        return 0.0 if attr is None else float(attr.f)

    def integer(self, key: str) -> int:
        return self._view.int_attr(self._name, key)


def match_whole(view: GraphView, name: str) -> Whole | NoMatch:
    """Says what a FusedEmbeddingLookup without boundaries looks up."""
    attrs, inputs = _Attrs(view, name), view.inputs(name)
    counts = attrs.text("row_count") == "dense_shape"
    if attrs.flag("fill_empty_row") and not counts:
        return NoMatch("empty rows are filled, but only up to the last with an entry", name)
    default, limit = attrs.integer("default_id"), attrs.number("max_norm")
    default_id = default if attrs.flag("fill_empty_row") and default >= 0 else None
    weights = None
    if attrs.flag("use_sparse_weights"):
        prunes = attrs.flag("prune_sparse_weights")
        weights = WeightsSpec(inputs[4], prunes, attrs.number("default_weight"))
    count = attrs.integer("num_buckets")
    spec = LookupSpec(
        anchor=name,
        ids=_ids(view, name, attrs, counts),
        dtype=view.type_attr(name, "Tids"),
        buckets=BucketsSpec(count, attrs.integer("bucket_default")) if count else None,
        weights=weights,
        table=_table(view, name, inputs[0], limit if limit >= 0 else None),
        prune=attrs.flag("prune"),
        fill=counts,
        default_id=default_id,
        combiner=attrs.text("combiner"),
        divide_no_nan=attrs.flag("divide_no_nan"),
        output=Tensor(name),
    )
    passed = (alias for tensor in inputs for alias in view.aliases(tensor))
    return Whole(stage=Stage.OUTPUT, nodes=(name,), front=tuple(dict.fromkeys(passed)), spec=spec)


def _ids(view: GraphView, name: str, attrs: _Attrs, counts: bool) -> IdsSpec:
    _, ids, rows, shape, _ = view.inputs(name)
    form, rows_dtype = attrs.text("form"), view.type_attr(name, "Trows")
    if form == "indices":
        return SparseIds(ids, rows, shape if counts else None, flattened=False)
    if form == "row_splits":
        return RaggedIds(ids, rows, rows_dtype)
    if form == "row_ids":
        return RowIds(ids, rows, rows_dtype, shape if counts else None)
    ignored = attrs.integer("ignored_id") if attrs.flag("use_ignored_id") else None
    dtype = view.type_attr(name, "Tids")
    return DenseIds(ids, dtype, ignored, attrs.integer("column_stride"))


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
