"""`EmbeddingVariable`: a table whose rows belong to keys, of which there may be any number."""

from __future__ import annotations

import contextlib
import operator
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from fusion import ops
from fusion.cpu_ops.index_layout import MOST_ROWS, index_bytes
from fusion.schema.attributes import UPDATE_DTYPES
from fusion.tables.initial_rows import (
    SAMPLE_COUNT,
    ZerosOnDemand,
    checked_default,
    default_initializer,
    initial_rows,
    most_rows,
)
from fusion.tables.keras_slots import check_keras_slots
from fusion.tables.registry import embedding_variable_of, register
from fusion.tables.slots import FilledSlots
from fusion.tables.v1_slots import make_slots_on_demand

#: Dtypes of keys.
KEY_DTYPES = (tf.int64, tf.int32, tf.string)

#: The collection of a graph's embedding variables, which live as long as it does.
_EMBEDDING_VARIABLES = "fusion_embedding_variables"


class EmbeddingVariable(tf.Module):
    """A table [capacity, D] whose rows belong to keys, and an index of keys in the same memory.

    A key gets a row when it is trained for the first time: when a lookup whose gradient is asked
    for sees it, or sees it for the `admission`th time. Until then, and in inference always, a key
    without a row reads `default_value`, and gets no gradient. In the beginning every element of a
    row is that of one of 4,096 rows that the initializer has made, chosen by the key and the seed;
    nothing else has a part in it, not the order in which keys come, nor threads.

    `table` is a `tf.Variable` as any other: optimizers train its rows, and their slots have the
    same rows. Its memory is taken page by page as keys get rows, and never copied.

    Attributes:
      table: the variable [capacity, D] that is trained.
      index: the variable of the index, whose elements are no numbers.
      initial: the variable [1 + n, D] of the default row and of those that the initializer made.
      admission: how often a key is seen before it gets a row.
      capacity: how many keys can have rows.
      has_default_capacity: whether that is as many as memory may hold.
      dimension: D.
      key_dtype: of keys.
      is_trained: whether lookups can be trained, a function that whoever freezes the table sets.
    """

    #: To whoever collects the variables of modules, Keras among them, there is the table alone.
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
        capacity: int | None = None,
        default_value: Any = None,
        seed: int | None = None,
        sample_count: int = SAMPLE_COUNT,
        step: Callable[[], Any] | None = None,
        table: Any = None,
    ) -> None:
        """Makes the variables, or those that belong to a given table.

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
          capacity: how many keys can have rows; None for as many as this machine's memory may
            hold. A key that finds no room is an error.
          default_value: what keys without a row read, a number or D of them; None for 0.
          seed: of the initial values of rows; made of the name if None.
          sample_count: how many rows the initializer makes.
          step: gives the number of the training step, int64, that keys are noted with; None:
            lookups in training are counted.
          table: a variable [capacity, D] of zeros, made by `ZerosOnDemand`, to be used as `table`.

        Raises:
          ValueError, TypeError: naming the argument and what was given.
        """
        super().__init__(name=_module_name(name))
        self.dimension = _positive("dimension", dimension)
        self.dtype = _dtype("dtype", dtype, UPDATE_DTYPES)
        self.key_dtype = _dtype("key_dtype", key_dtype, tuple(t.name for t in KEY_DTYPES))
        row_bytes = self.dimension * self.dtype.size
        self.has_default_capacity = capacity is None
        if capacity is None:
            self.capacity = most_rows(row_bytes) if table is None else int(table.shape[0])
        else:
            self.capacity = _positive("capacity", capacity)
        if self.capacity > MOST_ROWS:
            raise ValueError(f"capacity must be at most {MOST_ROWS}, got {self.capacity}")
        self.admission = _positive("admission", 1 if admission is None else admission)
        default = checked_default(default_value, self.dimension)
        if initializer is None:
            initializer = default_initializer(self.dimension)
        elif not callable(initializer):
            raise TypeError(f"initializer must be callable, got {initializer!r}")
        seed = zlib.crc32(name.encode()) if seed is None else operator.index(seed)
        count = _positive("sample_count", sample_count)
        self._step = step
        shape = [self.capacity, self.dimension]
        if table is None:
            table = _variable(lambda: ZerosOnDemand()(shape, self.dtype), name, trainable)
        self.table = table
        with tf.name_scope(f"{table.name.partition(':')[0]}/"):
            self.index = _variable(lambda: self._empty_index(seed), "key_index", False)
            self.initial = _variable(
                lambda: initial_rows(initializer, default, self.dimension, self.dtype, count),
                "initial_rows",
                False,
            )
        self.is_trained: Callable[[], bool] = lambda: bool(self.table.trainable)
        self._filled_slots = FilledSlots()
        register(self)
        if not tf.executing_eagerly():
            tf.compat.v1.add_to_collection(_EMBEDDING_VARIABLES, self)
        make_slots_on_demand()
        check_keras_slots()

    @classmethod
    def of(cls, table: Any) -> EmbeddingVariable | None:
        """The embedding variable that a table belongs to, or None."""
        found: EmbeddingVariable | None = embedding_variable_of(table)
        return found

    def _empty_index(self, seed: int) -> tf.Tensor:
        index = ops.embedding_key_index(
            capacity=tf.constant([self.capacity], tf.int64),
            admission=self.admission,
            seed=seed,
            waits=False,
        )
        index.set_shape([index_bytes(self.capacity) // 8])
        return index

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
            keys = tf.convert_to_tensor(keys, None if tf.is_tensor(keys) else self.key_dtype)
            flat = self.as_ids(tf.reshape(keys, [-1]))
            seen = tf.zeros([0], tf.int32) if counts is None else tf.reshape(counts, [-1])
            # Tapes ask for the gradient of all that they know, also where nobody wants it.
            with contextlib.nullcontext() if self.is_trained() else record.stop_recording():
                rows = self._gather(flat, seen)
            rows.set_shape([None, self.dimension])
            if keys.shape.rank == 1:
                return rows
            return tf.reshape(rows, tf.concat([tf.shape(keys), [self.dimension]], 0))

    def _gather(self, keys: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """The rows of a vector of keys; no counts are once for each."""
        for variable in (self.table, self.index, self.initial):
            variable_accessed(variable)  # as by a gather: tapes and functions take note of it
        # In graphs the gradient says so when it is asked for; eager ops have run by then.
        trains = tf.executing_eagerly() and self.table.trainable
        found = ops.keyed_embedding_gather(
            table=self.table.handle,
            index=self.index.handle,
            initial=self.initial.handle,
            keys=keys,
            counts=counts,
            step=tf.constant(-1, tf.int64) if self._step is None else self._step(),
            T=self.dtype,
            dim=self.dimension,
            is_training=bool(trains and record.could_possibly_record()),
        )
        rows: tf.Tensor = found.embeddings
        return rows

    def add_slot(self, slot: Any, first: Any = None) -> int | None:
        """Has an optimizer's variable follow the rows of `table`.

        Args:
          slot: a variable [capacity, D], made by `ZerosOnDemand`.
          first: what its rows begin with, [1, D]; None for zeros.

        Returns:
          Its number among those that do not begin with zeros; None for zeros.

        Raises:
          NotImplementedError: there are too many that do not begin with zeros.
        """
        return None if first is None else self._filled_slots.add(slot, first)

    def fill_slots(self) -> list[tf.Tensor]:
        """Has the rows of slots begin as they should, of keys that have got rows by now.

        Returns:
          What has to be waited for in a graph.
        """
        return self._filled_slots.fill(self.index)

    def as_ids(self, keys: tf.Tensor) -> tf.Tensor:
        """Keys as the index has them, int32 or int64.

        Raises:
          TypeError: keys of another dtype than `key_dtype`.
        """
        if (keys.dtype == tf.string) != (
            self.key_dtype == tf.string
        ) or keys.dtype not in KEY_DTYPES:
            raise TypeError(
                f"keys of {self.name} must be {self.key_dtype.name}, got {keys.dtype.name}"
            )
        if keys.dtype == tf.string:
            return tf.strings.to_hash_bucket_fast(keys, 2**63 - 1)
        return keys


def _variable(initial_value: Callable[[], tf.Tensor], name: str, trainable: bool) -> Any:
    return tf.compat.v1.Variable(initial_value, trainable, name=name, use_resource=True)


def _module_name(name: str) -> str:
    """A name that `tf.Module` takes, which are identifiers."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in f"{name}") or "_"


def _positive(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def _dtype(name: str, dtype: Any, allowed: tuple[str, ...]) -> tf.DType:
    try:
        found = tf.as_dtype(dtype)
    except TypeError:
        raise TypeError(f"{name} must be one of {allowed}, got {dtype!r}") from None
    if found.name not in allowed:
        raise TypeError(f"{name} must be one of {allowed}, got {found.name}")
    return found
