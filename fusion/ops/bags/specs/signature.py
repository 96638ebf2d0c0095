"""The attrs and arguments that the v2 post-lookup ops have in common."""

from __future__ import annotations

from fusion.runtime.tensorflow.spec import Arg
from fusion.schema.attributes import (
    AXIS_ATTR,
    COMBINER_ATTR,
    DEFAULT_ID_ATTR,
    FILL_ATTR,
    MAX_NORM_ATTR,
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
EMPTY = Arg("is_row_empty", "bool", "[B]", doc="rows that were empty before they were filled")
UNIQUE_IDXS = Arg("unique_idxs", "int32", "[m]", doc="unique id of each entry")
WEIGHTS = Arg("sp_weights_values", "Tw", "[m]", when="use_sparse_weights", doc="or a dummy")
