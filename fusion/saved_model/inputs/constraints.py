"""Constraints between the inputs of a signature.

Parts of one thing arrive as inputs of their own: the values of a RaggedTensor and its row splits,
ids and a weight of each, ids and how many of them each row has. Such inputs cannot be made up one
by one. What connects them is an `Extent`, what the elements along axis 0 of a tensor stand for: two
extents are linked if there have to be equally many of both, row by row. Who finds links notes them
here, from specs and from the ops of a graph; who makes inputs asks here how long they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Key(NamedTuple):
    """An input of a signature, or a field of the records in it.

    Attributes:
        input: the input's name in the signature.
        path: the names of the field and of those around it, from the outside; () is the input.
    """

    input: str
    path: tuple[str, ...] = ()


class Role(Enum):
    """How an integer input says which entries are in which row."""

    SPLITS = "row splits"
    LENGTHS = "row lengths"
    ROW_IDS = "row ids"


class Extent(NamedTuple):
    """What the elements along axis 0 of a tensor stand for.

    Attributes:
        key: the input.
        is_inside: not its own elements, but the entries that it divides into rows.
        missing: only those of its elements that differ from this number or string; None: all.
    """

    key: Key
    is_inside: bool = False
    missing: float | bytes | None = None


@dataclass(frozen=True)
class Bounds:
    """The values that a model accepts: those from `low` to `high`.

    Attributes:
        low, high: the ends.
        without_low, without_high: whether the ends themselves are not accepted.
    """

    low: float = -math.inf
    high: float = math.inf
    without_low: bool = False
    without_high: bool = False

    def clipped(self, other: Bounds) -> Bounds:
        """Returns the bounds of values that satisfy both."""
        low = max((self.low, self.without_low), (other.low, other.without_low))
        high = min((self.high, not self.without_high), (other.high, not other.without_high))
        return Bounds(low[0], high[0], low[1], not high[1])

    def hold(self, values: Array) -> NDArray[np.bool_]:
        """Returns a mask of the accepted values."""
        above = values > self.low if self.without_low else values >= self.low
        below = values < self.high if self.without_high else values <= self.high
        mask: NDArray[np.bool_] = above & below
        return mask

    def integers(self, usual: int) -> tuple[int, int]:
        """Returns the first integer and the one after the last.

        There are `usual` of them where an end is open, those from 0 on if they may be.
        """
        low = None if self.low == -math.inf else math.ceil(self.low)
        high = None if self.high == math.inf else math.floor(self.high)
        low = low + 1 if low is not None and low == self.low and self.without_low else low
        high = high - 1 if high is not None and high == self.high and self.without_high else high
        if low is None or (low < 0 and (high is None or high >= 0)):
            low = 0 if high is None or high >= 0 else high - usual + 1
        return low, low + usual if high is None or high >= low + usual else max(high, low) + 1


@dataclass
class Constraints:
    """What has to hold between inputs; equal inputs of the analysis give equal constraints.

    Attributes:
        links: pairs of extents that have to be equally long.
        roles: inputs that divide entries into rows.
        demands: pairs of an input and its entries, of which a spec, or an op that takes both as
            they are, demands a role. Other inputs of a role need not be all that it takes: without
            the first or the last of row splits, row ids in any order.
        scalars: inputs that are no more than one number each: these divide nothing.
        row_counts: scalar inputs that hold the number of rows.
        counts: scalar inputs that hold how many elements there are of what their extent is linked
            to; they have no axis of their own.
        bounds: what an assertion of the model says of the elements of an input.
        orders: pairs of inputs; elements of the first are less (or, with False, not greater) than
            those of the second.
    """

    links: dict[Extent, set[Extent]] = field(default_factory=dict)
    roles: dict[Key, Role] = field(default_factory=dict)
    demands: dict[tuple[Key, Key], Role] = field(default_factory=dict)
    scalars: set[Key] = field(default_factory=set)
    row_counts: set[Key] = field(default_factory=set)
    counts: set[Key] = field(default_factory=set)
    bounds: dict[Key, Bounds] = field(default_factory=dict)
    orders: dict[tuple[Key, Key], bool] = field(default_factory=dict)
    _partial: dict[Key, set[Extent]] = field(default_factory=dict)

    def link(self, extents: Iterable[Extent]) -> None:
        """Notes that all of these have the same length."""
        ordered = sorted(set(extents), key=repr)
        for extent in ordered:
            if extent.missing is not None:
                self._partial.setdefault(extent.key, set()).add(extent)
        first = ordered[0] if ordered else None
        for other in ordered[1:]:
            assert first is not None
            self.links.setdefault(first, set()).add(other)
            self.links.setdefault(other, set()).add(first)

    def divides(self, key: Key, role: Role) -> None:
        """Notes that an input divides entries into rows; its first role counts."""
        self.roles.setdefault(key, role)

    def demand(self, key: Key, role: Role, entries: Key) -> None:
        """Notes that an input has to hold the row splits, or the sorted row ids, of entries."""
        self.demands.setdefault((key, entries), role)

    def bound(self, key: Key, bounds: Bounds) -> None:
        """Notes bounds of the elements of an input."""
        self.bounds[key] = self.bounds.get(key, Bounds()).clipped(bounds)

    def ordered_bounds(self, own: Mapping[Key, Bounds]) -> dict[Key, Bounds]:
        """Returns bounds that leave ordered inputs in them when their elements are exchanged.

        What is less than another has no more than that may have, and the other no less.
        """
        known = dict(own)
        for _ in self.orders:
            for (first, second), strict in self.orders.items():
                a, b = known.get(first, Bounds()), known.get(second, Bounds())
                known[first] = a.clipped(Bounds(high=b.high, without_high=strict or b.without_high))
                known[second] = b.clipped(Bounds(low=a.low, without_low=strict or a.without_low))
        return known

    def linked(self, extent: Extent) -> frozenset[Extent]:
        """Returns all extents that have to be as long as this one, itself included."""
        seen, stack = {extent}, [extent]
        while stack:
            for other in self.links.get(stack.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        return frozenset(seen)

    def divider(self, key: Key) -> Role | None:
        """Returns how `key` divides entries of other inputs into rows, None if it does not.

        Integers that look like row splits, but divide nothing that is an input, are numbers.
        """
        if key not in self.roles:
            return None
        others = self.linked(Extent(key, is_inside=True))
        return self.roles[key] if any(other.key != key for other in others) else None

    def same_missing(self, key: Key) -> dict[Key, float | bytes]:
        """Returns the inputs whose elements are missing where those of `key` are.

        With the value that stands for a missing one; {} if there is no other than `key`.
        """
        missing: dict[Key, float | bytes] = {}
        for start in self._partial.get(key, ()):
            for extent in self.linked(start):
                if extent.missing is not None:
                    missing[extent.key] = extent.missing
        return missing if len(missing) > 1 else {}

    def violation(
        self, feeds: Mapping[str, Array], sparse: Iterable[tuple[str, str, str]]
    ) -> str | None:
        """Returns in what arrays are not parts of one ragged or sparse tensor, None if they are.

        Args:
            feeds: an array for each input.
            sparse: the (indices, values, dense_shape) inputs of sparse tensors.
        """
        for triple in sparse:
            if why := _broken_sparse(*(feeds[name] for name in triple)):
                return f"{', '.join(triple)} are no sparse tensor: {why}"
        inside = {name for triple in sparse for name in triple}
        splits = {key for (key, _), role in self.demands.items() if role is Role.SPLITS}
        for (key, entries), role in self.demands.items():
            rows, values = feeds.get(key.input), feeds.get(entries.input)
            if key.path or entries.path or key.input in inside or rows is None or values is None:
                continue
            if rows.ndim != 1 or values.ndim == 0:
                continue
            count = len(values) - (entries in splits)
            if why := _broken_rows(role, rows, count):
                return f"{key.input!r} holds no {role.value} of {entries.input!r}: {why}"
        return None


def divided_rows(role: Role, bags: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the row splits, lengths or ids of rows with so many entries each."""
    if role is Role.SPLITS:
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(bags)])
    return np.repeat(np.arange(len(bags)), bags) if role is Role.ROW_IDS else bags


def _broken_rows(role: Role, array: Array, entries: int) -> str | None:
    steps = np.diff(array)
    if role is Role.SPLITS:
        if not array.size or array[0] != 0:
            return "they do not begin with 0"
        if (steps < 0).any():
            return "they decrease"
        return None if array[-1] == entries else f"they end with {array[-1]}, for {entries} values"
    if (array < 0).any() or (steps < 0).any():
        return "they are negative or decrease"
    return None if len(array) == entries else f"there are {len(array)}, for {entries} values"


def _broken_sparse(indices: Array, values: Array, shape: Array) -> str | None:
    if indices.ndim != 2 or indices.shape != (len(values), len(shape)):
        return f"{list(indices.shape)} indices, {len(values)} values, rank {len(shape)}"
    if indices.size and ((indices < 0).any() or (indices >= shape).any()):
        return "an index is outside the shape"
    return None
