"""Which tensors of requests have equally many rows, as far as TensorFlow's optimizer knows.

It gives the unknown number of rows of each input a symbol of its own, and takes sums and products
in another order where it knows that sizes are equal. So that it does the same behind repeats, only
what had one symbol is repeated by the same numbers.
"""

from __future__ import annotations

from fusion.passes.analysis.rows.facts import Kind, Side
from fusion.passes.analysis.rows.walk import RowFacts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView

#: Ops that demand equal sizes of their operands, which have one symbol from then on.
_MERGING = frozenset({"AddN", "AccumulateNV2", "ConcatV2", "Pack", "Select", "StringJoin"})


def row_symbols(view: GraphView, facts: RowFacts) -> dict[Tensor, str]:
    """Returns a name for the number of rows of each tensor of requests."""
    found: dict[Tensor, str] = {}
    same: dict[str, str] = {}

    def root(name: str) -> str:
        while (other := same.get(name, name)) != name:
            name = other
        return name

    def read(name: str) -> list[str]:
        return [*dict.fromkeys(root(found[one]) for one in view.inputs(name) if one in found)]

    for name in facts.order:
        symbols = read(name)
        if symbols and view.op(name) in _MERGING:
            same |= dict.fromkeys(symbols[1:], symbols[0])
            symbols = symbols[:1]
        own = symbols[0] if len(symbols) == 1 else name
        tensor, number = Tensor(name), 0
        while (fact := facts.facts.get(tensor)) is not None:
            if fact.kind is Kind.ROWS and fact.side is Side.REQUEST:
                found[tensor] = own
            number += 1
            tensor = Tensor(name, number)
    return {tensor: root(name) for tensor, name in found.items()}
