"""Tables over several replicas: where they go, how they are trained and dumped, what is sent."""

from fusion.distribute.dumps import dump as dump
from fusion.distribute.dumps import load as load
from fusion.distribute.placement import Joined as Joined
from fusion.distribute.placement import Placement as Placement
from fusion.distribute.placement import Plan as Plan
from fusion.distribute.placement import Slice as Slice
from fusion.distribute.planning import plan as plan
from fusion.distribute.sharded_embedding_variable import (
    ShardedEmbeddingVariable as ShardedEmbeddingVariable,
)
from fusion.distribute.sharded_table import ShardedTable as ShardedTable
from fusion.distribute.tables import Table as Table
from fusion.distribute.traffic import Traffic as Traffic
from fusion.distribute.traffic import expected_distinct_ids as expected_distinct_ids
from fusion.distribute.traffic import row_sharded_messages as row_sharded_messages
from fusion.distribute.traffic import row_sharded_traffic as row_sharded_traffic
