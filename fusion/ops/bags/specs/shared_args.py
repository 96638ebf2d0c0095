"""Arguments that ops of both families have."""

from __future__ import annotations

from fusion.runtime.tensorflow.spec import Arg
from fusion.schema.attributes import FLOATS

#: Inputs of the ops that prune.
SPARSE_IDS = (
    Arg("sp_values", "Tid", "[nnz]", doc="ids"),
    Arg("sp_indices", "int64", "[nnz, 2]", doc="row of each entry in column 0"),
    Arg("sp_dense_shape", "int64", "[2]", doc="rows B first", on_host=True),
    Arg("sp_weights_values", "Tw", "[nnz]", when="use_sparse_weights", doc="or a dummy"),
)
PARTITION_SHAPES = Arg(
    "partition_shapes", "int64", "[2]", length="num_partitions", doc="of each shard", on_host=True
)

#: Of the ops that combine rows.
DENSE_SHAPE = Arg("sp_dense_shape", "int64", "[2]", doc="rows B first", on_host=True)
BAG_OUTPUTS = (
    Arg("emb_vectors", "T", "[?, D]"),
    Arg("feature_nums", "int32", "[?]", doc="entries of each row, those filled in counted"),
)
BAG_TYPES = {"T": FLOATS, "Tw": FLOATS}
