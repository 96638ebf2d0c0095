"""Which ops a lookup may become."""

from __future__ import annotations

import numpy as np

from fusion.passes.analysis.value_ranges import Range, range_of, wrapped
from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.safety import loses_digits
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.spec import (
    DenseIds,
    JoinedIds,
    LookupSpec,
    RaggedIds,
    RowIds,
    SparseIds,
)
from fusion.passes.recognise.stock.products import Product
from fusion.passes.recognise.stock.rows import Rows, Shaped
from fusion.runtime.tensorflow.private import DeviceSpecV2 as DeviceSpec
from fusion.runtime.tensorflow.private import dtypes
from fusion.runtime.tensorflow.variable_access import is_shared
from fusion.schema.attributes import HALF_TYPES
from fusion.schema.op_history import Release


def is_bare(lookup: LookupMatch) -> bool:
    """Whether a lookup is a gather and nothing else, for which there is nothing better alone."""
    return isinstance(lookup.parts.whole, Rows)


def is_shaped(lookup: LookupMatch) -> bool:
    """Whether a lookup's result may be something else than a matrix."""
    return isinstance(lookup.parts.whole, Shaped)


def is_joinable(lookup: LookupMatch) -> bool:
    """Whether one op gives a lookup's result, which an op for many may then give."""
    whole = lookup.parts.whole
    return not isinstance(whole, Product) or whole.is_bag


def fits_one_op(
    view: GraphView, lookup: LookupMatch, vanishing: set[str], writers: SparseWriters
) -> bool:
    """Whether one op can replace the lookup: none of its other outputs is read."""
    return shares_table(view, lookup, writers) and not _are_empty_rows_read(view, lookup, vanishing)


def shares_table(view: GraphView, lookup: LookupMatch, writers: SparseWriters) -> bool:
    """Whether a fused op can read the table itself, in its place, without a copy of it.

    A variable has to be shared with the ops that change its rows: a graph does not show whether
    another graph of this process has such ops.
    """
    shard = lookup.full_spec.table.shards[0]
    if shard.kind == "resource" and not can_share(view, lookup.full_spec.table.dtype, shard.device):
        return False
    return reads_table_well(view, lookup, writers)


def reads_table_well(view: GraphView, lookup: LookupMatch, writers: SparseWriters) -> bool:
    """Whether an op that reads the table itself does what the lookup does, and no worse."""
    spec = lookup.full_spec
    table = spec.table
    if needs_cpu(lookup) and not is_on_cpu(view, spec.anchor):
        return False
    if table.strategy or not (table.max_norm is None or clips_in_op(spec)):
        return False
    if not _is_on_table_device(view, spec) or loses_digits(view, spec):
        return False
    return not writers.change(view, table.shards[0].tensor)


def reads_whole(
    view: GraphView, lookup: LookupMatch, writers: SparseWriters, runtime: Release
) -> bool:
    """Whether a stock op may read the table whole, and a TensorFlow release has what that takes."""
    spec = lookup.full_spec
    is_variable = spec.table.shards[0].kind == "resource"
    if is_variable and not (
        is_small(spec.table.dtype, spec.table.shape) or can_read_large(runtime)
    ):
        return False
    if not runtime.has("SparseSegmentSum", "Tidx", spec.dtype):
        return False
    return reads_table_well(view, lookup, writers)


def can_read_large(runtime: Release) -> bool:
    """Whether a release can let those who read a variable share it, whatever accessed its rows."""
    return runtime.has("DisableCopyOnRead")


def needs_cpu(lookup: LookupMatch) -> bool:
    """Whether a lookup adds rows as dense ops do, for which GPUs have no kernels."""
    return lookup.full_spec.column.is_dense_sum or isinstance(lookup.parts.whole, Product)


def _are_empty_rows_read(view: GraphView, lookup: LookupMatch, vanishing: set[str]) -> bool:
    """Whether a node that stays reads which rows were filled, which one op does not output."""
    flags = lookup.is_row_empty
    return flags is not None and any(
        use.position < 0 or (use.node not in vanishing and view.is_live(use.node))
        for use in view.tensor_uses(flags)
    )


def _is_on_table_device(view: GraphView, spec: LookupSpec) -> bool:
    """Whether the table is where the lookup is. Else its rows travel, but not all of it."""
    shard = spec.table.shards[0]
    colocated = (group.removeprefix("loc:@") for group in shard.colocation)
    names = (*colocated, view.origin(shard.tensor).node)
    devices = (shard.device, *(view.nodes[name].device for name in names if name in view.nodes))
    home = next((device for device in devices if device), "")
    return placement(view, home) == placement(view, view.nodes[spec.anchor].device)


def is_on_cpu(view: GraphView, name: str) -> bool:
    """Whether a node runs on a CPU."""
    device = view.nodes[name].device
    kind = (DeviceSpec.from_string(device).device_type if device else None) or view.home_type
    return bool(kind.upper() == "CPU")


