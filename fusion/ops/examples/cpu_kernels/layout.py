"""What the parser of Examples knows of features, and of a call.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Int64, Layout, Words
from fusion.runtime.threads.layout import Job

#: What becomes of a feature's values: rows of equal length; rows filled up to the longest; one
#: behind the other, with indices; one behind the other, with row splits.
FIXED, PADDED, SPARSE, RAGGED = range(4)

#: What is wrong with an Example. UNUSUAL: nothing may be, but the fast parser does not say.
OK, UNUSUAL, MALFORMED, UNSUPPORTED, OTHER_DTYPE, BAD_FEATURE, OTHER_SIZE, BROKEN_STRIDE = range(8)
ABSENT, NO_MEMORY = 8, 9

#: Of what becomes of a string that is hashed.
HASH_BYTES = 8
#: The place of a feature that is FIXED and hashed.
HASHED = -1


class Name(Layout):
    """A name of a feature."""

    head: Int64  # its first 8 bytes, with zeros behind its end
    more: Int64  # the 8 bytes behind them
    size: Int64
    address: Address  # of its bytes


class Feature(Name):
    """A feature that is asked for."""

    dtype: Int64  # the tag of its list, see `wire`
    form: Int64
    count: Int64  # values of a row, or of a stride if it is PADDED
    place: Int64  # its number among those that are not FIXED; of others HASHED if they are hashed
    output: Int64  # the number of the output for its values, among all
    default_input: Int64  # the number of the input with its default, among all; -1 for none
    is_required: Int64  # whether each Example must have it
    rank: Int64  # of its shape, without the batch
    dims: Words  # of its shape; -1 in front of strides
    item_bytes: Int64  # of a value in memory; of a string HASH_BYTES if it is hashed
    split_bytes: Int64  # of a row split
    buckets: Int64  # how many strings are hashed to
    reciprocal: Int64  # of that, see `words.remainder`
    row_values: Int64  # of a FIXED one beside others: values of a row of all of them; else 0
    column: Int64  # values in front of it in a row
    offset: Int64  # and bytes
    first: Int64  # the number of the first feature of its output
    starts: Int64  # as of that of the output of this one's number; and the values of its rows
    total: Int64


class Names(Layout):
    """The features that are asked for, by their names."""

    features: Feature
    count: Int64
    mask: Int64  # of the number of a slot
    slots: Words  # 1 + the number of the feature, and the upper 48 bits of a hash; 0: empty


class Example(Layout):
    """A serialized Example."""

    start: Address
    size: Int64


class Place(Layout):
    """Where the values of a feature lie in an Example."""

    start: Address
    count: Int64  # of values, times two; one more if they are not packed


class Target(Layout):
    """The tensors of a feature in a call."""

    values: Address
    row_bytes: Int64  # of values, if it is FIXED or PADDED
    indices: Words  # of a SPARSE one
    splits: Address  # of a RAGGED one
    default: Address  # of the values of its default
    inner_splits: Address  # of a RAGGED feature list
    lengths: Words  # of a PADDED feature list
    buckets: Int64  # as of the feature
    reciprocal: Int64


class Total(Layout):
    """Values of a feature in the Examples of a task."""

    count: Int64
    max_count: Int64  # of an Example


class Slot(Layout):
    """What a task has to know of a feature, in a cache line."""

    seen: Int64  # the number of the Example in which it came last, from 1 on
    dtype: Int64  # as of the feature
    form: Int64
    count: Int64
    place: Int64  # likewise
    number: Int64  # of the feature
    values: Address  # as of its target
    row_bytes: Int64


class Filler(Layout):
    """Where a task goes on writing a feature that is not FIXED, in a cache line."""

    dtype: Int64  # as of the feature
    form: Int64
    values: Address  # of the next value
    others: Address  # of the next indices, or of the next row split
    item_bytes: Int64
    split_bytes: Int64  # 0 where there are no row splits
    total: Int64  # values so far, in all Examples
    number: Int64  # of the feature


class Guess(Layout):
    """A name that has come, and which came behind it, in a cache line."""

    head: Int64  # as of a `Name`
    more: Int64
    size: Int64
    head_mask: Int64  # of the bytes of the name in a word
    more_mask: Int64
    address: Address
    slot: Slot  # 0: of a name that is not asked for
    next: Guess


class Finding(Layout):
    """The entry of an Example that counts for a feature."""

    index: Int64  # among all entries; -1: there is none
    start: Address  # of the Feature
    end: Address


class ExampleJob(Job):
    """A call of a parser, whose tasks go over its Examples twice."""

    targets: Target  # of each feature
    examples: Example
    example_count: Int64
    is_single: Int64  # whether it is one Example without a batch
    firsts: Words  # of each task the number of its first Example, and that behind the last
    readers: Address  # of each task a reader, and the memory of that
    reader_words: Int64
    is_filling: Int64  # whether Examples have been scanned


class ParseJob(ExampleJob):
    """A call of the parser of Examples."""

    names: Names
    place_count: Int64  # of features that are not FIXED
    places: Place  # of each Example for each of these


class Guesser(Layout):
    """What guesses which name comes next."""

    names: Names
    start: Address  # of the Example: from where bytes may be read
    slots: Slot  # of each feature
    nodes: Words  # of each feature its `Guess`, 0 without
    guess_count: Int64
    guess_limit: Int64  # how many there is memory for
    guesses: Guess  # the first has no name, and what comes first behind it


class Reader(Guesser):
    """What a task knows of the Examples that it reads, and what is wrong with one."""

    job: ParseJob
    totals: Total  # of the task
    example: Int64  # the number of the one that it reads, from 1 on
    code: Int64  # what is wrong with that
    feature: Int64  # that is wrong
    detail: Int64  # the tag that it has, or how many values
    unsupported: Int64  # the last entry that is asked for and of no known dtype; -1 for none
    places: Place  # of the Example
    fillers: Filler  # of each feature that is not FIXED
    findings: Finding  # of each feature
