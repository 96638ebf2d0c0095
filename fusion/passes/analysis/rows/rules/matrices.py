"""Parts of the matrix that each row has."""

from __future__ import annotations

from fusion.passes.analysis.rows.facts import Fact, Mixes
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import alike, rule


@rule("MatrixBandPart")
def _band(operands: Operands) -> Fact:
    operands.constant(1, 2)
    return _in_front(operands, 2)


@rule("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _with_diagonal(operands: Operands) -> Fact:
    operands.constant(*range(2, operands.count))
    if operands.facts[0].axis >= operands.rank(0) - 2:
        raise Mixes(f"{operands.node.op} goes over the rows")
    return alike(operands, (0, 1))


@rule("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def _diagonal(operands: Operands) -> Fact:
    operands.constant(*range(1, operands.count))
    return _in_front(operands, 2)


def _in_front(operands: Operands, behind: int) -> Fact:
    """The fact of an operand whose axis of rows is none of the last ones."""
    fact = operands.of_rows(0)
    if fact.axis >= operands.rank(0) - behind:
        raise Mixes(f"{operands.node.op} goes over the rows")
    return fact
