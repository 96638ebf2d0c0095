"""Tables over many devices, trained in the replicas of `tf.distribute`'s strategies."""

from fusion.distribute.sharded_table import ShardedTable as ShardedTable
