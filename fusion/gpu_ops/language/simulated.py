"""What `intrinsics` has, as Python functions of the host's memory, for Numba's CUDA simulator.

Each access must be inside memory that was allowed with `allow`, as a sanitizer would ask for.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from fusion.gpu_ops.language import simulated_threads
from fusion.runtime.layout import Field, LayoutType
from fusion.runtime.tensorflow.dtypes import DTYPES

F = TypeVar("F", bound=Callable[..., Any])

#: Where arrays begin and end, and their bytes.
_allowed: list[tuple[int, int, np.ndarray[Any, Any]]] = []
#: Not empty: nothing is checked.
_unchecked: list[bool] = []

simulated_threads.install()


@contextmanager
def allow(*arrays: np.ndarray[Any, Any]) -> Iterator[None]:
    """Lets device code read and write these arrays, and nothing else, in a `with` block."""
    for array in arrays:
        start = array.ctypes.data
        _allowed.append((start, start + array.nbytes, array.reshape(-1).view(np.uint8)))
    try:
        yield
    finally:
        del _allowed[len(_allowed) - len(arrays) :]


@contextmanager
def allow_all() -> Iterator[None]:
    """Lets device code read and write all memory of the process in a `with` block."""
    _unchecked.append(True)
    try:
        yield
    finally:
        _unchecked.pop()


def _elements(address: Any, index: Any, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """A view of `count` elements, `index` elements behind an address."""
    dtype = np.dtype(dtype)
    first = int(address) + int(index) * dtype.itemsize
    size = count * dtype.itemsize
    if first % min(size, 16):
        raise MemoryError(f"{count} x {dtype} at {first:#x} is not aligned")
    for start, end, flat in _allowed:
        if start <= first and first + size <= end:
            return flat[first - start : first - start + size].view(dtype)
    if _unchecked:
        return np.frombuffer((ctypes.c_uint8 * size).from_address(first), dtype)
    raise MemoryError(f"{count} x {dtype} at {first:#x} is outside the memory allowed")


def jit(function: F) -> F:
    """A device function: Python, here."""
    return function


def load_as(address: Any, index: Any, dtype: Any) -> Any:
    """See `intrinsics`."""
    return _elements(address, index, 1, dtype)[0]


def store_as(address: Any, index: Any, value: Any, dtype: Any) -> None:
    """See `intrinsics`."""
    _elements(address, index, 1, dtype)[0] = value


def load(address: Any, index: Any) -> Any:
    """See `intrinsics`."""
    return load_as(address, index, np.int64)


def store(address: Any, index: Any, value: Any) -> None:
    """See `intrinsics`."""
    store_as(address, index, value, np.int64)


class _Record(int):
    """A record at an address, whose fields are attributes as in compiled code."""

    layout: LayoutType

    def __getattr__(self, name: str) -> Any:
        field = self._field(name)
        if field.is_array:
            value: Any = int(self) + 8 * field.offset
        else:
            value = load(self, field.offset)
        if target := field.target(self.layout):
            return as_record(target, value)
        if field.is_words:
            return Words(value)
        return as_float(value) if field.is_float else value

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._field(name)
        if field.is_float:
            store_as(self, field.offset, value, np.float64)
        else:
            store(self, field.offset, value)

    def __getitem__(self, index: Any) -> _Record:
        return as_record(self.layout, int(self) + 8 * self.layout.SIZE * int(index))

    def _field(self, name: str) -> Field:
        field = self.layout.FIELDS.get(name)
        if field is None:
            raise AttributeError(f"{self.layout.__name__} has no field {name}")
        return field


class Words(int):
    """Words at an address."""

    def __getitem__(self, index: Any) -> Any:
        return load(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        store(self, index, value)


@cache
def _record_type(layout: LayoutType) -> type[_Record]:
    return type(layout.__name__, (_Record,), {"layout": layout})


def as_record(layout: LayoutType, address: Any) -> _Record:
    """See `intrinsics`."""
    return _record_type(layout)(address)


def as_words(address: Any) -> Words:
    """See `intrinsics`."""
    return Words(address)


def as_float(word: Any) -> float:
    """See `intrinsics`."""
    return float(struct.unpack("<d", struct.pack("<q", int(word)))[0])


def atomic_add(address: Any, index: Any, value: Any, dtype: Any) -> Any:
    """See `intrinsics`."""
    simulated_threads.current().may_make_way()
    element = _elements(address, index, 1, dtype)
    old = element[0]
    element[0] = old + dtype(value)
    return old


def atomic_min(address: Any, index: Any, value: Any, dtype: Any) -> Any:
    """See `intrinsics`."""
    simulated_threads.current().may_make_way()
    element = _elements(address, index, 1, dtype)
    old = element[0]
    element[0] = min(old, dtype(value))
    return old


def compare_and_swap(address: Any, index: Any, old: Any, new: Any) -> Any:
    """See `intrinsics`."""
    simulated_threads.current().may_make_way()
    element = _elements(address, index, 1, np.int64)
    before = element[0]
    if before == old:
        element[0] = new
    return before


def bit_count(word: Any) -> int:
    """See `intrinsics`."""
    return int(word).bit_count()


def publish() -> None:
    """See `intrinsics`."""


def _dtype(stored: str) -> np.dtype[Any]:
    return np.dtype(getattr(np, stored, None) or getattr(ml_dtypes, stored))


def vector_loader(stored: str, lanes: int) -> Any:
    """See `intrinsics`."""
    dtype, compute = _dtype(stored), DTYPES[stored].compute_type

    def load_vector(address: Any) -> Any:
        return tuple(compute(value) for value in _elements(address, 0, lanes, dtype))

    return load_vector


def vector_storer(stored: str, lanes: int) -> Any:
    """See `intrinsics`."""
    dtype = _dtype(stored)

    def store_vector(address: Any, values: Any) -> None:
        _elements(address, 0, lanes, dtype)[:] = np.array(values).astype(dtype)

    return store_vector


def from_lane(values: Any, lane: Any) -> Any:
    """See `intrinsics`."""
    return simulated_threads.current().shown_in_warp(values)[int(lane)]


def any_in_warp(is_so: Any) -> bool:
    """See `intrinsics`."""
    return any(simulated_threads.current().shown_in_warp(bool(is_so)).values())


def _elementwise(operation: Any) -> Any:
    def apply(values: Any, others: Any) -> Any:
        if not isinstance(others, tuple):
            others = (others,) * len(values)
        with np.errstate(all="ignore"):
            return tuple(map(operation, values, others))

    return apply


#: See `intrinsics`.
added = _elementwise(np.add)
multiplied = _elementwise(np.multiply)
divided = _elementwise(np.divide)
