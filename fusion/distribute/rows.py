"""Rows of sharded tables, brought to the replica that asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fusion import ops
from fusion.distribute.exchange import COUNTS, IDS, Exchange
from fusion.distribute.replicas import is_in_replica
from fusion.distribute.sharded import Request, Sharded
from fusion.tables.keras_slots import make_keras_slots_follow


class Rows(NamedTuple):
    """Rows of distinct ids.

    Attributes:
      rows: [u, D].
      places: which of them each id has, int32, of the shape of the ids.
    """

    rows: tf.Tensor
    places: tf.Tensor


class _Wanted(NamedTuple):
    """The requests of a replica for rows of a table.

    Attributes:
      table: the table.
      requests: [N], what it asks each replica for.
      places: the index of each id's row among these, concatenated by replica, int32.
      first_bad: an id that the table does not have, int64 [1]; [0] if there is none.
    """

    table: Sharded
    requests: list[Request]
    places: tf.Tensor
    first_bad: tf.Tensor


def fetch(
    tables: Sequence[Sharded],
    ids: Sequence[tf.Tensor],
    counts: Sequence[tf.Tensor | None] | None = None,
    min_id: int = 0,
) -> list[Rows]:
    """The rows of ids of several tables, in one exchange.

    Args:
      tables: of one strategy.
      ids: a vector of each, int32 or int64.
      counts: how often each id was seen, int32 vectors, or None: once.
      min_id: the smallest id that there can be.

    Raises:
      ValueError: tables of different strategies, or replicas of one process that look up others.
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
    lookups = zip(tables, ids, counts or [None] * len(ids), strict=True)
    wanted = [_wanted(*one, min_id) for one in lookups]
    exchange: Exchange | None = replicas.peers
    if exchange is None and is_in_replica() and any(table.joins_lookups for table in tables):
        exchange = replicas.threads
    by_table = _from_here(wanted) if exchange is None else _from_others(wanted, exchange)
    return [
        Rows(tf.concat(parts, 0), one.places) for one, parts in zip(wanted, by_table, strict=True)
    ]


def _wanted(table: Sharded, ids: tf.Tensor, counts: tf.Tensor | None, min_id: int) -> _Wanted:
    """The requests for ids of a table; none if it does not have one of the ids."""
    numbers = tf.cast(ids, tf.int64)
    bad = tf.boolean_mask(numbers, (numbers < min_id) | (numbers > table.last_id))
    count = tf.where(tf.equal(tf.size(bad), 0), tf.size(ids), 0)
    requests, places = table.split(ids[:count], None if counts is None else counts[:count])
    return _Wanted(table, requests, places, bad[:1])


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
    last = tf.constant([table.last_id for table in tables], tf.int64)[known]
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
    """The rows that each replica has of each table, gathered from its shard."""
    checked = _check(wanted, *_bad_id(wanted), _replica())
    with tf.control_dependencies([] if checked is None else [checked]):
        return [
            [one.table.gather(replica, one.requests[replica]) for replica in one.table.shards]
            for one in wanted
        ]


