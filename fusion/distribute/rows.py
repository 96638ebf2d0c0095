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
    distinct, places = tf.unique(ids)
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


def _check(name: str, bad: tf.Tensor, rows: int, replica: Any) -> tf.Operation | None:
    """Checks that there is no id that a table does not have.

    Args:
      name, rows: of the table.
      bad: such ids, int64 [0] or [1].
      replica: who asked for it.
    """
    said = [
        f"ids of sharded table {name} must be from 0 to {rows - 1}; replica ",
        replica,
        " has ",
    ]
    return tf.debugging.Assert(tf.equal(tf.size(bad), 0), [*said, bad])


def _from_here(wanted: Sequence[_Wanted]) -> list[list[tf.Tensor]]:
    """The rows that each replica has of each table, where this process has all shards."""
    found = []
    for table, own_rows, _, bad in wanted:
        checked = _check(table.name, bad, table.rows, _replica())
        with tf.control_dependencies([] if checked is None else [checked]):
            found.append(
                [
                    _gather(shard, own_rows[replica])
                    if table.layout.rows_of(replica)
                    else tf.zeros([0, table.dimension], table.dtype)
                    for replica, shard in table.shards.items()
                ]
            )
    return found


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
    # How many ids of each table there are for each process, and one that is wrong.
    counts = tf.stack(
        [tf.stack([tf.size(one.own_rows[p], tf.int64) for p in processes]) for one in wanted], 1
    )
    given = [tf.concat([one.first_bad, [-1]], 0)[0] for one in wanted]
    is_bad = [tf.size(one.first_bad, tf.int64) for one in wanted]
    told = tf.stack([*is_bad, *given])
    told_size = tf.size(told, tf.int64) + len(wanted)
    answers = peers.exchange(
        COUNTS,
        [tf.concat([counts[p], told], 0) for p in processes],
        [told_size for _ in processes],
    )
    asked, checks = [], []
    for process, answer in enumerate(answers):
        numbers, flags, ids = tf.split(answer, 3)
        asked.append(numbers)
        for number, one in enumerate(wanted):
            bad = ids[number : number + 1][: flags[number]]
            checks.append(_check(one.table.name, bad, one.table.rows, process))
    with tf.control_dependencies([check for check in checks if check is not None]):
        own_rows = [tf.concat([one.own_rows[p] for one in wanted], 0) for p in processes]
    received = peers.exchange(IDS, own_rows, [tf.reduce_sum(asked[p]) for p in processes])
    by_process = [tf.split(received[p], asked[p], num=len(wanted)) for p in processes]
    gathered = []
    for number, one in enumerate(wanted):
        rows = tf.concat([by_process[p][number] for p in processes], 0)
        gathered.append(_gather_for(one.table, here, rows, [asked[p][number] for p in processes]))
    return _send_rows(wanted, gathered, counts, asked, peers)


def _gather_for(
    table: ShardedTable, here: int, rows: tf.Tensor, sizes: list[tf.Tensor]
) -> list[tf.Tensor]:
    """The rows that the processes want of this one; the gradient has each of them once."""
    # Also of a shard without rows: all processes send gradients, or none does.
    found = tf.unique(rows)
    every = tf.gather(_gather(table.shards[here], found.y), found.idx)
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
        come = [tf.gather(counts[p], numbers) * widths for p in processes]
        gone = [tf.reduce_sum(tf.gather(asked[p], numbers) * widths) for p in processes]
        received = peers.exchange_rows(parts, gone, [tf.reduce_sum(sizes) for sizes in come])
        for p in processes:
            pieces = tf.split(received[p], come[p], num=len(numbers))
            for k, piece in zip(numbers, pieces, strict=True):
                found[k].append(tf.reshape(piece, [-1, wanted[k].table.dimension]))
    return found
