"""Tables beyond a variable of so many rows.

Embedding variables, whose ids have no bound; and table stores, whose rows are in tiers.
"""

from __future__ import annotations

import importlib
from typing import Any

from fusion.tables.deeprec import get_embedding_variable as get_embedding_variable
from fusion.tables.embedding_variable import EmbeddingVariable as EmbeddingVariable
from fusion.tables.eviction import GlobalStepEvict as GlobalStepEvict
from fusion.tables.eviction import L2WeightEvict as L2WeightEvict
from fusion.tables.eviction import LeastFrequent as LeastFrequent
from fusion.tables.eviction import LeastRecent as LeastRecent
from fusion.tables.frozen import FrozenEmbedding as FrozenEmbedding
from fusion.tables.keras_store import KeyedRows as KeyedRows
from fusion.tables.keyed_variables import make_keyed
from fusion.tables.options import CBFFilter as CBFFilter
from fusion.tables.options import CounterFilter as CounterFilter
from fusion.tables.options import EmbeddingVariableOption as EmbeddingVariableOption
from fusion.tables.options import InitializerOption as InitializerOption
from fusion.tables.partitioned import (
    PartitionedEmbeddingVariable as PartitionedEmbeddingVariable,
)
from fusion.tables.saved_models import load_on_cpu, save_loaded_again
from fusion.tables.statistics import TableStatistics as TableStatistics

#: Names of table stores, and where they live: above this package.
_LAZY = {
    "LookupLayer": "fusion.keras.layers",
    "SparseLookupLayer": "fusion.keras.layers",
    "StoreConfig": "fusion.stores.config",
    "StoreCounters": "fusion.stores.counters",
    "TableConfig": "fusion.stores.config",
    "TableDescription": "fusion.stores.tier",
    "TableStore": "fusion.stores.table_store",
    "TierError": "fusion.stores.tier",
    "VersionedFiles": "fusion.stores.versioned_files",
    "write_version": "fusion.stores.versions",
    "serve_from_store": "fusion.saved_model.split.served",
    "split_tables": "fusion.saved_model.split.served",
}

load_on_cpu()
save_loaded_again(make_keyed)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
