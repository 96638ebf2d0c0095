"""Which kernels combine the rows of a table, and what they are told.

This module needs no Numba, so that kernels can be chosen without it; `gather` has the kernels.
"""

from __future__ import annotations

from functools import cache

from fusion.runtime.cache import processor
from fusion.runtime.tensorflow.dtypes import DTYPES

#: What a kernel is told, by word: the number of bags; the address of each entry's row, int64; where
#: each bag's entries start, int64 [bags + 1]; where the first result goes, and the bytes from one
#: to the next; D; the combiner; weights of the entries; room for the norm of each entry's row; the
#: limit of norms, a double; whether weights that add up to 0 give 0 instead of NaN or inf; whether
#: each bag has one entry; whether results go past the caches; the first element of the piece, and
#: the one behind its last. Weights and norms are of the compute dtype. Behind the addresses there
#: is room for `AHEAD` more.
(
    BAGS,
    ADDRESSES,
    STARTS,
    OUT,
    OUT_BYTES,
    DIM,
    COMBINER,
    WEIGHTS,
    NORMS,
    LIMIT,
    NO_NAN,
    SINGLE,
    STREAMED,
    FIRST,
    END,
) = range(15)
ARGUMENT_WORDS = 15

#: Rows are asked for so many entries ahead.
AHEAD = 32

#: What is streamed must be whole lines of so many bytes.
LINE_BYTES = 64


@cache
def _vector_bytes(target: processor.Processor) -> int:
    return 64 if target.has("avx512f") else 32


def pieces(stored: str) -> list[tuple[int, int]]:
    """(lanes, vectors) of the kernels for a dtype, in the order in which they are asked.

    With one vector a kernel takes exactly that many elements, else up to their product.
    """
    widest = _vector_bytes(processor.target()) // DTYPES[stored].compute_bytes
    found = [(1, 1)]
    lanes = 1
    while lanes < widest:
        lanes *= 2
        found += [(lanes, 1), (lanes // 2, 2)]
    # The sums of a bag and of a block of it fit the registers.
    return found + [(widest, count) for count in range(2, 9)]


def piece_for(stored: str, elements: int) -> tuple[int, int]:
    """The kernel for a piece of so many elements, at most `most_elements`."""
    return next(
        (lanes, count)
        for lanes, count in pieces(stored)
        if (elements == lanes if count == 1 else elements <= lanes * count)
    )


def most_elements(stored: str) -> int:
    """The most that one piece has. Longer rows are several side by side."""
    lanes, count = pieces(stored)[-1]
    return lanes * count
