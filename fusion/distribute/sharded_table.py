"""`ShardedTable`: one table over the replicas of a strategy."""

from __future__ import annotations

import contextlib
import functools
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.distribute.initial_rows import block_maker, rows_of_blocks
from fusion.distribute.layout import Layout, by_owner
from fusion.distribute.replicas import Replicas
from fusion.distribute.saving import WHOLE_TABLE, SavedShards
from fusion.distribute.sharded import Request, Shard, Sharded, gather_from
from fusion.schema.attributes import FLOATS
from fusion.tables.arguments import integer, module_name, one_of
from fusion.tables.checkpoint import leave_out_of_numbers, leave_to_first, save_as, save_with
from fusion.tables.keras_slots import make_keras_slots_follow
from fusion.tables.v1_slots import refuse_shards


class ShardedTable(tf.Module, Sharded):
    """A table [rows, D] whose rows are spread over the replicas of a strategy.

    In the scope of a `MirroredStrategy` each replica's device has a shard, in that of a
    `MultiWorkerMirroredStrategy` each process; without a strategy there is one shard. Lookups
    (`fusion.lookup_sparse`) bring rows of distinct ids to the replica that asks; gradients go back
    to the owner, whose optimizer variables are beside the shard. Nothing as large as a table is
    copied or reduced in training.

    A checkpoint has the whole table, and can be restored into any number of replicas. It passes
    through the first process, which writes it; all of them save together.

    Attributes:
      rows, dimension, dtype: of the table.
      mode: "distributed" or "localized:k".
      shards: by the number of the replica, the variables [its rows, D] of this process, which
        optimizers train.
    """

    def __init__(
        self,
        rows: int,
        dimension: int,
        mode: str = "distributed",
        initializer: Any = None,
        dtype: Any = tf.float32,
        trainable: bool = True,
        name: str = "sharded_table",
        seed: int | None = None,
        make_shard: Callable[..., Any] | None = None,
    ) -> None:
        """Makes the shards of this process.

        Args:
          rows: how many there are, > 0.
          dimension: D, > 0.
          mode: "distributed": replica r of N has the rows r, r + N, ...; "localized:k": replica k
            has all rows.
          initializer: the rows, an array [rows, D]; or what makes them, called with a shape and the
            dtype. None: truncated normal of deviation 1/sqrt(D). This one, and stock's that are
            uniform, normal, truncated normal or constant make rows in blocks, which depend on the
            seed and the row alone, so that a process needs little more than its shards. So does an
            initializer that has the arguments `partition_shape` and `partition_offset`, by which
            TensorFlow asks for a part of the shape [rows, D]. Any other makes all rows in each
            process that has some, and should make the same.
          dtype: float16, bfloat16, float32 or float64.
          trainable: whether optimizers train it.
          name: of the table.
          seed: of the default initializer, and of stock's that have none; None for one that the
            name gives.
          make_shard: makes the variable of a replica, called with its number, shape, and a function
            that gives its rows; None: as `tf.Variable` does.

        Raises:
          ValueError, TypeError: naming the argument and what was given.
          NotImplementedError: in the scope of a strategy whose replicas cannot have shards.
        """
        self.rows = integer("rows", rows, most=2**31 - 1)
        self.last_id = self.rows - 1
        self.dimension = integer("dimension", dimension)
        self.dtype = one_of("dtype", dtype, FLOATS)
        self.replicas = Replicas.here()
        self.layout = Layout.of_mode(mode, self.rows, self.replicas.count)
        self.mode = mode
        seed = zlib.crc32(name.encode()) if seed is None else seed
        seed = integer("seed", seed, -(2**63), 2**63 - 1)
        make_block = block_maker(initializer, self.rows, self.dimension, self.dtype, seed)
        super().__init__(name=module_name(name))
        # What is saved in their place, and not with a SavedModel.
        self._saved = self._no_dependency(SavedShards(self.layout, self.replicas))
        slots: weakref.WeakKeyDictionary[Any, dict[str, SavedShards]] = weakref.WeakKeyDictionary()
        self._slots = slots
        self._replicas = tuple(self.replicas.devices)
        for replica in self._replicas:
            own = self.layout.rows_of(replica)
            rows_of_shard = functools.partial(
                rows_of_blocks, make_block, self.dimension, self.dtype, own
            )
            with self.replicas.variables_of(replica):
                if make_shard is None:
                    shard_name = f"{name}/shard_{replica}"
                    shard = tf.Variable(rows_of_shard, trainable=trainable, name=shard_name)
                else:
                    shard = make_shard(replica, [len(own), self.dimension], rows_of_shard)
            setattr(self, f"shard_{replica}", shard)
            self._saved.add(replica, shard)
            is_first = replica == self._replicas[0]
            save_with(shard, self._saved, is_in_name_of=is_first, is_in_models=True)
            if not is_first:
                leave_out_of_numbers(shard)
            RowShard(self, replica).register(shard)
        make_keras_slots_follow()
        refuse_shards()

    @property
    def shape(self) -> tf.TensorShape:
        """[rows, D]."""
        return tf.TensorShape([self.rows, self.dimension])

    @property
    def shards(self) -> dict[int, Any]:
        """By the number of the replica, the variables of this process."""
        return {replica: getattr(self, f"shard_{replica}") for replica in self._replicas}

    def split(
        self, ids: tf.Tensor, counts: tf.Tensor | None = None
    ) -> tuple[list[Request], tf.Tensor]:
        """The rows of the shards that have these ids, by their numbers there."""
        del counts  # they are not recorded
        distinct, places, _ = ops.unique_with_counts_v3(input=ids)
        distinct, layout = tf.cast(distinct, tf.int32), self.layout
        if layout.owner is not None or layout.count == 1:
            parts = [distinct if layout.rows_of(r) else distinct[:0] for r in range(layout.count)]
        else:
            shapes = [[len(layout.rows_of(r)), self.dimension] for r in range(layout.count)]
            parts, order = by_owner(distinct, shapes, "mod")
            places = tf.gather(order, places)
        return [(part,) for part in parts], places

    def gather(self, replica: int, request: Request) -> tf.Tensor:
        """The rows of a shard, by their numbers in it."""
        return gather_from(self.shards[replica], *request)

    def add_slot(self, replica: int, slot: Any, optimizer: Any, name: str) -> None:
        """Has an optimizer's variable saved with those of this name beside the other shards."""
        known = self._slots.setdefault(optimizer, {})
        saved = known.get(name)
        if saved is None or saved.has(replica):  # an optimizer can be built again
            saved = known[name] = SavedShards(self.layout, self.replicas)
        if replica == self._replicas[0]:
            save_as(slot, saved.saved_tensors, saved.restore, [WHOLE_TABLE])
        else:
            leave_to_first(slot)
        saved.add(replica, slot)

    def _trackable_children(self, save_type: str = "checkpoint", **named: Any) -> dict[str, Any]:
        if save_type == "checkpoint":  # which is of one table
            return {"table": getattr(self, f"shard_{self._replicas[0]}")}
        return dict(super()._trackable_children(save_type, **named))

    def _export_to_saved_model_graph(self, object_map: Any, **_: Any) -> list[Any]:
        """Makes the copy that is saved with a SavedModel's graph: the shards have what it has.

        Raises:
          NotImplementedError: there are shards in other processes.
        """
        if self.replicas.peers is not None:
            raise NotImplementedError(
                f"a SavedModel cannot have sharded table {self.name!r}, whose rows are in "
                f"{self.replicas.count} processes: restore a checkpoint in one, and export there"
            )
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        object_map[self] = copied
        return []

    def saved_tensors(self) -> Mapping[str, tf.Tensor]:
        """What a checkpoint has of it: `table`, [rows, D]."""
        return self._saved.saved_tensors()


class RowShard(Shard):
    """Which shard of which `ShardedTable` a variable is."""

    table: ShardedTable

    @property
    def is_whole(self) -> bool:
        """Whether it has all rows of the table."""
        return len(self.table.layout.rows_of(self.replica)) == self.table.rows

    @contextlib.contextmanager
    def slots(self, optimizer: Any, name: str) -> Iterator[None]:
        """A context in which an optimizer makes a variable beside it."""
        shape = self.table.shards[self.replica].shape

        def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
            slot = next_creator(**arguments)
            if slot.shape == shape:
                self.table.add_slot(self.replica, slot, optimizer, name)
            return slot

        with self.table.replicas.variables_of(self.replica), tf.variable_creator_scope(create):
            yield
