"""What all columns with `do_fusion` have in common: one more field, and the fused lookup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from fusion.feature_column.keys import key_column
from fusion.lookup import VERSIONS, LookupOptions, lookup, stock_lookup
from fusion.lookup.ids import rank_of
from fusion.runtime.tensorflow.private import PartitionedVariable


class FusedColumn(tuple[Any, ...]):
    """Put before a stock column class, a named tuple, adds the field `do_fusion` at its end.

    It is None for all but the gather by stock ops, where a stock column has no table for the ids.
    The field takes part in equality and hashing, so that a fused and a stock column are never
    taken for each other. Each class has a name of its own because TensorFlow finds serialized
    columns by class name.
    """

    __slots__ = ()  # Python combines subclasses of tuple only if they add no members

    # Of the stock classes.
    name: str
    categorical_column: Any
    combiner: str
    max_norm: float | None
    use_safe_embedding_lookup: bool
    _fields: tuple[str, ...]
    _asdict: Any

    def __init_subclass__(cls) -> None:
        cls._fields = (*cls._fields, "do_fusion")

    def __new__(cls, *fields: Any, do_fusion: str | None, **named: Any) -> Any:
        """A column of the stock class's fields, looked up by the family `do_fusion` of fused ops.

        Raises:
          ValueError: there is no such family; None where the stock column is to be used.
          NotImplementedError: a checkpoint to load the table of ids without a bound from.
        """
        column = super().__new__(cls, *fields, **named)
        has_keys = key_column(column.categorical_column) is not None
        if do_fusion not in VERSIONS and not (do_fusion is None and has_keys):
            raise ValueError(f"do_fusion must be None or one of {VERSIONS}, got {do_fusion!r}")
        if has_keys:
            check_no_checkpoint(getattr(column, "ckpt_to_load_from", None))
        return tuple.__new__(cls, (*column, do_fusion))

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """How copies and pickles are made."""
        return tuple(self[:-1]), {"do_fusion": self.do_fusion}

    @classmethod
    def of(cls, column: Any, do_fusion: str | None) -> Any:
        """The stock column with its lookup fused, or as it is if `do_fusion` is None."""
        return column if do_fusion is None else cls(*column, do_fusion=do_fusion)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Any:
        *fields, do_fusion = iterable
        return cls(*fields, do_fusion=do_fusion)

    def _replace(self, **fields: Any) -> Any:
        """A copy with some fields changed; the inherited one knows only the stock fields."""
        unknown = fields.keys() - set(self._fields)
        if unknown:
            raise ValueError(f"{type(self).__name__} has no fields {sorted(unknown)}")
        return type(self)(**(self._asdict() | fields))

    __replace__ = _replace  # of copy.replace, which Python has from 3.13 on

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"{type(self).__name__}({fields})"

    @property
    def do_fusion(self) -> str | None:
        """The family of fused ops that the lookup uses."""
        version: str | None = self[-1]
        return version

    def _look_up(self, table: Any, sparse_tensors: Any) -> tf.Tensor:
        """The combined embeddings [rows, D] of a categorical column's ids (and weights)."""
        ids, weights = sparse_tensors.id_tensor, sparse_tensors.weight_tensor
        rank, name = rank_of(ids), f"{self.name}_weights"
        if self.do_fusion is None:
            is_safe = self._is_safe(rank)
            return stock_lookup(table, ids, weights, self.combiner, self.max_norm, is_safe, name)
        with tf.name_scope(name):
            return lookup(table, ids, weights, self.lookup_options(rank))

    def _is_safe(self, rank: int | None) -> bool:
        """Whether ids < 0 are dropped, and rows without ids filled."""
        # Stock TensorFlow's columns use the plain lookup for matrices and vectors only.
        return self.use_safe_embedding_lookup or rank not in (1, 2)

    def lookup_options(self, rank: int | None) -> LookupOptions:
        """What is done with ids of this rank.

        Raises:
          ValueError: an argument of the column that no lookup takes.
        """
        assert self.do_fusion is not None
        safe = self._is_safe(rank)
        options = LookupOptions.checked(
            self.combiner,
            None,
            self.max_norm,
            None,
            prune=safe,
            fill_empty_row=safe,
            version=self.do_fusion,
        )
        return options if safe else options.until_last_row()


def restore(table: Any, checkpoint: str | None, tensor_name: str | None) -> None:
    """Initializes a table from a tensor of a checkpoint, if one is given."""
    if checkpoint is None:
        return
    variables = list(table) if isinstance(table, PartitionedVariable) else table
    tf.compat.v1.train.init_from_checkpoint(checkpoint, {tensor_name: variables})


def check_no_checkpoint(checkpoint: str | None) -> None:
    """Checks that the table of ids without a bound is not to be loaded from a checkpoint.

    Raises:
      NotImplementedError: it is.
    """
    if checkpoint is not None:
        raise NotImplementedError(
            "ckpt_to_load_from is not supported for columns whose ids have no bound, got "
            f"{checkpoint!r}"
        )
