"""Blocks of samples, as readers give them, and the batches that a `tf.data` pipeline makes of them.

Python runs once for a block of some ten thousand samples; TensorFlow cuts it into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelzoo.criteo.schema import CATEGORICAL, NUMERIC

BLOCK = 1 << 16
"""About how many samples a block has."""


@dataclass(frozen=True)
class Block:
    """Samples.

    Attributes:
        labels: float32 [n].
        counts: float32 [n, 13].
        ids: int64 [n, 26].
    """

    labels: npt.NDArray[np.float32]
    counts: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, end: int) -> Block:
        """Samples `start` to `end`."""
        return Block(self.labels[start:end], self.counts[start:end], self.ids[start:end])


def joined(blocks: Sequence[Block]) -> Block:
    """One block of all samples."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        np.concatenate([block.labels for block in blocks]),
        np.concatenate([block.counts for block in blocks]),
        np.concatenate([block.ids for block in blocks]),
    )


def in_whole(blocks: Iterable[Block], unit: int, least: int = BLOCK) -> Iterator[Block]:
    """The same samples in blocks of a multiple of `unit`, at least `least`, but the last one."""
    held: list[Block] = []
    for block in blocks:
        held.append(block)
        count = sum(map(len, held))
        if count < max(least, unit):
            continue
        whole = joined(held)
        end = count - count % unit
        yield whole.part(0, end)
        held = [whole.part(end, count)] if end < count else []
    if held:
        yield joined(held)


def without_first(blocks: Iterable[Block], count: int) -> Iterator[Block]:
    """The samples behind the first `count`."""
    for block in blocks:
        if count < len(block):
            yield block.part(count, len(block)) if count else block
        count = max(count - len(block), 0)


def dataset_of(make: Callable[[], Iterator[Block]], batch_size: int) -> tf.data.Dataset:
    """Batches (features, labels) of blocks.

    Args:
        make: () -> the blocks, again from the first on with each call.
        batch_size: samples of a batch; the last one may have fewer.
    """

    def tensors() -> Iterator[tuple[Any, ...]]:
        for block in in_whole(make(), batch_size):
            yield block.labels, block.counts, block.ids

    signature = (
        tf.TensorSpec([None], tf.float32),
        tf.TensorSpec([None, len(NUMERIC)], tf.float32),
        tf.TensorSpec([None, len(CATEGORICAL)], tf.int64),
    )

    def batches(labels: Any, counts: Any, ids: Any) -> tf.data.Dataset:
        size = tf.shape(labels, tf.int64)[0]

        def batch(start: Any) -> Any:
            end = tf.minimum(start + batch_size, size)
            features = dict(zip(NUMERIC, tf.split(counts[start:end], len(NUMERIC), 1), strict=True))
            columns = tf.split(ids[start:end], len(CATEGORICAL), 1)
            features |= dict(zip(CATEGORICAL, columns, strict=True))
            return features, labels[start:end, tf.newaxis]

        return tf.data.Dataset.range(0, size, batch_size).map(batch)

    blocks = tf.data.Dataset.from_generator(tensors, output_signature=signature)
    options = tf.data.Options()
    # There is nothing to tune, and an iterator may wait for the tuner when it ends, up to a minute.
    options.autotune.enabled = False
    return blocks.prefetch(1).flat_map(batches).with_options(options)
