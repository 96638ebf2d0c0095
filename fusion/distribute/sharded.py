"""What lookups and optimizers know of a table whose rows are spread over replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fusion.distribute.replicas import Replicas
from fusion.runtime.tensorflow.private import variable_accessed
from fusion.tables.registry import register_shard
from fusion.tables.replicas import beside

#: Vectors with an element for each row that is asked for: its id, as the owner knows it, and
#: numbers that are summed up where several replicas ask for the row.
Request = tuple[tf.Tensor, ...]


class Sharded:
    """A table whose rows are spread over the replicas of a strategy.

    Attributes:
      name: of the table.
      dimension, dtype: of its rows.
      last_id: the largest id that it can have.
      replicas: those of the strategy in whose scope it was made.
      joins_lookups: whether an owner has to look up at once what all replicas ask for in a step.
    """

    name: Any
    dimension: int
    dtype: tf.DType
    last_id: int
    replicas: Replicas
    joins_lookups = False

    @property
    def shards(self) -> Mapping[int, Any]:
        """By the number of the replica, the variables of this process, which optimizers train."""
        raise NotImplementedError

    def as_ids(self, ids: tf.Tensor) -> tf.Tensor:
        """Ids that are looked up, int32 or int64 [n], as `split` takes them.

        Raises:
          TypeError: the table has ids of another dtype.
        """
        return ids

    def split(self, ids: tf.Tensor, counts: tf.Tensor | None) -> tuple[list[Request], tf.Tensor]:
        """What a replica that looks up ids asks the others for.

        Args:
          ids: int32 or int64 [n].
          counts: how often each was seen, int32 [n]; None: once.

        Returns:
          A request for each replica, [N], each row once; and which of these rows, one replica's
          behind the other's, each id has, int32 [n].
        """
        raise NotImplementedError

    def gather(self, replica: int, request: Request) -> tf.Tensor:
        """The rows [n, D] that a replica of this process has, of distinct ids."""
        raise NotImplementedError

    def no_rows(self, replica: int) -> tf.Tensor:
        """[0, D], for a gradient without rows with respect to a shard of this process."""
        return gather_from(self.shards[replica], tf.zeros([0], tf.int32))


@dataclass(frozen=True, eq=False)
class Shard:
    """Which shard of which table a variable is.

    Attributes:
      table: the table.
      replica: the number of the replica that has it.
    """

    table: Any
    replica: int

    def register(self, variable: Any) -> None:
        """Has optimizers know it by the variable, with which it lives."""
        variable._fusion_shard = self
        register_shard(variable, self)


def gather_from(shard: Any, rows: tf.Tensor) -> tf.Tensor:
    """Rows of a shard, gathered where it is."""
    with beside(shard):
        variable_accessed(shard)  # as by a gather of TensorFlow's
        return tf.raw_ops.ResourceGather(resource=shard.handle, indices=rows, dtype=shard.dtype)
