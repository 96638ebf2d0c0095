"""Many lookups as one op, side by side in one matrix; for inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from fusion import ops
from fusion.lookup.ids import Ids, Weights, as_sparse, rank_of, weight_values
from fusion.lookup.options import LookupOptions
from fusion.lookup.tables import as_shards
from fusion.ops.lookup import COLUMN_ATTRS


@dataclass(frozen=True)
class Lookup:
    """A lookup that can share an op with others.

    Attributes:
      table: Variable or Tensor [rows, D].
      ids: `SparseTensor` or `RaggedTensor` of rank 2, or `Tensor` [B, L], all int32 or int64.
      weights: of the ids, as in `lookup`; None for a Tensor of ids.
      options: what is done with the ids.
    """

    table: Any
    ids: Ids | tf.Tensor
    weights: Weights | None
    options: LookupOptions

    @property
    def is_groupable(self) -> bool:
        """Whether the op does what the lookup does, and no worse.

        It reads the whole table, which has to be in one piece, where the op is: on the CPU.
        """
        shards = as_shards(self.table, "table", None)
        outside_limit, _ = self.options.split_max_norm(shards[0].dtype.base_dtype)
        if len(shards) > 1 or outside_limit is not None:
            return False
        kind = tf.DeviceSpec.from_string(shards[0].device or "").device_type
        ids = self.ids
        rank = rank_of(ids) if isinstance(ids, tf.SparseTensor) else ids.shape.rank
        return kind in (None, "CPU") and rank == 2


def grouped_lookup(columns: Sequence[Lookup | tf.Tensor]) -> tf.Tensor:
    """Looks up all columns with one op, which reads variables without copying them.

    The numbers are those of `lookup`. There is a gradient, but training would be slow: a table that
    is read whole has to be copied before its rows are changed.

    Args:
      columns: groupable lookups, and matrices [B, D] that are taken over as they are; all of one
        float dtype and number of rows.

    Returns:
      [B, sum of D], the columns side by side.

    Raises:
      TypeError, ValueError: ids, weights or tables that cannot be, seen when the graph is built.
      tf.errors.InvalidArgumentError: at run time, as `lookup`, and different numbers of rows.
    """
    tables = _Tables()
    parts = [_part(column, tables) for column in columns]
    attrs: dict[str, list[Any]] = {
        key: [part.attrs.get(attr.name, attr.default) for part in parts]
        for key, attr in COLUMN_ATTRS.items()
    }
    result = ops.grouped_embedding_lookup(
        tables=[part.table for part in parts],
        ids=[part.ids for part in parts],
        entry_rows=[part.entry_rows for part in parts],
        dense_shapes=[part.dense_shape for part in parts],
        weights=[part.weights for part in parts],
        boundaries=[],
        boundary_counts=[0] * len(parts),
        **attrs,
    )
    batch = next((n for n in map(_static_rows, columns) if n is not None), None)
    width = None if -1 in attrs["dims"] else sum(attrs["dims"])
    result.set_shape([batch, width])
    return result


class _Part(NamedTuple):
    """The inputs of a column, and its attrs as far as they are not the defaults."""

    table: tf.Tensor
    ids: tf.Tensor
    entry_rows: tf.Tensor
    dense_shape: tf.Tensor
    weights: tf.Tensor
    attrs: dict[str, Any]


class _Tables:
    """Reads each table once."""

    def __init__(self) -> None:
        self._read: dict[int, tf.Tensor] = {}

    def read(self, table: Any) -> tf.Tensor:
        """The value of a Variable, without a copy of it; a Tensor as it is."""
        if id(table) not in self._read:
            is_resource = hasattr(table, "read_value_no_copy")
            value = table.read_value_no_copy() if is_resource else tf.convert_to_tensor(table)
            self._read[id(table)] = value
        return self._read[id(table)]


def _part(column: Lookup | tf.Tensor, tables: _Tables) -> _Part:
    number = tf.constant(0, tf.int64, [1])
    if not isinstance(column, Lookup):
        unread = tf.zeros([1], column.dtype)
        attrs = {"form": "copy", "dim": _dim(column)}
        return _Part(column, number, number, number, unread, attrs)
    (table,) = as_shards(column.table, "table", None)
    options, ids = column.options, column.ids
    values = weight_values(column.weights, table.dtype)
    matrix = tables.read(table)
    attrs = _attrs(options, matrix.dtype, values is not None) | {"dim": _dim(table)}
    weights = tf.ones([1], matrix.dtype) if values is None else values
    if isinstance(ids, tf.Tensor):
        return _Part(matrix, ids, number, number, weights, attrs | {"form": "dense"})
    if isinstance(ids, tf.RaggedTensor):
        form = {"form": "row_splits"}
        return _Part(matrix, ids.flat_values, ids.row_splits, number, weights, attrs | form)
    ids = as_sparse(ids, options, "ids")
    form = {"form": "indices"}
    return _Part(matrix, ids.values, ids.indices, ids.dense_shape, weights, attrs | form)


def _attrs(options: LookupOptions, dtype: tf.DType, weighted: bool) -> dict[str, Any]:
    """The attrs of a lookup but for those of its tensors."""
    return {
        "combiner": options.combiner,
        "max_norm": options.split_max_norm(dtype)[1],
        "prune": options.prune,
        "fill_empty_row": options.fill_empty_row,
        "default_id": options.default_id_attr,
        "use_sparse_weights": weighted,
        "prune_sparse_weights": weighted and options.combiner != "sum",
        "row_count": options.row_count,
    }


def _static_rows(column: Lookup | tf.Tensor) -> int | None:
    """The number of rows of a column's result; None if only the batch tells."""
    if not isinstance(column, Lookup):
        return column.shape[0] if column.shape.rank else None
    rows: int | None = column.ids.shape[0]
    return rows if column.options.row_count == "dense_shape" else None


def _dim(matrix: Any) -> int:
    dim = matrix.shape[1] if matrix.shape.rank == 2 else None
    return -1 if dim is None else int(dim)
