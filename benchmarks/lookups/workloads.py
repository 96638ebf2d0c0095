"""What is looked up, as descriptions: columns, batches, and how ids are drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from benchmarks.lookups.draws import Distribution, Draw

Kind = Literal["sparse", "dense", "bucketized", "hashed", "word", "words"]
"""What a column gets: a SparseTensor of ids; one id per row as a dense tensor; a float to put into
buckets; an integer to hash; a string to hash; a SparseTensor of strings to hash."""

Host = Literal["lookups", "gradients", "tables", "trained tables", "deepfm", "features", "model"]
"""What looks up: tf.nn.safe_embedding_lookup_sparse and tf.concat; the same with the gradients of
the tables; tf.nn.embedding_lookup_sparse of each table, where fusion's side is
fusion.lookup_sparse of all; the same with gradients; a training step of DeepFM; tf_keras
DenseFeatures; a model of DenseFeatures and dense layers."""

TIMES = "Milliseconds in the graph, net of the inputs"
RATIOS = "Times as fast as"
"""Captions of the tables of results."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One embedding column.

    Attributes:
        rows: of the table; buckets of a bucketized or hashed column.
        dim: of the table.
        kind: what it gets.
        ids: how many per row, least and most.
        coverage: share of the rows that have any.
        combiner: "mean", "sum" or "sqrtn".
        weighted: whether ids have weights.
        max_norm: to which rows are clipped, or None.
        shards: how many partitions the table has.
        table: columns of the same number share a table; None for one's own.
    """

    rows: int
    dim: int
    kind: Kind = "sparse"
    ids: tuple[int, int] = (1, 1)
    coverage: float = 1.0
    combiner: str = "mean"
    weighted: bool = False
    max_norm: float | None = None
    shards: int = 1
    table: int | None = None

    @property
    def one_hot(self) -> bool:
        """Whether every row has exactly one id."""
        return self.ids == (1, 1) and self.coverage == 1.0

    def scaled(self, scale: float) -> Column:
        """The same with so many times the rows, at least 16."""
        return dataclasses.replace(self, rows=max(min(16, self.rows), int(self.rows * scale)))


@dataclasses.dataclass(frozen=True)
class Program:
    """Columns that are built once and run at several batch sizes.

    Attributes:
        name: of these columns within the workload.
        columns: in the order in which they are concatenated.
        batches: sizes that are run.
        variant_batch: the size at which other ids are run too, or None.
        distribution: of the ids that the headline numbers are about.
        host: what looks up.
        frozen: whether tables are constants rather than Variables.
        optimizer: of a model that is trained; on fusion's side its own one, if it has such a one.
        roofline: whether the best random-row sum is measured beside it (one column of sums).
        least: by batch and side, how many times as fast as that side fusion should be.
    """

    name: str
    columns: tuple[Column, ...]
    batches: tuple[int, ...]
    variant_batch: int | None = None
    distribution: Distribution = "power law"
    host: Host = "lookups"
    frozen: bool = False
    optimizer: Literal["sgd", "adagrad"] = "sgd"
    roofline: bool = False
    least: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    @property
    def width(self) -> int:
        """Columns of the concatenated output."""
        return sum(column.dim for column in self.columns)

    @property
    def lookups(self) -> int:
        """How many lookups there are; DeepFM looks up a column twice."""
        return len(self.columns) * (2 if self.host == "deepfm" else 1)

    @property
    def is_of_tables(self) -> bool:
        """Whether fusion's side calls fusion.lookup_sparse; else its pass finds the lookups."""
        return self.host in ("tables", "trained tables")

    def draws(self, batch: int) -> Iterator[tuple[str, Draw]]:
        """Yields the name and the ids of each variant to run at a batch size."""
        yield "base", Draw(self.distribution)
        if batch == self.variant_batch:
            other: Distribution = "uniform" if self.distribution == "power law" else "power law"
            yield other.replace(" ", "-"), Draw(other)
            yield "half-empty", Draw(self.distribution, empty=0.5)
            yield "negative", Draw(self.distribution, negative=0.02)

    def scaled(self, scale: float) -> Program:
        """The same with so many times the rows in every table."""
        return dataclasses.replace(
            self, columns=tuple(column.scaled(scale) for column in self.columns)
        )

    def quick(self) -> Program:
        """A small one, to try it out: at most 100 columns, one batch of at most 64 rows."""
        step = max(1, len(self.columns) // 100)
        return dataclasses.replace(
            self,
            columns=tuple(column.scaled(0.01) for column in self.columns[::step]),
            batches=(max((one for one in self.batches if one <= 64), default=64),),
            variant_batch=None,
        )


@dataclasses.dataclass(frozen=True)
class Workload:
    """Programs that are measured together.

    Attributes:
        name: of the case.
        about: what it is, in a sentence or two, and what differs from where it comes from.
        programs: what it consists of.
        headlines: the batch sizes that the README shows, by program.
    """

    name: str
    about: str
    programs: tuple[Program, ...]
    headlines: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def of_headlines(self) -> tuple[Program, ...]:
        """What the README shows, without variants."""
        return tuple(
            dataclasses.replace(one, batches=tuple(self.headlines[one.name]), variant_batch=None)
            for one in self.programs
            if one.name in self.headlines
        )
