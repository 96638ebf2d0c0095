"""What the parser of SequenceExamples knows of a call.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.examples.cpu_kernels.layout import (
    ExampleJob,
    Feature,
    Filler,
    Guesser,
    Names,
    Place,
    Total,
)
from fusion.runtime.layout import Address, Int64, Layout, Words, record


class Piece(Place):
    """What an Example has of a feature; fields of `Place` are for features of the context."""

    value: Address  # of its entry: a Feature or a FeatureList; 0: there is none
    size: Int64  # bytes of the value, of the context's when counted up to the end of its list


class SequenceTotal(Total):
    """Values of a feature in the Examples of a task, or of all.

    Of a feature list `max_count` is of a row.
    """

    rows: Int64
    max_rows: Int64  # of an Example


class SequenceFiller(Filler):
    """Where a task goes on writing a feature."""

    inner: Address  # of the next inner row split
    rows: Int64  # so far, in all Examples


class SequenceJob(ExampleJob):
    """A call of the parser of SequenceExamples. Features of the context come first everywhere."""

    context: Names
    lists: Names
    features: Feature
    feature_count: Int64
    pieces: Piece  # of each Example for each feature


class SequenceReader(Layout):
    """What a task knows of the Examples that it reads, and what is wrong with one.

    `example` is of the one that it reads, from 1 on; of one that is wrong `code` says what is, in
    which `feature` and `row`, and `detail` how many values there are.
    """

    job: SequenceJob
    pieces: Piece  # of the Example
    totals: SequenceTotal  # of each feature
    fillers: SequenceFiller  # of each feature
    example: Int64
    code: Int64
    feature: Int64
    row: Int64
    detail: Int64
    context: Guesser = record(Guesser)
    lists: Guesser = record(Guesser)
    nodes: Words  # see `Guesser`
