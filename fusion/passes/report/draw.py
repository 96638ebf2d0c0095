"""Drawing a column before and after a rewrite as SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

import networkx as nx

from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import recognise_all
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.parts import Parts
from fusion.passes.report.picture import (
    FRONT,
    INPUT,
    STOP,
    UNEXPLAINED,
    Picture,
    PictureNode,
    emitted_picture,
    stock_picture,
)
from fusion.passes.report.report import ColumnReport
from fusion.printable import counted, printable

Point = tuple[float, float]

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

# Pixels.
_BOX_WIDTH, _BOX_HEIGHT, _COLUMN, _LAYER = 184, 40, 204, 66
_MARGIN, _BETWEEN, _HEADING, _LINE, _MIN_WIDTH = 28, 70, 60, 18, 320

_LETTERS = 26
"""Letters of an op's name that fit into a box at the usual size, 12 pixels."""
_LINE_LETTERS = 46
"""Letters of a line of text beside the boxes."""


@dataclass(frozen=True)
class _Side:
    """A half of the drawing: a heading, boxes (perhaps none), and lines of text below it."""

    heading: str
    picture: Picture
    lines: Sequence[str] = ()

    def placed(self) -> dict[str, Point]:
        """The middle of each box, in columns and layers."""
        layers = _layers(self.picture)
        widest = max(map(len, layers), default=0)
        return {
            node: ((widest - len(layer)) / 2 + index, number)
            for number, layer in enumerate(layers)
            for index, node in enumerate(layer)
        }


def draw_column(before: GraphView, after: GraphView, column: ColumnReport) -> str:
    """Returns an SVG: what a column is made of, and beside it what it becomes or why it stays.

    Args:
        before: the graph or function that the column is in.
        after: the same after a rewrite.
        column: the report on it.
    """
    lookup = _lookup(before, column.anchor)
    if column.fused and column.op is not None:
        left = stock_picture(before, lookup)
        right = emitted_picture(before, after, lookup, column.op)
        fused = _Side(f"fused: {counted(right.own_count, 'node')}", right)
    else:
        failure = NoMatch(column.reason or "", column.node or column.anchor)
        left = stock_picture(before, lookup, failure)
        why = textwrap.wrap(printable(f"{failure.reason}, at {failure.node}"), _LINE_LETTERS)
        fused = _Side("stays as it is", Picture({}, ()), why)
    where = f" in function {column.function}" if column.function else ""
    stock = _Side(f"stock: {counted(left.own_count, 'node')}", left)
    return "\n".join(_svg(f"{column.name}{where}", (stock, fused))) + "\n"


def _lookup(view: GraphView, anchor: str) -> LookupMatch:
    """Returns a lookup; of fused ops that are no lookup of their own one without parts."""
    matches = (match for match in recognise_all(view) if match.anchor == anchor)
    return next(matches, LookupMatch(anchor, Parts(), None, None, anchor))


