"""The kernels of the post-lookup ops of both families, which differ in how they read bags.

A family's forward op has the outputs `emb_vectors` and `feature_nums`, its gradient op
`grad_shards` and `grad_weights`; both have `emb_shards` and attrs of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops import combine
from fusion.cpu_ops.row_tiles import AHEAD, GatherArgs
from fusion.cpu_ops.scatter import ScatterArgs
from fusion.ops.bags.cpu.bag_layout import BagWords
from fusion.ops.bags.cpu.float_access import Access, access
from fusion.ops.bags.cpu_kernels import combine_grad
from fusion.runtime.native import op
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import call_at
from fusion.runtime.native.pointers import as_words, stack_record
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


class GradOutputs(NamedTuple):
    """Jitted functions for the outputs of a gradient op.

    Attributes:
      rows: (frame, u) -> addresses int64 [u] of the gradients of the gathered rows.
      weights: (frame, count) -> an array [count] for the gradients of the weights.
      put_weights: (frame, array) -> None; makes them the output.
    """

    rows: Any
    weights: Any
    put_weights: Any


def _row_clipper(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function that replaces rows to read by their clipped copies."""
    dtype, item = DTYPES[types["T"]].compute_type, DTYPES[types["T"]].compute_bytes
    arg = spec.input_indices

    @jit
    def clip(frame: op.Frame, addresses: Any, limit: float) -> Any:
        """Replaces rows by their clipped copies; nothing if `limit` < 0."""
        if limit < 0:
            return addresses
        dim = op.size(frame, arg.emb_shards, 0, 1)
        copies = op.scratch_matrix(frame, addresses.shape[0], dim, dtype)
        clipped = op.scratch(frame, addresses.shape[0], np.int64)
        if op.failed(frame):
            return addresses
        combine.clip_rows(addresses, limit, dtype, copies)
        for k in range(addresses.shape[0]):
            clipped[k] = copies.ctypes.data + k * dim * item
        return clipped

    return clip


def _division(spec: OpSpec) -> Any:
    """A jitted function (frame) -> whether weights that add up to 0 give zeros."""
    slot = getattr(spec.slots, "divide_no_nan", None)
    if slot is None:

        @jit
        def always(frame: int) -> bool:
            return True

        return always

    @jit
    def by_attr(frame: op.Frame) -> bool:
        return op.attr(frame, slot) != 0

    return by_attr


def _weight_lister(spec: OpSpec) -> Any:
    """A jitted function (frame, weights, order, dtype) -> the address of weights in that order."""
    slot = spec.slots

    @jit
    def list_weights(frame: op.Frame, weights: Array, order: Array, dtype: type) -> int:
        if op.attr(frame, slot.use_sparse_weights) == 0:
            return int64(0)
        listed = op.scratch(frame, order.shape[0], dtype)
        combine.list_weights(weights, order, dtype, listed)
        return listed.ctypes.data

    return list_weights


def forward_kernel(
    spec: OpSpec, types: Mapping[str, str], count_rows: Any, read_bags: Any
) -> Callable[[op.Frame], None]:
    """The kernel body that combines rows.

    Args:
      spec, types: the op and its dtypes.
      count_rows: jitted, (frame) -> the rows of the result.
      read_bags: jitted, (frame, rows of the result) -> Bags, checked.
    """
    table = access(types["T"])
    stored, dtype, working, write = table.stored, table.compute, table.working, table.write
    slot, arg, words = spec.slots, spec.input_indices, len(spec.value_attrs)
    clip, no_nan, list_weights = _row_clipper(spec, types), _division(spec), _weight_lister(spec)

    def body(frame: op.Frame) -> None:
        n_rows = count_rows(frame)
        if op.failed(frame):
            return
        bags = read_bags(frame, n_rows)
        rows = clip(frame, bags.rows, op.attr_float(frame, slot.max_norm))
        addresses = op.scratch(frame, bags.order.shape[0] + AHEAD, np.int64)
        dim = op.size(frame, arg.emb_shards, 0, 1)
        if op.failed(frame):
            return
        output = op.output_matrix(frame, 0, 0, n_rows, dim, stored)
        out = working(frame, output)
        counts = op.output_vector(frame, 1, 0, n_rows, np.int32)
        if op.failed(frame):
            return
        listed = combine.list_rows(
            rows,
            bags.row_indices,
            bags.starts,
            bags.order,
            bags.is_row_empty,
            bags.mask_empty,
            addresses,
            counts,
        )
        weights = list_weights(frame, bags.weights, bags.order[:listed], dtype)
        if op.failed(frame):
            return
        has_one_each = listed == n_rows and combine.has_one_each(bags.starts)
        args = stack_record(GatherArgs)
        args.bag_count = n_rows
        args.row_addresses = as_words(addresses.ctypes.data)
        args.bag_starts = as_words(bags.starts.ctypes.data)
        args.out = out.ctypes.data
        args.out_bytes = dim * out.itemsize
        args.combiner = op.attr(frame, slot.combiner)
        args.weights = weights
        args.divide_no_nan = int64(no_nan(frame))
        args.has_one_each = int64(has_one_each)
        args.is_streamed = 0
        args.first_element = 0
        args.end_element = dim
        call_at(op.attr(frame, words + BagWords.row_kernel), args)
        write(out, output)

    return body


