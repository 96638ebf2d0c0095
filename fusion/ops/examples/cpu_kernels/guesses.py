"""Which name comes next in an Example: that which came there in the Example before.

A name is compared with that of the entry that came there, and with the one behind that, as one may
be missing; where both are wrong it is looked up, and learnt.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import Guess, Guesser, Name, Names, Slot
from fusion.ops.examples.cpu_kernels.names import find_name, first_words, is_rest_same, mask_of
from fusion.ops.examples.cpu_kernels.wire import FIRST, short_length
from fusion.runtime.layout import Words
from fusion.runtime.native.jit import inlined, int64, jit
from fusion.runtime.native.pointers import as_record, stack_record
from fusion.runtime.native.text import byte
from fusion.runtime.native.unaligned import word_at

#: So many names that are not asked for are learnt at most.
_OTHER_NAMES = 256

#: The beginning of an entry of less than 128 bytes: tags, and in between lengths of 7 bits.
_ENTRY, _ENTRY_MASK = FIRST | FIRST << 16, 0x80FF80FF


@jit
def guess_words(names: int) -> int:
    """The words of the guesses and slots of so many features that are asked for."""
    return Guess.SIZE * (1 + names + _OTHER_NAMES) + Slot.SIZE * names


@jit
def open_guesser(guesser: Guesser, names: Names, lines: int, nodes: Words) -> None:
    """Begins to guess names.

    Args:
      lines: where cache lines for guesses and slots begin, see `guess_words`.
      nodes: a word for each feature.
    """
    guesser.names = names
    guesser.guesses = as_record(Guess, lines)
    guesser.guess_limit = 1 + names.count + _OTHER_NAMES
    guesser.slots = as_record(Slot, lines + 8 * Guess.SIZE * guesser.guess_limit)
    guesser.nodes = nodes
    for number in range(names.count):
        nodes[number] = 0
    first = guesser.guesses
    first.size = -1  # of no name
    first.slot = as_record(Slot, int64(0))
    first.next = first
    guesser.guess_count = 1


@jit
def _new_guess(guesser: Guesser, name: Name, slot: Slot) -> Guess:
    """A new guess for a name; the one without a name if there are too many."""
    guess = guesser.guesses[0]
    if guesser.guess_count < guesser.guess_limit:
        guess = guesser.guesses[guesser.guess_count]
        guesser.guess_count = guesser.guess_count + 1
        guess.head = name.head
        guess.more = name.more
        guess.size = name.size
        guess.address = name.address
        guess.head_mask = mask_of(name.size)
        guess.more_mask = mask_of(name.size - 8)
        if slot != 0:
            guesser.nodes[slot.number] = guess
    guess.slot = slot
    return guess


@jit
def _look_up(guesser: Guesser, last: Guess, at: int, size: int, readable: int) -> Guess:
    """The guess that a name is, from now on the one behind another."""
    name = stack_record(Name)
    head, more = first_words(at, size, readable, guesser.start)
    name.head = head
    name.more = more
    name.size = size
    name.address = at
    number = find_name(guesser.names, head, more, size, at)
    if number >= 0 and guesser.nodes[number] != 0:
        guess = as_record(Guess, guesser.nodes[number])
    else:
        slot = as_record(Slot, int64(0)) if number < 0 else guesser.slots[number]
        guess = _new_guess(guesser, name, slot)
        if guess != guesser.guesses:
            guess.next = last.next
    if guess != guesser.guesses:
        last.next = guess
    return guess


@inlined
def _is_guessed(guess: Guess, at: int, size: int) -> bool:
    """Whether a name is that of a guess; 16 bytes may be read."""
    head = (word_at(at) ^ guess.head) & guess.head_mask
    more = (word_at(at + 8) ^ guess.more) & guess.more_mask
    if head | more | (size ^ guess.size) != 0:
        return False
    return size <= 16 or is_rest_same(at, guess.address, size)


@inlined
def next_guess(guesser: Guesser, last: Guess, at: int, size: int, readable: int) -> Guess:
    """The guess that the name behind another is."""
    if at + 16 <= readable:
        guess = last.next
        if _is_guessed(guess, at, size):
            return guess
        guess = guess.next
        if _is_guessed(guess, at, size):
            return guess
    return _look_up(guesser, last, at, size, readable)


@inlined
def find_entry(at: int, end: int, readable: int) -> tuple[int, int, int]:
    """Where the name of an entry begins, its size, and where the entry ends; 0: unusual."""
    if at + 8 <= readable:
        word = word_at(at)
        if word & _ENTRY_MASK == _ENTRY:
            size, name_size = (word >> 8) & 0x7F, (word >> 24) & 0x7F
            entry_end = at + 2 + size
            if entry_end > end or name_size + 4 > size:
                return int64(0), int64(0), int64(0)
            return at + 4, name_size, entry_end
    return _find_any_entry(at, end)


@jit
def _find_any_entry(at: int, end: int) -> tuple[int, int, int]:
    """As `find_entry`, for an entry of any size."""
    if byte(at) != FIRST:
        return int64(0), int64(0), int64(0)
    size, at = short_length(at + 1, end)
    entry_end = at + size
    if at == 0 or entry_end > end or size < 4 or byte(at) != FIRST:
        return int64(0), int64(0), int64(0)
    size, at = short_length(at + 1, entry_end)
    if at == 0 or at + size + 2 > entry_end:
        return int64(0), int64(0), int64(0)
    return at, size, entry_end
