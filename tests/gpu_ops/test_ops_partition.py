"""PartitionWithPermutation over the launcher, with the simulator as the driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.gpu_ops.driver import gpus, on_gpu
from tests.gpu_ops.test_ops import same

SHAPES = [[7, 4], [6, 4], [6, 4]]


def flat(found: Any) -> list[Any]:
    return tf.nest.flatten(found)


def waits() -> int:
    return gpus().log.count("cuStreamSynchronize")


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("strategy", ["div", "mod", "mod_ev"])
@pytest.mark.parametrize("count", [0, 30])
def test_partition(count: int, strategy: str, dtype: Any) -> None:
    ids = np.random.default_rng(count).integers(0, 18, count).astype(dtype)

    def split(ids: Any) -> Any:
        shapes = [tf.constant(shape, tf.int64) for shape in SHAPES]
        return ops.partition_with_permutation(
            input=ids, partition_shapes=shapes, partition_strategy=strategy
        )

    gpus().log.clear()
    found = on_gpu(split, ids)
    assert waits() == 1
    same(flat(found), flat(split(ids)))


def test_partition_refuses_what_the_cpu_refuses() -> None:
    def split(ids: Any, rows: Any) -> Any:
        return ops.partition_with_permutation(input=ids, partition_shapes=[rows, rows])

    good = np.array([3, 4], np.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="element 1 has id 6, which is not in"):
        on_gpu(split, np.array([5, 6]), good)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has -1 rows"):
        on_gpu(split, np.array([5]), np.array([-1, 4]))
