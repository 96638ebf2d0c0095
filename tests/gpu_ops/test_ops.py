"""Whole ops over the launcher, with the simulator in the place of NVIDIA's driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusion import ops
from tests.gpu_ops.driver import gpus, on_gpu


def same(found: Any, wanted: Any) -> None:
    """The bits of tensors as NumPy arrays."""
    for one, other in zip(found, (tensor.numpy() for tensor in wanted), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_unique(count: int, dtype: Any) -> None:
    ids = np.random.default_rng(count).integers(-9, 9, count).astype(dtype)
    gpus().log.clear()
    found = on_gpu(lambda x: ops.unique_with_counts_v3(input=x), ids)
    same(found, ops.unique_with_counts_v3(input=ids))
    assert gpus().log.count("insert_ids") == 1
    assert gpus().log.count("cuStreamSynchronize") == 1
