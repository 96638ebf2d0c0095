"""Decimal texts of integers, as AsString writes them."""

from __future__ import annotations

from typing import Any

from fusion.ops.ids.cpu_kernels.fingerprint import of_1_to_3, of_4_to_7, of_8_to_16
from fusion.ops.ids.cpu_kernels.words import Word, signed, unsigned
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.unaligned import put_byte, shifted_right

#: A decimal text has at most so many bytes, with its sign.
TEXT_BYTES = 20

#: So many digits fit a word.
_WORD_DIGITS = 8
_LIMIT = 10**_WORD_DIGITS
_ZEROS = 0x3030303030303030


@inlined
def _digits(number: int) -> int:
    """Eight decimal digits as the bytes of a word, the first one lowest."""
    high = (number * 109951163) >> 40  # number // 10000
    pairs = high | ((number - high * 10000) << 32)
    hundreds = ((pairs * 10486) >> 20) & int64(0x0000007F0000007F)
    pairs = hundreds | ((pairs - hundreds * 100) << 16)
    tens = ((pairs * 103) >> 10) & int64(0x000F000F000F000F)
    return tens | ((pairs - tens * 10) << 8)


@inlined
def _digit_count(number: int) -> int:
    count = int64(1)
    limit = int64(10)
    for _ in range(_WORD_DIGITS - 1):
        if number >= limit:
            count += 1
        limit *= 10
    return count


@inlined
def is_short(number: int) -> bool:
    """Whether the text of a number fits a word."""
    return 0 <= number < _LIMIT


@inlined
def short_fingerprint(number: int) -> Any:
    """Fingerprint64 of the text of a number that is short: of a word, none is in memory."""
    count = _digit_count(number)
    text = shifted_right(_digits(number) | int64(_ZEROS), 8 * (_WORD_DIGITS - count))
    if count == _WORD_DIGITS:
        return of_8_to_16(unsigned(text), unsigned(text), count)
    if count >= 4:
        last = shifted_right(text, 8 * (count - 4))
        return of_4_to_7(unsigned(text & 0xFFFFFFFF), unsigned(last & 0xFFFFFFFF), count)
    middle, last = shifted_right(text, 8 * (count >> 1)), shifted_right(text, 8 * (count - 1))
    parts = unsigned(text & 0xFF), unsigned(middle & 0xFF), unsigned(last & 0xFF)
    return of_1_to_3(parts[0], parts[1], parts[2], count)


@jit
def write_decimal(number: int, memory: int) -> tuple[int, int]:
    """Writes the text of a number to the end of `TEXT_BYTES` of memory; its address and size."""
    end = memory + TEXT_BYTES
    at, rest = end, unsigned(number) if number >= 0 else Word(0) - unsigned(number)
    while rest != Word(0) or at == end:
        quotient = rest // Word(10)
        at -= 1
        put_byte(at, signed(rest - quotient * Word(10)) + 48)
        rest = quotient
    if number < 0:
        at -= 1
        put_byte(at, int64(45))
    return at, end - at
