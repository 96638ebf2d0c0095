"""Stable sorting of places by keys, fast where the keys are sorted in stretches already."""

from __future__ import annotations

from fusion.runtime.native.jit import Array, jit


@jit
def _run_end(places: Array, keys: Array, first: int) -> int:
    """The end of the run of ascending keys that starts at `first`."""
    end = first + 1
    while end < places.shape[0] and keys[places[end]] >= keys[places[end - 1]]:
        end += 1
    return end


@jit
def _merge(places: Array, keys: Array, first: int, middle: int, end: int, buffer: Array) -> None:
    """Merges the runs places[first:middle] and places[middle:end]; of equal keys the left first."""
    count = middle - first
    for k in range(count):
        buffer[k] = places[first + k]
    left, right, out = 0, middle, first
    while left < count and right < end:
        if keys[places[right]] < keys[buffer[left]]:
            places[out] = places[right]
            right += 1
        else:
            places[out] = buffer[left]
            left += 1
        out += 1
    for k in range(left, count):
        places[out + k - left] = buffer[k]


@jit
def sort_by_key(places: Array, keys: Array, buffer: Array) -> None:
    """Sorts places by their keys, stably, in place.

    A natural merge sort (Knuth, The Art of Computer Programming, vol. 3, 5.2.4): neighbouring runs
    are merged until one is left. That is n steps for each time the number of runs is halved.

    Args:
      places: integers [n].
      keys: [m], by place.
      buffer: scratch [n or more] of the dtype of `places`.
    """
    merged = True
    while merged:
        merged = False
        first = 0
        while first < places.shape[0]:
            middle = _run_end(places, keys, first)
            if middle == places.shape[0]:
                break
            end = _run_end(places, keys, middle)
            _merge(places, keys, first, middle, end, buffer)
            merged = True
            first = end
