"""Messages between the processes of a strategy, each of its own size, by TensorFlow's collectives.

TensorFlow's all-to-all has one size for all messages. A broadcast in a group of two is a message,
and no larger than what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

#: Keys of groups of two, far from those of TensorFlow's own groups, which count from 1.
_FIRST_GROUP = 1 << 24

#: How many elements a message can have, in ascending order. A collective keeps the size that it had
#: first, so each size is one of its own, and there are few: at most 1/32 more than is needed.
_SIZES = np.array(
    [*range(1, 64), *((1 << e) * m // 32 for e in range(6, 31) for m in range(32, 64))]
)

#: What messages are for: those of different kinds are on their way at the same time.
COUNTS, IDS, ROWS, GRADIENTS, WHOLE = range(5)


class Peers:
    """The processes of a strategy, of which each has one replica.

    Attributes:
      rank: the number of this one.
      count: how many there are.
      sent: int64 [2], how many messages, and bytes in them, this process has sent.
    """

    def __init__(self, rank: int, count: int, device: str, timeout: float) -> None:
        """Makes what knows the peers.

        Args:
          rank, count: see the attributes.
          device: of this process's replica.
          timeout: seconds after which a message that has not come is an error; 0 for never.
        """
        self.rank, self.count = rank, count
        self._device, self._timeout = device, timeout
        self.sent = tf.Variable([0, 0], dtype=tf.int64, trainable=False, name="sent")
        self._exchange = tf.function(self._exchanged, autograph=False, reduce_retracing=True)

    def exchange(
        self, kind: int, parts: Sequence[tf.Tensor], sizes: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Sends each process a vector, and receives one of each.

        All processes call it in the same order.

        Args:
          kind: what messages are for.
          parts: [P], vectors of one dtype for each process; this one's own stays.
          sizes: [P], int64 [], how many elements come from each.

        Returns:
          [P], the vectors that came.

        Raises:
          tf.errors.DeadlineExceededError, tf.errors.UnavailableError: at run time, a process that
            does not answer.
        """
        # A function even where ops are eager: its ops wait side by side.
        found: list[tf.Tensor] = self._exchange(kind, list(parts), list(sizes))
        return found

    def exchange_rows(
        self, parts: Sequence[tf.Tensor], sent: Sequence[tf.Tensor], sizes: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """As `exchange`, of numbers whose gradients go back to where they came from.

        Args:
          parts, sizes: see there.
          sent: [P], int64 [], how many elements there are in each part.
        """

        @tf.custom_gradient
        def moved(*parts: tf.Tensor) -> Any:
            def back(*gradients: tf.Tensor) -> list[tf.Tensor]:
                return self.exchange(GRADIENTS, gradients, sent)

            return self.exchange(ROWS, parts, sizes), back

        found: list[tf.Tensor] = moved(*parts)
        return found

    def _exchanged(
        self, kind: int, parts: list[tf.Tensor], sizes: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        others = [peer for peer in range(self.count) if peer != self.rank]
        with tf.device(self._device):
            padded = [_padded(parts[peer]) for peer in others]
            sends = [
                tf.raw_ops.CollectiveBcastSendV2(
                    input=message, **self._message(kind, self.rank, peer, number)
                )
                for peer, (message, number) in zip(others, padded, strict=True)
            ]
            item_bytes = parts[0].dtype.size
            total = tf.add_n([tf.size(message, tf.int64) for message, _ in padded])
            self.sent.assign_add(tf.stack([tf.constant(len(others), tf.int64), total * item_bytes]))
            received = list(parts)
            for peer in others:
                size, number = _size(sizes[peer])
                message = tf.raw_ops.CollectiveBcastRecvV2(
                    **self._message(kind, peer, self.rank, number),
                    shape=tf.reshape(size, [1]),
                    T=parts[peer].dtype,
                )
                received[peer] = message[: sizes[peer]]
            with tf.control_dependencies(sends):  # which nothing else asks for
                return [tf.identity(vector) for vector in received]

    def _message(self, kind: int, sender: int, receiver: int, number: tf.Tensor) -> dict[str, Any]:
        """The arguments of a collective, of a size of this number."""
        low, high = sorted((sender, receiver))
        way = 2 * kind + (sender < receiver)
        return {
            "group_size": 2,
            "group_key": _FIRST_GROUP + low * self.count + high,
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
