"""The hashes of StringToHashBucket and of StringToHashBucketStrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.ops.ids.cpu_kernels.words import Word, one_byte, rotated_left, unsigned, word
from fusion.runtime.native.jit import inlined, jit

#: Of MurmurHash64A, and TensorFlow's seed.
_FACTOR, _SEED = np.uint64(0xC6A4A7935BD1E995), np.uint64(0xDECAFCAFFE)
#: "somepseudorandomlygeneratedbytes", by which a key becomes the state of SipHash.
_SIP = tuple(
    map(np.uint64, (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573))
)


@jit
def legacy_hash(at: int, size: int) -> Any:
    """MurmurHash64A (Austin Appleby, public domain), with TensorFlow's seed."""
    state = _SEED ^ (unsigned(size) * _FACTOR)
    end = at + (size & ~7)
    while at < end:
        part = word(at) * _FACTOR
        part ^= part >> Word(47)
        state = (state ^ (part * _FACTOR)) * _FACTOR
        at += 8
    if size & 7 != 0:
        state = (state ^ _last_bytes(at, size & 7)) * _FACTOR
    state = (state ^ (state >> Word(47))) * _FACTOR
    return state ^ (state >> Word(47))


@inlined
def _last_bytes(at: int, count: int) -> Any:
    """Less than 8 bytes as a word."""
    result = Word(0)
    for k in range(count):
        result |= one_byte(at + k) << unsigned(8 * k)
    return result


@inlined
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> tuple[Any, Any, Any, Any]:
    v0 += v1
    v2 += v3
    v1, v3 = rotated_left(v1, 13) ^ v0, rotated_left(v3, 16) ^ v2
    v0 = rotated_left(v0, 32)
    v2 += v1
    v0 += v3
    v1, v3 = rotated_left(v1, 17) ^ v2, rotated_left(v3, 21) ^ v0
    return v0, v1, rotated_left(v2, 32), v3


@jit
def keyed_hash(at: int, size: int, key: Any, other: Any) -> Any:
    """SipHash-2-4 (Aumasson, Bernstein 2012) with a key of two words."""
    v0, v1 = key ^ _SIP[0], other ^ _SIP[1]
    v2, v3 = key ^ _SIP[2], other ^ _SIP[3]
    end = at + (size & ~7)
    while at <= end:
        part = word(at) if at < end else _last_bytes(at, size & 7) | unsigned(size) << Word(56)
        v3 ^= part
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= part
        at += 8
    v2 ^= Word(0xFF)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3
