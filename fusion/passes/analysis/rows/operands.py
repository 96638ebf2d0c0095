"""What a rule knows of a node: facts and shapes of its operands, constants, shapes of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fusion.passes.analysis.rows.counts import Count, Elements, of_constant
from fusion.passes.analysis.rows.facts import CONSTANT, Fact, Kind, Mixes, Side, joined, rows
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.values import Node


@dataclass(frozen=True)
class Operands:
    """A node whose operands' facts are known.

    Attributes:
        node: it, in a graph whose batches have `batch` rows.
        facts: of its operands.
        batch: a prime.
        known: the facts of all tensors in front of it.
    """

    node: Node
    facts: Sequence[Fact]
    batch: int
    known: Mapping[Tensor, Fact]

    @property
    def count(self) -> int:
        """How many operands there are."""
        return len(self.facts)

    @property
    def side(self) -> Side:
        """What all operands together depend on."""
        return joined(self.facts)

    def shape(self, index: int) -> Shape:
        """Returns the shape of an operand, whose rank has to be known."""
        return self._ranked(self.node.input(index).shape, "an operand")

    def result_shape(self, index: int = 0) -> Shape:
        """Returns the shape of a result, whose rank has to be known."""
        return self._ranked(self.node.output(index).shape, "the result")

    def _ranked(self, shape: Shape | None, what: str) -> Shape:
        if shape is None:
            raise Mixes(f"the rank of {what} of {self.node.op} is not known")
        return shape

    def rank(self, index: int) -> int:
        """Returns the rank of an operand."""
        return len(self.shape(index))

    def integer(self, index: int) -> int:
        """Returns an operand that has to be a constant of one integer."""
        values = self.integers(index)
        if len(values) != 1:
            raise Mixes(f"operand {index} of {self.node.op} is not one number")
        return values[0]

    def integers(self, index: int) -> list[int]:
        """Returns the elements of an operand that has to be a constant of integers."""
        value = self.node.view.integers(self.node.input(index).tensor)
        if value is None or self.facts[index].has_rows:
            raise Mixes(f"operand {index} of {self.node.op} is no constant")
        return [int(element) for element in value.reshape(-1)]

    def axis(self, index: int, rank: int) -> int:
        """Returns the axis that a constant operand says, counted from the front."""
        axis = self.integer(index)
        return axis + rank if axis < 0 else axis

    def constant(self, *indices: int) -> None:
        """Checks that operands depend on no row."""
        for index in indices:
            if self.facts[index].has_rows:
                raise Mixes(f"operand {index} of {self.node.op} depends on rows")

    def elements(self, index: int) -> Elements:
        """Returns how the elements of an operand depend on the number of rows."""
        fact = self.facts[index]
        if fact.kind is Kind.CONSTANT:
            return of_constant(self.node.input(index))
        return fact.elements if fact.kind is Kind.SIZES else None

    def counts(self, index: int) -> list[int]:
        """Returns which elements of an operand, all of sizes, are multiples of the rows' number."""
        elements = self.elements(index)
        if elements is None and self.facts[index].kind is Kind.CONSTANT:
            return []
        if elements is None or Count.OTHER in elements:
            raise Mixes(f"{self.node.op} depends on the number of rows")
        return [k for k, element in enumerate(elements) if element is Count.ROWS]

    def of_rows(self, index: int) -> Fact:
        """Returns the fact of an operand that has to have an axis of rows."""
        fact = self.facts[index]
        if fact.kind is not Kind.ROWS:
            raise Mixes(f"operand {index} of {self.node.op} has {fact.kind.value}")
        return fact

    def apart(self, fact: Fact, axis: int) -> Fact:
        """Returns the fact; its axis of rows has to be another than this one."""
        if fact.axis == axis:
            raise Mixes(f"{self.node.op} goes over the rows")
        return fact

    def row_axis(self, shape: Shape, prefix: int) -> tuple[int, int, int] | None:
        """Finds the axis of rows of a result that has the elements of an operand in their order.

        Args:
            shape: of the result.
            prefix: how often all rows of the operand are there, one block after the other: along
                its axis of rows and those in front of it.

        Returns:
            That axis, its elements per row, 0 if these are not known, and its blocks; None if there
            is none.
        """
        before = 1
        for axis, size in enumerate(shape):
            if size is None:
                return (axis, 0, 1) if before == prefix else None
            if size and size % self.batch == 0:
                blocks, left = divmod(prefix, before) if before else (0, 1)
                factor, more = divmod(size // self.batch, blocks) if blocks else (0, 1)
                return None if left or more else (axis, factor, blocks)
            before *= size
        return None


Rule = Callable[[Operands], Fact | Sequence[Fact]]


def broadcast(operands: Operands, indices: Sequence[int] | None = None) -> Fact:
    """The rule of ops whose operands are broadcast against each other, by their last axes."""
    indices = range(operands.count) if indices is None else indices
    facts = [operands.facts[index] for index in indices]
    if not any(fact.kind is Kind.ROWS for fact in facts):
        raise Mixes(f"{operands.node.op} has no operand with an axis of rows")
    ranks = [operands.rank(index) for index in indices]
    rank = max(ranks)
    places = {
        (fact.axis + rank - own, fact.layout)
        for fact, own in zip(facts, ranks, strict=True)
        if fact.kind is Kind.ROWS
    }
    if len(places) > 1:
        raise Mixes(f"the rows of operands of {operands.node.op} lie along different axes")
    ((axis, (blocks, factor)),) = places
    if factor == 0:
        raise Mixes(f"{operands.node.op} has rows of an unknown number of elements")
    for index, fact, own in zip(indices, facts, ranks, strict=True):
        if fact.kind is Kind.ROWS:
            continue
        if fact.kind is not Kind.CONSTANT:
            raise Mixes(f"operand {index} of {operands.node.op} has {fact.kind.value}")
        at = axis - (rank - own)
        if at >= 0 and operands.shape(index)[at] != 1:
            raise Mixes(
                f"operand {index} of {operands.node.op} may have another value for each row"
            )
    return rows(joined(facts), axis, factor, blocks)


def constant(operands: Operands) -> Fact:
    """The rule of ops whose operands have no rows."""
    operands.constant(*range(operands.count))
    return CONSTANT


def tensor_of(node: Node, index: int) -> Tensor:
    """Returns an output of a node."""
    return Tensor(node.name, index)
