"""What was explained of a lookup stage by stage, and what it computes if that is all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fusion.passes.analysis.symbolic_shapes import Dim, Vector
from fusion.passes.graph.tensor import ARG_OP
from fusion.passes.recognise.match import Match, Whole
from fusion.passes.recognise.spec import (
    IdsSpec,
    LookupSpec,
    RaggedIds,
    RowIds,
    SparseIds,
)
from fusion.passes.recognise.stock.entries import Entries, Fill
from fusion.passes.recognise.stock.id_source import IdSource
from fusion.passes.recognise.stock.output import Mask, Tail
from fusion.passes.recognise.stock.prune import Prune
from fusion.passes.recognise.stock.reduction import Reduction
from fusion.passes.recognise.stock.table import Shard, Table, table_spec
from fusion.schema.columns import Column

_PASSED_IN = frozenset({ARG_OP, "Placeholder"})


@dataclass(frozen=True)
class Parts:
    """What was explained of a lookup, in the order of explanation; None: not, or there is none.

    Attributes:
        whole: all of it at once; nothing else is then.
    """

    reduction: Reduction | None = None
    table: Table | None = None
    entries: Entries | None = None
    fill: Fill | None = None
    prune: Prune | None = None
    source: IdSource | None = None
    mask: Mask | None = None
    tail: Tail | None = None
    whole: Whole | None = None

    def __iter__(self) -> Iterator[Match]:
        return iter(self._all)

    @cached_property
    def _all(self) -> tuple[Match, ...]:
        clip = None if self.table is None else self.table.clip
        head, tail = (self.reduction, self.table, clip), (self.mask, self.tail, self.whole)
        parts = (*head, self.entries, self.fill, self.prune, self.source, *tail)
        return tuple(part for part in parts if part is not None)


def spec_of(parts: Parts) -> LookupSpec:
    """Returns what a fully explained lookup computes."""
    reduction, table, source = parts.reduction, parts.table, parts.source
    assert reduction is not None
    assert table is not None
    assert source is not None
    assert parts.mask is not None
    assert parts.tail is not None
    fill, prune, weights = parts.fill, parts.prune, source.entries.weights
    num_buckets, bucket_default = source.buckets
    return LookupSpec(
        anchor=reduction.anchor.name,
        ids=_ids(source),
        dtype=source.entries.dtype,
        table=table_spec(table, reduction.dtype),
        column=Column(
            combiner=reduction.combiner,
            prune=prune is not None and prune.by_id,
            fill_empty_row=fill is not None or reduction.count is not None,
            default_id=-1 if fill is None or parts.mask.present else fill.default,
            use_sparse_weights=weights is not None,
            prune_sparse_weights=prune is not None and prune.by_weight,
            default_weight=1.0 if fill is None else fill.default_weight,
            divide_no_nan=reduction.divide_no_nan,
            num_buckets=num_buckets,
            bucket_default=bucket_default,
        ),
        output=parts.tail.output.tensor,
        weights=None if weights is None else weights.resolved.tensor,
    )


def _ids(source: IdSource) -> IdsSpec:
    entries = source.entries
    ids, count = entries.ids.tensor, None if entries.count is None else entries.count.tensor
    if source.dense is not None:
        return source.dense
    if entries.indices is not None:
        return SparseIds(ids, entries.indices.tensor, count, source.flattened, source.checked)
    if (splits := source.row_splits) is not None:
        return RaggedIds(ids, splits.tensor, splits.dtype)
    assert entries.rows is not None, "entries have indices or rows"
    return RowIds(ids, entries.rows.tensor, entries.rows_dtype, count)


def result_shape(reduction: Reduction, source: IdSource, table: Table) -> Vector:
    """Returns the symbolic [B, D] of the reduced rows: filled rows make it exactly B."""
    dims = [shard.shape[1] for shard in table.shards if shard.shape is not None]
    dim = next((dim for dim in dims if dim is not None), None)
    output = reduction.output.tensor
    batch = source.batch if source.batch is not None else Dim(output, 0)
    return (batch, Dim(output, 1) if dim is None else dim)


def is_matrix(shard: Shard) -> bool:
    """Whether the table is a matrix, or a variable from outside of unknown shape: it counts as one.

    A mask proves that the rows are vectors, because it has to fit them; without one nothing does.
    """
    if shard.shape is not None:
        return True
    handle = shard.tensor if shard.is_resource else shard.tensor.read_handle
    return handle is not None and handle.origin.producer.op in _PASSED_IN


def has_positive_divisor(reduction: Reduction, fill: Fill | None, prune: Prune | None) -> bool:
    """Whether the weights of each bag that has any add up to more than 0; their squares may not."""
    is_filled = fill is None or fill.default_weight > 0
    is_pruned = prune is not None and prune.by_weight
    return reduction.combiner == "mean" and is_pruned and is_filled
