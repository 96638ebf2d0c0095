"""Stable sorting of indices by keys, fast where the keys are sorted in stretches already."""

from __future__ import annotations

from fusion.runtime.native.jit import Array, jit


@jit
def _run_end(indices: Array, keys: Array, first: int) -> int:
    """The end of the run of ascending keys that starts at `first`."""
    end = first + 1
    while end < indices.shape[0] and keys[indices[end]] >= keys[indices[end - 1]]:
        end += 1
    return end


@jit
def _merge(indices: Array, keys: Array, first: int, middle: int, end: int, buffer: Array) -> None:
    """Merges indices[first:middle] and indices[middle:end]; of equal keys the left first."""
    count = middle - first
    for k in range(count):
        buffer[k] = indices[first + k]
    left, right, out = 0, middle, first
    while left < count and right < end:
        if keys[indices[right]] < keys[buffer[left]]:
            indices[out] = indices[right]
            right += 1
        else:
            indices[out] = buffer[left]
            left += 1
        out += 1
    for k in range(left, count):
        indices[out + k - left] = buffer[k]


@jit
def sort_by_key(indices: Array, keys: Array, buffer: Array) -> None:
    """Sorts indices by their keys, stably, in place.

    A natural merge sort (Knuth, The Art of Computer Programming, vol. 3, 5.2.4): neighbouring runs
    are merged until one is left. That is n steps for each time the number of runs is halved.

    Args:
      indices: integers [n].
      keys: [m], by index.
      buffer: scratch [n or more] of the dtype of `indices`.
    """
    merged = True
    while merged:
        merged = False
        first = 0
        while first < indices.shape[0]:
            middle = _run_end(indices, keys, first)
            if middle == indices.shape[0]:
                break
            end = _run_end(indices, keys, middle)
            _merge(indices, keys, first, middle, end, buffer)
            merged = True
            first = end
