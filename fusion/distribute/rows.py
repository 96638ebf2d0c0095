"""Rows of sharded tables, brought to the replica that asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from fusion import ops
from fusion.distribute.exchange import COUNTS, IDS, Peers
from fusion.distribute.sharded_table import ShardedTable
from fusion.tables.keras_slots import make_keras_slots_follow
from fusion.tables.replicas import beside


class Rows(NamedTuple):
    """Rows of distinct ids.

    Attributes:
      rows: [u, D].
      places: which of them each id has, int32, of the shape of the ids.
    """

    rows: tf.Tensor
    places: tf.Tensor


class _Wanted(NamedTuple):
    """What a replica wants of a table.

    Attributes:
      table: the table.
      own_rows: [N] int32 vectors, for each replica which of its rows; each row once.
      places: which of these rows, one replica's behind the other's, each id has, int32.
      first_bad: an id that the table does not have, int64 [1]; [0] if there is none.
    """

    table: ShardedTable
    own_rows: list[tf.Tensor]
    places: tf.Tensor
    first_bad: tf.Tensor


def fetch(tables: Sequence[ShardedTable], ids: Sequence[tf.Tensor]) -> list[Rows]:
    """The rows of ids of several tables, in one exchange.

    Args:
      tables: of one strategy.
      ids: a vector of each, int32 or int64.

    Raises:
      ValueError: tables of different strategies.
      tf.errors.InvalidArgumentError: at run time, in all replicas, an id that a table does not
        have.
    """
    replicas = tables[0].replicas
    for table in tables:
        table.replicas.check(table.name)
        if table.replicas is not replicas:
            raise ValueError(
                f"sharded tables {tables[0].name!r} and {table.name!r} were made in the scopes of "
                "different strategies"
            )
    make_keras_slots_follow()
    wanted = [_wanted(table, vector) for table, vector in zip(tables, ids, strict=True)]
    by_table = _from_here(wanted) if replicas.peers is None else _from_peers(wanted, replicas.peers)
    return [
        Rows(tf.concat(parts, 0), one.places) for one, parts in zip(wanted, by_table, strict=True)
    ]


def _wanted(table: ShardedTable, ids: tf.Tensor) -> _Wanted:
    """Ids by the replicas that have their rows; none if there is one that nobody has."""
    bad = tf.boolean_mask(ids, (ids < 0) | (ids >= table.rows))
    ids = ids[: tf.where(tf.equal(tf.size(bad), 0), tf.size(ids), 0)]
    distinct, places, _ = ops.unique_with_counts_v3(input=ids)
    layout, first_bad = table.layout, tf.cast(bad[:1], tf.int64)
    distinct = tf.cast(distinct, tf.int32)
    if layout.owner is not None or layout.count == 1:
        parts = [distinct if layout.rows_of(r) else distinct[:0] for r in range(layout.count)]
        return _Wanted(table, parts, places, first_bad)
    # Not by TensorFlow's DynamicPartition: Grappler takes the sizes of all its outputs for one.
    shapes = [
        tf.constant([len(layout.rows_of(r)), table.dimension], tf.int64)
        for r in range(layout.count)
    ]
    split = ops.partition_with_permutation(
        input=distinct, partition_shapes=shapes, partition_strategy="mod"
    )
    sizes = tf.stack([tf.size(part) for part in split.partitioned_values])
    owners, inside = tf.unstack(split.partition_permutation, axis=1)
    order = tf.gather(tf.cumsum(sizes, exclusive=True), owners) + inside
    return _Wanted(table, split.partitioned_values, tf.gather(order, places), first_bad)


def _check(wanted: Sequence[_Wanted], number: tf.Tensor, bad: tf.Tensor, replica: Any) -> Any:
    """Checks that a replica asks for no row that a table does not have.

    Args:
      wanted: what is wanted of each table.
      number: of the table that does not have it, int32 []; -1 for none.
      bad: the row, int64 [].
      replica: who asks.

    Returns:
      In a graph the op that does so.
    """
    tables = [one.table for one in wanted]
    known = tf.maximum(number, 0)
    last = tf.constant([table.rows - 1 for table in tables])[known]
    said = [
        *("ids of sharded table ", tf.constant([table.name for table in tables])[known]),
        *(" must be from 0 to ", tf.as_string(last), "; replica ", tf.as_string(replica)),
        *(" has ", tf.as_string(bad)),
    ]
    return tf.debugging.Assert(number < 0, [tf.strings.join(said)])


def _bad_id(wanted: Sequence[_Wanted]) -> tuple[tf.Tensor, tf.Tensor]:
    """The number of the first table that does not have a row that is wanted, and this row."""
    is_bad = tf.stack([tf.size(one.first_bad) for one in wanted])
    number = tf.argmax(is_bad, output_type=tf.int32)
    bad = tf.stack([tf.concat([one.first_bad, [0]], 0)[0] for one in wanted])[number]
    return tf.where(is_bad[number] > 0, number, -1), bad


def _from_here(wanted: Sequence[_Wanted]) -> list[list[tf.Tensor]]:
    """The rows that each replica has of each table, where this process has all shards."""
    checked = _check(wanted, *_bad_id(wanted), _replica())
    with tf.control_dependencies([] if checked is None else [checked]):
        return [
            [
                _gather(shard, own_rows[replica])
                if table.layout.rows_of(replica)
                else tf.zeros([0, table.dimension], table.dtype)
                for replica, shard in table.shards.items()
            ]
            for table, own_rows, *_ in wanted
        ]


def _replica() -> Any:
    """The number of the replica that calls."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def _gather(shard: Any, rows: tf.Tensor) -> tf.Tensor:
    """Rows of a shard, gathered where it is."""
    with beside(shard):
        variable_accessed(shard)  # as by a gather of TensorFlow's
        return tf.raw_ops.ResourceGather(resource=shard.handle, indices=rows, dtype=shard.dtype)


