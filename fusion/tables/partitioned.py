"""`PartitionedEmbeddingVariable`: the keys of one table, split over several embedding variables."""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.ops.tables.cpu_kernels.layout import EV_BUCKETS
from fusion.runtime.tensorflow.private import colocate_with
from fusion.tables import exchange
from fusion.tables.arguments import as_ids, check_eager, key_tensor, module_name
from fusion.tables.checkpoint import (
    NamedSaver,
    Restore,
    Save,
    copy_saved,
    leave_out_of_numbers,
    leave_to_first,
    save_alone_as,
    save_as,
    save_with,
    v1_name,
    when_written,
)
from fusion.tables.embedding_variable import EmbeddingVariable
from fusion.tables.eviction import LeastFrequent, LeastRecent
from fusion.tables.frozen import FrozenEmbedding
from fusion.tables.keyed_rows import TABLE_TENSORS
from fusion.tables.keyed_variables import shown_keys
from fusion.tables.partitions import checked_count, partition_capacity, whole_name
from fusion.tables.saved_models import leave_out
from fusion.tables.statistics import TableStatistics


class PartitionedEmbeddingVariable(tf.Module):
    """A table as an `EmbeddingVariable` whose keys are split over several of these.

    Key k is in partition `k % 1000 % P`, with the modulo that is never negative, as DeepRec has it
    and as `PartitionWithPermutation` does it for "mod_ev". So `tf.distribute`'s
    `ParameterServerStrategy`, or `tf.compat.v1.train.replica_device_setter`, can put partitions on
    different servers; each is gathered from where it is. New rows begin as those of a table without
    partitions.

    It is saved as one table: a checkpoint can be restored into any number of partitions, and into
    and from an `EmbeddingVariable`.

    Attributes:
      partitions: the embedding variables, those of this process if others have some.
      dimension, dtype: of rows.
      key_dtype: of keys.
      admission: how often a key is seen before it gets a row.
      eviction: which keys are forgotten; each partition keeps a P-th of its `capacity`.
      capacity: how many keys can have rows, if they are spread evenly.
    """

    def __init__(
        self,
        name: str,
        dimension: int,
        partition_count: int,
        dtype: Any = tf.float32,
        key_dtype: Any = tf.int64,
        initializer: Callable[..., Any] | None = None,
        trainable: bool = True,
        admission: int | None = None,
        eviction: Any = None,
        capacity: int | None = None,
        seed: int | None = None,
        tables: Sequence[Any] | None = None,
        devices: Mapping[int, str | None] | None = None,
        **options: Any,
    ) -> None:
        """Makes the partitions, with variables `name/part_0` and so on, or of `tables`.

        Args:
          name: of the whole.
          dimension: size D of an embedding, > 0.
          partition_count: how many partitions there are, P, 1 to 1000.
          capacity: of the whole: each partition has room for a P-th, a quarter more, and 64 keys,
            since keys need not be spread evenly; one that is full is an error as a table is.
          tables: P variables of `partition_capacity` rows of zeros, made by `ZerosOnDemand`.
          devices: by their numbers the partitions to make, and the `device` of each; None for all.
          dtype, key_dtype, initializer, trainable, admission, eviction, seed, **options: as of
            `EmbeddingVariable`. The `capacity` of an eviction is split over the partitions.

        Raises:
          ValueError, TypeError: naming the argument and what was given.
        """
        count = checked_count("partition_count", partition_count)
        if tables is not None and len(tables) != count:
            raise ValueError(f"tables must be {count}, one of each partition, got {len(tables)}")
        super().__init__(name=module_name(name))
        make = functools.partial(
            EmbeddingVariable,
            dimension=dimension,
            dtype=dtype,
            key_dtype=tf.int64 if key_dtype in (tf.string, "string") else key_dtype,
            trainable=trainable,
            admission=admission,
            eviction=_share_of(eviction, count),
            capacity=partition_capacity(capacity, count),
            seed=zlib.crc32(f"{name}".encode()) if seed is None else seed,
        )
        partitions: list[EmbeddingVariable] = []
        devices = dict.fromkeys(range(count)) if devices is None else devices
        self._count, self._numbers = count, tuple(devices)
        for number, device in devices.items():
            if partitions:  # the same rows, also of an initializer that gives others each time
                initializer = functools.partial(_samples, partitions[0])
                options["sample_count"] = int(partitions[0].initial.shape[0]) - 1
            options |= {"table": None if tables is None else tables[number], "device": device}
            partition = make(f"{name}/part_{number}", initializer=initializer, **options)
            partitions.append(partition)
            setattr(self, f"part_{number}", partition)
            self._adopt(partition, number)
        first = partitions[0]
        self.dimension, self.dtype, self.admission = first.dimension, first.dtype, first.admission
        self.key_dtype = tf.as_dtype(key_dtype)
        self.eviction = eviction
        self.capacity = sum(p.capacity for p in partitions) if capacity is None else capacity

    def _adopt(self, partition: EmbeddingVariable, number: int) -> None:
        """Has a partition saved with the others, in place of its variables."""
        is_first = number == self._numbers[0]
        partition.partition = _Partition(number, self._count, is_first, self)
        leave_out(partition)
        save_with(partition.table, self, is_in_name_of=is_first)
        save_with(partition.index, self, is_in_name_of=False)
        save_with(partition.initial, self, is_in_name_of=False)
        if not is_first:
            for variable in (partition.table, partition.index, partition.initial):
                leave_out_of_numbers(variable)
        else:
            saver = NamedSaver(
                whole_name(v1_name(partition.table)),
                self.saved_tensors,
                self._restore_from_tensors,
            )
            save_alone_as(partition.table, lambda: saver)

    def __repr__(self) -> str:
        about = f"{self.name!r} dimension={self.dimension} dtype={self.dtype.name}"
        parts = [
            f"{k}{shown_keys(table)}" for k, table in zip(self._numbers, self.tables, strict=True)
        ]
        return f"<{type(self).__name__} {about}, partitions: {'; '.join(parts)}>"

    @property
    def partitions(self) -> list[EmbeddingVariable]:
        """The embedding variables that have the keys, those of this process."""
        return [getattr(self, f"part_{number}") for number in self._numbers]

    @property
    def tables(self) -> list[Any]:
        """The variables that are trained."""
        return [partition.table for partition in self.partitions]

    @property
    def shape(self) -> tf.TensorShape:
        """[None, D]: keys are not numbered."""
        return tf.TensorShape([None, self.dimension])

    @property
    def is_trained(self) -> Callable[[], bool]:
        """Whether lookups can be trained, a function; layers that can be frozen replace it."""
        return self.partitions[0].is_trained

    @is_trained.setter
    def is_trained(self, is_trained: Callable[[], bool]) -> None:
        for partition in self.partitions:
            partition.is_trained = is_trained

    def embedding_lookup(self, keys: Any, counts: Any = None, name: str | None = None) -> tf.Tensor:
        """The rows of keys, each gathered where its partition is; see `EmbeddingVariable`.

        Its gradients with respect to `tables` are `IndexedSlices`.
        """
        with tf.name_scope(name or "partitioned_embedding_lookup"):
            keys = key_tensor(keys, self.key_dtype, self.name)
            flat = self.as_ids(tf.reshape(keys, [-1]))
            rows = self._gather(flat, None if counts is None else tf.reshape(counts, [-1]))
            rows.set_shape([None, self.dimension])
            if keys.shape.rank == 1:
                return rows
            return tf.reshape(rows, tf.concat([tf.shape(keys), [self.dimension]], 0))

    def _gather(self, keys: tf.Tensor, counts: tf.Tensor | None) -> tf.Tensor:
        """The rows of a vector of keys."""
        partitions, count = self.partitions, self._count
        if count == 1:
            return partitions[0].embedding_lookup(keys, counts)
        shape = tf.constant([tf.int64.max, self.dimension], tf.int64)
        split = ops.partition_with_permutation(
            input=keys, partition_shapes=[shape] * count, partition_strategy="mod_ev"
        )
        owners = split.partition_permutation[:, 0]
        places = tf.dynamic_partition(tf.range(tf.size(keys)), owners, count)
        seen = [None] * count if counts is None else tf.dynamic_partition(counts, owners, count)
        parts = zip(partitions, split.partitioned_values, seen, strict=True)
        rows = [partition.embedding_lookup(*inputs) for partition, *inputs in parts]
        return tf.dynamic_stitch(places, rows)

    def as_ids(self, keys: tf.Tensor) -> tf.Tensor:
        """Keys as the indices have them; see `EmbeddingVariable.as_ids`."""
        return as_ids(keys, self.key_dtype, self.name)

    def fill_slots(self) -> list[tf.Tensor]:
        """As `EmbeddingVariable.fill_slots`."""
        return [filled for partition in self.partitions for filled in partition.fill_slots()]

    def statistics(self) -> list[TableStatistics]:
        """How full each partition is at this moment.

        Raises:
          RuntimeError: called in a graph.
        """
        return [partition.statistics() for partition in self.partitions]

    def evict(self) -> Any:
        """Forgets the keys that `eviction` says, see `EmbeddingVariable.evict`.

        Raises:
          ValueError: there is no `eviction`.
        """
        if self.eviction is None:
            raise ValueError(f"{self.name} has no eviction")
        evicted = [partition.evict()[tf.newaxis] for partition in self.partitions]
        return tf.reduce_sum(self._concat(evicted))

    def export(self, path: str | os.PathLike[str]) -> int:
        """Writes the keys of all partitions to one folder, see `EmbeddingVariable.export`."""
        return self._export(path, 0, {})

    def delta(self, path: str | os.PathLike[str], since_step: int) -> int:
        """As `export`, but of the keys that were trained in this step or later."""
        return self._export(path, since_step, {"since_step": since_step})

    def _export(self, path: str | os.PathLike[str], since: int, about: dict[str, Any]) -> int:
        check_eager("export")
        variables = [(partition.table, partition.index) for partition in self.partitions]
        return exchange.export_rows(path, variables, since, about)

    def import_from(self, path: str | os.PathLike[str]) -> int:
        """Gives keys the rows of a folder, of any partitions; see `EmbeddingVariable`."""
        check_eager("import_from")
        parts = [(p.table, p.index, p.partition.is_of) for p in self.partitions]
        with contextlib.ExitStack() as stack:
            for partition in self.partitions:
                stack.enter_context(partition.slots_follow())
            return exchange.import_rows(path, parts)

    def apply_delta(self, path: str | os.PathLike[str]) -> int:
        """As `import_from`, of a folder of `delta`."""
        return self.import_from(path)

    def freeze(self) -> FrozenEmbedding:
        """The rows of all partitions as one ordinary table, see `EmbeddingVariable.freeze`."""
        check_eager("freeze")
        saved = self.saved_tensors()
        keys = tf.boolean_mask(saved["keys"], saved["steps"] >= 0)
        rows = tf.concat([saved["initial"][:1], saved["values"]], 0)
        return FrozenEmbedding(keys, rows, self.key_dtype)

    def _serialize_to_tensors(self) -> Mapping[str, Any]:
        names, device = (*TABLE_TENSORS, "initial"), self.partitions[0].device
        return when_written(self.saved_tensors, names, self.dtype, device)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        copy_saved(self, self.saved_tensors, self.partitions[0].device, object_map)

    def saved_tensors(self) -> Mapping[str, tf.Tensor]:
        """What a checkpoint has of it: what it has of a table without partitions."""
        parts = [partition.saved_tensors() for partition in self.partitions]
        return self._joined(parts)

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        """Restores the tensors of a checkpoint of any number of partitions."""
        shares = [(p, p.partition.share(restored_tensors)) for p in self.partitions]
        return _group([EmbeddingVariable._restore_from_tensors(*some) for some in shares])

    def slot_saver(self, slot_number: int) -> tuple[Save, Restore]:
        """What saves a slot of all partitions, and what restores it.

        A partition whose slot is made later takes its share of what was restored then.

        Args:
          slot_number: its index among the slots of each partition.
        """

        def savers() -> list[tuple[Save, Restore] | None]:
            known = [(p, dict(enumerate(p.slots)).get(slot_number)) for p in self.partitions]
            return [None if slot is None else p.slot_saver(slot) for p, slot in known]

        def save() -> Mapping[str, tf.Tensor]:
            return self._joined([saver[0]() for saver in savers() if saver is not None])

        def restore(tensors: Mapping[str, tf.Tensor]) -> Any:
            restored = []
            for partition, saver in zip(self.partitions, savers(), strict=True):
                share = partition.partition.share(tensors)
                if saver is None:
                    partition.partition.waiting[slot_number] = share
                else:
                    restored.append(saver[1](share))
            return _group(restored)

        return save, restore

    def _joined(self, parts: Sequence[Mapping[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
        """The tensors of all partitions as those of one table or slot, where the first is."""
        with self.partitions[0].beside():
            joined = {name: self._concat([part[name] for part in parts]) for name in parts[0]}
            if "initial" in joined:  # it is the same in all
                joined["initial"] = tf.identity(parts[0]["initial"])
            return joined

    def _concat(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Tensors of partitions, concatenated where the first partition is.

        An eager op of tensors on two servers may wait forever while these run steps, also with
        nothing but stock TensorFlow. A function sends them.
        """
        if not tf.executing_eagerly():
            return tf.concat(parts, 0)
        specs = tuple(tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in parts)
        with tf.device(None):  # else the function runs where the other server is not known
            joined: tf.Tensor = _concat_on(self.partitions[0].device, specs)(list(parts))
            return joined

    def _trackable_children(self, save_type: str = "checkpoint", **named: Any) -> dict[str, Any]:
        if save_type == "checkpoint":  # which is of one table
            return {"table": self.partitions[0].table}
        return dict(super()._trackable_children(save_type, **named))

    def _deserialization_dependencies(self, children: Any) -> dict[str, Any]:
        """What a SavedModel has to have before it."""
        names = [f"part_{number}" for number in self._numbers]
        return {name: children[name] for name in names}

    def _export_to_saved_model_graph(self, object_map: Any, **_: Any) -> list[Any]:
        """Makes the copy that is saved with a SavedModel's graph, of the partitions there."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        for number, partition in zip(self._numbers, self.partitions, strict=True):
            copied.__dict__[f"part_{number}"] = object_map[partition]
        object_map[self] = copied
        return []


@dataclass(frozen=True, eq=False)
class _Partition:
    """Which partition of which table an embedding variable is.

    Attributes:
      number: its index.
      count: how many there are.
      is_first: whether it is the first one of this process, with which the others are saved.
      whole: the `PartitionedEmbeddingVariable`.
      waiting: what was restored of slots that are not made yet, by their number.
    """

    number: int
    count: int
    is_first: bool
    whole: PartitionedEmbeddingVariable
    waiting: dict[int, dict[str, tf.Tensor]] = field(default_factory=dict)

    def is_of(self, keys: Any) -> tf.Tensor:
        """A mask [n] of the keys int64 [n] that the partition has."""
        return tf.equal(keys % EV_BUCKETS % self.count, self.number)

    def share(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The keys of this partition of what was saved of a table or a slot, and their rows."""
        keys = tf.reshape(tensors["keys"], [-1])
        is_own, share = self.is_of(keys), dict(tensors)
        with_row = is_own
        if "steps" in tensors:  # of a table, in which keys may wait for a row
            with_row = tf.boolean_mask(is_own, tf.reshape(tensors["steps"], [-1]) >= 0)
        for name in tensors.keys() & {"keys", "counts", "steps"}:
            share[name] = tf.boolean_mask(tf.reshape(tensors[name], [-1]), is_own)
        share["values"] = tf.boolean_mask(tensors["values"], with_row)
        return share

    def save_slot(self, slot: Any) -> None:
        """Has a slot saved by keys, that of the first partition for all, and restored."""
        number = len(self.variable.slots) - 1
        if not self.is_first:
            leave_to_first(slot)
        else:
            saver = self.whole.slot_saver(number)
            save_as(slot, *saver)
            save_alone_as(slot, lambda: NamedSaver(self._whole_name(slot), *saver))
        waiting = self.waiting.pop(number, None)
        if waiting is not None:
            with tf.init_scope():  # a function makes it
                self.variable.slot_saver(slot)[1](waiting)

    def _whole_name(self, slot: Any) -> str:
        """The name of a slot, if it was one of a table without partitions."""
        first = v1_name(self.variable.table)
        return v1_name(slot).replace(first, whole_name(first), 1)

    @property
    def variable(self) -> EmbeddingVariable:
        """The partition itself."""
        partition: EmbeddingVariable = getattr(self.whole, f"part_{self.number}")
        return partition


def _share_of(eviction: Any, count: int) -> Any:
    """The policy of each of `count` partitions."""
    if not isinstance(eviction, LeastFrequent | LeastRecent):
        return eviction
    return replace(eviction, capacity=-(-eviction.capacity // count))


def _samples(first: EmbeddingVariable, shape: Any, dtype: Any) -> tf.Tensor:
    """The sample rows of the first partition, from which new rows are made."""
    del shape, dtype
    known = first.initial
    with colocate_with(known, ignore_existing=True):  # may be on another server
        if tf.executing_eagerly():
            return known[1:]
        is_initialized = tf.raw_ops.VarIsInitializedOp(resource=known.handle)
        return tf.cond(is_initialized, known.read_value, lambda: known.initial_value)[1:]


@functools.cache
def _concat_on(device: str, specs: tuple[tf.TensorSpec, ...]) -> Any:
    """A function that concatenates tensors of these specs on a device."""

    def concat(parts: list[tf.Tensor]) -> tf.Tensor:
        with tf.device(device):
            return tf.concat(parts, 0)

    return tf.function(concat, [list(specs)], autograph=False)


def _group(restored: Sequence[Any]) -> Any:
    """In a graph, the group of several ops."""
    return None if tf.executing_eagerly() else tf.group(*restored)


#: What lookups take in the place of a table, if its rows belong to keys.
KeyedTable = EmbeddingVariable | PartitionedEmbeddingVariable
