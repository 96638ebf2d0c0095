"""Strings at the edges of a page of memory, between two pages that no one may read or write."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import _pywrap_tfe

#: Of memory, and the words and the kind of a string whose bytes are elsewhere.
PAGE, _STRING_WORDS, _VIEW = mmap.PAGESIZE, 3, 3
#: EagerTensor_Handle of TensorFlow's C++.
_HANDLE = "_Z18EagerTensor_HandlePK7_object"
_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p


@contextmanager
def page() -> Iterator[int]:
    """The address of a page of memory, between two that no one may read or write."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    size = ctypes.c_size_t(3 * PAGE)
    start = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
    try:
        for guard in (start, start + 2 * PAGE):
            assert _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) == 0
        yield start + PAGE
    finally:
        _libc.munmap(ctypes.c_void_p(start), size)


def _elements(tensor: Any) -> ctypes.Array[ctypes.c_uint64]:
    """The memory of an eager tensor of one string."""
    functions = ctypes.CDLL(_pywrap_tfe.__file__)

    def call(name: str, *arguments: Any) -> ctypes.c_void_p:
        function = functions[name]
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*arguments))

    status = call("TF_NewStatus")
    same = call("TFE_TensorHandleResolve", call(_HANDLE, ctypes.py_object(tensor)), status)
    address = call("TF_TensorData", same).value
    call("TF_DeleteTensor", same)
    call("TF_DeleteStatus", status)
    assert address is not None
    return (ctypes.c_uint64 * _STRING_WORDS).from_address(address)


def string_at(address: int, content: bytes, is_single: bool) -> tf.Tensor:
    """A tensor of one string whose bytes are at an address."""
    ctypes.memmove(address, content, len(content))
    tensor = tf.fill([] if is_single else [1], b"")  # of its own, where constants may be shared
    words = _elements(tensor)
    words[0], words[1] = len(content) << 2 | _VIEW, address
    assert np.asarray(tensor).tolist() == (content if is_single else [content])
    return tensor
