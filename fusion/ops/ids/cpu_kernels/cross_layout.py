"""What the kernel that crosses features knows of crosses, and of a call.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Flag, Int64, Layout, Words
from fusion.runtime.threads.layout import Job

#: How the values of a feature are given, by their place in `schema.attributes.FEATURE_FORMS`.
SPARSE, MASKED, DENSE, VECTOR = range(4)
#: What results are, by their place in `schema.attributes.CROSS_FORMS`.
INDICES, ROW_SPLITS, MATRIX = range(3)
#: How a value becomes a word: integers as they are, the fingerprint of a text, that of the lower
#: four bytes of an integer, and hashes of both by a key.
INT64, INT32, TEXT, HALF, KEYED_TEXT, KEYED_HALF = range(6)

#: A task crosses so many rows.
BLOCK_ROWS = 256
#: Words of a block in front of the cursors of features: where its ids begin, and whether each of
#: its rows has one id, of values that lie one after the other.
BLOCK_START, BLOCK_IS_SINGLE, BLOCK_CURSORS = range(3)


class CrossFeature(Layout):
    """A feature of a cross."""

    form: Int64
    hash: Int64
    item_bytes: Int64
    ignored: Int64  # the integer that stands for no value in a MASKED feature; a text is empty


class Cross(Layout):
    """How features are crossed."""

    features: CrossFeature
    feature_count: Int64
    is_seeded: Flag  # whether the hash of values begins with a seed, not with the first value
    seed: Int64
    key: Words  # two words
    buckets: Int64
    reciprocal: Int64  # (2**64 - 1) // buckets
    form: Int64


class FeatureCall(Layout):
    """The tensors of a feature in a call."""

    values: Address
    indices: Words  # of a SPARSE feature
    count: Int64  # how many values a SPARSE feature has, or each row of another


class CrossCall(Layout):
    """The tensors of a cross in a call."""

    features: FeatureCall
    row_count: Int64
    width: Int64  # ids of each row; -1: rows differ
    total: Int64  # ids of all rows
    max_count: Int64  # ids of a row
    blocks: Words  # of each block, see BLOCK_START; none if rows do not differ
    ids: Words
    entry_rows: Words


class CrossJob(Job):
    """A call that crosses features."""

    crosses: Cross
    calls: CrossCall
    cross_count: Int64
    firsts: Words  # of each cross the number of its first block, and that of all blocks
    is_filling: Flag  # whether ids are written, not counted
