"""The names of the fused ops."""

from __future__ import annotations

PRE_V1 = "FusedEmbeddingSparsePreLookUp"
POST_V1 = "FusedEmbeddingSparsePostLookUp"
POST_V1_GRAD = "FusedEmbeddingSparsePostLookUpGrad"
PRUNE = "PruneInvalidAndFillEmptyRows"
PRUNE_DENSE = "PruneDenseAndFillEmptyRows"
UNIQUE = "UniqueWithCountsV3"
PARTITION = "PartitionWithPermutation"
POST_V2 = "FusedEmbeddingSparsePostLookUpV2"
POST_V2_GRAD = "FusedEmbeddingSparsePostLookUpV2Grad"
SINGLE = "FusedEmbeddingLookup"
GROUPED = "GroupedEmbeddingLookup"
GROUPED_PRE = "GroupedEmbeddingPreLookUp"
GROUPED_KEYED = "GroupedKeyedEmbeddingLookup"
GROUPED_KEYED_PRE = "GroupedKeyedEmbeddingPreLookUp"
GROUPED_GATHER = "GroupedEmbeddingGather"
GROUPED_POST = "GroupedEmbeddingPostLookUp"
GROUPED_POST_GRAD = "GroupedEmbeddingPostLookUpGrad"
READ_TABLES = "ReadEmbeddingTables"
UPDATE = "FusedEmbeddingUpdate"
ZEROS_ON_DEMAND = "ZerosOnDemand"
KEY_INDEX = "EmbeddingKeyIndex"
KEYED_GATHER = "KeyedEmbeddingGather"
FILL_SLOT = "FillEmbeddingSlot"
KEY_ENTRIES = "EmbeddingKeyEntries"
FIND_KEYS = "FindEmbeddingKeys"
ADD_KEYS = "AddEmbeddingKeys"
REMOVE_KEYS = "RemoveEmbeddingKeys"
READ_TABLE_FILE = "ReadTableFile"
TABLE_STORE_GATHER = "TableStoreGather"

#: Every op of this package.
OP_NAMES: tuple[str, ...] = (
    PRE_V1,
    POST_V1,
    POST_V1_GRAD,
    PRUNE,
    PRUNE_DENSE,
    UNIQUE,
    PARTITION,
    POST_V2,
    POST_V2_GRAD,
    SINGLE,
    GROUPED,
    GROUPED_PRE,
    GROUPED_KEYED,
    GROUPED_KEYED_PRE,
    GROUPED_GATHER,
    GROUPED_POST,
    GROUPED_POST_GRAD,
    READ_TABLES,
    UPDATE,
    ZEROS_ON_DEMAND,
    KEY_INDEX,
    KEYED_GATHER,
    FILL_SLOT,
    KEY_ENTRIES,
    FIND_KEYS,
    ADD_KEYS,
    REMOVE_KEYS,
    READ_TABLE_FILE,
    TABLE_STORE_GATHER,
)
