"""Layers of slots, as HugeCTR's plugin for TensorFlow and SparseOperationKit have them.

Here is what they do in either Keras; `fusion.keras.keras3` and `fusion.keras.tf_keras` have the
classes, each of these before a layer of its Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.distribute.sharded_table import ShardedTable
from fusion.keras.keyed import add_keyed_table, checked_option
from fusion.keras.tables import as_ids, weights_at_once
from fusion.lookup import slots_lookup
from fusion.schema.attributes import COMBINERS
from fusion.tables import EmbeddingVariableOption
from fusion.tables.arguments import integer

_Layer: Any = object  # that of a Keras follows

_INT64 = -(2**63), 2**63 - 1


class SlotTable(_Layer):
    """A base before a Keras's layer: the table of all slots, and the arguments of both layers.

    Args:
      input_dim: rows of the table; None: keys have no bound, and the table is an
        `EmbeddingVariable`, in which a key gets a row when it is trained for the first time.
      output_dim: size D of an embedding.
      slot_num: how many slots a row of keys has; None for any number.
      invalid_key: stands for no key in a Tensor; None if there is no such key.
      embeddings_initializer: of the table; an initializer of the Keras, or its name.
      embeddings_regularizer, embeddings_constraint: of the table; not of an `EmbeddingVariable`.
      ev_option: with `input_dim=None` an `EmbeddingVariableOption`.
      mode: "distributed" or "localized:k": the table is a `fusion.distribute.ShardedTable` over the
        replicas in whose scope the layer is built. Its rows depend on the initializer's seed, or
        the layer's name if that has none; see there which make no more than a shard in a process.
        None for a table whose rows are all in each replica.
      **kwargs: of a layer of the Keras.
    """

    #: The Keras: a package.
    _keras: Any

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        slot_num: int | None = None,
        invalid_key: int | None = -1,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        ev_option: EmbeddingVariableOption | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_dim = _optional("input_dim", input_dim)
        self.output_dim = integer("output_dim", output_dim)
        self.slot_num = _optional("slot_num", slot_num)
        self.invalid_key = _optional("invalid_key", invalid_key, *_INT64)
        self.embeddings_initializer = self._keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = self._keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = self._keras.constraints.get(embeddings_constraint)
        self.ev_option = None
        if input_dim is None:
            for name in ("embeddings_regularizer", "embeddings_constraint"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} needs a table of input_dim rows, got input_dim=None")
            self.ev_option = checked_option(self, ev_option)
        elif ev_option is not None:
            raise ValueError(f"ev_option is for input_dim=None, got input_dim={input_dim}")
        self.mode = mode
        if mode is not None:
            for name in ("embeddings_regularizer", "embeddings_constraint"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} needs a whole table, got mode={mode!r}")
            if input_dim is None:
                raise ValueError(f"mode needs a table of input_dim rows, got mode={mode!r}")
        self._table: Any = None

    def build(self, input_shape: Any = None) -> None:
        """Creates the table; the shape of keys does not matter."""
        del input_shape
        if self._table is None:
            self._table = self._new_table()
        self.built = True

    def _new_table(self) -> Any:
        if self.input_dim is None:
            return add_keyed_table(self, "int64")
        if self.mode is not None:
            return _add_sharded_table(self, self.mode)
        return self.add_weight(
            name="embeddings",
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
            trainable=True,
            autocast=False,
        )

    @property
    def table(self) -> Any:
        """What lookups of this package take as the table.

        A variable, an `EmbeddingVariable` or a `fusion.distribute.ShardedTable`.

        Raises:
          ValueError: the layer is not built yet.
        """
        if self._table is None:
            raise ValueError(f"layer {self.name!r} has no table yet: call its build()")
        return self._table

    def _keys(self, inputs: Any, nnz: int | None) -> tf.Tensor | tf.RaggedTensor:
        """Keys [B, slots, nnz].

        Raises:
          ValueError: they have another shape.
        """
        keys, shape = self._integers(inputs), tf.TensorShape([None, self.slot_num, nnz])
        if not keys.shape.is_compatible_with(shape):
            raise ValueError(f"layer {self.name!r}: keys must be {shape}, got shape {keys.shape}")
        return keys if isinstance(keys, tf.RaggedTensor) else tf.ensure_shape(keys, shape)

    def _integers(self, inputs: Any) -> tf.Tensor | tf.RaggedTensor:
        """Keys of any shape; Keras makes floats of some."""
        keys = inputs if isinstance(inputs, tf.RaggedTensor) else tf.convert_to_tensor(inputs)
        return keys if self.input_dim is None else as_ids(keys)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        keras = self._keras
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "slot_num": self.slot_num,
            "invalid_key": self.invalid_key,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "ev_option": None if self.ev_option is None else self.ev_option.get_config(),
            "mode": self.mode,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """A layer from `get_config`'s result."""
        option = config["ev_option"]
        option = None if option is None else EmbeddingVariableOption.from_config(option)
        return super().from_config({**config, "ev_option": option})


