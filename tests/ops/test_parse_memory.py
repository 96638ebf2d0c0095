"""FusedParseExample gives back the memory of strings, also where it fails or reads a row again."""

from __future__ import annotations

import ctypes
import gc

import pytest

from tests.example_bytes import entry, example, ints, strings
from tests.parse_calls import Asked, Call, fused

_BIG = b"x" * 5000
ASKED = (
    Asked(b"s", "default", "string", (2,)),
    Asked(b"p", "padded", "string"),
    Asked(b"r", "ragged", "string"),
    Asked(b"v", "sparse", "string"),
    Asked(b"i", "sparse"),
)
GOOD = example(*(entry(key, strings([_BIG] * 2)) for key in (b"s", b"p", b"r", b"v")))
ROWS = {
    "good": GOOD,
    "absent": b"",
    "twice": example(entry(b"s", strings([_BIG] * 2)), entry(b"s", strings([_BIG, b"short"]))),
    "another dtype": example(entry(b"s", strings([_BIG] * 2)), entry(b"p", ints([1]))),
    "a varint of eleven bytes": example(
        entry(b"s", strings([_BIG] * 2)), entry(b"i", b"\x1a\x0d\x0a\x0b" + b"\x80" * 10 + b"\x01")
    ),
}
_CALLS = 200


class _Info(ctypes.Structure):
    """What glibc says of its memory, mallinfo2; the eighth field is what is in use."""

    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(10)]


HAS_MEMORY_IN_USE = hasattr(ctypes.CDLL(None), "mallinfo2")


def bytes_in_use() -> int:
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Info
    return int(mallinfo().field7)


@pytest.mark.skipif(not HAS_MEMORY_IN_USE, reason="glibc before 2.33")
@pytest.mark.parametrize("name", ROWS)
def test_nothing_is_left_of_strings(name: str) -> None:
    call = Call(ASKED, (GOOD, ROWS[name], GOOD))
    for _ in range(20):
        fused(call)
    before = bytes_in_use()
    for _ in range(_CALLS):
        fused(call)
    # TensorFlow itself keeps some hundred bytes of an error.
    assert bytes_in_use() - before < _CALLS * len(_BIG) / 4
