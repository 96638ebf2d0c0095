"""`lookup_sparse`: many tables in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from fusion.distribute.rows import fetch
from fusion.distribute.sharded import Sharded
from fusion.lookup.functions import lookup
from fusion.lookup.grouped import Lookup, grouped_lookups, trained_lookups
from fusion.lookup.ids import Ids, Weights, check_ids
from fusion.lookup.options import LookupOptions
from fusion.runtime.tensorflow.private import record

_Ids = TypeVar("_Ids", tf.SparseTensor, tf.RaggedTensor)


@tf.autograph.experimental.do_not_convert  # nothing here depends on the values of tensors
def lookup_sparse(
    params: Any,
    sp_ids: Ids | Sequence[Ids],
    sp_weights: Weights | Sequence[Weights | None] | None = None,
    combiners: str | Sequence[str | None] | None = None,
    name: str | None = None,
) -> Any:
    """Looks up and combines embeddings of many tables, with ops that all of them share.

    The numbers are those of a `fused_embedding_lookup_sparse_v2` of each. Tables of one dtype share
    an op before the gathers of distinct ids, one after them, and one for the gradients, if they
    are not in shards and their ids are matrices with one number of rows; others have their own.

    Args:
      params: a table, or a list of tables if `sp_ids` is a list. A table is a Variable or Tensor
        [rows, D], an `EmbeddingVariable`, a `fusion.distribute.ShardedTable` or
        `ShardedEmbeddingVariable`, or another that `fused_safe_embedding_lookup_sparse` takes;
        dtypes and D may differ. The rows of all sharded ones come in one exchange.
      sp_ids: ids of each table, int32 or int64: `SparseTensor` [B, any] (or of a higher rank), or
        `RaggedTensor` [B, (any)]. B is one number for all tables that share ops.
      sp_weights: weights of the ids of each table, of its dtype; None for none, also in a list.
      combiners: "sum", "mean" or "sqrtn" of each table, or one for all; None for "mean".
      name: name of the operation.

    Returns:
      A tensor [B, D] of the table's dtype, or a list of these. Rows without entries are zeros. The
      gradient with respect to a table is an `IndexedSlices` of distinct rows.

    Raises:
      ValueError, TypeError: naming the argument and what was given.
      tf.errors.InvalidArgumentError: at run time, as `fused_embedding_lookup_sparse_v2`, and if the
        ids of tables that share ops have different numbers of rows.
    """
    is_single = isinstance(sp_ids, tf.SparseTensor | tf.RaggedTensor)
    if is_single:
        params, sp_ids, sp_weights = [params], [sp_ids], [sp_weights]
    ids = _list("sp_ids", sp_ids, None)
    tables = _list("params", params, len(ids))
    weights = [None] * len(ids) if sp_weights is None else _list("sp_weights", sp_weights, len(ids))
    if combiners is None or isinstance(combiners, str):
        combiners = [combiners] * len(ids)
    combiners = _list("combiners", combiners, len(ids))
    options = [_options(combiner) for combiner in combiners]
    with tf.name_scope(name or "lookup_sparse"):
        results = _look_up(list(zip(tables, ids, weights, options, strict=True)))
    return results[0] if is_single else results


def _look_up(columns: Sequence[tuple[Any, Any, Any, LookupOptions]]) -> list[tf.Tensor]:
    """The results of columns, each a table, its ids, their weights and what is done with them."""
    columns = _with_rows_here(columns)
    results: list[Any] = [None] * len(columns)
    groups: dict[Any, dict[int, Lookup]] = {}
    for number, (table, ids, weights, options) in enumerate(columns):
        check_ids(ids, options, f"sp_ids[{number}]")
        column = Lookup(table, ids, weights, options)
        if not column.is_groupable:
            results[number] = lookup(table, ids, weights, options, f"params[{number}]")
        else:
            dtype = column.shards[0].dtype.base_dtype
            groups.setdefault((dtype, ids.shape[0]), {})[number] = column
    for group in groups.values():
        for number, result in zip(group, lookups_apart([*group.values()]), strict=True):
            results[number] = result
    return results


def _with_rows_here(
    columns: Sequence[tuple[Any, Any, Any, LookupOptions]],
) -> list[tuple[Any, Any, Any, LookupOptions]]:
    """The same columns, with fetched rows in place of sharded tables."""
    result = list(columns)
    sharded = [k for k, (table, *_) in enumerate(columns) if isinstance(table, Sharded)]
    if not sharded:
        return result
    for number in sharded:
        check_ids(columns[number][1], columns[number][3], f"sp_ids[{number}]")
    pairs = [columns[number][:2] for number in sharded]
    come = rows_here(*map(list, zip(*pairs, strict=True)))
    for number, (rows, ids) in zip(sharded, come, strict=True):
        result[number] = (rows, ids, *columns[number][2:])
    return result


def lookups_apart(columns: list[Lookup]) -> list[tf.Tensor]:
    """The result of each column, see `joined_lookups`."""
    return joined_lookups(columns, [1] * len(columns))


def joined_lookups(
    columns: Sequence[Lookup | tf.Tensor], output_columns: Sequence[int]
) -> list[tf.Tensor]:
    """Columns side by side: where nothing trains tables, by an op that reads these whole.

    Args, Returns: as `grouped_lookups`.
    """
    # A graph of TensorFlow 1 has no tape: gradients are asked for later, if at all.
    is_graph = not (tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function)
    if is_graph or record.could_possibly_record():
        return trained_lookups(columns, output_columns)
    is_read = all(column.reads_table_well for column in columns if isinstance(column, Lookup))
    look_up = grouped_lookups if is_read else trained_lookups
    return look_up(columns, output_columns)


def _options(combiner: str | None) -> LookupOptions:
    return LookupOptions.checked(combiner, None, None, None, prune=False, fill_empty_row=False)


def _list(name: str, values: Any, count: int | None) -> list[Any]:
    """An argument that has one item for each table.

    Raises:
      TypeError: it is no list.
      ValueError: it is empty, or has another number of items than `sp_ids`.
    """
    is_list = isinstance(values, Iterable) and not isinstance(values, tf.Tensor | tf.Variable)
    if not is_list:
        raise TypeError(f"{name} must be a list, one for each table, got {type(values).__name__}")
    items = list(values)
    if count is None and not items:
        raise ValueError(f"{name} must not be empty")
    if count is not None and len(items) != count:
        raise ValueError(f"{name} must be {count}, one for each of sp_ids, got {len(items)}")
    return items


def rows_here(tables: Sequence[Sharded], ids: Sequence[_Ids]) -> list[tuple[tf.Tensor, _Ids]]:
    """The rows of ids, [u, D], and the ids with the places of theirs in these, of each table.

    Args:
      tables: whose rows come in one exchange.
      ids: of each, checked.
    """
    pairs = zip(tables, ids, strict=True)
    fetched = fetch(tables, [table.as_ids(_values(some)) for table, some in pairs])
    return [(got.rows, _with(some, got.places)) for some, got in zip(ids, fetched, strict=True)]


def _values(ids: _Ids) -> tf.Tensor:
    return ids.values if isinstance(ids, tf.SparseTensor) else ids.flat_values


def _with(ids: _Ids, values: tf.Tensor) -> _Ids:
    is_sparse = isinstance(ids, tf.SparseTensor)
    return ids.with_values(values) if is_sparse else ids.with_flat_values(values)
