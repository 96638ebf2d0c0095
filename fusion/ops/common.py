"""What the signatures of several ops share."""

from __future__ import annotations

from fusion.runtime.spec import Attr

#: Dtypes of tables and weights.
FLOATS = ("float16", "bfloat16", "float32", "float64")
IDS = ("int32", "int64")

#: In the order of the constants of fusion.cpu_ops.combine.
COMBINERS = ("sum", "mean", "sqrtn")

IDS_ATTR = Attr("Tid", "type", allowed=IDS, doc="dtype of ids")
TABLE_ATTR = Attr("T", "type", allowed=FLOATS, doc="dtype of the table")
WEIGHTS_ATTR = Attr("Tw", "type", allowed=FLOATS, doc="dtype of weights")
SHARDS_ATTR = Attr("num_partitions", "int", minimum=1, doc="number of shards P")
AXIS_ATTR = Attr(
    "partition_axis", "int", default=0, minimum=0, maximum=0, doc="only 0, splitting by rows"
)
FILL_ATTR = Attr("fill_empty_row", "bool", default=False, doc="whether empty rows get an entry")
DEFAULT_ID_ATTR = Attr("default_id", "int", default=-1, doc="id of empty rows; negative: none")
USE_WEIGHTS_ATTR = Attr("use_sparse_weights", "bool", default=False, doc="whether weights count")
ROW_COUNT_ATTR = Attr(
    "row_count",
    "string",
    default="dense_shape",
    allowed=("dense_shape", "last_row"),
    doc="number of rows: dense_shape[0], or those up to the last row with an entry",
)

#: The values of `row_count`, by place.
DENSE_SHAPE, LAST_ROW = range(2)

#: Places of entries are int32.
MOST_ENTRIES = 2**31 - 1


def numba_dtype(name: str) -> type:
    """The NumPy scalar type of dtype `name`, as kernels take it."""
    import numpy as np

    dtype: type = getattr(np, name)
    return dtype
