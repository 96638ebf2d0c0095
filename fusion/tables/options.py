"""The options of embedding variables, by the names that DeepRec has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import tensorflow as tf

from fusion.tables.arguments import integer
from fusion.tables.eviction import (
    POLICIES,
    GlobalStepEvict,
    L2WeightEvict,
    LeastFrequent,
    LeastRecent,
)
from fusion.tables.initial_rows import SAMPLE_COUNT


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
