"""Drawing a column before and after a rewrite as Mermaid text (https://mermaid.js.org)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import LookupMatch, recognise_all
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.parts import Parts
from fusion.passes.report.picture import (
    FRONT,
    INPUT,
    STOP,
    UNEXPLAINED,
    Picture,
    emitted_picture,
    stock_picture,
)
from fusion.passes.report.report import ColumnReport
from fusion.printable import printable

#: Role -> colour and what the legend says. The colours differ for the colour-blind too.
_ROLES: dict[str, tuple[str, str]] = {
    INPUT: ("#ffffff", "input, computed elsewhere"),
    FRONT: ("#e2e2e2", "computes inputs only"),
    Stage.IDS.value: ("#a6cee3", "ids: prune, fill, unique"),
    Stage.ROWS.value: ("#fdd49e", "rows: read from the table"),
    Stage.OUTPUT.value: ("#b2df8a", "output: combine, mask, shape"),
    STOP: ("#f4777f", "the explanation stops here"),
    UNEXPLAINED: ("#f7f0c6", "not explained"),
}

#: What means something in the label of a node, and how a label has it.
_ESCAPES = str.maketrans({char: f"#{ord(char)};" for char in '"#&<>`'})


def draw_column(before: GraphView, after: GraphView, column: ColumnReport) -> str:
    """Returns a flowchart: what a column is made of, and what it becomes or why it stays.

    Args:
        before: the graph or function that the column is in.
        after: the same after a rewrite.
        column: the report on it.
    """
    lookup = _lookup(before, column.anchor)
    where = f" in function {column.function}" if column.function else ""
    lines = ["flowchart TB"]
    if column.fused and column.op is not None:
        stock = stock_picture(before, lookup)
        fused = emitted_picture(before, after, lookup, column.op)
        lines += _side("before", f"{column.name}{where}: {stock.own_count} nodes", stock)
        lines += _side("after", f"fused: {fused.own_count} nodes", fused)
        shown = [stock, fused]
    else:
        failure = NoMatch(column.reason or "", column.node or column.anchor)
        stock = stock_picture(before, lookup, failure)
        lines += _side("before", f"{column.name}{where}: {stock.own_count} nodes", stock)
        lines.append(f"  why[{_label(f'stays as it is: {failure.reason}', f'at {failure.node}')}]")
        shown = [stock]
    return "\n".join([*lines, *_legend(shown)]) + "\n"


def _lookup(view: GraphView, anchor: str) -> LookupMatch:
    """Returns a lookup; of fused ops that are no lookup of their own one without parts."""
    matches = (match for match in recognise_all(view) if match.anchor == anchor)
    return next(matches, LookupMatch(anchor, Parts(), None, None, anchor))


def _side(side: str, heading: str, picture: Picture) -> Iterator[str]:
    """Yields the lines of a subgraph."""
    numbers = {node: f"{side}{number}" for number, node in enumerate(picture.nodes)}
    yield f"  subgraph {side}[{_label(heading)}]"
    for node, shown in picture.nodes.items():
        yield f"    {numbers[node]}[{_label(shown.op, shown.label)}]:::{shown.role}"
    for source, consumer in picture.edges:
        yield f"    {numbers[source]} --> {numbers[consumer]}"
    yield "  end"


def _legend(pictures: Iterable[Picture]) -> Iterator[str]:
    """Yields the colours that are used, and what they mean."""
    used = {node.role for picture in pictures for node in picture.nodes.values()}
    yield f"  subgraph legend[{_label('constants are left out')}]"
    for role, (_, text) in _ROLES.items():
        if role in used:
            yield f"    legend_{role}[{_label(text)}]:::{role}"
    yield "  end"
    for role, (colour, _) in _ROLES.items():
        if role in used:
            yield f"  classDef {role} fill:{colour},stroke:#777777,color:#000000"


def _label(*lines: str) -> str:
    """Returns lines of text as a label, in which nothing has a meaning for Mermaid."""
    return '"' + "<br/>".join(printable(line).translate(_ESCAPES) for line in lines) + '"'
