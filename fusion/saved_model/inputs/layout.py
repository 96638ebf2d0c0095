"""How the entries of a batch lie in rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from fusion.saved_model.inputs.cases import Case, Ids
from fusion.saved_model.inputs.constraints import (
    Array,
    Constraints,
    Extent,
    Key,
    Role,
    divided_rows,
)
from fusion.saved_model.inputs.signature import Signature, TensorSpec

# Bag lengths: empty rows, short rows, and more than the 9 entries up to which stock kernels
# take a different path.
BAGS = (0, 1, 1, 2, 3, 11)


class RowLayout:
    """How many rows and entries the inputs of one batch have, and which entries a row has."""

    def __init__(
        self,
        signature: Signature,
        constraints: Constraints,
        triples: Sequence[tuple[str, str, str]],
        case: Case,
        rng: Callable[[Case, str], np.random.Generator],
    ) -> None:
        self._specs = {spec.key: spec for spec in signature.inputs}
        self._constraints = constraints
        self._case = case
        self._rng = rng
        self._bags: dict[Extent, NDArray[np.int64]] = {}
        parts = {name for triple in triples for name in triple}
        self._sparse = {Extent(Key(values)) for _, values, _ in triples}
        self._dividers = {
            key: role
            for key in constraints.roles
            if key.input in self._specs and not key.path and key.input not in parts
            if (shape := self._specs[key.input].shape) is None or len(shape) == 1
            if (role := constraints.divider(key)) is not None
        }
        shared = rng(case, "").choice(BAGS, size=case.batch)
        self._shared = np.zeros_like(shared) if case.ids is Ids.MISSING else shared

    def groups(self) -> set[Extent]:
        """Returns an extent of each group of inputs whose entries are in the same rows."""
        inside = {Extent(key, is_inside=True) for key in self._dividers}
        return {self._group(extent) for extent in self._sparse | inside}

    def bags(self, extent: Extent) -> NDArray[np.int64]:
        """Returns the number of entries in each row of what has this extent."""
        group = self._group(extent)
        if group not in self._bags:
            dividers = self._dividers_of(extent)
            rows = self._case.batch
            for key, role in dividers.items():
                if role is not Role.ROW_IDS and extent not in self._constraints.linked(Extent(key)):
                    rows = self.length(key)
            bags = self._shared
            if len(bags) != rows:
                bags = self._rng(self._case, repr(group)).choice(BAGS, size=rows)
                bags = np.zeros_like(bags) if self._case.ids is Ids.MISSING else bags
            elif self._case.ids is Ids.UNEQUAL:
                bags = self._rng(self._case, repr(group)).permutation(bags)
            for key, role in dividers.items():
                if role is Role.LENGTHS and (bounds := self._constraints.bounds.get(key)):
                    low, end = bounds.integers(max(BAGS) + 1)
                    bags = np.clip(bags, low, end - 1)
            if rows and Role.ROW_IDS in dividers.values() and bags.any():
                # The last row has to be there, where the number of rows is not said otherwise.
                bags = np.append(bags[:-1], max(bags[-1], 1))
            self._bags[group] = bags.astype(np.int64)
        return self._bags[group]

    def length(self, key: Key) -> int:
        """Returns how many rows or entries an input has; of row splits the rows between them."""
        shape = self._specs[key.input].shape
        if shape and shape[0] >= 0:
            return shape[0] - (self._dividers.get(key) is Role.SPLITS)
        extent = Extent(key)
        others = self._dividers_of(extent).keys() - {key}
        if others or not self._sparse.isdisjoint(self._constraints.linked(extent)):
            return int(self.bags(extent).sum())
        return self._case.batch

    def divided(self, spec: TensorSpec) -> Array | None:
        """Returns the row splits, lengths or ids, or the number of rows, that an input has to hold.

        None if it holds something else.
        """
        key, dtype = Key(spec.key), tf.dtypes.as_dtype(spec.dtype or tf.float32)
        if spec.shape == () and dtype.is_integer:
            if key in self._constraints.counts:
                return np.array(self.length(key), dtype.as_numpy_dtype)
            if key in self._constraints.row_counts:
                return np.array(self._case.batch, dtype.as_numpy_dtype)
        role = self._dividers.get(key)
        if role is None or not dtype.is_integer:
            return None
        bags = self.bags(Extent(key, is_inside=True))
        return divided_rows(role, bags).astype(dtype.as_numpy_dtype)

    def _group(self, extent: Extent) -> Extent:
        return min(self._constraints.linked(extent), key=repr)

    def _dividers_of(self, extent: Extent) -> dict[Key, Role]:
        linked = self._constraints.linked(extent)
        return {
            key: role
            for key, role in self._dividers.items()
            if Extent(key, is_inside=True) in linked
        }
