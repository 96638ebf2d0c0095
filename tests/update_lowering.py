"""The lowering of programs of FusedEmbeddingUpdate, which is native code, called from Python."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from fusion.ops.cpu.updates.layout import Code
from fusion.ops.cpu.updates.program import (
    MESSAGE_BYTES,
    OK,
    RESOURCE_EXHAUSTED,
    Lowering,
    most_words,
)
from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation

_NAME = "lower_program"
_COMPILATION = Compilation("fusion.ops.cpu.updates.lowering", _NAME, 1, _NAME)
_KIND = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class Inputs(NamedTuple):
    """How many inputs and outputs of a kind a program has, and what its entries are.

    Attributes:
      variables, values, scalars, results: how many.
      sums_values: whether an entry is the sum of those of its row.
    """

    variables: int
    values: int
    scalars: int
    results: int
    sums_values: bool


class Lowered(NamedTuple):
    """A program that was lowered.

    Attributes:
      is_sweep, needs_rows, may_skip: see `Lowering`.
      with_entries, without: words of the `Code` of blocks with entries, and of those without.
      words: of the instructions of both, see `Instruction`.
    """

    is_sweep: bool
    needs_rows: bool
    may_skip: bool
    with_entries: list[int]
    without: list[int]
    words: list[int]


def lower(text: bytes, inputs: Inputs, first_word: int = 0) -> Lowered:
    """Lowers a program.

    Args:
      text: see `fusion.schema.update_program`.
      first_word: where its instructions will be in a state, in words.

    Raises:
      ValueError: it is no program, or none of these inputs and outputs.
      MemoryError: there is no memory for it.
    """
    address = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value
    return lower_at(address or 0, len(text), inputs, first_word)


def lower_at(address: int, length: int, inputs: Inputs, first_word: int = 0) -> Lowered:
    """As `lower`, of a text of so many bytes at an address."""
    words = (ctypes.c_int64 * most_words(length))()
    message = ctypes.create_string_buffer(MESSAGE_BYTES)
    record = (ctypes.c_int64 * Lowering.SIZE)()
    record[Lowering.text] = address
    record[Lowering.text_bytes] = length
    record[Lowering.variable_count] = inputs.variables
    record[Lowering.value_count] = inputs.values
    record[Lowering.scalar_count] = inputs.scalars
    record[Lowering.result_count] = inputs.results
    record[Lowering.sums_values] = int(inputs.sums_values)
    record[Lowering.first_word] = first_word
    record[Lowering.words] = ctypes.addressof(words)
    record[Lowering.word_capacity] = len(words)
    record[Lowering.message] = ctypes.addressof(message)
    record[Lowering.message_bytes] = len(message)
    function = objects.address(_NAME, _COMPILATION)
    _KIND(function)(ctypes.addressof(record))
    if record[Lowering.code] == RESOURCE_EXHAUSTED:
        raise MemoryError(message.value.decode())
    if record[Lowering.code] != OK:
        raise ValueError(message.value.decode())
    return Lowered(
        is_sweep=bool(record[Lowering.is_sweep]),
        needs_rows=bool(record[Lowering.needs_rows]),
        may_skip=bool(record[Lowering.may_skip]),
        with_entries=record[Lowering.with_entries : Lowering.with_entries + Code.SIZE],
        without=record[Lowering.without : Lowering.without + Code.SIZE],
        words=words[: record[Lowering.word_count]],
    )