def _from_peers(wanted: Sequence[_Wanted], peers: Peers) -> list[list[tf.Tensor]]:
    """The rows that each process has of each table."""
    here, processes = peers.rank, range(peers.count)
    # How many ids of each table there are for each process, and an id that is wrong.
    counts = tf.stack(
        [tf.stack([tf.size(one.own_rows[p]) for p in processes]) for one in wanted], 1
    )
    number, bad = _bad_id(wanted)
    told = tf.concat([[number], tf.bitcast(bad, tf.int32)], 0)
    size = tf.constant(len(wanted) + 3, tf.int64)
    messages = [tf.concat([counts[p], told], 0) for p in processes]
    answers = peers.exchange(COUNTS, messages, [size for _ in processes])
    asked = [answer[:-3] for answer in answers]
    numbers = tf.stack([answer[-3] for answer in answers])
    first = tf.argmax(numbers, output_type=tf.int32)
    bad = tf.bitcast(tf.stack([answer[-2:] for answer in answers])[first], tf.int64)
    checked = _check(wanted, numbers[first], bad, first)
    # Nothing more is on its way to or from anyone when a step ends in this error.
    with tf.control_dependencies([] if checked is None else [checked]):
        asked = [tf.identity(numbers) for numbers in asked]
        own_rows = [tf.concat([one.own_rows[p] for one in wanted], 0) for p in processes]
    received = peers.exchange(IDS, own_rows, [_sum(asked[p]) for p in processes])
    by_process = [tf.split(received[p], asked[p], num=len(wanted)) for p in processes]
    gathered = []
    for number, one in enumerate(wanted):
        rows = tf.concat([by_process[p][number] for p in processes], 0)
        gathered.append(_gather_for(one.table, here, rows, [asked[p][number] for p in processes]))
    return _send_rows(wanted, gathered, counts, asked, peers)


def _sum(sizes: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(sizes, tf.int64))


def _gather_for(
    table: ShardedTable, here: int, rows: tf.Tensor, sizes: list[tf.Tensor]
) -> list[tf.Tensor]:
    """The rows that the processes want of this one; the gradient has each of them once."""
    # Also of a shard without rows: all processes send gradients, or none does.
    distinct, places, _ = ops.unique_with_counts_v3(input=rows)
    every = tf.gather(_gather(table.shards[here], distinct), places)
    return list(tf.split(every, sizes))


def _send_rows(
    wanted: Sequence[_Wanted],
    gathered: list[list[tf.Tensor]],
    counts: tf.Tensor,
    asked: list[tf.Tensor],
    peers: Peers,
) -> list[list[tf.Tensor]]:
    """Sends processes the rows that they want, those of tables of one dtype in one message."""
    found: list[list[tf.Tensor]] = [[] for _ in wanted]
    for dtype in dict.fromkeys(one.table.dtype for one in wanted):
        numbers = [k for k, one in enumerate(wanted) if one.table.dtype == dtype]
        widths = tf.constant([wanted[k].table.dimension for k in numbers], tf.int64)
        processes = range(peers.count)
        parts = [
            tf.concat([tf.reshape(gathered[k][p], [-1]) for k in numbers], 0) for p in processes
        ]
        come = [tf.cast(tf.gather(counts[p], numbers), tf.int64) * widths for p in processes]
        gone = [tf.size(part, tf.int64) for part in parts]
        received = peers.exchange_rows(parts, gone, [_sum(sizes) for sizes in come])
        for p in processes:
            pieces = tf.split(received[p], come[p], num=len(numbers))
            for k, piece in zip(numbers, pieces, strict=True):
                found[k].append(tf.reshape(piece, [-1, wanted[k].table.dimension]))
    return found
