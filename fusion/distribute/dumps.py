"""Tables written to files of HugeCTR and of SparseOperationKit, and read from these."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from fusion.distribute import sok_files
from fusion.distribute.layout import Layout
from fusion.distribute.optimizer_states import states_of
from fusion.distribute.row_access import KeyedRows, NumberedRows, int64_blocks, partitions_of
from fusion.distribute.sharded import Sharded
from fusion.distribute.sharded_table import ShardedTable
from fusion.tables import files
from fusion.tables.arguments import check_eager, module_name
from fusion.tables.embedding_variable import EmbeddingVariable
from fusion.tables.partitioned import PartitionedEmbeddingVariable
from fusion.tables.registry import embedding_variable_of, shard_of

_TABLES = (ShardedTable, EmbeddingVariable, PartitionedEmbeddingVariable, tf.Variable)

_HUGECTR, _SOK = _FORMATS = ("hugectr", "sok")


def dump(
    path: str | os.PathLike[str],
    tables: Any,
    format: str = _HUGECTR,
    optimizer: Any = None,
) -> dict[str, int]:
    """Writes tables to a new folder, as HugeCTR or SparseOperationKit would.

    The folder is there when all is written, or not at all. Of embedding variables there are the
    keys that have rows; of other tables all rows, whose keys are their numbers.

    Args:
      path: the folder, which must not be there.
      tables: a `ShardedTable`, an `EmbeddingVariable`, also one that is partitioned or sharded, or
        a variable [rows, D]; several in a list; or by the names that they have in the files.
        Without names these are `users` of "users" for HugeCTR, and `users_0` for
        SparseOperationKit.
      format: "hugectr", a folder `name` of each table with the files `key`, `emb_vector`, float32
        in any case, and for a table of mode "localized:k" `slot_id`, all k; or "sok", files
        `name-key` and `name-weight`, which need float16, float32 or float64.
      optimizer: of Keras 3, tf_keras or `tf.compat.v1`, whose variables of the tables are written,
        too; "sok" only.

    Returns:
      How many rows were written, by names in the files.

    Raises:
      FileExistsError: there is something at `path`.
      TypeError, ValueError: naming the argument and what was given.
      NotImplementedError: a sharded table of several processes; `tf.train.Checkpoint` has these.
      RuntimeError: called in a graph.
    """
    check_eager("dump")
    if format not in _FORMATS:
        raise ValueError(f"format must be one of {_FORMATS}, got {format!r}")
    dumps = _dumped(_named(tables, format), format, optimizer)
    for dumped in dumps:
        if isinstance(dumped.table, Sharded) and dumped.table.replicas.peers is not None:
            raise NotImplementedError(
                f"sharded table {dumped.name!r} has its rows in several processes, and none can "
                "dump all: save it by tf.train.Checkpoint, and dump it where one process "
                "restores that"
            )
    with files.new_folder(path) as folder:
        return {dumped.name: _write(folder, dumped, format) for dumped in dumps}


def load(
    path: str | os.PathLike[str],
    tables: Any,
    format: str | None = None,
    optimizer: Any = None,
) -> dict[str, int]:
    """Reads rows of tables from a folder of HugeCTR or SparseOperationKit.

    All files are checked before a row is written. Rows whose keys the files do not have keep what
    they are. In several processes each reads the folder, and takes the rows that it has.

    Args:
      path: the folder.
      tables: as of `dump`.
      format: as of `dump`; None for the one whose files of the first table are there.
      optimizer: one that has its variables of the tables, which are read, too; "sok" only.

    Returns:
      How many rows the files have, by names in the files.

    Raises:
      FileNotFoundError: there are no files of a table.
      ValueError: naming the file: rows of another dimension, files that do not belong together or
        end too early, another header, or a key that the table does not have, or has twice.
      TypeError, ValueError: naming the argument and what was given.
      tf.errors.ResourceExhaustedError: an embedding variable has no room for all keys.
      RuntimeError: called in a graph.
    """
    check_eager("load")
    if format not in (None, *_FORMATS):
        raise ValueError(f"format must be None or one of {_FORMATS}, got {format!r}")
    folder = Path(path)
    format = format or _format_of(folder, tables)
    dumps = _dumped(_named(tables, format), format, optimizer)
    opened = [_open(folder, dumped, format) for dumped in dumps]
    for dumped, (keys, _) in zip(dumps, opened, strict=True):
        dumped.rows.check(keys.path, int64_blocks(keys))
    for dumped, (keys, arrays) in zip(dumps, opened, strict=True):
        blocks = zip(int64_blocks(keys), *(array.blocks() for array in arrays), strict=True)
        for some_keys, *rows in blocks:
            dumped.rows.put(some_keys, rows)
    return {dumped.name: len(keys) for dumped, (keys, _) in zip(dumps, opened, strict=True)}


@dataclass(frozen=True)
class _Dumped:
    """A table, and what of it is in files.

    Attributes:
      name: in the files.
      table: the table.
      rows: what reads and writes its rows, and those of optimizer variables.
      dimension: D.
      dtypes: of the table, and of each optimizer variable.
      states: the names of optimizer variables.
    """

    name: str
    table: Any
    rows: NumberedRows | KeyedRows
    dimension: int
    dtypes: list[str]
    states: list[str]


def _named(tables: Any, format: str) -> dict[str, Any]:
    """Tables by the names that they have in files."""
    if isinstance(tables, Mapping | list | tuple) and not tables:
        raise ValueError("tables must be one or more, got none")
    if isinstance(tables, Mapping):
        for name in tables:
            if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
                raise ValueError(f"names of tables must be names of files, got {name!r}")
        return dict(tables)
    listed = list(tables) if isinstance(tables, list | tuple) else [tables]
    named: dict[str, Any] = {}
    for table in listed:
        if not isinstance(table, _TABLES):
            raise TypeError(f"tables must be tables and variables, got {table!r}")
        name = module_name(table.name.partition(":")[0]) + ("_0" if format == _SOK else "")
        if name in named:
            raise ValueError(f"tables must have different names, got two of {name!r}: name them")
        named[name] = table
    return named


def _dumped(named: Mapping[str, Any], format: str, optimizer: Any) -> list[_Dumped]:
    if format == _HUGECTR and optimizer is not None:
        raise ValueError(
            f"optimizer must be None: files of format {format!r} have no optimizer variables"
        )
    return [_of_table(name, table, optimizer) for name, table in named.items()]


def _of_table(name: str, table: Any, optimizer: Any) -> _Dumped:
    rows: NumberedRows | KeyedRows
    if isinstance(table, ShardedTable):
        slots = [states_of(optimizer, shard, name) for shard in table.shards.values()]
        copies = zip(table.shards.items(), slots, strict=True)
        shards = {replica: [[shard, *own.values()]] for (replica, shard), own in copies}
        rows = NumberedRows(name, table.layout, shards)
    elif isinstance(table, EmbeddingVariable | PartitionedEmbeddingVariable):
        slots = [states_of(optimizer, part.table, name) for part in partitions_of(table)]
        rows = KeyedRows(name, table, [list(own.values()) for own in slots])
    elif isinstance(table, tf.Variable) and table.shape.rank == 2:
        if embedding_variable_of(table) is not None or shard_of(table) is not None:
            raise TypeError(f"tables must have the whole table, not its variable {table.name!r}")
        slots = [states_of(optimizer, table, name)]
        layout = Layout.of_mode("distributed", int(table.shape[0]), 1)
        variables = [_copies(variable) for variable in (table, *slots[0].values())]
        rows = NumberedRows(name, layout, {0: [*zip(*variables, strict=True)]})
    else:
        raise TypeError(f"tables must be tables and variables [rows, D], got {table!r}")
    dtypes = [table.dtype.name, *(variable.dtype.name for variable in slots[0].values())]
    return _Dumped(name, table, rows, int(table.shape[1]), dtypes, [*slots[0]])


def _copies(variable: Any) -> Sequence[Any]:
    """The variables of replicas that one stands for."""
    is_mirrored = isinstance(variable, tf.distribute.DistributedValues)
    return variable.values if is_mirrored else (variable,)


def _format_of(folder: Path, tables: Any) -> str:
    """The format that the files of the first table have."""
    hugectr, *_ = _named(tables, _HUGECTR)
    sok, *_ = _named(tables, _SOK)
    if files.is_table(folder / hugectr):
        return _HUGECTR
    if sok_files.is_table(folder, sok):
        return _SOK
    raise FileNotFoundError(
        f"{folder}: has neither {hugectr}/key, of HugeCTR, nor {sok}-key, of SparseOperationKit"
    )


def _write(folder: Path, dumped: _Dumped, format: str) -> int:
    blocks = dumped.rows.blocks()
    if format == _SOK:
        return sok_files.write_files(folder, dumped.name, dumped.dtypes, dumped.states, blocks)
    own = folder / dumped.name
    own.mkdir()
    slot = dumped.table.layout.owner if isinstance(dumped.table, ShardedTable) else None
    parts = ((keys, rows) for keys, (rows,) in blocks)
    return files.write_files(own, dumped.dimension, parts, {"dtype": dumped.dtypes[0]}, slot)


def _open(
    folder: Path, dumped: _Dumped, format: str
) -> tuple[files.ArrayFile, list[files.ArrayFile]]:
    if format == _SOK:
        return sok_files.open_table(folder, dumped.name, dumped.dimension, dumped.states)
    keys, rows = files.open_table(folder / dumped.name, dumped.dimension)
    return keys, [rows]
