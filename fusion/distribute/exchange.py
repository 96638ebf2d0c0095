"""Messages between the replicas of a strategy.

Those of several processes go by TensorFlow's collectives. Its all-to-all has one size for all
messages. A broadcast in a group of two is a message, and no larger than what is in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.runtime.tensorflow.private import PerReplica, get_current_replica_id_as_int

#: Keys of groups of two, far from those of TensorFlow's own groups, which count from 1.
_FIRST_GROUP = 1 << 24

#: How many elements a message can have, in ascending order. A collective keeps the size that it had
#: first, so each size is one of its own, and there are few: at most 1/32 more than is needed.
_SIZES = np.array(
    [*range(1, 64), *((1 << e) * m // 32 for e in range(6, 31) for m in range(32, 64))]
)

#: The kinds of messages; messages of different kinds may be in flight at the same time.
COUNTS, IDS, ROWS, GRADIENTS, WHOLE = range(_KINDS := 5)

#: Strategies of a process have groups of their own; all processes make them in the same order.
_STRATEGIES = itertools.count()


class Exchange:
    """The replicas of a strategy, which send each other vectors.

    Attributes:
      rank: the number of the replica that calls.
      count: how many there are.
    """

    rank: int
    count: int

    def check_alike(self, tables: Sequence[Any]) -> None:
        """Checks that all replicas look up the same tables, as far as this process knows.

        Raises:
          ValueError: others look up other tables, or in another order.
        """

    def exchange(
        self, kind: int, parts: Sequence[tf.Tensor], sizes: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Sends each replica a vector, and receives one of each.

        All replicas call it in the same order.

        Args:
          kind: what messages are for.
          parts: [N], vectors of one dtype for each replica; this one's own stays.
          sizes: [N], int64 [], how many elements come from each.

        Returns:
          [N], the vectors that came.
        """
        raise NotImplementedError

    def exchange_rows(
        self, parts: Sequence[tf.Tensor], sent: Sequence[tf.Tensor], sizes: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """As `exchange`, of numbers whose gradients go back to where they came from.

        Args:
          parts, sizes: see there.
          sent: [N], int64 [], how many elements there are in each part.

        Raises:
          LookupError: when a second gradient is taken.
        """

        @tf.custom_gradient
        def moved(*parts: tf.Tensor) -> Any:
            def back(*gradients: tf.Tensor) -> list[tf.Tensor]:
                # A tape does not record what other replicas computed from its gradients.
                incoming = self.exchange(GRADIENTS, gradients, sent)
                message = "gradients of sharded tables that came from other replicas"
                return [tf.raw_ops.PreventGradient(input=x, message=message) for x in incoming]

            return self.exchange(ROWS, parts, sizes), back

        received: list[tf.Tensor] = moved(*parts)
        return received


class Threads(Exchange):
    """The replicas of a `MirroredStrategy`, which are threads of one process."""

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def rank(self) -> int:  # type: ignore[override]
        """That of the thread that calls."""
        rank: int = get_current_replica_id_as_int()
        return rank

    def check_alike(self, tables: Sequence[Any]) -> None:
        """As of all; the tables of all threads are known."""

        def check(strategy: Any, getters: Any) -> None:
            first, *others = (of() for of in strategy.experimental_local_results(getters))
            for other in others:
                if [*map(id, other)] != [*map(id, first)]:
                    names = [[table.name for table in tables] for tables in (first, other)]
                    raise ValueError(
                        "all replicas have to look up the same sharded tables in the same order, "
                        f"but one looks up {names[0]} and another {names[1]}"
                    )

        # As a function, which a strategy takes for one value.
        tf.distribute.get_replica_context().merge_call(check, args=(lambda: tables,))

    def exchange(
        self, kind: int, parts: Sequence[tf.Tensor], sizes: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """As of all; each thread waits for the others."""
        del kind, sizes

        def swap(strategy: Any, *parts: Any) -> list[Any]:
            by_receiver = [strategy.experimental_local_results(part) for part in parts]
            return [PerReplica(of_sender) for of_sender in zip(*by_receiver, strict=True)]

        # One tensor that all send would be taken for one of all replicas.
        own = [tf.identity(part) for part in parts]
        received: list[tf.Tensor] = tf.distribute.get_replica_context().merge_call(swap, args=own)
        return received


class Peers(Exchange):
    """The processes of a strategy that has one replica in each.

    Attributes:
      rank: the number of this one.
      count: how many there are.
      sent: int64 [2], how many messages, and bytes in them, this process has sent.
    """

    def __init__(self, rank: int, count: int, device: str, timeout: float) -> None:
        """Sets up the exchange with the peers.

        Args:
          rank, count: see the attributes.
          device: of this process's replica.
          timeout: seconds after which a message that has not come is an error; 0 for never.
        """
        self.rank, self.count = rank, count
        self._device, self._timeout = device, timeout
        self._first_group = _FIRST_GROUP + next(_STRATEGIES) * count**2
        self.sent = tf.Variable([0, 0], dtype=tf.int64, trainable=False, name="sent")
        self._exchange = tf.function(self._exchanged, autograph=False, reduce_retracing=True)

    def exchange(
        self, kind: int, parts: Sequence[tf.Tensor], sizes: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """As of all.

        Raises:
          tf.errors.DeadlineExceededError, tf.errors.UnavailableError: at run time, a process that
            does not answer.
        """
        # A function even where ops are eager: its ops wait side by side.
        received: list[tf.Tensor] = self._exchange(kind, list(parts), list(sizes))
        return received

    def _exchanged(
        self, kind: int, parts: list[tf.Tensor], sizes: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        others = [peer for peer in range(self.count) if peer != self.rank]
        with tf.device(self._device):
            padded = [_padded(parts[peer]) for peer in others]
            sends = [
                tf.raw_ops.CollectiveBcastSendV2(
                    input=message, **self._message(kind, self.rank, peer, number, message.dtype)
                )
                for peer, (message, number) in zip(others, padded, strict=True)
            ]
            received, messages = list(parts), []
            for peer in others:
                size, number = _size(sizes[peer])
                message = tf.raw_ops.CollectiveBcastRecvV2(
                    **self._message(kind, peer, self.rank, number, parts[peer].dtype),
                    shape=tf.reshape(size, [1]),
                    T=parts[peer].dtype,
                )
                messages.append(message)
                received[peer] = message[: sizes[peer]]
            total = tf.add_n([tf.size(message, tf.int64) for message, _ in padded])
            # Sends have no other who asks for them; and TensorFlow orders none of these ops, but
            # those that change a variable: the next exchange begins when this one has ended.
            with tf.control_dependencies([*sends, *messages]):
                number = tf.constant(len(others), tf.int64)
                counted = self.sent.assign_add(
                    tf.stack([number, total * parts[0].dtype.size]), read_value=False
                )
            with tf.control_dependencies([] if counted is None else [counted]):
                return [tf.identity(vector) for vector in received]

    def _message(
        self, kind: int, sender: int, receiver: int, number: tf.Tensor, dtype: tf.DType
    ) -> dict[str, Any]:
        """The arguments of a collective, of a size of this number."""
        low, high = sorted((sender, receiver))
        # A collective keeps its dtype, too.
        way = 2 * (_KINDS * dtype.as_datatype_enum + kind) + (sender < receiver)
        return {
            "group_size": 2,
            "group_key": self._first_group + low * self.count + high,
            "instance_key": way * len(_SIZES) + tf.cast(number, tf.int32),
            "timeout_seconds": self._timeout,
        }


def _size(size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The size of a message of so many elements, and its number among the sizes."""
    sizes = tf.constant(_SIZES, tf.int64)
    number = tf.searchsorted(sizes, tf.reshape(tf.cast(size, tf.int64), [1]))[0]
    return sizes[number], number


def _padded(part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A vector as a message, and the number of its size."""
    length = tf.size(part, tf.int64)
    size, number = _size(length)
    return tf.pad(part, [[0, size - length]]), number
