"""What kernels should give: NumPy's results in float64, and how far from them the others may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

#: The combiners, by their place among the values of the ops' attr.
SUM, MEAN, SQRTN = range(3)
#: By dtype of tables, how far a result may be off, relative to the sum of absolute values.
TOLERANCES = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 1e-5, "float64": 1e-12}
#: What is added to such a sum: rounding to less than this is not relative.
_SMALL = {"float16": 2.0**-14}


def numpy_dtype(stored: str) -> npt.DTypeLike:
    """What NumPy keeps elements of dtype `stored` in: it has no bfloat16, whose bits are these."""
    return np.dtype(np.uint16 if stored == "bfloat16" else stored)


def kept(values: npt.NDArray[Any], stored: str) -> npt.NDArray[Any]:
    """Values as elements of dtype `stored`; bfloat16 are not rounded but cut off."""
    if stored != "bfloat16":
        return values.astype(stored)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def doubles(elements: npt.NDArray[Any]) -> Doubles:
    """The numbers that elements are, see `kept`."""
    if elements.dtype == np.uint16:
        elements = (elements.astype(np.uint32) << 16).view(np.float32)
    return elements.astype(np.float64)


def same(what: str, mine: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    """Raises RuntimeError unless two arrays are equal."""
    if not np.array_equal(mine, wanted):
        raise RuntimeError(f"{what}: wrong")


def close(what: str, stored: str, mine: Doubles, wanted: Doubles, size: Doubles) -> float:
    """The largest error of numbers of dtype `stored`, relative to sums of absolute values.

    Raises:
        RuntimeError: it is too large, or a number is NaN.
    """
    errors = np.abs(mine - wanted) / (size + _SMALL.get(stored, 1e-30))
    worst = float(errors.max(initial=0.0))
    if not worst <= TOLERANCES[stored]:
        raise RuntimeError(f"{what}, {stored}: off by {worst:.2g}")
    return worst


def summed(keys: npt.NDArray[Any], terms: Doubles, number: int) -> Doubles:
    """Terms [n, dim] added up by their keys [n], all less than `number`: [number, dim]."""
    sums = [np.bincount(keys, column, minlength=number) for column in terms.T]
    return np.stack(sums, 1)


def _over(values: Doubles, divisors: Doubles) -> Doubles:
    """Values [n, dim] divided by one each [n]; zeros for zeros."""
    found: Doubles = values / np.where(divisors == 0, np.inf, divisors)[:, None]
    return found


def divisors(owners: npt.NDArray[Any], weights: Doubles, combiner: int, batch: int) -> Doubles:
    """What each bag is divided by, [batch]; `owners` are the bags of the entries."""
    if combiner == SUM:
        return np.ones(batch)
    terms = weights if combiner == MEAN else weights**2
    sums: Doubles = np.bincount(owners, terms, minlength=batch).astype(np.float64)
    return sums if combiner == MEAN else np.sqrt(sums)


def bags(
    rows: Doubles, owners: npt.NDArray[Any], weights: Doubles, combiner: int, batch: int
) -> tuple[Doubles, Doubles]:
    """The rows of entries [n, dim] combined into bags, and the sums of absolute values."""
    terms, by = rows * weights[:, None], divisors(owners, weights, combiner, batch)
    total, size = (summed(owners, one, batch) for one in (terms, np.abs(terms)))
    return _over(total, by), _over(size, np.abs(by))


def clipped(rows: Doubles, limit: float) -> Doubles:
    """Rows, those that are longer than a limit >= 0 shortened to it."""
    if limit < 0:
        return rows
    factors = limit / np.maximum(np.linalg.norm(rows, axis=1), limit)
    shortened: Doubles = rows * factors[:, None]
    return shortened


def limit_among(rows: Doubles) -> float:
    """A limit that some rows exceed, and that none has so nearly that rounding decides."""
    norms = np.sort(np.linalg.norm(rows, axis=1))
    middle = norms[norms.size // 4 : norms.size - norms.size // 4]
    at = int(np.argmax(np.diff(middle)))
    return float(middle[at : at + 2].mean())


def _unclipped(rows: Doubles, grads: Doubles, size: Doubles, limit: float) -> Any:
    """Gradients of rows from those of shortened ones, and their sums of absolute values."""
    norms = np.linalg.norm(rows, axis=1)[:, None]
    unit = rows / norms
    along, along_size = ((one * many).sum(1, keepdims=True) for one, many in (
        (unit, grads), (np.abs(unit), size)
    ))  # fmt: skip
    factor, is_long = limit / norms, norms >= limit
    found = np.where(is_long, factor * (grads - unit * along), grads)
    return found, np.where(is_long, factor * (size + np.abs(unit) * along_size), size)


def row_gradients(
    top: Doubles,
    rows: Doubles,
    keys: npt.NDArray[Any],
    owners: npt.NDArray[Any],
    weights: Doubles,
    masked: npt.NDArray[np.bool_],
    combiner: int,
    limit: float,
) -> tuple[Doubles, Doubles]:
    """The gradient of rows [n, dim], and the sums of absolute values.

    Args:
        top: the gradient of the bags, [batch, dim].
        keys, owners, weights: of entries: the number of the row, that of the bag, the weight.
        masked: bags whose entries get zeros, [batch].
        limit: to which rows are shortened before; none if it is negative.
    """
    terms = _shares(top, owners, weights, masked, combiner)[owners] * weights[:, None]
    grads, size = (summed(keys, one, len(rows)) for one in (terms, np.abs(terms)))
    return (grads, size) if limit < 0 else _unclipped(rows, grads, size, limit)


def _shares(
    top: Doubles,
    owners: npt.NDArray[Any],
    weights: Doubles,
    masked: npt.NDArray[np.bool_],
    combiner: int,
) -> Doubles:
    """What an entry of weight 1 gets of each bag's gradient."""
    by = divisors(owners, weights, combiner, len(top))
    return _over(np.where(masked[:, None], 0.0, top), by)


def weight_gradients(
    top: Doubles,
    rows: Doubles,
    keys: npt.NDArray[Any],
    owners: npt.NDArray[Any],
    weights: Doubles,
    masked: npt.NDArray[np.bool_],
    combiner: int,
    limit: float,
) -> tuple[Doubles, Doubles]:
    """As `row_gradients`, the gradient of the weights [entries]; see `combine_grad`."""
    shares, entries = _shares(top, owners, weights, masked, combiner), clipped(rows, limit)[keys]
    terms = shares[owners] * entries
    grads, size = terms.sum(1), np.abs(terms).sum(1)
    if combiner == SUM:
        return grads, size
    through, through_size = (
        (np.abs(shares) * total if is_size else shares * total).sum(1)
        for is_size, total in enumerate(bags(entries, owners, weights, combiner, len(top)))
    )
    factors = np.ones_like(weights)
    if combiner == SQRTN:
        factors = weights / divisors(owners, weights, combiner, len(top))[owners]
    return grads - through[owners] * factors, size + through_size[owners] * np.abs(factors)
