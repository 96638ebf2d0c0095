"""The kernels that list dense ids, in the simulator: PruneDenseAndFillEmptyRows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.gpu_ops.layout.records import DenseIds, PrunedEntries
from fusion.ops.bags.cpu_kernels.prune_dense import DenseRules
from fusion.ops.bags.gpu_steps.prune_dense import fill_dense, mark_dense, put_dense
from fusion.runtime.tensorflow.dtypes import INT32, INT64
from tests.gpu_ops.simulation import Simulated

LEAST = np.iinfo(np.int64).min
KINDS = {np.int32: INT32, np.int64: INT64}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"use_ignored_id": True, "ignored_id": 4, "prune": True},
    {"column_stride": 12, "fill_empty_row": True, "default_id": 3},
    {
        "use_ignored_id": True,
        "ignored_id": -1,
        "num_buckets": 9,
        "bucket_default": 5,
        "prune": True,
        "fill_empty_row": True,
    },
]


def listed(ids: Any, dtype: Any, **attrs: Any) -> tuple[Any, ...]:
    """What the kernels make of a matrix."""
    device, (batch, width) = Simulated(), ids.shape
    given = DenseIds(device.put(ids), KINDS[ids.dtype.type], batch, width, KINDS[dtype])
    rules = DenseRules(
        attrs.get("use_ignored_id", False),
        attrs.get("ignored_id", -1),
        attrs.get("column_stride", 0),
        attrs.get("num_buckets", 0),
        attrs.get("bucket_default", 0),
        0 if attrs.get("prune") else LEAST,
    )
    flags, shape = device.reserve(batch), device.reserve(16)
    marked, found = mark_dense(device, given, rules, flags, shape)
    kept, empty = (int(word) for word in device.words(marked.totals, 2))
    total = kept + empty * attrs.get("fill_empty_row", False)
    ids_out = device.reserve(np.dtype(dtype).itemsize * total)
    out = PrunedEntries(ids_out, device.reserve(16 * total), 0)
    put_dense(device, given, marked, found, out)
    if attrs.get("fill_empty_row"):
        fill_dense(device, given, marked, kept, max(attrs.get("default_id", -1), 0), out)
    return (
        device.get(out.ids, total, dtype),
        device.get(out.indices, 2 * total, np.int64).reshape(total, 2),
        device.get(flags, batch, np.bool_),
        device.get(shape, 2, np.int64),
    )


def same(shape: tuple[int, int], given: Any, dtype: Any, options: dict[str, Any]) -> None:
    ids = np.random.default_rng(1).integers(-3, 12, shape).astype(given)
    ids[::3] = -1
    if ids.size and given is np.int64:
        ids[0, 0] = 2**40 + 4  # to int32 it is 4, but not ignored
    wanted = ops.prune_dense_and_fill_empty_rows(dense_ids=ids, Tid=tf.as_dtype(dtype), **options)
    for mine, theirs in zip(listed(ids, dtype, **options), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy(), strict=True)


@pytest.mark.parametrize(("given", "dtype"), [*itertools.product(KINDS, KINDS)])
def test_entries_are_those_of_the_cpu(given: Any, dtype: Any) -> None:
    for options in OPTIONS[1:]:
        same((7, 3), given, dtype, options)


@pytest.mark.parametrize("shape", [(1, 1), (0, 4), (3, 0), (50, 3)])
def test_shapes(shape: tuple[int, int]) -> None:
    same(shape, np.int64, np.int32, OPTIONS[3])
    if shape == (1, 1):
        same(shape, np.int64, np.int64, OPTIONS[0])