def _layers(picture: Picture) -> list[list[str]]:
    """Returns the nodes by layer, from the top; a node is above all its consumers.

    In a layer nodes are sorted by the mean position of their consumers.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(picture.nodes)
    graph.add_edges_from(picture.edges)
    while not nx.is_directed_acyclic_graph(graph):  # a loop of TensorFlow 1
        graph.remove_edge(*nx.find_cycle(graph)[-1][:2])
    layers: list[list[str]] = []
    place: dict[str, float] = {}

    def wanted(node: str) -> float:
        below = [place[consumer] for consumer in graph.successors(node)]
        return sum(below) / len(below) if below else 0.0

    for generation in nx.topological_generations(graph.reverse()):
        layer = sorted(generation, key=wanted)
        place.update((node, index - len(layer) / 2) for index, node in enumerate(layer))
        layers.append(layer)
    return layers[::-1]


def _svg(title: str, sides: Sequence[_Side]) -> Iterator[str]:
    """Yields the lines of the drawing, with a legend below the last side."""
    places = [side.placed() for side in sides]
    widths = [
        max(_MIN_WIDTH, *(round((x + 1) * _COLUMN) for x, _ in place.values()), 0)
        for place in places
    ]
    heights = [
        _HEADING
        + len(side.lines) * _LINE
        + max((y + 1 for _, y in place.values()), default=0) * _LAYER
        for side, place in zip(sides, places, strict=True)
    ]
    used = {node.role for side in sides for node in side.picture.nodes.values()}
    legend = [role for role in _ROLES if role in used]
    width = sum(widths) + _BETWEEN + 2 * _MARGIN
    height = max(heights[0], heights[-1] + (len(legend) + 2) * _LINE) + 2 * _MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        'font-family="Helvetica, Arial, sans-serif">'
    )
    yield '<marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7"'
    yield 'orient="auto"><path d="M0 0L6 3L0 6z" fill="#777777"/></marker>'
    yield f'<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>'
    yield _text(_MARGIN, _MARGIN, title, 15)
    left = float(_MARGIN)
    for side, place, side_width in zip(sides, places, widths, strict=True):
        yield _text(left, _MARGIN + 26, side.heading, 13, "bold")
        top = float(_MARGIN + _HEADING)
        for line in side.lines:
            yield _text(left, top - 10, line, 12)
            top += _LINE
        yield from _boxes(
            side.picture,
            {
                node: (left + x * _COLUMN + _BOX_WIDTH / 2, top + y * _LAYER + _BOX_HEIGHT / 2)
                for node, (x, y) in place.items()
            },
        )
        last, left = left, left + side_width + _BETWEEN
    yield from _legend(legend, (last, heights[-1] + _MARGIN))
    yield "</svg>"


def _boxes(picture: Picture, middles: dict[str, Point]) -> Iterator[str]:
    """Yields the edges and boxes of a side."""
    half = _BOX_HEIGHT / 2
    for source, consumer in picture.edges:
        (xa, ya), (xb, yb) = middles[source], middles[consumer]
        bend = (ya + yb) / 2
        yield (
            f'<path d="M{xa:.0f} {ya + half:.0f}C{xa:.0f} {bend:.0f} {xb:.0f} {bend:.0f} {xb:.0f} '
            f'{yb - half:.0f}" fill="none" stroke="#777777" marker-end="url(#tip)"/>'
        )
    for name, node in picture.nodes.items():
        yield from _box(name, node, middles[name])


def _box(name: str, node: PictureNode, middle: Point) -> Iterator[str]:
    x, y = middle
    yield (
        f'<rect x="{x - _BOX_WIDTH / 2:.0f}" y="{y - _BOX_HEIGHT / 2:.0f}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}" rx="6" fill="{_ROLES[node.role][0]}" stroke="#555555">'
        f"<title>{escape(printable(name))}</title></rect>"
    )
    size = min(12.0, 12.0 * _LETTERS / max(len(node.op), 1))
    yield _text(x, y - 3, node.op, size, "bold", "middle")
    yield _text(x, y + 12, node.label, 9, anchor="middle")


def _legend(roles: Sequence[str], corner: Point) -> Iterator[str]:
    x, y = corner
    for role in roles:
        colour, text = _ROLES[role]
        box = f'<rect x="{x:.0f}" y="{y - 10:.0f}" width="22" height="12" rx="3"'
        yield f'{box} fill="{colour}" stroke="#555555"/>'
        yield _text(x + 30, y, text, 11)
        y += _LINE
    yield _text(x, y, "constants are left out", 11)


def _text(
    x: float, y: float, text: str, size: float, weight: str = "normal", anchor: str = "start"
) -> str:
    """Returns text in which nothing has a meaning for SVG."""
    style = f"font-size={quoteattr(f'{size:.4g}')} font-weight={quoteattr(weight)}"
    content = escape(printable(text))
    return f'<text x="{x:.0f}" y="{y:.0f}" {style} text-anchor="{anchor}">{content}</text>'
