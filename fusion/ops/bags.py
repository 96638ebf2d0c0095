"""What the post-lookup ops have in common: signature, and the parts of their kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion.ops.common import (
    AXIS_ATTR,
    COMBINERS,
    DEFAULT_ID_ATTR,
    FILL_ATTR,
    FLOATS,
    SHARDS_ATTR,
    TABLE_ATTR,
    USE_WEIGHTS_ATTR,
    WEIGHTS_ATTR,
)
from fusion.ops.precision import access
from fusion.runtime.spec import Arg, Attr, OpSpec

KERNEL_TYPES = {"T": FLOATS, "Tw": FLOATS}

#: Attrs of the forward and the gradient op.
ATTRS = (
    SHARDS_ATTR,
    TABLE_ATTR,
    WEIGHTS_ATTR,
    FILL_ATTR,
    DEFAULT_ID_ATTR,
    AXIS_ATTR,
    Attr("combiner", "string", default="mean", allowed=COMBINERS, doc="of a bag"),
    Attr("max_norm", "float", default=-1.0, doc="limit of a row's L2 norm; negative: none"),
    USE_WEIGHTS_ATTR,
    Attr(
        "row_count",
        "string",
        default="dense_shape",
        allowed=("dense_shape", "last_row"),
        doc="rows of the result: dense_shape[0], or those up to the last row with an entry",
    ),
)


#: Places of entries are int32.
_MOST_ENTRIES = 2**31 - 1

SHARDS = Arg("emb_shards", "T", "[?, D]", length="num_partitions", doc="gathered rows")
PERMUTATION = Arg("partition_permutation", "int32", "[?, 2]", doc="or a dummy when P is 1")
INDICES = Arg("indices_before_unique", "int64", "[m, 2]", doc="row of each entry in column 0")
EMPTY = Arg("is_row_empty", "bool", "[B]", doc="rows that were empty before they were filled")
PLACES = Arg("unique_idxs", "int32", "[m]", doc="unique id of each entry")
WEIGHTS = Arg("sp_weights_values", "Tw", "[m]", when="use_sparse_weights", doc="or a dummy")


def row_finder(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function that locates the rows of the unique ids, checked."""
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.jit import int64, jit
    from fusion.runtime.native import (
        INVALID_ARGUMENT,
        data,
        fail,
        failed,
        list_length,
        matrix,
        scratch,
        size,
    )

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


def row_clipper(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """A jitted function that replaces rows to read by their clipped copies."""
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.jit import jit
    from fusion.runtime.native import failed, scratch, scratch_matrix, size

    dtype = access(types["T"]).compute
    item = np.dtype(dtype).itemsize
    arg = spec.places

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
        kernels.clip_rows(addresses, limit, dtype, copies)
        for k in range(addresses.shape[0]):
            clipped[k] = copies.ctypes.data + k * dim * item
        return clipped

    return clip


def bag_grouper(spec: OpSpec) -> Any:
    """A jitted function that groups the entries into bags, with every index checked."""
    import numpy as np

    from fusion.cpu_ops import combine as kernels
    from fusion.runtime.jit import int64, jit
    from fusion.runtime.native import INVALID_ARGUMENT, fail, failed, matrix, scratch, vector

    arg = spec.places

    @jit
    def group(frame: int, n_rows: int, n_unique: int) -> Any:
        """(starts int64 [n_rows + 1], order int32 [m]) of the bags."""
        rows = matrix(frame, arg.indices_before_unique, 0, np.int64)
        places = vector(frame, arg.unique_idxs, np.int32)
        if rows.shape[0] > _MOST_ENTRIES:
            text = "unique_idxs has %lld entries, but at most %lld can be ordered"
            fail(frame, INVALID_ARGUMENT, text, rows.shape[0], int64(_MOST_ENTRIES))
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
