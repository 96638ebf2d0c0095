"""What a lookup does with its ids, checked."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.runtime.tensorflow.dtypes import COMPUTED
from fusion.schema.attributes import COMBINERS

_STRATEGIES = ("div", "mod")

#: The families of fused ops.
VERSIONS = ("v1", "v2")

#: Value of the ops' default_id and max_norm attrs that means "none".
_NONE = -1


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
    version: str = "v2"

    @classmethod
    def checked(
        cls,
        combiner: str | None,
        partition_strategy: str | None,
        max_norm: float | None,
        default_id: int | None,
        prune: bool,
        fill_empty_row: bool,
        version: str = "v2",
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
        return cls(
            combiner,
            strategy,
            max_norm,
            default_id,
            bool(prune),
            bool(fill_empty_row),
            version=version,
        )

    def until_last_row(self) -> LookupOptions:
        """The same for a result that stops at the last row with an entry, as stock's does."""
        return replace(self, row_count="last_row", prune=False, fill_empty_row=False)

    def without_filled_rows(self) -> LookupOptions:
        """The same, but rows without entries have no id unless `default_id` says which.

        Their result is zeros either way; but an id is trained if it is there.
        """
        return self if self.default_id is not None else replace(self, fill_empty_row=False)

    @property
    def default_id_attr(self) -> int:
        """The ops' default_id."""
        return _NONE if self.default_id is None or not self.fill_empty_row else self.default_id

    def split_max_norm(self, dtype: tf.DType) -> tuple[float | None, float]:
        """The limit for stock's clipping and the one for the op's attr, for tables of `dtype`.

        Stock clips half types in their own arithmetic, where the square of a norm may overflow, and
        the op in float32: they are left to stock. So is a limit that would lose digits for a
        float64 table, since attrs are float32.
        """
        if self.max_norm is None:
            return None, float(_NONE)
        in_op = dtype.name in COMPUTED
        if dtype == tf.float64:
            with np.errstate(over="ignore"):
                in_op = float(np.float32(self.max_norm)) == self.max_norm
        return (None, self.max_norm) if in_op else (self.max_norm, float(_NONE))


def _number(max_norm: Any) -> float:
    """A norm as a number; NaN is none."""
    static = tf.get_static_value(max_norm)
    try:
        number = math.nan if isinstance(static, str | bytes) else float(static)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"max_norm must be a number, got {max_norm!r}")
    return number
