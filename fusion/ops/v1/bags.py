"""What the v1 post-lookup ops have in common: signature, and how their kernels read bags.

Each shard has a list of entries, and each entry a gathered row of its own. In compiled code the
entries of all shards are numbered through, shard by shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion.ops.combine import Bags, GradOutputs
from fusion.ops.float_access import access
from fusion.runtime.tensorflow.spec import Arg, OpSpec
from fusion.schema.attributes import (
    AXIS_ATTR,
    COMBINER_ATTR,
    DEFAULT_ID_ATTR,
    LAST_ROW,
    MAX_NORM_ATTR,
    MOST_ENTRIES,
    ROW_COUNT_ATTR,
    SHARDS_ATTR,
    TABLE_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
)

#: Attrs of the forward and the gradient op.
ATTRS = (
    TABLE_ATTR,
    WEIGHTS_ATTR,
    SHARDS_ATTR,
    AXIS_ATTR,
    COMBINER_ATTR,
    MAX_NORM_ATTR,
    DEFAULT_ID_ATTR,
    USE_WEIGHTS_ATTR,
    ROW_COUNT_ATTR,
)

SHARDS = Arg(
    "emb_shards", "T", "[n_p, D]", length="num_partitions", doc="gathered row of each entry"
)
INDICES = Arg(
    "partitioned_indices",
    "int64",
    "[n_p, 2]",
    length="num_partitions",
    doc="row of each entry in column 0, its rank in the row in column 1",
)
FLAGS = Arg(
    "row_empty_and_invalid_flags",
    "int32",
    "[?]",
    doc="for each row 1 if it was empty before it was filled; the rest is not read",
)
WEIGHTS = Arg(
    "partitioned_weights",
    "Tw",
    "[n_p]",
    length="num_partitions",
    when="use_sparse_weights",
    doc="or dummies",
)


def _row_locator(spec: OpSpec, types: Mapping[str, str]) -> Any:
    import numpy as np

    from fusion.cpu_ops.combine import locate_entries
    from fusion.runtime.native.frame import (
        INVALID_ARGUMENT,
        data,
        fail,
        failed,
        list_length,
        scratch,
        size,
    )
    from fusion.runtime.native.jit import int64, jit

    item = np.dtype(access(types["T"]).stored).itemsize
    arg = spec.places

    @jit
    def locate(frame: int) -> Any:
        """Addresses int64 [m] of the gathered rows."""
        n_shards = list_length(frame)
        bases = scratch(frame, n_shards, np.int64)
        counts = scratch(frame, n_shards, np.int64)
        if failed(frame):
            return bases
        total = int64(0)
        for shard in range(n_shards):
            bases[shard] = data(frame, arg.emb_shards, shard)
            counts[shard] = size(frame, arg.emb_shards, shard, 0)
            total += counts[shard]
        if total > int64(MOST_ENTRIES):
            text = "emb_shards have %lld entries, but at most %lld can be ordered"
            fail(frame, INVALID_ARGUMENT, text, total, int64(MOST_ENTRIES))
        addresses = scratch(frame, total, np.int64)
        if not failed(frame):
            row_bytes = size(frame, arg.emb_shards, 0, 1) * item
            locate_entries(bases, counts, row_bytes, addresses)
        return addresses

    return locate


def _joiners(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """Jitted functions `(frame, m)` -> the indices [m, 2] and weights [m] of all shards."""
    import numpy as np

    from fusion.runtime.native.frame import (
        attr,
        failed,
        list_length,
        matrix,
        scratch,
        scratch_matrix,
        shard_vector,
    )
    from fusion.runtime.native.jit import Array, jit

    stored = access(types["Tw"]).stored
    slot, arg = spec.slots, spec.places

    @jit
    def join_indices(frame: int, count: int) -> Array:
        if list_length(frame) == 1:
            return matrix(frame, arg.partitioned_indices, 0, np.int64)
        joined = scratch_matrix(frame, count, 2, np.int64)
        if failed(frame):
            return joined
        first = 0
        for shard in range(list_length(frame)):
            part = matrix(frame, arg.partitioned_indices, shard, np.int64)
            for k in range(part.shape[0]):
                joined[first + k, 0] = part[k, 0]
                joined[first + k, 1] = part[k, 1]
            first += part.shape[0]
        return joined

    @jit
    def join_weights(frame: int, count: int) -> Array:
        if list_length(frame) == 1 or attr(frame, slot.use_sparse_weights) == 0:
            return shard_vector(frame, arg.partitioned_weights, 0, stored)
        joined = scratch(frame, count, stored)
        if failed(frame):
            return joined
        first = 0
        for shard in range(list_length(frame)):
            part = shard_vector(frame, arg.partitioned_weights, shard, stored)
            for k in range(part.shape[0]):
                joined[first + k] = part[k]
            first += part.shape[0]
        return joined

    return join_indices, join_weights


def _grouper(spec: OpSpec) -> Any:
    import numpy as np

    from fusion.cpu_ops.combine import group_by_row, sort_bags
    from fusion.runtime.native.frame import (
        INVALID_ARGUMENT,
        fail,
        failed,
        list_length,
        scratch,
        size,
    )
    from fusion.runtime.native.jit import Array, int64, jit

    arg = spec.places

    @jit
    def fail_outside(frame: int, entry: int, row: int, n_rows: int) -> None:
        """Reports an entry by shard and place."""
        shard, place = int64(0), int64(entry)
        while place >= size(frame, arg.emb_shards, shard, 0):
            place -= size(frame, arg.emb_shards, shard, 0)
            shard += 1
        text = "partitioned_indices[%lld][%lld, 0] = %lld is not in [0, %lld), the rows"
        fail(frame, INVALID_ARGUMENT, text, shard, place, row, n_rows)

    @jit
    def group(frame: int, indices: Array, n_rows: int) -> Any:
        """(starts int64 [n_rows + 1], order int32 [m]) of the bags."""
        starts = scratch(frame, n_rows + 1, np.int64)
        order = scratch(frame, indices.shape[0], np.int32)
        buffer = scratch(frame, indices.shape[0], np.int32)
        if failed(frame):
            return starts, order
        bad = group_by_row(indices, n_rows, starts, order)
        if bad >= 0:
            fail_outside(frame, bad, indices[bad, 0], n_rows)
        elif list_length(frame) > 1:
            sort_bags(indices, starts, order, buffer)
        return starts, order

    return group


def bag_reader(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function `(frame, n_rows) -> Bags` that reads the bags, checked."""
    import numpy as np

    from fusion.runtime.native.frame import (
        INVALID_ARGUMENT,
        attr,
        fail,
        failed,
        scratch,
        size,
        vector,
    )
    from fusion.runtime.native.jit import int64, jit

    read_rows, read_weights = access(types["T"]).read_rows, access(types["Tw"]).read
    slot, arg = spec.slots, spec.places
    locate, group = _row_locator(spec, types), _grouper(spec)
    join_indices, join_weights = _joiners(spec, types)

    @jit
    def read(frame: int, n_rows: int) -> Any:
        rows = locate(frame)
        count = rows.shape[0]
        flags = vector(frame, arg.row_empty_and_invalid_flags, np.int32)
        if flags.shape[0] < n_rows:
            text = "row_empty_and_invalid_flags has %lld elements, but there are %lld rows"
            fail(frame, INVALID_ARGUMENT, text, int64(flags.shape[0]), n_rows)
        places = scratch(frame, count, np.int32)
        if not failed(frame):
            rows = read_rows(frame, rows, size(frame, arg.emb_shards, 0, 1))
            for k in range(count):
                places[k] = k
        starts, order = group(frame, join_indices(frame, count), n_rows)
        return Bags(
            rows,
            places,
            starts,
            order,
            flags[:n_rows],
            attr(frame, slot.default_id) < 0,
            read_weights(frame, join_weights(frame, count)),
        )

    return read


