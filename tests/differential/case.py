"""One lookup: everything that decides its numbers, small enough to be printed and run again."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from tests import tables

Array = Any

#: Numbers that are sprinkled over a table or over weights, by name.
ODD = ("nan", "inf", "-inf", "0", "-0", "tiny", "huge")


@dataclass(frozen=True)
class Case:
    """A lookup with its table and ids, which are random numbers of `seed`.

    The defaults are the simplest lookup, so that the representation shows only what matters.

    Attributes:
      function: "safe" (`fused_safe_embedding_lookup_sparse`) or "plain" (of the version).
      version: the family of fused ops; "pass" for a forward graph that the pass rewrites, "lowered"
        for one that it rewrites to stock ops, "trained" for a training step that Grappler optimizes
        with the pass.
      mode: "eager", "function", "session" or "pass".
      table: how the table is given, see `tests.differential.run`.
      shards, strategy: how many shards, and how rows are split over them.
      rows, dim, dtype: of the whole table.
      ids, ids_dtype: "sparse" or "ragged", and the dtype of ids.
      lengths: ids of each bag.
      outer: shape of the bags, one dimension if None.
      known_rank: whether graphs know the rank of the ids.
      shuffled: whether entries of different rows are mixed.
      negative: fraction of ids that are negative.
      odd_rows: odd numbers in the table, each in one place or in a whole row.
      weights: None, "sparse", "tensor" or "ragged".
      odd_weights: odd numbers among the weights; "-" makes a tenth of them negative.
      combiner, max_norm, default_id, prune, fill: as in the lookups.
    """

    function: str = "safe"
    version: str = "v2"
    mode: str = "eager"
    table: str = "variable"
    shards: int = 1
    strategy: str = "div"
    rows: int = 3
    dim: int = 1
    dtype: str = "float32"
    ids: str = "sparse"
    ids_dtype: str = "int64"
    lengths: tuple[int, ...] = (1,)
    outer: tuple[int, ...] | None = None
    known_rank: bool = True
    shuffled: bool = False
    negative: float = 0.0
    odd_rows: tuple[str, ...] = ()
    weights: str | None = None
    odd_weights: tuple[str, ...] = ()
    combiner: str = "mean"
    max_norm: float | None = None
    default_id: int | None = None
    prune: bool = True
    fill: bool = True
    seed: int = 0

    def __repr__(self) -> str:
        changed = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"Case({', '.join(changed)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis prints every field otherwise

    @cached_property
    def arrays(self) -> Arrays:
        """The numbers of the lookup."""
        return _arrays(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the bags."""
        return (len(self.lengths),) if self.outer is None else self.outer

    @property
    def bags(self) -> int:
        """The number of bags."""
        return len(self.lengths)

    @property
    def is_repeated(self) -> bool:
        """Whether the lookup runs twice, for identical bits."""
        return self.seed % 4 == 0

    @property
    def is_rewritten(self) -> bool:
        """Whether a forward graph is rewritten by the pass."""
        return self.version in ("pass", "lowered")

    @property
    def is_fused(self) -> bool:
        """Whether the pass fuses the lookup of a forward graph; it leaves all others as they are.

        Stock TensorFlow divides by zero where div has fewer rows than shards. Of fed shards the
        sizes are not known. One reduction of rows of a table is as few stock ops as can be.
        """
        is_known = self.table != "fed" and (self.strategy == "mod" or self.shards <= self.rows)
        is_split = self.shards == 1 or is_known
        composed = self.function == "plain" or not self.prune
        is_plain = (
            self.weights is None
            and self.max_norm is None
            and self.table in ("ref", "tensor", "fed")
        )
        is_one_op = is_plain and composed and not self.fill and self.shards == 1
        if self.version == "lowered" and is_one_op:
            return False
        return is_split

    @property
    def tells_shapes(self) -> bool:
        """Whether the graph that is rewritten is saved with the shapes of its tensors."""
        return self.seed % 2 == 0

    @property
    def is_exact(self) -> bool:
        """Whether the lookup has the bits of stock TensorFlow."""
        return self.version == "lowered" or (self.weights is None and self.max_norm is None)

    @property
    def trains_weights(self) -> bool:
        """Whether the gradient of the weights is wanted; in training steps it rarely is."""
        return self.version != "trained" or self.seed % 4 == 1

    @property
    def has_exact_gradient(self) -> bool:
        """Whether the table's gradient has, too; v1 rounds half types once per entry."""
        is_half = self.dtype in ("float16", "bfloat16")
        is_plain = self.weights is None and self.max_norm is None
        return is_plain and not (is_half and self.version in ("v1", "lowered"))


@dataclass(frozen=True)
class Arrays:
    """The numbers of a case.

    Attributes:
      table: [rows, D].
      indices: int64 [nnz, rank] of the ids.
      values: ids [nnz].
      dense_shape: int64 [rank].
      bags: int64 [nnz], the bag of each entry.
      weights: [nnz], of the table's dtype.
      top_grad: [bags, D], the gradient of the result.
    """

    table: Array
    indices: Array
    values: Array
    dense_shape: Array
    bags: Array
    weights: Array
    top_grad: Array


def as_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype's name, also of those that only TensorFlow has."""
    import tensorflow as tf

    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def _arrays(case: Case) -> Arrays:
    rng = np.random.default_rng(case.seed)
    dtype = as_dtype(case.dtype)
    count = sum(case.lengths)
    bags = np.repeat(np.arange(case.bags), case.lengths)
    columns = np.concatenate([np.arange(n) for n in [0, *case.lengths]])
    if case.shuffled:
        order = rng.permutation(count)
        bags, columns = bags[order], columns[order]
    width = max([*case.lengths, 1])
    values = rng.integers(0, case.rows, count).astype(case.ids_dtype)
    values[rng.random(count) < case.negative] = -1 - rng.integers(0, 3)
    table = rng.standard_normal((case.rows, case.dim)).astype(dtype)
    for name in case.odd_rows:
        row, column = rng.integers(case.rows), rng.integers(case.dim)
        whole_row = rng.random() < 0.5
        table[row, slice(None) if whole_row else column] = _odd(name, dtype)
    weights = rng.uniform(0.1, 3, count).astype(dtype)
    for name in case.odd_weights:
        chosen = rng.random(count) < 0.1
        weights[chosen] = -weights[chosen] if name == "-" else _odd(name, dtype)
    outer = np.unravel_index(bags, case.shape) if case.shape else ()
    return Arrays(
        table=table,
        indices=np.stack([*outer, columns], 1).astype(np.int64).reshape(-1, len(case.shape) + 1),
        values=values,
        dense_shape=np.array([*case.shape, width], np.int64),
        bags=bags,
        weights=weights,
        top_grad=rng.standard_normal((case.bags, case.dim)).astype(dtype),
    )


def _odd(name: str, dtype: np.dtype[Any]) -> Any:
    import ml_dtypes

    info = ml_dtypes.finfo(dtype)
    if name in ("tiny", "huge"):
        return info.tiny / dtype.type(8) if name == "tiny" else info.max / dtype.type(2)
    return dtype.type(float(name))


def split(case: Case) -> list[Array]:
    """The shards of the table."""
    return tables.split(case.arrays.table, case.shards, case.strategy)
