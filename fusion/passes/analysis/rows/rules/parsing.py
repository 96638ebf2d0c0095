"""Parsers of Examples."""

from __future__ import annotations

from collections.abc import Sequence

from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules.registry import rule


@rule("ParseExample", "ParseExampleV2")
def _parsed(operands: Operands) -> Sequence[Fact]:
    fact = operands.of_rows(0)
    operands.constant(*range(1, operands.count))
    if operands.rank(0) != 1:
        raise Mixes(f"{operands.node.op} of one Example")
    node, side = operands.node, fact.side
    sparse, dense, ragged = (
        len(attr.list.type) if (attr := node.attr(key)) is not None else 0
        for key in ("sparse_types", "Tdense", "ragged_value_types")
    )
    sparse = node.int_attr("Nsparse" if node.op == "ParseExample" else "num_sparse")
    dense_facts = [rows(side)] * dense

    def parts(kind: Kind, name: str, count: int) -> list[Fact]:
        return [Fact(kind, side, source=f"{node.name}/{name}/{k}") for k in range(count)]

    found = [*parts(Kind.INDICES, "sparse", sparse), *parts(Kind.ENTRIES, "sparse", sparse)]
    found += [*parts(Kind.SPARSE_SHAPE, "sparse", sparse), *dense_facts]
    return [*found, *parts(Kind.ENTRIES, "ragged", ragged), *parts(Kind.SPLITS, "ragged", ragged)]
