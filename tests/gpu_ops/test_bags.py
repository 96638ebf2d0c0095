"""Gathered rows combined into bags, in the simulator: FusedEmbeddingSparsePostLookUpV2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import call as calls
from fusion import ops
from fusion.cpu_ops import column_layout
from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.call import CombineCall
from fusion.gpu_ops.layout.records import Entries, GatheredRows
from fusion.gpu_ops.steps.combine import combine_columns
from fusion.ops.bags.gpu_steps.bags import Bags, bags, last_row
from fusion.runtime.tensorflow.dtypes import DTYPES
from tests.gpu_ops.simulation import COMBINERS, Simulated
from tests.gpu_ops.test_combine import table


def combined(
    device: Simulated, found: Bags, batch: int, dim: int, stored: str, **attrs: Any
) -> Any:
    """What `combine` makes of bags."""
    out = table(max(batch, 1), dim, stored)[:batch]
    out[:] = 77
    count = int(device.words(found.starts + 8 * batch, 1)[0])
    column = calls.Column(
        column_layout.ROW_SPLITS, 0, 2**63 - 1, dim, ids=found.addresses, id_count=count,
        rows=found.starts, weights=found.weights,
        attrs={
            ColumnAttrs.prune: 1,
            ColumnAttrs.combiner: attrs["combiner"],
            ColumnAttrs.max_norm: attrs["limit"],
        },
    )  # fmt: skip
    call = calls.prepare(stored, batch, [column], device.put(out), device.reserve)
    held = device.arrays[-1].view(np.int64)
    held[:] = call.words
    source = (held[CombineCall.inputs] - held.ctypes.data) // 8
    held[source + ColumnInputs.row_bytes] = 1
    tiles = call.tiles(CombineCall.tiles)
    if tiles:
        kind = DTYPES[stored].code
        combine_columns(device, kind, call.base, tiles, call.is_plain)
    assert not held[call.errors]
    return out


@pytest.mark.parametrize("stored", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize(("weighted", "limit"), [(False, -1.0), (True, -1.0), (False, 0.75)])
def test_gathered_rows(
    combiner: str, weighted: bool, limit: float, shards: int, stored: str
) -> None:
    if limit >= 0 and stored == "float16":
        weighted = True  # another case instead of one more of the same
    draw, device = np.random.default_rng(shards), Simulated()
    unique, count, batch, dim = 11, 40, 7, 6
    owners = draw.integers(0, unique, 0) if shards == 1 else draw.integers(0, shards, unique)
    sizes = [unique] if shards == 1 else [int((owners == one).sum()) for one in range(shards)]
    permutation = np.zeros((unique, 2), np.int32)
    if shards > 1:
        permutation[:, 0] = owners
        for one in range(shards):
            permutation[owners == one, 1] = np.arange(sizes[one])
    rows = [table(max(size, 1), dim, stored, seed=k)[:size] for k, size in enumerate(sizes)]
    indices = np.stack([draw.integers(0, batch, count), draw.integers(0, 9, count)], 1)
    unique_idxs = draw.integers(0, unique, count).astype(np.int32)
    weights = draw.integers(-2, 4, count).astype(stored)
    empty = np.zeros(batch, np.bool_)
    empty[2] = True
    described = np.array([[device.put(one), len(one)] for one in rows], np.int64)
    item = rows[0].itemsize
    given = Entries(
        0, 0, count, device.put(indices), batch,
        *((device.put(weights), 0, item) if weighted else (0, 0, 0)),
    )  # fmt: skip
    pairs = device.put(permutation)
    gathered = GatheredRows(unique, shards, device.put(described), 0, dim * item, pairs)
    errors, counts = np.zeros(4, np.int64), device.reserve(4 * batch)
    masked, record = device.put(empty), device.put(errors)
    found = bags(device, given, device.put(unique_idxs), gathered, masked, batch, counts, record)
    assert not errors.any()
    attrs = {"combiner": COMBINERS.index(combiner), "limit": limit}
    out = combined(device, found, batch, dim, stored, **attrs)
    wanted = ops.fused_embedding_sparse_post_look_up_v2(
        emb_shards=rows,
        partition_permutation=permutation,
        sp_dense_shape=np.array([batch, 9], np.int64),
        indices_before_unique=indices,
        is_row_empty=empty,
        unique_idxs=unique_idxs,
        sp_weights_values=weights if weighted else np.zeros(1, stored),
        fill_empty_row=True,
        combiner=combiner,
        max_norm=limit,
        use_sparse_weights=weighted,
    )
    assert out.tobytes() == wanted.emb_vectors.numpy().tobytes()
    np.testing.assert_array_equal(device.get(counts, batch, np.int32), wanted.feature_nums.numpy())


@pytest.mark.parametrize(
    ("change", "record"),
    [
        (("unique_idxs", 3, 4), [call_of.BAD_ID, 0, 3, 4]),
        (("indices", (2, 0), 9), [call_of.BAD_ROW, 0, 2, 9]),
        (("permutation", (1, 1), 2), [call_of.BAD_ID, 0, 1, 2]),
        (("permutation", (0, 0), 2), [call_of.BAD_ID, 0, 0, 2]),
    ],
)
def test_errors_are_reported(change: tuple[str, Any, int], record: list[int]) -> None:
    device, rows = Simulated(), table(2, 4)
    arrays: dict[str, Any] = {
        "unique_idxs": np.arange(4, dtype=np.int32),
        "indices": np.zeros((4, 2), np.int64),
        "permutation": np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.int32),
    }
    name, index, number = change
    arrays[name][index] = number
    shards = np.array([[device.put(rows), 2], [rows.ctypes.data, 2]], np.int64)
    given = Entries(0, 0, 4, device.put(arrays["indices"]), 5, 0, 0, 0)
    gathered = GatheredRows(4, 2, device.put(shards), 0, 16, device.put(arrays["permutation"]))
    errors, unique_idxs, counts = (
        np.zeros(4, np.int64),
        device.put(arrays["unique_idxs"]),
        device.reserve(20),
    )
    bags(device, given, unique_idxs, gathered, 0, 0, counts, device.put(errors))
    assert errors.tolist() == record


def test_rows_up_to_the_last() -> None:
    device, errors = Simulated(), np.zeros(4, np.int64)
    for rows, wanted in (
        ([], 0),
        ([-4], 0),
        ([0, 0, 2], 3),
        ([2**40], 2**40 + 1),
        ([2**63 - 1], 2**48 + 1),
    ):
        indices = np.array([[row, 9] for row in rows], np.int64).reshape(-1, 2)
        found = last_row(device, device.put(indices), len(rows), device.put(errors))
        assert device.words(found, 1) == [wanted]
    assert not errors.any()
    last_row(device, device.put(np.array([[1, 0], [0, 0]])), 2, device.put(errors))
    assert errors.tolist() == [call_of.UNSORTED_ROW, 0, 1, 0]
