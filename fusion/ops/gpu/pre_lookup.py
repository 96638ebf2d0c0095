"""FusedEmbeddingSparsePreLookUp on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.cpu_ops.elements import MOST_ROWS
from fusion.gpu_ops.host.device_methods import copy_in, error_record, on_host
from fusion.gpu_ops.steps.pre_lookup import Rules, put_split_entries, split_entries
from fusion.gpu_ops.steps.prune import Entries
from fusion.ops.cpu.entries import check_fill_id, pruner, shape_checker, weight_of_filler
from fusion.ops.gpu.bags import rows_to_last
from fusion.ops.gpu.bits import bits_of
from fusion.ops.gpu.partition import shard_reader
from fusion.runtime.native.errors import INVALID_ARGUMENT, fail
from fusion.runtime.native.frame import (
    attr,
    data,
    failed,
    output_matrix,
    output_vector,
    size,
    vector,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import stack_words, store
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import LAST_ROW, MOST_ENTRIES


def _rules_of(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function (frame) -> the call's `steps.pre_lookup.Rules`."""
    slot, prunes = spec.slots, pruner(spec, "prune_invalid_id")
    fill_id, fill_weight = check_fill_id(spec, types), weight_of_filler(spec, types)
    bits = bits_of(DTYPES[types["Tw"]].stored_type)

    @jit
    def rules(frame: int) -> Any:
        least, by_weight = prunes(frame)
        filler, weight = int64(fill_id(frame)), bits(fill_weight(frame))
        fills, by_row = attr(frame, slot.fill_empty_row), attr(frame, slot.entry_order)
        return Rules(least, int64(by_weight), fills, filler, weight, by_row)

    return rules


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int, Any], None]:
    """The kernel body (frame, device)."""
    slot, arg = spec.slots, spec.input_indices
    tid, kind = DTYPES[types["Tid"]].stored_type, DTYPES[types["Tid"]].code
    stored, weight_kind = DTYPES[types["Tw"]].stored_type, DTYPES[types["Tw"]].code
    item, check_shape = DTYPES[types["Tw"]].item_bytes, shape_checker(spec)
    read_shards, rules_of = shard_reader(spec), _rules_of(spec, types)
    split, put = on_host(split_entries), on_host(put_split_entries)

    @jit
    def count_rows(frame: int, device: Any) -> int:
        if attr(frame, slot.row_count) != LAST_ROW:
            check_shape(frame)
            return min(vector(frame, arg.sp_dense_shape, np.int64)[0], int64(MOST_ROWS))
        number = size(frame, arg.sp_indices, 0, 0)
        return rows_to_last(frame, device, data(frame, arg.sp_indices, 0), number)

    def pre_lookup(frame: int, device: Any) -> None:
        batch, rules = count_rows(frame, device), rules_of(frame)
        shards, count = read_shards(frame, device), size(frame, arg.sp_values, 0, 0)
        if failed(frame):
            return
        flags = output_vector(frame, 2, 0, batch + count, np.int32).ctypes.data
        most = count + (batch if rules.fills != 0 else int64(0))
        if most > int64(MOST_ENTRIES):
            text = "%lld entries are more than the %lld that can be ordered"
            fail(frame, INVALID_ARGUMENT, text, most, int64(MOST_ENTRIES))
        if failed(frame):
            return
        weighted = attr(frame, slot.use_sparse_weights) != 0
        weights = data(frame, arg.sp_weights_values, 0) if weighted else int64(0)
        ids, indices = data(frame, arg.sp_values, 0), data(frame, arg.sp_indices, 0)
        entries = Entries(ids, kind, count, indices, batch, weights, weight_kind, item)
        partitioned = split(device, entries, rules, shards, flags, error_record(device))
        starts = device.words(partitioned.starts, shards.number + 1)
        host = stack_words(3 * shards.number)
        for shard in range(shards.number):
            count_here = starts[shard + 1] - starts[shard]
            store(host, 3 * shard, output_vector(frame, 0, shard, count_here, tid).ctypes.data)
            rows = output_matrix(frame, 1, shard, count_here, 2, np.int64)
            store(host, 3 * shard + 1, rows.ctypes.data)
            store(
                host, 3 * shard + 2, output_vector(frame, 3, shard, count_here, stored).ctypes.data
            )
        outs = device.reserve(24 * shards.number)
        copy_in(device, outs, host, 24 * shards.number)
        put(device, entries, rules, shards, partitioned, starts[shards.number], outs)

    return pre_lookup
