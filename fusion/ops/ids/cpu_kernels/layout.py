"""What the kernels that make ids know of columns, of vocabularies, and of a call.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Flag, Int64, Layout, Words, record
from fusion.runtime.threads.layout import Job

#: Hashes, by their place in `schema.attributes.HASHES`.
FAST, LEGACY, STRONG, REMAINDER = range(4)
#: What values are: strings and integers, of which most hashes take the decimal text.
TEXTS, INT32, INT64 = range(3)

#: A task takes so many values of a column.
TASK_VALUES = 1024

#: The first word of an index of vocabularies.
MAGIC = 0x0A7865646E69_7666


#: As a column's `replaced`: the vocabulary's default.
DEFAULT = -(2**63)


class IdsColumn(Layout):
    """How ids are made of the values of a column."""

    source: Int64  # what they are
    hash: Int64
    buckets: Int64  # 0: there are none
    reciprocal: Int64  # (2**64 - 1) // buckets
    key: Words  # two words
    vocabulary: Int64  # its place in the index; -1: none
    replaced: Int64  # the id of a vocabulary that buckets replace, or `DEFAULT`
    start: Int64  # the first bucket's id; -1: the size of the vocabulary's table


class Text(Layout):
    """The bytes of a text."""

    at: Address
    size: Int64
    readable: Address  # up to where bytes may be read


class IdsCall(Layout):
    """The tensors of a column in a call."""

    values: Address
    ids: Words
    count: Int64


class Vocabulary(Layout):
    """A hash table of keys and values in an index; places count words of the index.

    The slot of a text has four words: its value, its size, and its first 16 bytes; of a longer text
    the second word of these is the place of its bytes. That of an integer has two words, the key
    and its value.
    """

    is_of_texts: Flag
    table_size: Int64  # keys but for the mask
    slot_mask: Int64  # number of slots, a power of two, less 1
    slots: Int64
    bytes: Int64
    byte_count: Int64
    empty: Int64  # a number that is no key: of slots that are empty
    default: Int64  # what values have that are no keys


class Index(Layout):
    """Vocabularies in a tensor of words."""

    magic: Int64
    words: Int64  # of the tensor
    count: Int64
    vocabularies: Vocabulary = record(Vocabulary, 0)


class KeyList(Layout):
    """The keys of a vocabulary in tensors, of which an index is made."""

    source: Int64  # what they are
    keys: Address
    values: Words
    count: Int64
    default: Int64
    mask: Address  # a key that comes before them; 0: there is none
    mask_value: Int64


class IdsJob(Job):
    """A call that makes ids."""

    columns: IdsColumn
    calls: IdsCall
    column_count: Int64
    index: Index
    firsts: Words  # of each column the number of its first task, and that of all tasks
