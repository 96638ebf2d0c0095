"""Tables beyond a variable of so many rows: embedding variables, whose ids have no bound."""

from fusion.tables.deeprec import get_embedding_variable as get_embedding_variable
from fusion.tables.embedding_variable import EmbeddingVariable as EmbeddingVariable
from fusion.tables.eviction import GlobalStepEvict as GlobalStepEvict
from fusion.tables.eviction import L2WeightEvict as L2WeightEvict
from fusion.tables.eviction import LeastFrequent as LeastFrequent
from fusion.tables.eviction import LeastRecent as LeastRecent
from fusion.tables.frozen import FrozenEmbedding as FrozenEmbedding
from fusion.tables.options import CBFFilter as CBFFilter
from fusion.tables.options import CounterFilter as CounterFilter
from fusion.tables.options import EmbeddingVariableOption as EmbeddingVariableOption
from fusion.tables.options import InitializerOption as InitializerOption
from fusion.tables.partitioned import (
    PartitionedEmbeddingVariable as PartitionedEmbeddingVariable,
)
from fusion.tables.saved_models import load_on_cpu
from fusion.tables.statistics import TableStatistics as TableStatistics

load_on_cpu()
