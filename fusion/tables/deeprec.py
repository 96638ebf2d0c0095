"""`get_embedding_variable` and the options of embedding variables, by the names of DeepRec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import tensorflow as tf

from fusion.tables.arguments import integer
from fusion.tables.embedding_variable import EmbeddingVariable
from fusion.tables.eviction import (
    POLICIES,
    GlobalStepEvict,
    L2WeightEvict,
    LeastFrequent,
    LeastRecent,
)
from fusion.tables.initial_rows import SAMPLE_COUNT, ZerosOnDemand, max_rows
from fusion.tables.partitioned import KeyedTable, PartitionedEmbeddingVariable
from fusion.tables.partitions import partition_capacity, partition_names, partitions_by, whole_name
from fusion.tables.replicas import whole_variables


@dataclass(frozen=True)
class CounterFilter:
    """A key gets a row when it was seen so often in training."""

    filter_freq: int = 0

    def __post_init__(self) -> None:
        integer("filter_freq", self.filter_freq, least=0)


@dataclass(frozen=True)
class CBFFilter:
    """As `CounterFilter`: keys are counted exactly, where DeepRec's Bloom filter is not exact.

    What says how large the Bloom filter is has no meaning here.
    """

    filter_freq: int = 0
    max_element_size: int = 0
    false_positive_probability: float = -1.0
    counter_type: Any = None

    def __post_init__(self) -> None:
        integer("filter_freq", self.filter_freq, least=0)


@dataclass(frozen=True)
class InitializerOption:
    """What rows begin with.

    Attributes:
      initializer: called with a shape and a dtype; None for that of the column or variable.
      default_value_dim: how many rows it makes, from which the elements of new rows are taken.
      default_value_no_permission: what keys without a row read.
    """

    initializer: Callable[..., Any] | None = None
    default_value_dim: int = SAMPLE_COUNT
    default_value_no_permission: float = 0.0


@dataclass(frozen=True)
class EmbeddingVariableOption:
    """How an embedding variable works.

    Attributes:
      filter_option: when keys get rows; None: when they are seen in training.
      evict_option: which keys are forgotten at a save; None: none.
      init_option: what rows begin with.
      capacity: how many keys can have rows; None for as many as memory may hold.
      seed: of the initial values of rows; made of the variable's name if None.
    """

    filter_option: CounterFilter | CBFFilter | None = None
    evict_option: GlobalStepEvict | L2WeightEvict | LeastFrequent | LeastRecent | None = None
    init_option: InitializerOption = field(default_factory=InitializerOption)
    capacity: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("filter_option", self.filter_option, (CounterFilter, CBFFilter, type(None)))
        _check("evict_option", self.evict_option, (*POLICIES, type(None)))
        _check("init_option", self.init_option, (InitializerOption,))

    @property
    def admission(self) -> int:
        """How often a key is seen before it gets a row."""
        return 1 if self.filter_option is None else max(self.filter_option.filter_freq, 1)

    def arguments(self, initializer: Callable[..., Any] | None) -> dict[str, Any]:
        """Arguments of `EmbeddingVariable`; the initializer is that of who has no option for it."""
        init = self.init_option
        return {
            "initializer": init.initializer or initializer,
            "admission": self.admission,
            "eviction": self.evict_option,
            "step": global_step if isinstance(self.evict_option, GlobalStepEvict) else None,
            "capacity": self.capacity,
            "default_value": init.default_value_no_permission,
            "seed": self.seed,
            "sample_count": init.default_value_dim,
        }

    def get_config(self) -> dict[str, Any]:
        """What `from_config` makes an option of.

        Raises:
          ValueError: `init_option` has an initializer, which belongs to the embedding column.
        """
        if self.init_option.initializer is not None:
            raise ValueError(
                "an initializer in init_option has no configuration: give it to the column"
            )
        init, evict = self.init_option, self.evict_option
        policy = None if evict is None else {"class_name": type(evict).__name__, **asdict(evict)}
        return {
            "admission": self.admission,
            "eviction": policy,
            "capacity": self.capacity,
            "seed": self.seed,
            "default_value_dim": init.default_value_dim,
            "default_value_no_permission": init.default_value_no_permission,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EmbeddingVariableOption:
        """The option of a configuration."""
        rest = dict(config)
        admission = rest.pop("admission")
        init = InitializerOption(
            default_value_dim=rest.pop("default_value_dim"),
            default_value_no_permission=rest.pop("default_value_no_permission"),
        )
        policy = dict(rest.pop("eviction") or {})
        kinds = {kind.__name__: kind for kind in POLICIES}
        evict = kinds[policy.pop("class_name")](**policy) if policy else None
        return cls(CounterFilter(admission) if admission > 1 else None, evict, init, **rest)


def global_step() -> tf.Tensor:
    """The number of the step of `tf.compat.v1`, -1 in a graph that has none."""
    step = tf.compat.v1.train.get_global_step()
    return tf.constant(-1, tf.int64) if step is None else tf.cast(step, tf.int64)


def _check(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {names}, got {value!r}")


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: Any = tf.int64,
    value_dtype: Any = tf.float32,
    initializer: Callable[..., Any] | None = None,
    trainable: bool = True,
    partitioner: Any = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> KeyedTable:
    """An `EmbeddingVariable`, or a partitioned one, as `tf.compat.v1.get_variable` gets a variable.

    In a graph the name is that of the variable scope, and a scope that reuses variables gives the
    one that there is.

    Args:
      name: of the table.
      embedding_dim: size D of an embedding, > 0.
      key_dtype: int64, int32 or string.
      value_dtype: float32 or float64.
      initializer: of rows; truncated normal with deviation 1/sqrt(D) if None.
      trainable: whether the table is trained.
      partitioner: how many partitions there are, as of `get_variable`, such as
        `tf.compat.v1.fixed_size_partitioner(2)`; None for that of the variable scope, if it has
        one. Keys are split by `id % 1000 % P`, whatever it is.
      ev_option: when keys get rows and lose them, how many there may be, and what they begin with.

    Raises:
      ValueError, TypeError: naming the argument and what was given.
    """
    option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(option, EmbeddingVariableOption):
        raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}")
    dtype = tf.as_dtype(value_dtype)
    if not tf.executing_eagerly():
        size = option.capacity, embedding_dim
        tables_and_count = get_tables(name, *size, dtype, partitioner, trainable=trainable)
        return table_of(*tables_and_count, embedding_dim, option, initializer, key_dtype, trainable)
    capacity = option.capacity or max_rows(dtype.size * embedding_dim)
    count = partitions_by(partitioner, [capacity, embedding_dim], dtype)
    arguments = option.arguments(initializer) | {"trainable": trainable}
    if count is None:
        return EmbeddingVariable(name, embedding_dim, dtype, key_dtype, **arguments)
    return PartitionedEmbeddingVariable(name, embedding_dim, count, dtype, key_dtype, **arguments)


def get_tables(
    name: str,
    capacity: int | None,
    dimension: int,
    dtype: tf.DType,
    partitioner: Any,
    **arguments: Any,
) -> tuple[list[Any], int | None]:
    """The tables of an embedding variable, as `get_variable` gets them, and how many partitions.

    Args:
      name: of the table.
      capacity: of the whole; None for as many rows as memory may hold.
      dimension: D.
      dtype: of the table.
      partitioner: see `get_embedding_variable`.
      **arguments: of `get_variable`.

    Returns:
      The table and None, or those of the partitions and their number.
    """
    max_capacity = max_rows(dtype.size * dimension)
    scope = tf.compat.v1.get_variable_scope()
    partitioner = scope.partitioner if partitioner is None else partitioner
    count = partitions_by(partitioner, [capacity or max_capacity, dimension], dtype)
    rows = (capacity if count is None else partition_capacity(capacity, count)) or max_capacity
    in_scope = tf.compat.v1.variable_scope(scope, auxiliary_name_scope=False)
    with whole_variables(), in_scope as inner:
        inner.set_partitioner(None)  # which would cut tables by rows
        tables = [
            tf.compat.v1.get_variable(
                part, [rows, dimension], dtype, ZerosOnDemand(), use_resource=True, **arguments
            )
            for part in partition_names(name, count)
        ]
    return tables, count


def table_of(
    tables: Sequence[Any],
    count: int | None,
    dimension: int,
    option: EmbeddingVariableOption,
    initializer: Callable[..., Any] | None,
    key_dtype: Any,
    trainable: bool = True,
) -> KeyedTable:
    """The embedding variable of tables of zeros on demand, made now if there is none.

    Args:
      tables: one, or those of partitions, which are named `part_0` and so on.
      count: how many partitions there are, None for a table without.
      dimension: D.
      option, initializer, key_dtype, trainable: as of `get_embedding_variable`.
    """
    known = EmbeddingVariable.of(tables[0])
    if known is not None:
        return known if known.partition is None else known.partition.whole
    name, dtype = tables[0].name.partition(":")[0], tables[0].dtype
    arguments = option.arguments(initializer) | {"key_dtype": key_dtype, "trainable": trainable}
    if count is None:
        return EmbeddingVariable(name, dimension, dtype, table=tables[0], **arguments)
    return PartitionedEmbeddingVariable(
        whole_name(name), dimension, count, dtype, tables=tables, **arguments
    )
