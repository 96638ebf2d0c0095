"""Which lookups become which ops: recognised columns, grouped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.forward_only import Forward
from fusion.passes.recognise.lookup_match import LookupMatch


class Lowering(Enum):
    """The ops that a lookup becomes."""

    GROUPED = "grouped"
    """One op for many lookups, side by side in its result."""
    SINGLE = "single"
    """One op."""
    SPLIT = "split"
    """Several ops around the stock gather."""
    TRAINED = "trained"
    """Ops around the stock gathers of one or more lookups, with one for their gradients."""
    FORWARD = "forward"
    """One op behind the stock gather; the gradient stays, and all that it reads."""
    STOCK = "stock"
    """Stock ops, but fewer."""
    STACKED = "stacked"
    """A stock gather for many lookups, side by side in its result."""


@dataclass(frozen=True)
class Backward:
    """A gradient of a group's result, and those of its lookups' rows that follow from it.

    Attributes:
        top: the gradient, [B, at least the result's columns].
        offsets: for each lookup, where the gradient of its result starts in a row of `top`.
        outputs: for each, the gradient of its distinct rows; None where it is not needed.
        nodes: the stock nodes whose values vanish.
    """

    top: Tensor
    offsets: tuple[int, ...]
    outputs: tuple[Tensor | None, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class SizesOf:
    """A tensor that has the first sizes of a result.

    Attributes:
        tensor: ids.
        dtype: their DataType.
    """

    tensor: Tensor
    dtype: int


@dataclass(frozen=True)
class Measured:
    """The first sizes of a result, not all known before a run; those of all its lookups.

    Attributes:
        count: how many sizes they are.
        sources: where each lookup has them: its ids, or numbers if they are known.
    """

    count: int
    sources: tuple[SizesOf | tuple[int, ...], ...]


@dataclass(frozen=True)
class Place:
    """Where a group's result goes: inputs of a join.

    Attributes:
        join: the ConcatV2 or Pack; or an AddN, which reads the parts of the result instead.
        start: the index of the first of them.
        whole: whether they are all its inputs; the result stands for it then. Not for an AddN.
        shape: the result's there, -1 for a size that is not known; None: the matrix as it is.
        measured: the first of these sizes; None if at most one of the shape is not known.
    """

    join: str
    start: int
    whole: bool
    shape: tuple[int, ...] | None
    measured: Measured | None = None


@dataclass(frozen=True)
class Group:
    """Lookups that are emitted together.

    Attributes:
        form: as what.
        columns: the lookups; in a concat also tensors that are taken over as they are.
        concat: the ConcatV2 whose inputs the columns are; "" for a single lookup.
        start: the index of the first column among the inputs of `concat`.
        whole: whether the columns are all its inputs; the group's op stands for it then.
        inner: concats among those inputs whose own inputs the columns are instead.
        places: where the result of lookups goes that several joins read, or that is no matrix
            there; `concat` is the first of them, and the four above say nothing.
        backwards: the gradients that a trained one computes.
        reads_whole: whether the ops of a stock one may read its table whole.
        forward: the inputs of a group whose forward alone is fused.
    """

    form: Lowering
    columns: tuple[LookupMatch | Tensor, ...]
    concat: str = ""
    start: int = 0
    whole: bool = False
    inner: frozenset[str] = frozenset()
    places: tuple[Place, ...] = ()
    backwards: tuple[Backward, ...] = ()
    reads_whole: bool = False
    forward: Forward | None = None

    @property
    def lookups(self) -> tuple[LookupMatch, ...]:
        """The columns that are lookups."""
        return tuple(column for column in self.columns if isinstance(column, LookupMatch))

    @property
    def op(self) -> str:
        """The stock node in whose place the result is; for a part of a concat, the concat."""
        if self.concat:
            return self.concat
        return self.lookups[0].full_spec.output.node

    def __str__(self) -> str:
        columns = " ".join(
            column.anchor if isinstance(column, LookupMatch) else f"copy:{column}"
            for column in self.columns
        )
        return f"{self.form.value} {columns}{f' for {self.concat}' if self.concat else ''}"


@dataclass(frozen=True)
class Plan:
    """All groups of a graph, in the order in which they are emitted.

    Attributes:
        groups: them.
        measures: nodes that read the sizes of results of their lookups, and that go with them.
    """

    groups: tuple[Group, ...]
    measures: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return "\n".join(str(group) for group in self.groups)


def plan_each(lookups: Iterable[LookupMatch], form: Lowering) -> Plan:
    """Returns a plan with one group of the form per lookup."""
    return Plan(tuple(Group(form, (lookup,)) for lookup in lookups))