def row_counter(spec: OpSpec) -> Any:
    """A jitted function `(frame) -> rows of the result` of the forward op."""
    import numpy as np

    from fusion.cpu_ops.combine import first_unsorted, rows_until_last
    from fusion.runtime.native.frame import (
        INVALID_ARGUMENT,
        attr,
        fail,
        list_length,
        matrix,
        vector,
    )
    from fusion.runtime.native.jit import int64, jit

    slot, arg = spec.slots, spec.places

    @jit
    def count_rows(frame: int) -> int:
        if attr(frame, slot.row_count) != LAST_ROW:
            batch = vector(frame, arg.sp_dense_shape, np.int64)[0]
            if batch < 0:
                text = "sp_dense_shape must not be negative, but has %lld rows"
                fail(frame, INVALID_ARGUMENT, text, batch)
            return batch
        count = int64(0)
        for shard in range(list_length(frame)):
            rows = matrix(frame, arg.partitioned_indices, shard, np.int64)
            bad = first_unsorted(rows)
            if bad >= 0:
                text = "partitioned_indices[%lld][%lld, 0] = %lld is less than the row before it"
                fail(frame, INVALID_ARGUMENT, text, shard, bad, rows[bad, 0])
                return count
            count = max(count, rows_until_last(rows))
        return count

    return count_rows


def grad_outputs(spec: OpSpec, types: Mapping[str, str]) -> GradOutputs:
    """The outputs of the gradient op."""
    import numpy as np

    from fusion.cpu_ops.combine import locate_entries
    from fusion.runtime.native.frame import (
        failed,
        list_length,
        output_matrix,
        output_vector,
        scratch,
        size,
    )
    from fusion.runtime.native.jit import Array, jit

    stored, tw = access(types["T"]).stored, access(types["Tw"]).stored
    item = np.dtype(stored).itemsize
    arg = spec.places

    @jit
    def rows(frame: int, count: int) -> Any:
        n_shards = list_length(frame)
        dim = size(frame, arg.emb_shards, 0, 1)
        bases = scratch(frame, n_shards, np.int64)
        counts = scratch(frame, n_shards, np.int64)
        addresses = scratch(frame, count, np.int64)
        if failed(frame):
            return addresses
        for shard in range(n_shards):
            counts[shard] = size(frame, arg.emb_shards, shard, 0)
            out = output_matrix(frame, 0, shard, counts[shard], dim, stored)
            bases[shard] = out.ctypes.data
        if not failed(frame):
            locate_entries(bases, counts, dim * item, addresses)
        return addresses

    @jit
    def weights(frame: int, count: int) -> Array:
        if list_length(frame) == 1:
            return output_vector(frame, 1, 0, count, tw)
        return scratch(frame, count, tw)

    @jit
    def put_weights(frame: int, grads: Array) -> None:
        if list_length(frame) == 1:
            return
        first = 0
        for shard in range(list_length(frame)):
            count = size(frame, arg.emb_shards, shard, 0) if grads.shape[0] > 0 else 0
            out = output_vector(frame, 1, shard, count, tw)
            for k in range(out.shape[0]):
                out[k] = grads[first + k]
            first += count

    return GradOutputs(rows, weights, put_weights)
