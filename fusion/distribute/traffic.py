"""What a replica sends in a training step, by a model: expected bytes, and messages.

A step looks up ids of its samples and updates the rows that they have. Replicas have equal shares
of the batch, ids of different samples are independent, and each id of a table is that of row k with
probability 1 / rows, or with `alpha` in proportion to k^-alpha for k = 1, ..., rows (Zipf). Rows
that are split over replicas are looked up evenly, as those of hashed ids are and those of row r on
replica r mod N nearly. What a replica keeps for itself is not sent. Lengths of bags and what a
transport adds are not counted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fusion.distribute.tables import Table, number
from fusion.tables.arguments import integer

#: Of a number of ids, by which a replica knows what it will receive from another one.
_COUNT_BYTES = 4

#: Counts, ids, rows and gradients, each all to all.
_EXCHANGES = 4

#: Up to this row sums are taken term by term, and by integrals after it.
_EXACT_TERMS = 1 << 16

_Floats = npt.NDArray[np.float64]


class Traffic(NamedTuple):
    """Expected bytes that a replica sends in a training step.

    Attributes:
        counts: of the numbers of ids that follow.
        ids: of the ids.
        rows: of rows or of what bags of them add up to, to who has asked for them.
        gradients: of the gradients of these.
    """

    counts: float = 0.0
    ids: float = 0.0
    rows: float = 0.0
    gradients: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


def expected_distinct_ids(rows: int, ids: float, alpha: float | None = None) -> float:
    """The expected number of different ids among `ids` independent ones of a table.

    With probabilities p_k this is the sum over k of 1 - (1 - p_k)^ids, since row k is missed by all
    with probability (1 - p_k)^ids; rows * (1 - (1 - 1 / rows)^ids) if all are equal: the number of
    occupied cells in W. Feller, An Introduction to Probability Theory and Its Applications, vol. 1,
    and for any p_k in P. Flajolet, D. Gardy and L. Thimonier, Birthday paradox, coupon collectors,
    caching algorithms and self-organizing search, Discrete Applied Mathematics 39 (1992).

    Args:
        rows: of the table.
        ids: how many are drawn, itself an expectation perhaps.
        alpha: exponent of Zipf's law, None for uniform ids.

    Raises:
        TypeError: `rows` is no integer, or the others are no numbers.
        ValueError: `rows` is below 1, or one of the others below 0.
    """
    rows, ids = integer("rows", rows), number("ids", ids)
    alpha = None if alpha is None else number("alpha", alpha)
    if rows == 1 or ids == 0:
        return min(ids, 1.0)
    if alpha is None:
        return -rows * math.expm1(ids * math.log1p(-1 / rows))
    scale = _zipf_scale(rows, alpha)
    with np.errstate(divide="ignore"):  # A probability may round to 1.
        return _sum_over_rows(rows, lambda k: -np.expm1(ids * np.log1p(-(k**-alpha) / scale)))


@functools.lru_cache(maxsize=1024)
def _zipf_scale(rows: int, alpha: float) -> float:
    """What the probabilities k^-alpha are divided by."""
    return _sum_over_rows(rows, lambda k: k**-alpha)


def _sum_over_rows(rows: int, term: Callable[[_Floats], _Floats]) -> float:
    """The sum of smooth terms for k = 1, ..., rows.

    After the first ones it is the integral from 1/2 before to 1/2 after (the midpoint rule) by
    Gauss and Legendre's quadrature over log k.
    """
    exact = min(rows, _EXACT_TERMS)
    total = float(term(np.arange(1.0, exact + 1)).sum())
    if rows == exact:
        return total
    first, last = math.log(exact + 0.5), math.log(rows + 0.5)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    panels = math.ceil(last - first)
    half = (last - first) / panels / 2
    middles = first + half * (2 * np.arange(panels) + 1)
    k = np.exp(middles[:, None] + half * nodes)
    return total + half * float((term(k) * k * weights).sum())


def id_bytes(rows: int) -> int:
    """Bytes of an id of so many rows: 4 if there are fewer than 2^31, else 8."""
    return 4 if rows < 2**31 else 8


def row_sharded_traffic(
    table: Table, replicas: int, batch_size: int, alpha: float | None = None
) -> Traffic:
    """What a replica sends for a table whose rows are split over all replicas.

    It finds the distinct ids of its samples, sends each replica the number of those that this one
    owns, and then the ids, as rows of the owner's shard. Owners send the rows back, and get their
    gradients, added up by id. Of the distinct ids 1 / N are its own.

    Args:
        table: the table.
        replicas: how many there are, N.
        batch_size: samples of a step on all replicas together.
        alpha: exponent of Zipf's law of the ids, None for uniform ids.

    Raises:
        TypeError, ValueError: no table, or numbers that are none or too small.
    """
    if not isinstance(table, Table):
        raise TypeError(f"table must be a Table, got {table!r}")
    replicas, batch_size = integer("replicas", replicas), integer("batch_size", batch_size)
    others = replicas - 1
    sent = _distinct_ids(table, replicas, batch_size, alpha) * others / replicas
    row_bytes = table.dimension * table.item_bytes
    shard_rows = -(-table.rows // replicas)
    return Traffic(
        counts=others * _COUNT_BYTES,
        ids=sent * id_bytes(shard_rows),
        rows=sent * row_bytes,
        gradients=sent * row_bytes,
    )


def row_sharded_messages(replicas: int) -> int:
    """Messages that a replica sends in a step, for one table or for several that share exchanges.

    One to each other replica of counts, ids, rows and gradients.

    Raises:
        TypeError, ValueError: `replicas` is no integer from 1 on.
    """
    return _EXCHANGES * (integer("replicas", replicas) - 1)


def replicated_traffic(
    table: Table, replicas: int, batch_size: int, alpha: float | None = None
) -> Traffic:
    """What a replica sends for a table that each replica has a copy of; arguments as before.

    All gather the distinct ids and the gradients of their rows of each. In a ring every replica
    sends on what it receives, but to the one from which it comes.
    """
    sent = _distinct_ids(table, replicas, batch_size, alpha) * (replicas - 1)
    row_bytes = table.dimension * table.item_bytes
    return Traffic(ids=sent * id_bytes(table.rows), gradients=sent * row_bytes)


def sliced_traffic(
    table: Table, width: int, replicas: int, batch_size: int
) -> tuple[Traffic, Traffic]:
    """What its owner sends for so many columns of a table, all its rows, and what any other sends.

    Others send the ids of their samples, repeated ones too. The owner sends what a bag adds up to,
    or each row where there is no combiner, and others its gradient. Arguments as before.
    """
    samples = batch_size / replicas
    ids = samples * table.hotness
    results = (ids if table.combiner is None else samples) * width * table.item_bytes
    owner = Traffic(rows=(replicas - 1) * results)
    return owner, Traffic(ids=ids * id_bytes(table.rows), gradients=results)


def _distinct_ids(table: Table, replicas: int, batch_size: int, alpha: float | None) -> float:
    """Those of the samples of one replica."""
    return expected_distinct_ids(table.rows, batch_size / replicas * table.hotness, alpha)
