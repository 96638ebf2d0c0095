"""The attrs and arguments that the v1 post-lookup ops have in common."""

from __future__ import annotations

from fusion.runtime.tensorflow.spec import Arg
from fusion.schema.attributes import (
    AXIS_ATTR,
    COMBINER_ATTR,
    DEFAULT_ID_ATTR,
    MAX_NORM_ATTR,
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
