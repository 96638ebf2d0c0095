"""Tables beyond a variable of so many rows.

Embedding variables, whose ids have no bound; and table stores, whose rows are in tiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusion.lazy import lazy_names

if TYPE_CHECKING:
    from fusion.tables.deeprec import CBFFilter as CBFFilter
    from fusion.tables.deeprec import CounterFilter as CounterFilter
    from fusion.tables.deeprec import EmbeddingVariableOption as EmbeddingVariableOption
    from fusion.tables.deeprec import InitializerOption as InitializerOption
    from fusion.tables.deeprec import get_embedding_variable as get_embedding_variable
    from fusion.tables.embedding_variable import EmbeddingVariable as EmbeddingVariable
    from fusion.tables.eviction import GlobalStepEvict as GlobalStepEvict
    from fusion.tables.eviction import L2WeightEvict as L2WeightEvict
    from fusion.tables.eviction import LeastFrequent as LeastFrequent
    from fusion.tables.eviction import LeastRecent as LeastRecent
    from fusion.tables.frozen import FrozenEmbedding as FrozenEmbedding
    from fusion.tables.keras_store import KeyedRows as KeyedRows
    from fusion.tables.partitioned import (
        PartitionedEmbeddingVariable as PartitionedEmbeddingVariable,
    )
    from fusion.tables.statistics import TableStatistics as TableStatistics

#: The modules of public names; those of table stores are above this package.
_MODULES = {
    "CBFFilter": "fusion.tables.deeprec",
    "CounterFilter": "fusion.tables.deeprec",
    "EmbeddingVariable": "fusion.tables.embedding_variable",
    "EmbeddingVariableOption": "fusion.tables.deeprec",
    "FrozenEmbedding": "fusion.tables.frozen",
    "get_embedding_variable": "fusion.tables.deeprec",
    "GlobalStepEvict": "fusion.tables.eviction",
    "InitializerOption": "fusion.tables.deeprec",
    "KeyedRows": "fusion.tables.keras_store",
    "L2WeightEvict": "fusion.tables.eviction",
    "LeastFrequent": "fusion.tables.eviction",
    "LeastRecent": "fusion.tables.eviction",
    "LookupLayer": "fusion.keras.layers",
    "PartitionedEmbeddingVariable": "fusion.tables.partitioned",
    "serve_from_store": "fusion.saved_model.split.served",
    "SparseLookupLayer": "fusion.keras.layers",
    "split_tables": "fusion.saved_model.split.served",
    "StoreConfig": "fusion.stores.config",
    "StoreCounters": "fusion.stores.counters",
    "TableConfig": "fusion.stores.config",
    "TableDescription": "fusion.stores.tier",
    "TableStatistics": "fusion.tables.statistics",
    "TableStore": "fusion.stores.table_store",
    "TierError": "fusion.stores.tier",
    "VersionedFiles": "fusion.stores.versioned_files",
    "write_version": "fusion.stores.versions",
}

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
