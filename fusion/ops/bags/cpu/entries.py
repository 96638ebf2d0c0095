"""Prunes the entries of a batch and fills the rows left empty.

The first op of either family does this: PruneInvalidAndFillEmptyRows and
FusedEmbeddingSparsePreLookUp. Their inputs `sp_...` and most attrs have the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops.elements import overflows
from fusion.cpu_ops.half import narrower
from fusion.ops.bags.cpu_kernels import prune as kernels
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


class Listing(NamedTuple):
    """Jitted functions of a call's frame.

    Attributes:
      check_shape: (frame) -> None; reports a dense shape that no tensor can have.
      prunes: (frame) -> (the smallest id that is kept, whether weights <= 0 are dropped).
      mark: (frame, weights, is_row_empty) -> the number of entries kept; sets `is_row_empty` [B].
        Reports a row outside [0, B).
      entries: (frame, weights, is_row_empty, m) -> int64 [m], see `prune.list_entries`.
      fill_id: (frame) -> the id of the entries that fill rows.
      fill_weight: (frame) -> their weight, as it is stored.
    """

    check_shape: Any
    prunes: Any
    mark: Any
    entries: Any
    fill_id: Any
    fill_weight: Any


def listing(spec: OpSpec, types: Mapping[str, str], prune_attr: str) -> Listing:
    """The functions for an op whose attr `prune_attr` says whether to drop invalid entries.

    `weights` are the op's, in the compute dtype.
    """
    tid, arg = DTYPES[types["Tid"]].stored_type, spec.input_indices
    check_shape, prunes = shape_checker(spec), pruner(spec, prune_attr)

    @jit
    def mark(frame: op.Frame, weights: Array, is_row_empty: Array) -> int:
        values = op.vector(frame, arg.sp_values, tid)
        rows = op.matrix(frame, arg.sp_indices, 0, np.int64)
        min_id, prune_weights = prunes(frame)
        kept_count = kernels.mark_rows(values, rows, weights, min_id, prune_weights, is_row_empty)
        if kept_count < 0:
            bad, batch = -1 - kept_count, int64(is_row_empty.shape[0])
            text = "sp_indices[%lld, 0] = %lld is not in [0, %lld), the rows of the batch"
            op.fail(frame, op.INVALID_ARGUMENT, text, bad, rows[bad, 0], batch)
        return kept_count

    @jit
    def entries(frame: op.Frame, weights: Array, is_row_empty: Array, count: int) -> Array:
        values = op.vector(frame, arg.sp_values, tid)
        min_id, prune_weights = prunes(frame)
        result = op.scratch(frame, count, np.int64)
        if not op.failed(frame):
            kernels.list_entries(values, weights, min_id, prune_weights, is_row_empty, result)
        return result

    fill_id, fill_weight = check_fill_id(spec, types), weight_of_filler(spec, types)
    return Listing(check_shape, prunes, mark, entries, fill_id, fill_weight)


def shape_checker(spec: OpSpec) -> Any:
    """A jitted function (frame) that reports a dense shape that no tensor can have."""
    shape_index = spec.input_indices.sp_dense_shape

    @jit
    def check_shape(frame: op.Frame) -> None:
        shape = op.vector(frame, shape_index, np.int64)
        if shape[0] < 0 or shape[1] < 0:
            text = "sp_dense_shape must not be negative, but is [%lld, %lld]"
            op.fail(frame, op.INVALID_ARGUMENT, text, shape[0], shape[1])
        elif overflows(shape[0], shape[1]):
            text = "sp_dense_shape has 2**63 elements or more: it is [%lld, %lld]"
            op.fail(frame, op.INVALID_ARGUMENT, text, shape[0], shape[1])

    return check_shape


def pruner(spec: OpSpec, prune_attr: str) -> Any:
    """A jitted function (frame) -> (the smallest id that is kept, whether to drop weights <= 0)."""
    slot, prune_slot = spec.slots, getattr(spec.slots, prune_attr)
    min_id = np.int64(np.iinfo(np.int64).min)
    # Ids that are put in buckets are valid from then on.
    bucket_slot = getattr(slot, "num_buckets", prune_slot)
    has_buckets = bucket_slot != prune_slot

    @jit
    def prunes(frame: op.Frame) -> Any:
        prune = op.attr(frame, prune_slot) != 0
        use_weights = op.attr(frame, slot.use_sparse_weights) != 0
        by_weight = prune and use_weights and op.attr(frame, slot.prune_sparse_weights) != 0
        in_buckets = has_buckets and op.attr(frame, bucket_slot) > 0
        return int64(0) if prune and not in_buckets else min_id, by_weight

    return prunes


def weight_of_filler(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function (frame) -> the weight of entries that fill rows, as it is stored."""
    slot, name = spec.slots.default_weight, types["Tw"]
    stored = DTYPES[name].stored_type
    if not DTYPES[name].is_widened:

        @jit
        def direct(frame: op.Frame) -> Any:
            return stored(op.attr_float(frame, slot))

        return direct

    narrow = narrower(name)

    @jit
    def narrowed(frame: op.Frame) -> Any:
        return stored(narrow(np.float32(op.attr_float(frame, slot))))

    return narrowed


def check_fill_id(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function (frame) -> the id of the entries that fill rows; reports one too large."""
    tid, slot = DTYPES[types["Tid"]].stored_type, spec.slots
    largest_id = np.iinfo(tid).max

    @jit
    def fill_id(frame: op.Frame) -> Any:
        if op.attr(frame, slot.default_id) > largest_id:
            text = "default_id = %lld does not fit the type of sp_values"
            op.fail(frame, op.INVALID_ARGUMENT, text, op.attr(frame, slot.default_id))
        return tid(max(op.attr(frame, slot.default_id), 0))

    return fill_id
