"""The values of a list, from the wire to tensors."""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import HASH_BYTES, Target
from fusion.ops.examples.cpu_kernels.wire import (
    FLOATS,
    INTS,
    LOW_HALF,
    STRINGS,
    UNPACKED_FLOAT,
    any_varint,
    joined,
    varint,
)
from fusion.ops.ids.cpu_kernels.fingerprint import fingerprint
from fusion.ops.ids.cpu_kernels.words import remainder, signed, unsigned
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.memory import c_memcpy
from fusion.runtime.native.strings import STRING_BYTES, copy_string, put_string
from fusion.runtime.native.unaligned import (
    half_at,
    low_zeros,
    put_half,
    put_word,
    top_bits_at,
    word_at,
)

#: So many bytes are looked at together.
_MASKED = 32


@jit
def _write_ints(at: int, count: int, out: int, readable: int) -> bool:
    """Writes so many packed varints; False if one has too many bytes."""
    first, end = at, out + 8 * count
    while out < end and at + _MASKED + 8 <= readable:
        last = ~top_bits_at(at) & ((1 << _MASKED) - 1)
        while last != 0 and out < end:
            behind = at + low_zeros(last) + 1
            size = behind - first
            if size > 8:
                value, first = any_varint(first, behind)
                if first == 0:
                    return False
                put_word(out, value)
            else:
                put_word(out, joined(word_at(first), size))
            first = behind
            last &= last - 1
            out += 8
        at += _MASKED
    while out < end:
        value, first = varint(first, readable, readable)
        if first == 0:
            return False
        put_word(out, value)
        out += 8
    return True


@jit
def write_values(dtype: int, at: int, count: int, is_packed: bool, out: int, readable: int) -> bool:
    """Writes so many values of a list, the first at an address.

    Returns whether that was done: a varint may have too many bytes, or strings find no memory.

    Args:
      dtype: the tag of the list.
      is_packed: whether no tags are in between; there always are between strings.
      readable: up to where bytes may be read.
    """
    if dtype == INTS and is_packed and count > 2:
        return _write_ints(at, count, out, readable)
    if dtype == INTS:
        for k in range(count):
            value, at = varint(at if is_packed else at + 1, readable, readable)
            if at == 0:
                return False
            put_word(out + 8 * k, value)
    elif dtype == FLOATS:
        if is_packed and count > 8:
            c_memcpy(out, at, 4 * count)
        else:
            step = int64(4 if is_packed else UNPACKED_FLOAT)
            at += step - 4
            for k in range(count):
                put_half(out + 4 * k, half_at(at + step * k))
    else:
        for k in range(count):
            size, at = any_varint(at + 1, readable)
            size &= int64(LOW_HALF)
            if not put_string(out + STRING_BYTES * k, at, size, readable):
                return False
            at += size
    return True


@inlined
def is_hashed(dtype: int, item_bytes: int) -> bool:
    """Whether values of a list, of so many bytes in memory, are hashed strings."""
    return dtype == STRINGS and item_bytes == HASH_BYTES


@jit
def put_bucket(target: Target, out: int, at: int, size: int) -> None:
    """Writes the bucket of a string, as StringToHashBucketFast has it."""
    buckets, reciprocal = unsigned(target.buckets), unsigned(target.reciprocal)
    put_word(out, signed(remainder(fingerprint(at, size), buckets, reciprocal)))


@jit
def write_buckets(target: Target, at: int, count: int, out: int, readable: int) -> None:
    """Writes the buckets of so many strings of a list, see `write_values`."""
    for k in range(count):
        size, at = any_varint(at + 1, readable)
        size &= int64(LOW_HALF)
        put_bucket(target, out + HASH_BYTES * k, at, size)
        at += size


@jit
def fill_values(dtype: int, out: int, count: int, source: int) -> bool:
    """Writes one value of a tensor so many times; False: no memory."""
    if dtype == STRINGS:
        for k in range(count):
            if not copy_string(out + STRING_BYTES * k, source):
                return False
    elif dtype == FLOATS:
        for k in range(count):
            put_half(out + 4 * k, half_at(source))
    else:
        for k in range(count):
            put_word(out + 8 * k, word_at(source))
    return True


@jit
def copy_values(dtype: int, out: int, count: int, source: int) -> bool:
    """Copies so many values of a tensor; False: no memory."""
    if dtype == STRINGS:
        for k in range(count):
            if not copy_string(out + STRING_BYTES * k, source + STRING_BYTES * k):
                return False
    else:
        c_memcpy(out, source, count * (4 if dtype == FLOATS else 8))
    return True
