"""What a lookup does with its ids, checked."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from fusion.ops.common import COMBINERS

_STRATEGIES = ("div", "mod")

#: The families of fused ops.
VERSIONS = ("v2",)


@dataclass(frozen=True)
class LookupOptions:
    """What a lookup does with the ids; all values are valid."""

    combiner: str = "mean"
    partition_strategy: str = "div"
    max_norm: float | None = None
    default_id: int | None = None
    prune: bool = True
    fill_empty_row: bool = True
    row_count: str = "dense_shape"

    @classmethod
    def checked(
        cls,
        combiner: str | None,
        partition_strategy: str | None,
        max_norm: float | None,
        default_id: int | None,
        prune: bool,
        fill_empty_row: bool,
    ) -> LookupOptions:
        """The options as a user gives them.

        Raises:
          ValueError, TypeError: naming the argument and what was given.
        """
        combiner = "mean" if combiner is None else combiner
        if combiner not in COMBINERS:
            raise ValueError(f"combiner must be one of {COMBINERS}, got {combiner!r}")
        strategy = "div" if partition_strategy is None else partition_strategy
        if strategy not in _STRATEGIES:
            raise ValueError(f"partition_strategy must be one of {_STRATEGIES}, got {strategy!r}")
        if default_id is not None:
            try:
                default_id = operator.index(default_id)
            except TypeError:
                raise TypeError(f"default_id must be an integer, got {default_id!r}") from None
            if default_id < 0:
                raise ValueError(f"default_id must not be negative, got {default_id}")
        if max_norm is not None:
            max_norm = max(_number(max_norm), 0.0)
        return cls(combiner, strategy, max_norm, default_id, bool(prune), bool(fill_empty_row))

    def until_last_row(self) -> LookupOptions:
        """The same for a result that stops at the last row with an entry, as stock's does."""
        return replace(self, row_count="last_row")


def _number(max_norm: Any) -> float:
    """A norm as a number; NaN is none."""
    given = tf.get_static_value(max_norm)
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"max_norm must be a number, got {max_norm!r}")
    return number
