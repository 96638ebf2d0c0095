"""The kernels of the post-lookup ops of both families, which differ in how they read bags.

A family's forward op has the outputs `emb_vectors` and `feature_nums`, its gradient op
`grad_shards` and `grad_weights`; both have `emb_shards` and attrs of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fusion.cpu_ops import combine, combine_grad
from fusion.ops.cpu.float_access import access
from fusion.runtime.native.frame import (
    attr,
    attr_float,
    failed,
    matrix,
    output_matrix,
    output_vector,
    scratch,
    scratch_matrix,
    size,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.spec import OpSpec


class Bags(NamedTuple):
    """The entries of a batch by row, in compiled code.

    Attributes:
      rows: int64 [u], addresses of gathered rows [D] of the compute dtype.
      row_indices: int32 [m], the gathered row of each entry.
      starts, order: see `combine.group_by_row`.
      is_row_empty: flags of the rows of the batch.
      mask_empty: whether flagged rows give zeros.
      weights: [m] of the compute dtype, or a dummy.
    """

    rows: Any
    row_indices: Any
    starts: Any
    order: Any
    is_row_empty: Any
    mask_empty: Any
    weights: Any


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
    def clip(frame: int, addresses: Any, limit: float) -> Any:
        """Replaces rows by their clipped copies; nothing if `limit` < 0."""
        if limit < 0:
            return addresses
        dim = size(frame, arg.emb_shards, 0, 1)
        copies = scratch_matrix(frame, addresses.shape[0], dim, dtype)
        clipped = scratch(frame, addresses.shape[0], np.int64)
        if failed(frame):
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
    def by_attr(frame: int) -> bool:
        return attr(frame, slot) != 0

    return by_attr


def forward_kernel(
    spec: OpSpec, types: Mapping[str, str], count_rows: Any, read_bags: Any
) -> Callable[[int], None]:
    """The kernel body that combines rows.

    Args:
      spec, types: the op and its dtypes.
      count_rows: jitted, (frame) -> the rows of the result.
      read_bags: jitted, (frame, rows of the result) -> Bags, checked.
    """
    table = access(types["T"])
    stored, dtype, working, write = table.stored, table.compute, table.working, table.write
    slot, arg = spec.slots, spec.input_indices
    clip, no_nan = _row_clipper(spec, types), _division(spec)

    def body(frame: int) -> None:
        n_rows = count_rows(frame)
        if failed(frame):
            return
        bags = read_bags(frame, n_rows)
        rows = clip(frame, bags.rows, attr_float(frame, slot.max_norm))
        dim = size(frame, arg.emb_shards, 0, 1)
        block = scratch(frame, dim, dtype)
        if failed(frame):
            return
        output = output_matrix(frame, 0, 0, n_rows, dim, stored)
        out = working(frame, output)
        counts = output_vector(frame, 1, 0, n_rows, np.int32)
        if failed(frame):
            return
        combine.combine_bags(
            rows,
            bags.row_indices,
            bags.starts,
            bags.order,
            bags.is_row_empty,
            bags.mask_empty,
            bags.weights,
            attr(frame, slot.use_sparse_weights) != 0,
            attr(frame, slot.combiner),
            no_nan(frame),
            dtype,
            block,
            out,
            counts,
        )
        write(out, output)

    return body


def gradient_kernel(
    spec: OpSpec, types: Mapping[str, str], read_bags: Any, outputs: GradOutputs
) -> Callable[[int], None]:
    """The kernel body of the gradient; see `forward_kernel`."""
    table, weight = access(types["T"]), access(types["Tw"])
    stored, dtype, read = table.stored, table.compute, table.read
    working_rows, write_rows = table.working_rows, table.write_rows
    working, write = weight.working, weight.write
    slot, arg = spec.slots, spec.input_indices
    clip = _row_clipper(spec, types)
    allocate_rows, allocate_weights, put_weights = outputs

    def body(frame: int) -> None:
        top_grad = read(frame, matrix(frame, arg.top_grad, 0, stored))
        bags = read_bags(frame, top_grad.shape[0])
        if failed(frame):
            return
        dim = top_grad.shape[1]
        limit = attr_float(frame, slot.max_norm)
        addresses = allocate_rows(frame, bags.rows.shape[0])
        grad_rows = working_rows(frame, addresses, dim)
        scaled = scratch(frame, dim, dtype)
        product = scratch(frame, dim, dtype)
        touched = scratch(frame, bags.rows.shape[0], np.bool_)
        if failed(frame):
            return
        weighted = attr(frame, slot.use_sparse_weights) != 0
        combiner = attr(frame, slot.combiner)
        combine_grad.scatter_rows(
            top_grad,
            grad_rows,
            bags.row_indices,
            bags.starts,
            bags.order,
            bags.is_row_empty,
            bags.mask_empty,
            bags.weights,
            weighted,
            combiner,
            dtype,
            scaled,
            product,
            touched,
        )
        if limit >= 0:
            combine_grad.unclip_rows(bags.rows, grad_rows, dim, limit, dtype)
        write_rows(grad_rows, addresses, dim)
        grad_weights = allocate_weights(frame, bags.row_indices.shape[0] if weighted else int64(0))
        if weighted:
            clipped = clip(frame, bags.rows, limit)
            weight_grads = working(frame, grad_weights)
            if failed(frame):
                return
            combine_grad.weight_grads(
                top_grad,
                clipped,
                bags.row_indices,
                bags.starts,
                bags.order,
                bags.is_row_empty,
                bags.mask_empty,
                bags.weights,
                combiner,
                dtype,
                scaled,
                product,
                weight_grads,
            )
            write(weight_grads, grad_weights)
        put_weights(frame, grad_weights)

    return body
