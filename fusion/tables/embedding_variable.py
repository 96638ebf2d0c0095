"""`EmbeddingVariable`: a table whose rows belong to keys, of which there may be any number."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import tensorflow as tf

from fusion import ops
from fusion.ops.tables.cpu_kernels.layout import MAX_ROWS, index_bytes
from fusion.runtime.process import notes
from fusion.runtime.tensorflow.private import record, save_context, variable_accessed
from fusion.schema.attributes import UPDATE_DTYPES
from fusion.tables.arguments import (
    KEY_DTYPES,
    as_ids,
    check_eager,
    integer,
    key_tensor,
    module_name,
    one_of,
)
from fusion.tables.checkpoint import Restore, Save, copy_saved, save_as, save_with, when_written
from fusion.tables.eviction import POLICIES, forget
from fusion.tables.exchange import export_rows, import_rows
from fusion.tables.frozen import FrozenEmbedding
from fusion.tables.initial_rows import (
    SAMPLE_COUNT,
    DefaultInitializer,
    ZerosOnDemand,
    checked_default,
    forget_at_initialization,
    initial_rows,
    max_rows,
)
from fusion.tables.keras_slots import make_keras_slots_follow
from fusion.tables.keyed_rows import (
    TABLE_TENSORS,
    give_waiting,
    initialize,
    put_slot_rows,
    read_rows,
    restore_slot,
    restore_table,
    save_slot,
    save_table,
)
from fusion.tables.keyed_variables import make_keyed, shown_keys
from fusion.tables.registry import embedding_variable_of, register
from fusion.tables.replicas import beside, check_runs_once, colocated_variables, whole_variables
from fusion.tables.slots import Slots, check_slot_shape
from fusion.tables.statistics import TableStatistics, statistics
from fusion.tables.v1_slots import make_slots_follow

#: The note of a graph's embedding variables, which live as long as it does.
_EMBEDDING_VARIABLES = "embedding_variables"

#: The notes of a graph's evictions before saves, and of what begins variables before restores.
_EVICTIONS, _BEGINNINGS = "evictions", "beginnings"


class KeyedInputs(NamedTuple):
    """What an op needs that looks up keys of an embedding variable."""

    table: Any  # handles
    initial: Any
    index: Any
    step: tf.Tensor  # int64 [], of training; negative: the index counts
    trainable: bool  # whether the gradient of the table may be asked for
    is_training: bool  # whether that is known already


class EmbeddingVariable(tf.Module):
    """A table [capacity, D] whose rows belong to keys, and an index of keys in the same memory.

    A key gets a row when it is trained for the first time: when a lookup whose gradient is asked
    for sees it, or sees it for the `admission`th time. Until then, and in inference always, a key
    without a row reads `default_value`, and gets no gradient. In the beginning every element of a
    row is that of one of 4,096 rows that the initializer has made, chosen by the key and the seed;
    nothing else has a part in it, not the order in which keys come, nor threads.

    `table` is a `tf.Variable` as any other: optimizers train its rows, and their slots have the
    same rows. Its memory is taken page by page as keys get rows, and never copied. All replicas of
    a `tf.distribute.MirroredStrategy` share it.

    Attributes:
      table: the variable [capacity, D] that is trained.
      index: the variable of the index, whose elements are no numbers.
      initial: the variable [1 + n, D] of the default row and of those that the initializer made.
      admission: how often a key is seen before it gets a row.
      capacity: how many keys can have rows.
      dimension: D.
      key_dtype: of keys.
      is_trained: whether lookups can be trained, a function; layers that can be frozen replace it.
      partition: which one of a `PartitionedEmbeddingVariable` it is; None for none.
    """

    partition: Any = None

    #: Code that collects the variables of modules, such as Keras, sees the table alone.
    _TF_MODULE_IGNORED_PROPERTIES = frozenset(
        (*tf.Module._TF_MODULE_IGNORED_PROPERTIES, "index", "initial")
    )

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
        default_value: Any = None,
        seed: int | None = None,
        sample_count: int = SAMPLE_COUNT,
        step: Any = None,
        table: Any = None,
        device: str | None = None,
    ) -> None:
        """Makes the variables, or those that belong to `table`.

        Args:
          name: of the table; those of the others begin with it.
          dimension: size D of an embedding, > 0.
          dtype: of the table, float32 or float64.
          key_dtype: int64, int32 or string; of strings the index has 63 bits of their fingerprints
            (`tf.strings.to_hash_bucket_fast`), so that two of ten million share a row by a chance
            of one to 200,000.
          initializer: of rows, called with a shape and `dtype`; truncated normal with deviation
            1/sqrt(D) if None.
          trainable: whether the table is trained; if not, no key gets a row by a lookup.
          admission: how often a key is seen in training before it gets a row; None for once.
          eviction: which keys `evict` and a save forget: a `GlobalStepEvict`, `L2WeightEvict`,
            `LeastFrequent` or `LeastRecent`; None: none.
          capacity: how many keys can have rows; None for as many as this machine's memory may
            hold. A key that finds no room is an error; with `eviction` it waits until there is.
          default_value: what keys without a row read, a number or D of them; None for 0.
          seed: of the initial values of rows; made of the name if None.
          sample_count: how many rows the initializer makes.
          step: a variable of the number of the training step, int64, that keys are noted with, or a
            function that gives it; None: lookups in training are counted.
          table: a variable [capacity, D] of zeros, made by `ZerosOnDemand`, to be used as `table`.
          device: the CPU of its variables in the scope of a strategy of several replicas; None for
            that of the first replica.

        Raises:
          ValueError, TypeError: naming the argument and what was given.
          NotImplementedError: in the scope of a strategy whose replicas cannot share it.
        """
        self.dimension = integer("dimension", dimension)
        self.dtype = one_of("dtype", dtype, UPDATE_DTYPES)
        self.key_dtype = one_of("key_dtype", key_dtype, tuple(t.name for t in KEY_DTYPES))
        row_bytes = self.dimension * self.dtype.size
        if capacity is None:
            self.capacity = max_rows(row_bytes) if table is None else int(table.shape[0])
        else:
            self.capacity = integer("capacity", capacity, most=MAX_ROWS)
        self.admission = integer("admission", 1 if admission is None else admission)
        default = checked_default(default_value, self.dimension)
        if eviction is not None and not isinstance(eviction, POLICIES):
            names = ", ".join(policy.__name__ for policy in POLICIES)
            raise TypeError(f"eviction must be None or one of {names}, got {eviction!r}")
        self.eviction = eviction
        self._slots = Slots()
        self._evicted_at = -1
        if seed is None:
            seed = zlib.crc32(name.encode())
        self._seed = integer("seed", seed, -(2**63), 2**63 - 1)
        if initializer is None:
            initializer = DefaultInitializer(self.dimension, self._seed)
        elif not callable(initializer):
            raise TypeError(f"initializer must be callable, got {initializer!r}")
        count = integer("sample_count", sample_count)
        if not (step is None or callable(step) or isinstance(step, tf.Variable)):
            raise TypeError(f"step must be None, a variable or a function, got {step!r}")
        self.step = step
        self._own_device = device
        shape = [self.capacity, self.dimension]
        if table is None:
            table = self._variable(lambda: ZerosOnDemand()(shape, self.dtype), name, trainable)
        # A module takes a name of its own in a graph, and the table is to have this one.
        super().__init__(name=module_name(name))
        self.table = table
        with colocated_variables(table), tf.name_scope(f"{table.name.partition(':')[0]}/"):
            self.index = self._variable(self._empty_index, "key_index", False)
            self.initial = self._variable(
                lambda: initial_rows(initializer, default, self.dimension, self.dtype, count),
                "initial_rows",
                False,
            )
        for variable in (self.table, self.index):
            forget_at_initialization(variable)
            make_keyed(variable, self.table, self.index)
        self.is_trained: Callable[[], bool] = lambda: bool(self.table.trainable)
        save_with(self.table, self, is_in_name_of=True)
        save_with(self.index, self, is_in_name_of=False)
        save_with(self.initial, self, is_in_name_of=False)
        register(self)
        if not tf.executing_eagerly():
            notes(tf.compat.v1.get_default_graph(), _EMBEDDING_VARIABLES).append(self)
        make_slots_follow()
        make_keras_slots_follow()

    @classmethod
    def of(cls, table: Any) -> EmbeddingVariable | None:
        """The embedding variable that a table belongs to, or None."""
        variable: EmbeddingVariable | None = embedding_variable_of(table)
        return variable

    def _empty_index(self) -> tf.Tensor:
        index = ops.embedding_key_index(
            capacity=tf.constant([self.capacity], tf.int64),
            admission=self.admission,
            seed=self._seed,
            waits=self.eviction is not None,
        )
        index.set_shape([index_bytes(self.capacity) // 8])
        return index

    def __repr__(self) -> str:
        about = f"{self.name!r} dimension={self.dimension} dtype={self.dtype.name}"
        return f"<{type(self).__name__} {about}{shown_keys(self.table) or ''}>"

    @property
    def shape(self) -> tf.TensorShape:
        """[None, D]: keys are not numbered."""
        return tf.TensorShape([None, self.dimension])

    @property
    def device(self) -> str:
        """The device of the table."""
        return str(self.table.device)

    def embedding_lookup(self, keys: Any, counts: Any = None, name: str | None = None) -> tf.Tensor:
        """The rows of keys.

        Args:
          keys: of `key_dtype`, of any shape.
          counts: how often each key was seen, int32, of the shape of keys; None: once.
          name: of the operation.

        Returns:
          A tensor [*keys.shape, D]. Its gradient with respect to `table` is an `IndexedSlices` of
          the rows of keys that have one.

        Raises:
          TypeError: keys of another dtype.
          tf.errors.ResourceExhaustedError: in training, for a key that finds no room.
        """
        with tf.name_scope(name or "keyed_embedding_lookup"):
            keys = key_tensor(keys, self.key_dtype, self.name)
            flat = self.as_ids(tf.reshape(keys, [-1]))
            seen = tf.zeros([0], tf.int32) if counts is None else tf.reshape(counts, [-1])
            # Tapes compute gradients of all that they record, needed or not.
            with contextlib.nullcontext() if self.is_trained() else record.stop_recording():
                rows = self._gather(flat, seen)
            rows.set_shape([None, self.dimension])
            if keys.shape.rank == 1:
                return rows
            return tf.reshape(rows, tf.concat([tf.shape(keys), [self.dimension]], 0))

    def _gather(self, keys: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """The rows of a vector of keys; no counts are once for each."""
        read = self.read()
        with self.beside():
            result = ops.keyed_embedding_gather(
                table=read.table,
                index=read.index,
                initial=read.initial,
                keys=keys,
                counts=counts,
                step=read.step,
                T=self.dtype,
                dim=self.dimension,
                is_training=read.is_training,
            )
        rows: tf.Tensor = result.embeddings
        return rows

    def read(self) -> KeyedInputs:
        """What an op needs that looks up keys: tapes and functions take note of it."""
        make_keras_slots_follow()
        is_trained = self.is_trained()
        # Tapes compute gradients of all that they record, needed or not.
        with contextlib.nullcontext() if is_trained else record.stop_recording():
            for variable in (self.table, self.index, self.initial):
                variable_accessed(variable)  # as by a gather
            # In graphs the gradient says so when it is asked for; eager ops have run by then.
            trains = tf.executing_eagerly() and self.table.trainable
            return KeyedInputs(
                self.table.handle,
                self.initial.handle,
                self.index.handle,
                self._step_now(),  # whose variable may be one of each replica
                is_trained,
                bool(trains and record.should_record_backprop([self.table.handle])),
            )

    def _step_now(self) -> tf.Tensor:
        """The number of the step, int64 []; -1 where lookups in training are counted."""
        if self.step is None:
            return tf.constant(-1, tf.int64)
        return tf.cast(self.step if isinstance(self.step, tf.Variable) else self.step(), tf.int64)

    def add_slot(self, slot: Any, first: Any = None, is_filled: bool = False) -> int | None:
        """Has an optimizer's variable follow the rows of `table`.

        It is saved by keys, and its rows are what they were first when another key gets them.

        Args:
          slot: a variable [capacity, D], made in a context of `beside`; by `ZerosOnDemand`, or
            filled.
          first: what its rows begin with, [1, D]; None for zeros.
          is_filled: whether its rows are that already, and not zeros on demand.

        Returns:
          Its number among those whose rows are to be filled, see `fill_slots`; None for others.

        Raises:
          NotImplementedError: it has another shape, or there are too many to be filled.
        """
        check_slot_shape(self, slot.shape, slot.name)
        number = self._slots.add(slot, first, is_filled)
        forget_at_initialization(slot)
        make_keyed(slot, self.table, self.index)
        if self.partition is None:
            save_as(slot, *self.slot_saver(slot))
        else:
            self.partition.save_slot(slot)
        return number

    def slot_saver(self, slot: Any) -> tuple[Save, Restore]:
        """What saves a slot, and what restores it."""

        def save() -> Mapping[str, tf.Tensor]:
            with self.beside():
                return save_slot(slot, self.index, self._slots)

        def restore(tensors: Mapping[str, tf.Tensor]) -> Any:
            with self.beside():
                return restore_slot(tensors, slot, self.index, self._begin, self._slots)

        return save, restore

    def put_slot_rows(self, keys: Any, values: Any, slot: Any) -> None:
        """Writes rows of a slot to those of keys that have one; eagerly. Other rows stay."""
        put_slot_rows(keys, values, slot, self.index, self._slots)

    @property
    def slots(self) -> list[Any]:
        """The variables of `add_slot` in their order; None for those that are gone."""
        return self._slots.variables

    def beside(self) -> Any:
        """A context whose ops are colocated with the table."""
        return beside(self.table)

    def own_variables(self) -> AbstractContextManager[None]:
        """A context in which variables that belong to it are made, as slots are."""
        return whole_variables(self._own_device)

    def _variable(
        self, initial_value: Callable[[], tf.Tensor], name: str, trainable: bool
    ) -> tf.Variable:
        with self.own_variables():
            return tf.compat.v1.Variable(initial_value, trainable, name=name, use_resource=True)

    def fill_slots(self) -> list[tf.Tensor]:
        """Has the rows of slots begin as they should, of keys that have got rows by now.

        Returns:
          What has to be waited for in a graph.
        """
        return self._slots.fill(self.index)

    def _trackable_children(self, save_type: str = "checkpoint", **named: Any) -> dict[str, Any]:
        if save_type == "checkpoint":  # which has no variable of its own
            return {"table": self.table}
        return dict(super()._trackable_children(save_type, **named))

    def _deserialization_dependencies(self, children: Any) -> dict[str, Any]:
        """What a SavedModel has to have before it."""
        return {name: children[name] for name in ("table", "index", "initial")}

    def _export_to_saved_model_graph(self, object_map: Any, **_: Any) -> list[Any]:
        """Makes the copy that is saved with a SavedModel's graph, of the variables there."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        for name in ("table", "index", "initial"):
            copied.__dict__[name] = object_map[getattr(self, name)]
        copied.__dict__.update(_slots=Slots(), eviction=None)
        object_map[self] = copied
        return []

    def _serialize_to_tensors(self) -> Mapping[str, Any]:
        names = (*TABLE_TENSORS, "initial")
        return when_written(self.saved_tensors, names, self.dtype, self.device)

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        copy_saved(self, self.saved_tensors, self.device, object_map)

    def saved_tensors(self, evicts: bool = True) -> Mapping[str, tf.Tensor]:
        """The tensors of a checkpoint; forgets keys before if it `evicts`."""
        before = self._evict_before_save if evicts else lambda: None
        with self.beside():
            variables = self.table, self.index, self.initial
            return save_table(*variables, self._begin, before)

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        """Takes what a checkpoint has."""
        # The function that a SavedModel has for it knows no slots, which are not in there.
        slots = Slots() if save_context.in_save_context() else self._slots
        with self.beside():
            variables = self.table, self.index, self.initial
            return restore_table(restored_tensors, *variables, self._begin, slots)

    def statistics(self) -> TableStatistics:
        """How full it is now.

        Raises:
          RuntimeError: called in a graph.
        """
        check_eager("statistics")
        return statistics(self.table, self.index)

    def evict(self) -> Any:
        """Forgets the keys that `eviction` says.

        Their rows, and those of the slots, are given to other keys after the next eviction but
        not before: updates may be on their way to them. Keys that wait for admission are
        forgotten, too, where they are more than those that have rows.

        Returns:
          int64 [], how many keys with rows were forgotten: in a graph, a tensor to be run.

        Raises:
          ValueError: there is no `eviction`.
          RuntimeError: called in a replica of several.
        """
        check_runs_once("evict")
        if self.eviction is None:
            raise ValueError(f"{self.name} has no eviction")
        with self.beside():
            now = None if self.step is None else self._step_now()
            evicted, clock = forget(self.eviction, self.table, self.index, now, self._reset_slots)
            if tf.executing_eagerly():
                self._evicted_at = int(clock[0])
        return evicted

    def _reset_slots(self, rows: tf.Tensor) -> list[Any]:
        """Makes rows of all slots what they were first."""
        return self._slots.reset(rows, self._begin)

    def _evict_before_save(self) -> Any:
        """Evicts, unless nothing was trained since it did; in a graph, what saves wait for.

        It is done when the table is saved: what slots have of evicted keys is not restored.
        """
        if self.eviction is None or save_context.in_save_context():
            return None
        if not tf.executing_eagerly():
            return _once(_EVICTIONS, self, self.evict)
        clock = int(ops.embedding_key_entries(index=self.index.handle).clock[0])
        return self.evict() if clock != self._evicted_at else None

    def export(self, path: str | os.PathLike[str]) -> int:
        """Writes the keys that have rows, and these, to a new folder; returns how many.

        The files are `key`, int64, and `emb_vector`, float32 [n, D], as NVIDIA's HPS reads them.

        Raises:
          FileExistsError: there is something at `path`.
          RuntimeError: called in a graph.
        """
        return self._export(path, 0, {})

    def delta(self, path: str | os.PathLike[str], since_step: int) -> int:
        """As `export`, but of the keys that were trained in this step or later.

        Keys that were evicted since then are not listed.
        """
        return self._export(path, operator.index(since_step), {"since_step": since_step})

    def _export(self, path: str | os.PathLike[str], since: int, about: dict[str, Any]) -> int:
        check_eager("export")
        return export_rows(path, [(self.table, self.index)], since, about)

    def import_from(self, path: str | os.PathLike[str]) -> int:
        """Gives the keys of a folder of `export` its rows; returns how many there are.

        Other keys keep theirs.

        Raises:
          FileNotFoundError: there are no such files.
          ValueError: rows of another dimension.
          tf.errors.ResourceExhaustedError: there is no room for all keys.
          RuntimeError: called in a graph.
        """
        check_eager("import_from")
        with self.slots_follow():
            return import_rows(path, [(self.table, self.index, None)])

    @contextlib.contextmanager
    def slots_follow(self) -> Iterator[None]:
        """A context of ops that add keys, eagerly: restored rows of slots wait for these."""
        waiting = self._slots.waiting(self.index)
        yield
        give_waiting(waiting, self.index, self._slots, ends=False)

    def apply_delta(self, path: str | os.PathLike[str]) -> int:
        """As `import_from`, of a folder of `delta`."""
        return self.import_from(path)

    def freeze(self) -> FrozenEmbedding:
        """The rows of keys as an ordinary table, and a static map of keys, of stock ops alone.

        Raises:
          RuntimeError: called in a graph.
        """
        check_eager("freeze")
        entries = ops.embedding_key_entries(index=self.index.handle)
        has_row = entries.rows >= 0
        keys, rows = (tf.boolean_mask(some, has_row) for some in (entries.keys, entries.rows))
        (values,), are_theirs = read_rows([self.table], self.index, keys, rows)
        return FrozenEmbedding(
            tf.boolean_mask(keys, are_theirs),
            tf.concat([self.initial[:1], tf.boolean_mask(values, are_theirs)], 0),
            self.key_dtype,
        )

    def _begin(self, variable: Any) -> Any:
        """Gives a variable or a slot its initial value if it has none; what does so in a graph.

        There is one op for all who restore: a second one might come after the others' rows. A slot
        has none yet if it is restored as soon as a function makes it.
        """
        first: Callable[[], Any]
        if variable is self.index:
            first = self._empty_index
        elif self._slots.is_filled(variable):
            if tf.executing_eagerly():
                first = functools.partial(self._slots.beginning, variable)
            elif variable.initial_value is None:  # it was made eagerly, and has been filled
                return None
            else:
                first = lambda: variable.initial_value  # noqa: E731
        else:
            first = functools.partial(ZerosOnDemand(), variable.shape.as_list(), self.dtype)
        if tf.executing_eagerly():
            return initialize(variable, first)

        def begin() -> Any:
            with tf.control_dependencies(None):  # who made it is not who runs it
                return initialize(variable, first)

        return _once(_BEGINNINGS, variable, begin)

    def as_ids(self, keys: tf.Tensor) -> tf.Tensor:
        """Keys as the index has them, int32 or int64.

        Raises:
          TypeError: keys of another dtype than `key_dtype`.
        """
        return as_ids(keys, self.key_dtype, self.name)


def _once(note: str, key: Any, make: Callable[[], Any]) -> Any:
    """The value of `make` for something in this graph, made once."""
    known = notes(tf.compat.v1.get_default_graph(), note)
    result = next((value for other, value in known if other is key), None)
    if result is None:
        result = make()
        known.append((key, result))
    return result
