"""What the v2 post-lookup ops have in common: signature, and how their kernels read bags."""

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
    FILL_ATTR,
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
    SHARDS_ATTR,
    TABLE_ATTR,
    WEIGHTS_ATTR,
    FILL_ATTR,
    DEFAULT_ID_ATTR,
    AXIS_ATTR,
    COMBINER_ATTR,
    MAX_NORM_ATTR,
    USE_WEIGHTS_ATTR,
    ROW_COUNT_ATTR,
)

SHARDS = Arg("emb_shards", "T", "[?, D]", length="num_partitions", doc="gathered rows")
PERMUTATION = Arg("partition_permutation", "int32", "[?, 2]", doc="or a dummy when P is 1")
INDICES = Arg("indices_before_unique", "int64", "[m, 2]", doc="row of each entry in column 0")
SHAPE = Arg("sp_dense_shape", "int64", "[2]", doc="rows B first", on_host=True)
EMPTY = Arg("is_row_empty", "bool", "[B]", doc="rows that were empty before they were filled")
PLACES = Arg("unique_idxs", "int32", "[m]", doc="unique id of each entry")
WEIGHTS = Arg("sp_weights_values", "Tw", "[m]", when="use_sparse_weights", doc="or a dummy")


def _row_finder(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function that locates the rows of the unique ids, checked."""
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.native.frame import (
        INVALID_ARGUMENT,
        data,
        fail,
        failed,
        list_length,
        matrix,
        scratch,
        size,
    )
    from fusion.runtime.native.jit import int64, jit

    item = np.dtype(access(types["T"]).stored).itemsize
    arg = spec.places

    @jit
    def find_rows(frame: int) -> Any:
        """Addresses int64 [u] of the gathered rows."""
        n_shards = list_length(frame)
        dim = size(frame, arg.emb_shards, 0, 1)
        bases = scratch(frame, n_shards, np.int64)
        counts = scratch(frame, n_shards, np.int64)
        if failed(frame):
            return bases
        total = int64(0)
        for shard in range(n_shards):
            bases[shard] = data(frame, arg.emb_shards, shard)
            counts[shard] = size(frame, arg.emb_shards, shard, 0)
            total += counts[shard]
        permutation = matrix(frame, arg.partition_permutation, 0, np.int32)
        if n_shards > 1 and permutation.shape[0] != total:
            text = "partition_permutation has %lld rows, but emb_shards have %lld in all"
            fail(frame, INVALID_ARGUMENT, text, permutation.shape[0], total)
        addresses = scratch(frame, total, np.int64)
        if failed(frame):
            return bases
        bad = kernels.locate_rows(permutation, bases, counts, dim * item, addresses)
        if bad >= 0:
            text = "partition_permutation[%lld] = [%lld, %lld] is not a row of emb_shards"
            shard, place = int64(permutation[bad, 0]), int64(permutation[bad, 1])
            fail(frame, INVALID_ARGUMENT, text, bad, shard, place)
            return addresses
        if n_shards > 1:
            seen = scratch(frame, total, np.bool_)
            firsts = scratch(frame, n_shards, np.int64)
            if failed(frame):
                return addresses
            bad = kernels.first_repeated(permutation, counts, firsts, seen)
            if bad >= 0:
                text = "partition_permutation[%lld] = [%lld, %lld] stands there twice"
                shard, place = int64(permutation[bad, 0]), int64(permutation[bad, 1])
                fail(frame, INVALID_ARGUMENT, text, bad, shard, place)
        return addresses

    return find_rows


def _bag_grouper(spec: OpSpec) -> Any:
    """A jitted function that groups the entries into bags, with every index checked."""
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.native.frame import INVALID_ARGUMENT, fail, failed, matrix, scratch, vector
    from fusion.runtime.native.jit import int64, jit

    arg = spec.places

    @jit
    def group(frame: int, n_rows: int, n_unique: int) -> Any:
        """(starts int64 [n_rows + 1], order int32 [m]) of the bags."""
        rows = matrix(frame, arg.indices_before_unique, 0, np.int64)
        places = vector(frame, arg.unique_idxs, np.int32)
        if rows.shape[0] > MOST_ENTRIES:
            text = "unique_idxs has %lld entries, but at most %lld can be ordered"
            fail(frame, INVALID_ARGUMENT, text, rows.shape[0], int64(MOST_ENTRIES))
        starts = scratch(frame, n_rows + 1, np.int64)
        order = scratch(frame, rows.shape[0], np.int32)
        if failed(frame):
            return starts, order
        bad = kernels.first_outside(places, n_unique)
        if bad >= 0:
            text = "unique_idxs[%lld] = %lld is not in [0, %lld), the rows of emb_shards"
            fail(frame, INVALID_ARGUMENT, text, bad, int64(places[bad]), n_unique)
        bad = kernels.group_by_row(rows, n_rows, starts, order)
        if bad >= 0:
            text = "indices_before_unique[%lld, 0] = %lld is not in [0, %lld), the rows"
            fail(frame, INVALID_ARGUMENT, text, bad, rows[bad, 0], n_rows)
        return starts, order

    return group


def bag_reader(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function `(frame, n_rows) -> Bags` that reads the bags, checked."""
    import numpy as np

    from fusion.runtime.native.frame import attr, failed, size, vector
    from fusion.runtime.native.jit import jit

    table, weight = access(types["T"]), access(types["Tw"])
    read_rows, read_weights, stored = table.read_rows, weight.read, weight.stored
    slot, arg = spec.slots, spec.places
    find_rows, group = _row_finder(spec, types), _bag_grouper(spec)

    @jit
    def read(frame: int, n_rows: int) -> Any:
        rows = find_rows(frame)
        if not failed(frame):
            rows = read_rows(frame, rows, size(frame, arg.emb_shards, 0, 1))
        starts, order = group(frame, n_rows, rows.shape[0])
        return Bags(
            rows,
            vector(frame, arg.unique_idxs, np.int32),
            starts,
            order,
            vector(frame, arg.is_row_empty, np.bool_),
            attr(frame, slot.fill_empty_row) != 0 and attr(frame, slot.default_id) < 0,
            read_weights(frame, vector(frame, arg.sp_weights_values, stored)),
        )

    return read


def row_counter(spec: OpSpec) -> Any:
    """A jitted function `(frame) -> rows of the result` of the forward op."""
    import numpy as np

    from fusion.cpu_ops.combine import first_unsorted, rows_until_last
    from fusion.runtime.native.frame import INVALID_ARGUMENT, attr, fail, matrix, size, vector
    from fusion.runtime.native.jit import jit

    slot, arg = spec.slots, spec.places

    @jit
    def count_rows(frame: int) -> int:
        batch = vector(frame, arg.sp_dense_shape, np.int64)[0]
        rows = matrix(frame, arg.indices_before_unique, 0, np.int64)
        if attr(frame, slot.row_count) == LAST_ROW:
            bad = first_unsorted(rows)
            if bad >= 0:
                text = "indices_before_unique[%lld, 0] = %lld is less than the row before it"
                fail(frame, INVALID_ARGUMENT, text, bad, rows[bad, 0])
            return rows_until_last(rows)
        if batch != size(frame, arg.is_row_empty, 0, 0):
            text = "is_row_empty has %lld rows, but sp_dense_shape says %lld"
            fail(frame, INVALID_ARGUMENT, text, size(frame, arg.is_row_empty, 0, 0), batch)
        return batch

    return count_rows


def grad_outputs(spec: OpSpec, types: Mapping[str, str]) -> GradOutputs:
    """The outputs of the gradient op."""
    import numpy as np

    from fusion.cpu_ops.combine import locate_rows
    from fusion.runtime.native.frame import (
        failed,
        list_length,
        matrix,
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
            if n_shards > 1:
                # A row that no pair of the permutation names has no gradient.
                out[:] = 0
        if not failed(frame):
            permutation = matrix(frame, arg.partition_permutation, 0, np.int32)
            locate_rows(permutation, bases, counts, dim * item, addresses)
        return addresses

    @jit
    def weights(frame: int, count: int) -> Array:
        return output_vector(frame, 1, 0, count, tw)

    @jit
    def put_weights(frame: int, grads: Array) -> None:
        pass

    return GradOutputs(rows, weights, put_weights)
