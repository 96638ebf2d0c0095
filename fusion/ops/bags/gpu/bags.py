"""Combining gathered rows into bags on a GPU, for the v2 family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import carray

from fusion.cpu_ops import column_layout
from fusion.cpu_ops.column_layout import ColumnAttrs, ColumnInputs
from fusion.gpu_ops.host.device_methods import copy_in, error_record, on_host
from fusion.gpu_ops.layout import combine as combine_layout
from fusion.gpu_ops.layout.arrays import array_index
from fusion.gpu_ops.layout.call import CombineCall
from fusion.gpu_ops.steps import combine
from fusion.ops.bags.gpu_steps.bags import last_row
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import pointer, store
from fusion.runtime.native.pointers import as_record, stack_words
from fusion.runtime.tensorflow.dtypes import DTYPES, INT64
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.attributes import MAX_ENTRIES

_WORDS = combine_layout.words_of_call(1, 0)
#: Of a table of bytes from 0 on: addresses are its ids.
_ALL_MEMORY = 2**63 - 1

_open_call, _array_index = on_host(combine_layout.open_call), on_host(array_index)
_put_output, _lay_out = on_host(combine_layout.put_output), on_host(combine_layout.lay_out)
_tiles_of, _last_row = on_host(combine_layout.tiles_of), on_host(last_row)
_combine_columns = on_host(combine.combine_columns)


def bag_combiner(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function (frame, device, Bags, entries, rows, skew, out) that writes the result.

    `skew` is the remainder of the addresses of gathered rows modulo 16.
    """
    slot, arg = spec.slots, spec.input_indices
    item, dtype = DTYPES[types["T"]].item_bytes, DTYPES[types["T"]].code
    weights_dtype = DTYPES[types["Tw"]].code

    @jit
    def describe(
        frame: op.Frame, call: Array, base: int, bags: Any, number: int, batch: int
    ) -> None:
        column = as_record(
            ColumnAttrs, call.ctypes.data + 8 * _array_index(call, base, CombineCall.columns)
        )
        column.id_format = column_layout.ROW_SPLITS
        column.combiner = op.attr(frame, slot.combiner)
        column.max_norm = op.attr_float(frame, slot.max_norm)
        column.prune = 1
        column.default_id = -1
        column.use_sparse_weights = int64(bags.weights != 0)
        column.divide_no_nan = op.attr(frame, slot.divide_no_nan)
        column.ids_dtype = INT64
        column.rows_dtype = INT64
        source = as_record(
            ColumnInputs, call.ctypes.data + 8 * _array_index(call, base, CombineCall.inputs)
        )
        source.table_rows = _ALL_MEMORY
        source.table_dim = op.size(frame, arg.emb_shards, 0, 1)
        source.table_dtype = weights_dtype
        source.row_bytes = 1
        source.ids = bags.addresses
        source.id_count = number
        source.id_columns = 1
        source.entry_rows = bags.starts
        source.entry_row_stride = 1
        source.weights = bags.weights
        source.batch_size = batch

    @jit
    def combine_bags(
        frame: op.Frame, device: Any, bags: Any, number: int, batch: int, skew: int, out: int
    ) -> None:
        base = device.reserve(8 * _WORDS)
        call = carray(pointer(stack_words(_WORDS), np.int64), (_WORDS,))
        _open_call(call, base, int64(1))
        describe(frame, call, base, bags, number, batch)
        _put_output(call, base, int64(0), int64(1), int64(item), out)
        _lay_out(call, base, batch, item, skew)
        call[CombineCall.errors] = error_record(device)
        copy_in(device, base, call.ctypes.data, int64(8 * _WORDS))
        tiles = _tiles_of(call, base, CombineCall.tiles)
        _combine_columns(device, dtype, base, tiles, call[CombineCall.is_all_plain])

    return combine_bags


def shard_lister(spec: OpSpec) -> Any:
    """A jitted function (frame, device) -> (shards, firsts, rows of all, skew).

    `shards` and `firsts` are addresses of the GPU's: of int64 [P, 2], the address and the rows of
    each shard, and of int64 [P + 1], the rows before each, and those of all.
    """
    shards_index = spec.input_indices.emb_shards

    @jit
    def list_shards(frame: op.Frame, device: Any) -> Any:
        count, total, skew = op.list_length(frame), int64(0), int64(0)
        words = 3 * count + 1
        host = stack_words(words)
        for shard in range(count):
            address, rows = (
                op.data(frame, shards_index, shard),
                op.size(frame, shards_index, shard, 0),
            )
            store(host, 2 * shard, address)
            store(host, 2 * shard + 1, rows)
            store(host, 2 * count + shard, total)
            total, skew = total + rows, skew | (address % 16)
        store(host, 2 * count + count, total)
        listed = device.reserve(8 * words)
        copy_in(device, listed, host, 8 * words)
        return listed, listed + 16 * count, total, skew

    return list_shards


@jit
def rows_to_last(frame: int, device: Any, indices: int, number: int) -> int:
    """The rows up to that of the last entry, int64 [number, 2]; those before must be in order."""
    if number == 0:
        return int64(0)
    rows = device.words(_last_row(device, indices, number, error_record(device)), 1)[0]
    if rows > int64(MAX_ENTRIES):
        text = "there are %lld rows, but at most %lld can be ordered"
        op.fail(frame, op.INVALID_ARGUMENT, text, rows, int64(MAX_ENTRIES))
    return rows
