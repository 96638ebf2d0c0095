"""Names of features: compared as words, and found in a table."""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import Feature, Name, Names
from fusion.ops.examples.cpu_kernels.wire import low_bytes
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import folded_product, shifted_right, word_at

#: Odd numbers without a pattern.
_SALTS = 0x2D358DCCAA6C78A5, 0x1F3D5B79E5C6D7A3

#: The bits of a slot that say which feature it is of.
_NUMBER = 0xFFFF


@jit
def _both_words(at: int, readable: int, start: int) -> tuple[int, int]:
    """The 16 bytes at an address, as far as they may be read; zeros follow."""
    if at + 16 <= readable:
        return word_at(at), word_at(at + 8)
    if readable - start >= 16:  # the last 16 bytes, shifted
        low, high = word_at(readable - 16), word_at(readable - 8)
        bits = 8 * (at + 16 - readable)
        if bits >= 64:
            return (shifted_right(high, bits - 64) if bits < 128 else int64(0)), int64(0)
        return shifted_right(low, bits) | (high << (64 - bits)), shifted_right(high, bits)
    low, high = int64(0), int64(0)
    for k in range(readable - at):
        if k < 8:
            low |= byte(at + k) << (8 * k)
        else:
            high |= byte(at + k) << (8 * k - 64)
    return low, high


@jit
def first_words(at: int, size: int, readable: int, start: int) -> tuple[int, int]:
    """The first 16 bytes of a name, with zeros behind its end.

    Args:
      readable: up to where bytes may be read.
      start: from where they may be.
    """
    low, high = _both_words(at, readable, start)
    if size >= 16:
        return low, high
    if size > 8:
        return low, high & low_bytes(size - 8)
    return (low & low_bytes(size) if size > 0 else int64(0)), int64(0)


@jit
def mask_of(size: int) -> int:
    """The bytes in a word of a text that has so many bytes from there on."""
    if size <= 0:
        return int64(0)
    return low_bytes(min(size, int64(8)))


@jit
def is_rest_same(one: int, other: int, size: int) -> bool:
    """Whether names of more than 16 bytes are the same behind these."""
    for at in range(16, size - 8, 8):
        if word_at(one + at) != word_at(other + at):
            return False
    return word_at(one + size - 8) == word_at(other + size - 8)


@jit
def is_name(name: Name, head: int, more: int, size: int, at: int) -> bool:
    """Whether a name is that at an address, of these first words."""
    if (name.head ^ head) | (name.more ^ more) | (name.size ^ size) != 0:
        return False
    return size <= 16 or is_rest_same(at, name.address, size)


@jit
def _hash(head: int, more: int, size: int, at: int) -> int:
    mixed = folded_product(head ^ int64(_SALTS[0]), more ^ size ^ int64(_SALTS[1]))
    for k in range(16, size - 8, 8):
        mixed = folded_product(mixed ^ word_at(at + k), int64(_SALTS[0]))
    if size > 16:
        mixed = folded_product(mixed ^ word_at(at + size - 8), int64(_SALTS[0]))
    return mixed


@jit
def find_name(names: Names, head: int, more: int, size: int, at: int) -> int:
    """The number of the feature of a name at an address, of these first words; -1 for none."""
    hashed = _hash(head, more, size, at)
    slot = hashed & names.mask
    while True:
        word = names.slots[slot]
        if word == 0:
            return int64(-1)
        if (word ^ hashed) & ~int64(_NUMBER) == 0:
            number = (word & _NUMBER) - 1
            if is_name(names.features[number], head, more, size, at):
                return number
        slot = (slot + 1) & names.mask


@jit
def add_name(names: Names, number: int) -> bool:
    """Adds a feature's name to the table; whether no other has it."""
    one = names.features[number]
    if find_name(names, one.head, one.more, one.size, one.address) >= 0:
        return False
    hashed = _hash(one.head, one.more, one.size, one.address)
    slot = hashed & names.mask
    while names.slots[slot] != 0:
        slot = (slot + 1) & names.mask
    names.slots[slot] = (hashed & ~int64(_NUMBER)) | (number + 1)
    return True


@jit
def set_name(feature: Feature, address: int, size: int) -> None:
    """Sets the name of a feature."""
    feature.address = address
    feature.size = size
    head, more = first_words(address, size, address + size, address)
    feature.head = head
    feature.more = more
