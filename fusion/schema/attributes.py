"""Attrs that several ops share, and the values that they may have."""

from __future__ import annotations

from fusion.runtime.tensorflow import dtypes
from fusion.runtime.tensorflow.spec import Attr

#: Dtypes of tables and weights.
FLOATS = dtypes.FLOATS
IDS = dtypes.IDS
#: Dtypes of tables that FusedEmbeddingUpdate updates.
UPDATE_DTYPES = dtypes.COMPUTED

#: The same as DataTypes, as graphs have them; half types are those that kernels compute in float32.
TABLE_TYPES = frozenset(dtypes.DTYPES[name].enum for name in FLOATS)
HALF_TYPES = TABLE_TYPES - {dtypes.DTYPES[name].enum for name in dtypes.COMPUTED}
ID_TYPES = frozenset(dtypes.DTYPES[name].enum for name in IDS)

#: In the order of the constants of fusion.cpu_ops.combine.
COMBINERS = ("sum", "mean", "sqrtn")

IDS_ATTR = Attr("Tid", "type", allowed=IDS, doc="dtype of ids")
PACKED_ATTR = Attr(
    "Tpacked",
    "type",
    default="float32",
    allowed=("float32", "uint8"),
    doc="uint8 if any row_format is not plain: then the widths of tables are not those of results",
)
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
COMBINER_ATTR = Attr("combiner", "string", default="mean", allowed=COMBINERS, doc="of a bag")
MAX_NORM_ATTR = Attr(
    "max_norm", "float", default=-1.0, doc="limit of a row's L2 norm; negative: none"
)
NO_NAN_ATTR = Attr(
    "divide_no_nan",
    "bool",
    default=True,
    doc="whether weights that add up to 0 give zeros; else NaN or inf. The gradient is 0",
)
PRUNE_WEIGHTS_ATTR = Attr(
    "prune_sparse_weights", "bool", default=False, doc="whether weights <= 0 are invalid"
)
BUCKET_ATTRS = (
    Attr(
        "num_buckets",
        "int",
        default=0,
        minimum=0,
        doc="ids outside [0, num_buckets) become bucket_default first; 0: they do not",
    ),
    Attr("bucket_default", "int", default=0, minimum=0, doc="see num_buckets"),
)
DEFAULT_WEIGHT_ATTR = Attr(
    "default_weight", "float", default=1.0, doc="weight of the entries filled in"
)

#: The index of "last_row" among the values of `row_count`.
LAST_ROW = 1

#: Positions of entries are int32.
MAX_ENTRIES = 2**31 - 1

#: The most features of Examples that are asked for: a slot of the table of names has 16 bits.
MAX_FEATURES = (1 << 16) - 1

#: Stock ops that hash into buckets, and what the fused op calls their hashes. The second is what
#: TensorFlow makes of AsString and the first.
STOCK_HASHES = {
    "StringToHashBucketFast": "fast",
    "_TensorToHashBucketFast": "fast",
    "StringToHashBucket": "legacy",
    "StringToHashBucketStrong": "strong",
}
#: All that the fused op has: of integers the remainder, too.
HASHES = (*dict.fromkeys(STOCK_HASHES.values()), "remainder")

#: Stock ops that split texts, and which of the parts count in the fused op: all of a text, all of
#: one that is not empty, or those that are not empty.
STOCK_SPLITS = {"StringSplitV2": ("all",), "StringSplit": ("of_texts", "nonempty")}
PARTS = tuple(kind for kinds in STOCK_SPLITS.values() for kind in kinds)

#: Stock ops that cross features into hashed ids, and their hashes in the fused op: "seeded" begins
#: with a key; "plain" and "strong" are those of SparseCrossHashed, which has both.
STOCK_CROSSES = {"SparseCross": ("seeded",), "SparseCrossHashed": ("plain", "strong")}
#: The one that gives texts.
TEXT_CROSS = "SparseCrossV2"
CROSS_HASHES = tuple(kind for kinds in STOCK_CROSSES.values() for kind in kinds)
#: The most features of a cross; how it has the values of each, and what its results are.
MAX_CROSSED = 1024
FEATURE_FORMS = ("sparse", "masked", "dense", "vector")
ROW_FORMS = ("indices", "row_splits")
CROSS_FORMS = (*ROW_FORMS, "matrix")