def placement(view: GraphView, device: str) -> str:
    """Returns what is left of a device's name without what goes without saying."""
    task, _, kind = device.replace("/cpu:", "/device:CPU:").partition("/device:")
    task = "" if task in ("/job:localhost/replica:0/task:0", "/job:localhost") else task
    return f"{task}/{'' if kind.upper() in (view.home_type, f'{view.home_type}:0') else kind}"


def can_split(spec: LookupSpec) -> bool:
    """Whether ops around a gather of distinct ids compute a lookup.

    They add rows as sparse segment reductions do, of ids that are entries of bags.
    """
    ids, column = spec.ids, spec.column
    if column.is_dense_sum:
        return False
    if isinstance(ids, SparseIds):
        return not ids.columns and not ids.padded
    if isinstance(ids, DenseIds):
        return column.fill_empty_row and not ids.is_each and not ids.wraps and ids.lengths is None
    return isinstance(ids, RaggedIds | RowIds) and not ids.wraps


def can_stack(view: GraphView, spec: LookupSpec) -> bool:
    """Whether a lookup can be a column of a stack."""
    table, ids, column = spec.table, spec.ids, spec.column
    if table.strategy or table.max_norm is not None or table.shards[0].is_vector:
        return False
    if not all(table.shape):
        return False  # an empty table has no row 0, which stock reads where there is no id
    if view.op(view.resolve(table.shards[0].tensor).node) != "Const":
        return False
    if not isinstance(ids, DenseIds) or not has_one_per_row(view, spec) or loses_digits(view, spec):
        return False
    if ids.is_each and not column.prune:
        return True
    if ids.hashed is not None:
        return column.default_id < 0 and not column.num_buckets
    if ids.ignored is None and _is_never_negative(view, spec):
        return True
    # Then a negative id, the ignored one among them, has to be all that gives zeros.
    is_negative = ids.ignored is None or (ids.ignored < 0 and not column.num_buckets)
    return is_negative and column.prune and column.default_id < 0


def _is_never_negative(view: GraphView, spec: LookupSpec) -> bool:
    low = lookup_range(view, spec).low
    return low is not None and low >= 0


_SMALL_BYTES = 1 << 16
"""A copy of so much takes some microseconds."""


def can_share(view: GraphView, dtype: int, device: str) -> bool:
    """Whether ReadEmbeddingTables has a kernel for variables of a DataType on a device."""
    kind = DeviceSpec.from_string(device).device_type or view.home_type
    return is_shared(dtypes.as_dtype(dtype).name, kind)


def is_small(dtype: int, shape: Shape) -> bool:
    """Whether copying a table costs about as little as an op."""
    rows, dim, *_ = (*shape, 1)  # of a vector, numbers are rows
    size = dtypes.as_dtype(dtype).size
    return rows is not None and dim is not None and rows * dim * size <= _SMALL_BYTES


def clips_in_op(spec: LookupSpec) -> bool:
    """Whether an op clips rows with the same numbers as stock, but for rounding.

    Stock clips half types in their own arithmetic. The op's limit is a float32, and a negative one
    is none.
    """
    limit = spec.table.max_norm
    if limit is None or spec.table.dtype in HALF_TYPES:
        return False
    with np.errstate(over="ignore"):
        return limit >= 0 and float(np.float32(limit)) == limit


def has_one_per_row(view: GraphView, spec: LookupSpec) -> bool:
    """Whether each id is all of a row, as in a matrix of one column."""
    if not isinstance(spec.ids, DenseIds) or not spec.column.fill_empty_row:
        return False
    if spec.ids.is_each:
        return True
    shape = view.shape(spec.ids.values)
    return shape is not None and len(shape) == 2 and shape[1] == 1


def needs_prune(view: GraphView, spec: LookupSpec) -> bool:
    """Whether ids < 0 are dropped, and there may be such ids."""
    low = lookup_range(view, spec).low
    return spec.column.prune and (low is None or low < 0)


def lookup_range(view: GraphView, spec: LookupSpec) -> Range:
    """Returns the bounds of the ids of a lookup's entries, before any of them is pruned."""
    ids, default = spec.ids, spec.column.bucket_default
    if spec.column.num_buckets:
        return Range(0, spec.column.num_buckets - 1).covers(Range(default, default))
    if isinstance(ids, JoinedIds):
        return Range()
    if not isinstance(ids, DenseIds):
        return range_of(Value(view, ids.values))
    source = Tensor(ids.hashed.by[-1]) if ids.hashed is not None else ids.values
    bounds = range_of(Value(view, source))
    if ids.stride:
        shape = view.shape(ids.values)
        width = shape[1] if shape is not None and len(shape) == 2 else None
        if width is None or bounds.low is None or bounds.high is None or ids.stride < 0:
            return Range()
        bounds = Range(bounds.low, bounds.high + ids.stride * max(width - 1, 0))
    return wrapped(bounds, spec.dtype)
