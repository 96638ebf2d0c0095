"""`ShardedEmbeddingVariable`: an embedding variable over the replicas of a strategy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.distribute.layout import by_owner
from fusion.distribute.replicas import Replicas
from fusion.distribute.rows import fetch
from fusion.distribute.saving import rows_in_first
from fusion.distribute.sharded import Request, Shard, Sharded, gather_from
from fusion.runtime.tensorflow.private import record
from fusion.tables.frozen import FrozenEmbedding
from fusion.tables.partitioned import PartitionedEmbeddingVariable
from fusion.tables.v1_slots import refuse_shards


class ShardedEmbeddingVariable(PartitionedEmbeddingVariable, Sharded):
    """A table as an `EmbeddingVariable` whose keys are spread over the replicas of a strategy.

    Of N replicas, replica `k % 1000 % N` has key k, with the modulo that is never negative. In the
    scope of a `MirroredStrategy` each has an embedding variable in the memory of its device's CPU,
    in that of a `MultiWorkerMirroredStrategy` in its process; without a strategy there is
    one. Lookups bring rows of distinct keys to the replica that asks, and are one lookup for the
    owner, which admits keys, counts steps, evicts, and makes new rows as an `EmbeddingVariable`
    that looks up the keys of all replicas. Gradients go back to the owner, whose optimizer
    variables are on the same device.

    A checkpoint is that of an `EmbeddingVariable` or a `PartitionedEmbeddingVariable`, and can be
    restored into these, and into any number of replicas. It passes through the first process, which
    writes it; all of them save together.

    Attributes:
      shards: by the number of the replica, the variables [capacity, D] of this process, which
        optimizers train.
      partitions: the embedding variables of this process.
    """

    joins_lookups = True
    last_id = tf.int64.max

    def __init__(
        self,
        name: str,
        dimension: int,
        dtype: Any = tf.float32,
        key_dtype: Any = tf.int64,
        initializer: Callable[..., Any] | None = None,
        trainable: bool = True,
        admission: int | None = None,
        eviction: Any = None,
        capacity: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Makes the embedding variables of this process.

        Args:
          name: of the whole.
          dimension: size D of an embedding, > 0.
          initializer: as of `EmbeddingVariable`, called in each process, so that it should have a
            seed.
          capacity: of the whole, split as that of a `PartitionedEmbeddingVariable`.
          dtype, key_dtype, trainable, admission, eviction, seed, **options: as of
            `EmbeddingVariable`. Each replica evicts from its keys; the `capacity` of an eviction is
            split over them.

        Raises:
          ValueError, TypeError: naming the argument and what was given.
          NotImplementedError: in the scope of a strategy whose replicas cannot have shards.
        """
        self.replicas = Replicas.here()
        super().__init__(
            name,
            dimension,
            self.replicas.count,
            dtype,
            key_dtype,
            initializer,
            trainable,
            admission,
            eviction,
            capacity,
            seed,
            devices=self.replicas.cpus,
            **options,
        )
        for replica, table in self.shards.items():
            Shard(self, replica).register(table)
        refuse_shards()

    @property
    def shards(self) -> Mapping[int, Any]:
        """By the number of the replica, the variables of this process."""
        return dict(zip(self.replicas.devices, self.tables, strict=True))

    def split(
        self, ids: tf.Tensor, counts: tf.Tensor | None = None
    ) -> tuple[list[Request], tf.Tensor]:
        """The distinct keys, by who has them, with how often each was seen where that matters."""
        keys, replicas = tf.cast(ids, tf.int64), self.replicas.count
        distinct, places, seen = ops.unique_with_counts_v3(input=keys)
        numbers: tuple[tf.Tensor, ...] = ()
        if counts is not None:
            numbers = (tf.math.unsorted_segment_sum(counts, places, tf.size(distinct)),)
        elif self.admission > 1:
            numbers = (seen,)
        requests = [(distinct, *numbers)]
        if replicas > 1:
            shape = [tf.int64.max, self.dimension]
            parts, order = by_owner(distinct, [shape] * replicas, "mod_ev")
            sizes = [tf.size(part) for part in parts]
            # In the order of the owners.
            moved = [tf.scatter_nd(order[:, tf.newaxis], n, tf.shape(order)) for n in numbers]
            split = [tf.split(n, sizes) for n in moved]
            requests = [*zip(parts, *split, strict=True)]
            places = tf.gather(order, places)
        return requests, places

    def gather(self, replica: int, request: Request) -> tf.Tensor:
        """The rows of keys, which the replica notes as seen in training."""
        return getattr(self, f"part_{replica}").embedding_lookup(*request)

    def no_rows(self, replica: int) -> tf.Tensor:
        """No rows of a shard, without a gradient while it is frozen."""
        with contextlib.nullcontext() if self.is_trained() else record.stop_recording():
            return gather_from(self.shards[replica], tf.zeros([0], tf.int64))

    def _gather(self, keys: tf.Tensor, counts: tf.Tensor | None) -> tf.Tensor:
        (fetched,) = fetch([self], [keys], [counts], min_id=tf.int64.min)
        return tf.gather(fetched.rows, fetched.places)

    def _joined(self, parts: Sequence[Mapping[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
        own, peers = super()._joined(parts), self.replicas.peers
        if peers is None:
            return own
        initial = own.pop("initial", None)  # the same in all processes
        joined = {name: tf.concat(rows_in_first(x, peers), 0) for name, x in own.items()}
        return joined if initial is None else {**joined, "initial": initial}

    def _export(self, path: str | os.PathLike[str], since: int, about: dict[str, Any]) -> int:
        self._check_is_whole("export")
        return super()._export(path, since, about)

    def freeze(self) -> FrozenEmbedding:
        """As `PartitionedEmbeddingVariable.freeze`.

        Raises:
          NotImplementedError: other processes have keys, too.
        """
        self._check_is_whole("freeze")
        return super().freeze()

    def _export_to_saved_model_graph(self, object_map: Any, **named: Any) -> list[Any]:
        self._check_is_whole("a SavedModel")
        return super()._export_to_saved_model_graph(object_map, **named)

    def _check_is_whole(self, what: str) -> None:
        """Checks that this process has all keys.

        Raises:
          NotImplementedError: others have some.
        """
        if self.replicas.peers is not None:
            raise NotImplementedError(
                f"{what} cannot have sharded table {self.name!r}, whose rows are in "
                f"{self.replicas.count} processes: restore a checkpoint in one, and export there"
            )
