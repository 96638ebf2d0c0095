"""Many lookups, side by side or apart: as one op for inference, or around their gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import tensorflow as tf

from fusion import ops
from fusion.lookup.ids import Ids, Weights, as_sparse, rank_of, weight_values
from fusion.lookup.keyed_columns import is_here, is_keyed, keyed_device, keyed_inputs, read_keyed
from fusion.lookup.options import LookupOptions
from fusion.lookup.tables import as_shards, clipped, gather_rows, has_handle
from fusion.ops.registered import DEVICES
from fusion.runtime.tensorflow.private import variable_accessed
from fusion.runtime.tensorflow.spec import Attr
from fusion.runtime.tensorflow.variable_access import is_shared, is_updated_in_place
from fusion.schema.columns import COLUMN_ATTRS, POST_ATTRS, PRE_ATTRS, Column, column_name
from fusion.tables import EmbeddingVariable, PartitionedEmbeddingVariable
from fusion.tables.partitioned import KeyedTable
from fusion.tables.replicas import beside


@dataclass(frozen=True)
class Lookup:
    """A lookup that can share an op with others.

    Attributes:
      table: Variable or Tensor [rows, D].
      ids: `SparseTensor` or `RaggedTensor` of rank 2, or `Tensor` [B, L], all int32 or int64.
      weights: of the ids, as in `lookup`; None for a Tensor of ids.
      options: what is done with the ids.
      name: its name in messages, with the table's; can be a name scope.
      ignored_id: of a Tensor of ids what stands for no id; None for none.
      sum_order: how rows are added, as the attr of GroupedEmbeddingLookup; for `grouped_lookup`.
    """

    table: Any
    ids: Ids | tf.Tensor
    weights: Weights | None
    options: LookupOptions
    name: str = ""
    ignored_id: int | None = None
    sum_order: str = "segment"

    @property
    def is_groupable(self) -> bool:
        """Whether the lookup can share ops with others: of a matrix of ids, in one table."""
        ids = self.ids
        rank = rank_of(ids) if isinstance(ids, tf.SparseTensor) else ids.shape.rank
        return len(self.shards) == 1 and rank == 2

    @property
    def shards(self) -> list[Any]:
        """The table as Variables or Tensors of this replica; a groupable lookup has one."""
        return as_shards(self.table, "table", None)

    @property
    def reads_table_well(self) -> bool:
        """Whether an op that reads the whole table does what the lookup does, and no worse.

        The table has to be where the op is: a whole one should not come over a network. A variable
        has to be shared with those who change its rows.
        """
        (table, *_) = self.shards
        if isinstance(table, PartitionedEmbeddingVariable):
            return False  # each partition is looked up by itself
        dtype = table.dtype.base_dtype
        outside_limit, _ = self.options.split_max_norm(dtype)
        if outside_limit is not None or not is_here(table):
            return False
        if isinstance(table, EmbeddingVariable):
            return self.sum_order == "segment" and is_updated_in_place(dtype.name)
        return not has_handle(table) or is_shared(dtype.name, DEVICES.home)

    @property
    def is_gathered_well(self) -> bool:
        """Whether an op that shares many variables gathers its rows as a gather of its own does."""
        (table,) = self.shards
        if isinstance(table, KeyedTable) or not has_handle(table) or not is_here(table):
            return False
        has_elements = table.shape.rank == 2 and (table.shape[1] or 0) > 0
        return has_elements and DEVICES.home == "CPU" and is_updated_in_place(table.dtype.name)


def grouped_lookup(columns: Sequence[Lookup | tf.Tensor]) -> tf.Tensor:
    """Looks up all columns with one op, which reads variables without copying them.

    The numbers are those of `lookup`. There is a gradient, but training is faster with
    `trained_lookup`.

    Args:
      columns: groupable lookups that read their tables well, and matrices [B, D] that are taken
        over as they are; all of one float dtype and number of rows.

    Returns:
      [B, sum of D], the columns side by side.

    Raises:
      TypeError, ValueError: ids, weights or tables that cannot be, seen when the graph is built.
      tf.errors.InvalidArgumentError: at run time, as `lookup`, and different numbers of rows.
    """
    (result,) = grouped_lookups(columns, [len(columns)])
    return result


def grouped_lookups(
    columns: Sequence[Lookup | tf.Tensor], output_columns: Sequence[int]
) -> list[tf.Tensor]:
    """As `grouped_lookup`, in several matrices.

    Args:
      columns: as there.
      output_columns: how many columns each result has, at least one.

    Returns:
      [B, sum of D] of the columns of each result, side by side.
    """
    keyed = read_keyed(columns)
    if len(keyed) < sum(map(is_keyed, columns)):
        return trained_lookups(columns, output_columns)  # they are on several devices
    parts = [_part(column) for column in columns]
    inputs = {
        "tables": _tables(columns),
        **_inputs(parts),
        **_lists(parts, COLUMN_ATTRS),
        **_outputs(output_columns),
        "column_names": _names(columns),
    }
    if keyed:
        with keyed_device(columns, keyed):
            keyed_columns = keyed_inputs(len(columns), keyed)
            result = ops.grouped_keyed_embedding_lookup(**inputs, **keyed_columns)
    else:
        result = ops.grouped_embedding_lookup(**inputs)
    return _shaped(result, output_columns, columns, parts)


def single_lookup(column: Lookup) -> tf.Tensor:
    """Looks up a column as `grouped_lookup` does, by an op that `fusion.enable` groups with others.

    Returns:
      [B, D].

    Raises:
      TypeError, ValueError, tf.errors.InvalidArgumentError: as `grouped_lookup`.
    """
    part, (table,) = _part(column), _tables([column])
    inputs = table, part.ids, part.entry_rows, part.dense_shape, part.weights
    result = ops.fused_embedding_lookup(*inputs, **asdict(part.column), column_name=_name(column))
    (shaped,) = _shaped(result, [1], [column], [part])
    return shaped


def trained_lookup(columns: Sequence[Lookup | tf.Tensor]) -> tf.Tensor:
    """Looks up all columns with an op before and one after the gathers of their distinct ids.

    The numbers are those of `lookup`. Tables are gathered from where they are; gradients have
    distinct ids, and one op computes those of all columns.

    Args:
      columns: groupable lookups, at least one, and matrices as in `grouped_lookup`.

    Returns:
      [B, sum of D], the columns side by side.

    Raises:
      TypeError, ValueError, tf.errors.InvalidArgumentError: as `grouped_lookup`.
    """
    (result,) = trained_lookups(columns, [len(columns)])
    return result


def trained_lookups(
    columns: Sequence[Lookup | tf.Tensor], output_columns: Sequence[int]
) -> list[tf.Tensor]:
    """As `trained_lookup`, in several matrices, see `grouped_lookups`."""
    parts = [_part(column) for column in columns]
    lookups = [column for column in columns if isinstance(column, Lookup)]
    entries, gathered = _entries(
        lookups, [part for part, c in zip(parts, columns, strict=True) if isinstance(c, Lookup)]
    )
    gathered |= _gathered_together(lookups, entries)
    lookup_rows = iter([_rows(column, k, entries, gathered) for k, column in enumerate(lookups)])
    rows = [next(lookup_rows) if isinstance(column, Lookup) else column for column in columns]
    attrs = {name: attr for name, attr in POST_ATTRS.items() if name != "copied"}
    result = ops.grouped_embedding_post_look_up(
        emb_rows=rows,
        unique_idxs=entries.unique_idxs,
        row_splits=entries.row_splits,
        entry_weights=entries.entry_weights,
        copied=[not isinstance(column, Lookup) for column in columns],
        **_lists(parts, attrs),
        **_outputs(output_columns),
    )
    return _shaped(result, output_columns, columns, parts)


def _entries(columns: Sequence[Lookup], parts: Sequence[_Part]) -> tuple[Any, dict[int, tf.Tensor]]:
    """The outputs of the op before the gathers, and the rows that it gathers, by column."""
    inputs = {
        **_inputs(parts),
        "Tkeys": [part.ids.dtype for part in parts],
        **_lists(parts, PRE_ATTRS),
        "column_names": _names(columns),
    }
    keyed = read_keyed(columns)
    if not keyed:
        return ops.grouped_embedding_pre_look_up(**inputs), {}
    with keyed_device(columns, keyed):
        entries = ops.grouped_keyed_embedding_pre_look_up(
            **inputs, **keyed_inputs(len(columns), keyed), dims=[part.column.dim for part in parts]
        )
    embeddings = dict(zip(keyed, entries.embeddings, strict=True))
    for number, rows in embeddings.items():
        rows.set_shape([None, parts[number].column.dim])
    return entries, embeddings


def _gathered_together(columns: Sequence[Lookup], entries: Any) -> dict[int, tf.Tensor]:
    """The rows of distinct ids of columns that one op on a device gathers, by number."""
    tables = {k: column.shards[0] for k, column in enumerate(columns) if column.is_gathered_well}
    result = dict[int, tf.Tensor]()
    for numbers in _by_device(tables):
        if len(numbers) < 2:
            continue
        own = [tables[number] for number in numbers]
        for table in own:
            variable_accessed(table)
        with beside(own[0]):  # as stock's lookup is
            gathered = ops.grouped_embedding_gather(
                tables=[table.handle for table in own],
                keys=[entries.unique_keys[number] for number in numbers],
                dims=[int(table.shape[1]) for table in own],
                T=own[0].dtype.base_dtype,
                column_names=_names([columns[number] for number in numbers]),
            )
        for number, rows, table in zip(numbers, gathered, own, strict=True):
            rows.set_shape([None, table.shape[1]])
            result[number] = rows
    return result


def _by_device(variables: Mapping[int, Any]) -> list[list[int]]:
    """The keys of variables, grouped by device: an op can read those of one."""
    groups: dict[str, list[int]] = {}
    for key, variable in variables.items():
        groups.setdefault(variable.device, []).append(key)
    return [*groups.values()]


def _rows(column: Lookup, number: int, entries: Any, rows: Mapping[int, tf.Tensor]) -> tf.Tensor:
    """The rows of distinct ids, gathered where the table is.

    Args:
      column: the lookup.
      number: its index among the lookups.
      entries: the outputs of the op before the gathers.
      rows: those gathered already.
    """
    if number in rows:
        return clipped(rows[number], column.options.max_norm)
    (table,), keys = column.shards, entries.unique_keys[number]

    def counts() -> tf.Tensor:
        splits = entries.row_splits[number]
        own = entries.unique_idxs[splits[0] : splits[-1]]
        return tf.math.unsorted_segment_sum(tf.ones_like(own), own, tf.size(keys))

    name = f"{column.name}/embedding_lookup" if column.name else None
    return gather_rows(table, keys, counts, column.options.max_norm, name)


def _inputs(parts: Sequence[_Part]) -> dict[str, list[Any]]:
    """The inputs of an op for these columns, without tables; no ids are buckets of values."""
    return {
        "ids": [part.ids for part in parts],
        "entry_rows": [part.entry_rows for part in parts],
        "dense_shapes": [part.dense_shape for part in parts],
        "weights": [part.weights for part in parts],
        "boundaries": [],
        "boundary_counts": [0] * len(parts),
    }


def _lists(parts: Sequence[_Part], attrs: Mapping[str, Attr]) -> dict[str, list[Any]]:
    """The values of attrs for these columns, by the name of their list."""
    return {
        key: [getattr(part.column, attr.name, attr.default) for part in parts]
        for key, attr in attrs.items()
    }


def _outputs(output_columns: Sequence[int]) -> dict[str, Any]:
    """The attrs of an op with these outputs; none if there is one."""
    if len(output_columns) == 1:
        return {}
    return {"num_others": len(output_columns) - 1, "output_columns": list(output_columns)}


def _names(columns: Sequence[Lookup | tf.Tensor]) -> list[str]:
    """The names of columns in messages."""
    return [_name(column) if isinstance(column, Lookup) else "" for column in columns]


def _name(column: Lookup) -> str:
    (table,) = column.shards
    # Tensors made eagerly have no name.
    called = "" if isinstance(table, tf.Tensor) else table.name
    return column_name(column.name, called.partition(":")[0])


def _shaped(
    result: tf.Tensor | list[tf.Tensor],
    output_columns: Sequence[int],
    columns: Sequence[Lookup | tf.Tensor],
    parts: Sequence[_Part],
) -> list[tf.Tensor]:
    """The results of an op with their shapes, as far as these are known."""
    batch = next((n for n in map(_static_rows, columns) if n is not None), None)
    results, remaining = (result if isinstance(result, list) else [result]), iter(parts)
    for matrix, count in zip(results, output_columns, strict=True):
        dims = [part.column.dim for part in islice(remaining, count)]
        matrix.set_shape([batch, None if -1 in dims else sum(dims)])
    return results


class _Part(NamedTuple):
    """The inputs of a column but for its table, and its attrs."""

    ids: tf.Tensor
    entry_rows: tf.Tensor
    dense_shape: tf.Tensor
    weights: tf.Tensor
    column: Column


def _tables(columns: Sequence[Lookup | tf.Tensor]) -> list[tf.Tensor]:
    """The tables of lookups, each Variable read once and without a copy; matrices as they are.

    An embedding variable is not read: without rows it says how long they are.
    """
    tables = [_table(column) if isinstance(column, Lookup) else column for column in columns]
    variables = {id(table): table for table in tables if has_handle(table)}
    read = dict[int, tf.Tensor]()
    for keys in _by_device(variables):
        own = [variables[key] for key in keys]
        for variable in own:
            variable_accessed(variable)  # as by a gather: tapes and functions take note of it
        handles = [variable.handle for variable in own]
        values = ops.read_embedding_tables(handles=handles, T=own[0].dtype.base_dtype)
        for key, variable, value in zip(keys, own, values, strict=True):
            value.set_shape(variable.shape)
            read[key] = value
    return [read[id(t)] if id(t) in read else tf.convert_to_tensor(t) for t in tables]


def _table(column: Lookup) -> Any:
    (table,) = column.shards
    return tf.zeros([0, table.dimension], table.dtype) if is_keyed(column) else table


def _part(column: Lookup | tf.Tensor) -> _Part:
    number = tf.constant(0, tf.int64, [1])
    if not isinstance(column, Lookup):
        copied = Column(form="copy", dim=_dim(column))
        return _Part(number, number, number, tf.zeros([1], column.dtype), copied)
    (table,) = column.shards
    options, ids, dtype = column.options, column.ids, table.dtype.base_dtype
    if isinstance(table, KeyedTable):
        options = options.without_filled_rows()
    values = weight_values(column.weights, dtype)
    weighted = values is not None
    does = Column(
        combiner=options.combiner,
        max_norm=options.split_max_norm(dtype)[1],
        prune=options.prune,
        fill_empty_row=options.fill_empty_row,
        default_id=options.default_id_attr,
        use_sparse_weights=weighted,
        prune_sparse_weights=weighted and options.prune and options.combiner != "sum",
        row_count=options.row_count,
        dim=_dim(table),
        sum_order=column.sum_order,
    )
    weights = tf.ones([1], dtype) if values is None else values
    if isinstance(ids, tf.Tensor):
        does = replace(does, form="dense")
        if column.ignored_id is not None:
            does = replace(does, use_ignored_id=True, ignored_id=column.ignored_id)
        return _Part(ids, number, number, weights, does)
    if isinstance(ids, tf.RaggedTensor):
        does = replace(does, form="row_splits")
        return _Part(ids.flat_values, ids.row_splits, number, weights, does)
    ids = as_sparse(ids, options, "ids")
    return _Part(ids.values, ids.indices, ids.dense_shape, weights, does)


def _static_rows(column: Lookup | tf.Tensor) -> int | None:
    """The number of rows of a column's result; None if it depends on the batch."""
    if not isinstance(column, Lookup):
        return column.shape[0] if column.shape.rank else None
    rows: int | None = column.ids.shape[0]
    return rows if column.options.row_count == "dense_shape" else None


def _dim(matrix: Any) -> int:
    dim = matrix.shape[1] if matrix.shape.rank == 2 else None
    return -1 if dim is None else int(dim)