class SlotEmbedding(SlotTable):
    """Combines the embeddings of the keys of each slot.

    Args:
      input_dim, output_dim, slot_num, invalid_key, embeddings_initializer, embeddings_regularizer,
        embeddings_constraint, ev_option, mode: see `SlotTable`.
      combiner: "sum", "mean" or "sqrtn".
      **kwargs: of a layer of the Keras.

    Call arguments:
      inputs: keys, a Tensor [B, slots, nnz], or a RaggedTensor [B, slots, (nnz)], which has no
        invalid key, and whose rows have `slot_num` slots each, or a `uniform_row_length` of them.
        Where there are `input_dim` rows, dtypes other than int32 and int64 are cast to int32.
      training: has no effect: what is trained is what a gradient is asked of.

    Returns:
      [B, slots, D] of the compute dtype; slots without keys are zeros. The gradient of the table is
      an `IndexedSlices` of distinct rows.

    Raises:
      RuntimeError: Keras 3 has another backend than TensorFlow.
      ValueError, TypeError: an argument that cannot be; when it is called, keys of another shape.
      tf.errors.InvalidArgumentError: at run time, a key outside the table that is not invalid, or
        rows of other numbers of slots.
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        slot_num: int | None = None,
        combiner: str = "sum",
        **kwargs: Any,
    ) -> None:
        if combiner not in COMBINERS:
            raise ValueError(f"combiner must be one of {COMBINERS}, got {combiner!r}")
        super().__init__(input_dim, output_dim, slot_num, **kwargs)
        self.combiner = combiner

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        """See the class."""
        del training
        keys = self._keys(inputs, None)
        if isinstance(keys, tf.RaggedTensor) and keys.uniform_row_length is None and self.slot_num:
            keys = _uniform(keys, self.slot_num)
        result = slots_lookup(self.table, keys, self.combiner, self.invalid_key)
        return tf.cast(result, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """[B, slots, D]."""
        return (input_shape[0], self.slot_num or input_shape[1], self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "combiner": self.combiner}


class AllToAllDenseEmbedding(SlotTable):
    """Looks up the embedding of each key.

    Args:
      input_dim, output_dim, slot_num, invalid_key, embeddings_initializer, embeddings_regularizer,
        embeddings_constraint, ev_option, mode: see `SlotTable`.
      nnz_per_slot: how many keys a slot has; None for any number.
      dynamic_input: whether keys have any shape, as those that `tf.unique` gives.
      **kwargs: of a layer of the Keras.

    Call arguments:
      inputs: keys, a Tensor [B, slots, nnz], or [...] with `dynamic_input`, or a RaggedTensor
        [B, slots, (nnz)], which has no invalid key. Where there are `input_dim` rows, dtypes other
        than int32 and int64 are cast to int32.
      training: has no effect: what is trained is what a gradient is asked of.

    Returns:
      [B, slots, nnz, D], or [..., D], of the compute dtype; that of an invalid key is zeros. The
      gradient of the table is an `IndexedSlices` of distinct rows.

    Raises:
      RuntimeError: Keras 3 has another backend than TensorFlow.
      ValueError, TypeError: an argument that cannot be; when it is called, keys of another shape.
      tf.errors.InvalidArgumentError: at run time, a key outside the table that is not invalid.
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        slot_num: int | None = None,
        nnz_per_slot: int | None = None,
        dynamic_input: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_dim, output_dim, slot_num, **kwargs)
        self.nnz_per_slot = _optional("nnz_per_slot", nnz_per_slot)
        self.dynamic_input = bool(dynamic_input)

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor | tf.RaggedTensor:
        """See the class."""
        del training
        keys = (
            self._integers(inputs) if self.dynamic_input else self._keys(inputs, self.nnz_per_slot)
        )
        if isinstance(keys, tf.RaggedTensor):
            return keys.with_flat_values(self._embeddings(keys.flat_values, None))
        return self._embeddings(keys, self.invalid_key)

    def _embeddings(self, keys: tf.Tensor, invalid_key: int | None) -> tf.Tensor:
        """[..., D]: each key is in a slot of its own."""
        rows = slots_lookup(self.table, tf.reshape(keys, [-1, 1, 1]), "sum", invalid_key)
        rows = tf.reshape(rows, tf.concat([tf.shape(keys), [self.output_dim]], 0))
        return tf.cast(rows, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """[..., D]."""
        return (*input_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {
            **super().get_config(),
            "nnz_per_slot": self.nnz_per_slot,
            "dynamic_input": self.dynamic_input,
        }


def _uniform(keys: tf.RaggedTensor, slot_num: int) -> tf.RaggedTensor:
    """Keys [B, (slots), (nnz)] as [B, slots, (nnz)]: pipelines of Keras forget that they are."""
    lengths = keys.row_lengths()
    tf.debugging.assert_equal(lengths, tf.cast(slot_num, lengths.dtype), "slots of rows of keys")
    return tf.RaggedTensor.from_uniform_row_length(keys.values, slot_num, validate=False)


def _optional(name: str, value: Any, lower: int = 1, upper: int | None = None) -> int | None:
    return None if value is None else integer(name, value, lower, upper)


def _add_sharded_table(layer: Any, mode: str) -> ShardedTable:
    """Adds the shards of this process to a layer's weights, as `embeddings_0` and so on.

    Args:
      layer: with `input_dim`, `output_dim` and `embeddings_initializer`; its `add_weight` is that
        of Keras 3, or knows its `autocast`.
      mode: of the table.
    """

    def make(replica: int, shape: list[int], rows: Callable[[], tf.Tensor]) -> Any:
        weight = layer.add_weight(
            name=f"embeddings_{replica}",
            shape=tuple(shape),
            initializer=lambda *_, **__: rows(),
            trainable=True,
            autocast=False,
        )
        return weight if isinstance(weight, tf.Variable) else weight.value

    with weights_at_once():
        return ShardedTable(
            layer.input_dim,
            layer.output_dim,
            mode,
            initializer=layer.embeddings_initializer,
            dtype=layer.variable_dtype,
            name=f"{layer.name}/embeddings",
            make_shard=make,
        )