def gradient_kernel(
    spec: OpSpec, types: Mapping[str, str], read_bags: Any, outputs: GradOutputs
) -> Callable[[op.Frame], None]:
    """The kernel body of the gradient; see `forward_kernel`."""
    table, weight = access(types["T"]), access(types["Tw"])
    stored, dtype, read = table.stored, table.compute, table.read
    working_rows, write_rows = table.working_rows, table.write_rows
    slot, arg = spec.slots, spec.input_indices
    scatter, grad_of_weights = _scatter(spec, dtype), _grad_of_weights(spec, types, weight)
    allocate_rows, allocate_weights, put_weights = outputs

    def body(frame: op.Frame) -> None:
        top_grad = read(frame, op.matrix(frame, arg.top_grad, 0, stored))
        bags = read_bags(frame, top_grad.shape[0])
        if op.failed(frame):
            return
        dim = top_grad.shape[1]
        limit = op.attr_float(frame, slot.max_norm)
        addresses = allocate_rows(frame, bags.rows.shape[0])
        grad_rows = working_rows(frame, addresses, dim)
        if op.failed(frame):
            return
        scatter(frame, top_grad, bags, grad_rows)
        if op.failed(frame):
            return
        if limit >= 0:
            combine_grad.unclip_rows(bags.rows, grad_rows, dim, limit, dtype)
        write_rows(grad_rows, addresses, dim)
        weighted = op.attr(frame, slot.use_sparse_weights) != 0
        grad_weights = allocate_weights(frame, bags.row_indices.shape[0] if weighted else int64(0))
        if weighted and not op.failed(frame):
            grad_of_weights(frame, top_grad, bags, grad_weights)
        if not op.failed(frame):
            put_weights(frame, grad_weights)

    return body


def _scatter(spec: OpSpec, dtype: type) -> Any:
    """A jitted function (frame, top_grad, bags, addresses) that adds up the gradients of rows."""
    slot, words, list_weights = spec.slots, len(spec.value_attrs), _weight_lister(spec)

    @jit
    def scatter(frame: op.Frame, top_grad: Array, bags: Any, addresses: Array) -> None:
        n_rows, dim, m = top_grad.shape[0], top_grad.shape[1], bags.order.shape[0]
        ranks = op.scratch(frame, addresses.shape[0], np.int32)
        sums = op.scratch(frame, addresses.shape[0], np.int64)
        splits = op.scratch(frame, n_rows + 1, np.int32)
        listed = op.scratch(frame, m, np.int32)
        masks = op.scratch(frame, n_rows if bags.mask_empty else int64(0), np.uint8)
        weights = list_weights(frame, bags.weights, bags.order, dtype)
        if op.failed(frame):
            return
        combine_grad.list_sums(
            addresses, bags.row_indices, bags.starts, bags.order, ranks, sums, splits, listed
        )
        for row in range(masks.shape[0]):
            masks[row] = combine.is_masked(row, bags.is_row_empty, True)
        args = stack_record(ScatterArgs)
        args.bag_count = n_rows
        args.top_grad = top_grad.ctypes.data
        args.top_grad_bytes = dim * top_grad.itemsize
        args.bag_starts = splits.ctypes.data
        args.row_indices = listed.ctypes.data
        args.sums = 0
        args.sum_bytes = 0
        args.sum_addresses = sums.ctypes.data
        args.masks = masks.ctypes.data if bags.mask_empty else int64(0)
        args.first_row = 0
        args.end_row = addresses.shape[0]
        args.combiner = op.attr(frame, slot.combiner)
        args.weights = weights
        args.first_element = 0
        args.end_element = dim
        call_at(op.attr(frame, words + BagWords.row_kernel), args)

    return scatter


def _grad_of_weights(spec: OpSpec, types: Mapping[str, str], weight: Access) -> Any:
    """A jitted function (frame, top_grad, bags, result) for the gradients of weights."""
    dtype, slot, clip = DTYPES[types["T"]].compute_type, spec.slots, _row_clipper(spec, types)
    working, write = weight.working, weight.write

    @jit
    def gradients(frame: op.Frame, top_grad: Array, bags: Any, result: Array) -> None:
        clipped = clip(frame, bags.rows, op.attr_float(frame, slot.max_norm))
        grads = working(frame, result)
        scaled = op.scratch(frame, top_grad.shape[1], dtype)
        total = op.scratch(frame, top_grad.shape[1], dtype)
        if op.failed(frame):
            return
        combiner = op.attr(frame, slot.combiner)
        combine_grad.weight_grads(top_grad, clipped, bags, combiner, dtype, scaled, total, grads)
        write(grads, result)

    return gradients
