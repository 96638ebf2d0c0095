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
PARSE_EXAMPLE = "FusedParseExample"
PARSE_SEQUENCE = "FusedParseSequenceExample"
GROUPED_IDS = "GroupedIds"
VOCABULARY_INDEX = "VocabularyIndex"
GROUPED_SPLIT = "GroupedSplit"
GROUPED_CROSS = "GroupedCross"

#: Every op of this package, in this order in lists of them.
OP_NAMES: tuple[str, ...] = tuple(value for name, value in [*globals().items()] if name.isupper())

#: Ops that read the ids of columns and give their rows, reduced or about to be.
ID_READERS = (GROUPED, GROUPED_PRE, GROUPED_KEYED, GROUPED_KEYED_PRE, SINGLE)