def _replica() -> Any:
    """The number of the replica that calls."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def _from_others(wanted: Sequence[_Wanted], exchange: Exchange) -> list[list[tf.Tensor]]:
    """The rows that each replica has of each table, sent by it."""
    exchange.check_alike([one.table for one in wanted])
    here, replicas = exchange.rank, range(exchange.count)
    # How many ids of each table there are for each replica, and an id that is wrong.
    counts = tf.stack(
        [tf.stack([tf.size(one.requests[r][0]) for r in replicas]) for one in wanted], 1
    )
    number, bad = _bad_id(wanted)
    errors = tf.concat([[number], tf.bitcast(bad, tf.int32)], 0)
    size = tf.constant(len(wanted) + 3, tf.int64)
    messages = [tf.concat([counts[r], errors], 0) for r in replicas]
    answers = exchange.exchange(COUNTS, messages, [size for _ in replicas])
    request_counts = [answer[:-3] for answer in answers]
    numbers = tf.stack([answer[-3] for answer in answers])
    first = tf.argmax(numbers, output_type=tf.int32)
    bad = tf.bitcast(tf.stack([answer[-2:] for answer in answers])[first], tf.int64)
    checked = _check(wanted, numbers[first], bad, first)
    # No more messages are on their way when a step ends in this error.
    with tf.control_dependencies([] if checked is None else [checked]):
        request_counts = [tf.identity(numbers) for numbers in request_counts]
        parts = [_packed([one.requests[r] for one in wanted]) for r in replicas]
    # The vectors that ask for a row of each table, and the int32 numbers of an element.
    dtypes = [[vector.dtype for vector in one.requests[here]] for one in wanted]
    widths = [sum(dtype.size // 4 for dtype in own) for own in dtypes]
    received = exchange.exchange(IDS, parts, [_sum(request_counts[r] * widths) for r in replicas])
    by_sender = [_unpacked(received[r], request_counts[r], dtypes) for r in replicas]
    gathered = []
    for number, one in enumerate(wanted):
        requests = [requests[number] for requests in by_sender]
        gathered.append(_gather_for(one.table, here, requests))
    rows_by_table = _send_rows(wanted, gathered, counts, request_counts, exchange)
    for one, rows in zip(wanted, rows_by_table, strict=True):
        # Optimizers want gradients of all shards of this process from each of its replicas.
        rows.extend(one.table.no_rows(other) for other in one.table.shards if other != here)
    return rows_by_table


def _sum(sizes: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(sizes, tf.int64))


def _packed(requests: Sequence[Request]) -> tf.Tensor:
    """Requests for rows of each table as one message, int32."""
    vectors = [vector for request in requests for vector in request]
    return tf.concat([tf.reshape(tf.bitcast(vector, tf.int32), [-1]) for vector in vectors], 0)


def _unpacked(
    message: tf.Tensor, request_counts: tf.Tensor, dtypes: Sequence[Sequence[tf.DType]]
) -> list[Request]:
    """The requests of a message, which has `request_counts` elements for each table."""
    each = [(number, dtype) for number, own in enumerate(dtypes) for dtype in own]
    sizes = tf.stack([request_counts[number] * (dtype.size // 4) for number, dtype in each])
    pieces = tf.split(message, sizes, num=len(each))
    requests: list[Request] = [() for _ in dtypes]
    for (number, dtype), piece in zip(each, pieces, strict=True):
        words = piece if dtype.size == 4 else tf.reshape(piece, [-1, dtype.size // 4])
        requests[number] += (tf.bitcast(words, dtype),)
    return requests


def _gather_for(table: Sharded, here: int, requests: Sequence[Request]) -> list[tf.Tensor]:
    """The rows that the replicas want of this one; the gradient has each of them once."""
    # Also of a shard without rows: all replicas send gradients, or none does.
    sizes = [tf.size(ids) for ids, *_ in requests]
    ids, *numbers = (tf.concat(vectors, 0) for vectors in zip(*requests, strict=True))
    distinct, places, _ = ops.unique_with_counts_v3(input=ids)
    sums = [tf.math.unsorted_segment_sum(n, places, tf.size(distinct)) for n in numbers]
    every = tf.gather(table.gather(here, (distinct, *sums)), places)
    return list(tf.split(every, sizes))


def _send_rows(
    wanted: Sequence[_Wanted],
    gathered: list[list[tf.Tensor]],
    counts: tf.Tensor,
    request_counts: list[tf.Tensor],
    exchange: Exchange,
) -> list[list[tf.Tensor]]:
    """Sends replicas the rows that they want, those of tables of one dtype in one message."""
    rows_by_table: list[list[tf.Tensor]] = [[] for _ in wanted]
    for dtype in dict.fromkeys(one.table.dtype for one in wanted):
        numbers = [k for k, one in enumerate(wanted) if one.table.dtype == dtype]
        widths = tf.constant([wanted[k].table.dimension for k in numbers], tf.int64)
        replicas = range(exchange.count)
        parts = [
            tf.concat([tf.reshape(gathered[k][r], [-1]) for k in numbers], 0) for r in replicas
        ]
        incoming = [tf.cast(tf.gather(counts[r], numbers), tf.int64) * widths for r in replicas]
        outgoing = [tf.size(part, tf.int64) for part in parts]
        received = exchange.exchange_rows(parts, outgoing, [_sum(sizes) for sizes in incoming])
        for r in replicas:
            pieces = tf.split(received[r], incoming[r], num=len(numbers))
            for k, piece in zip(numbers, pieces, strict=True):
                rows_by_table[k].append(tf.reshape(piece, [-1, wanted[k].table.dimension]))
    return rows_by_table
