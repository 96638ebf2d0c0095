"""Drawing a column before and after a rewrite as SVG. Needs matplotlib."""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import networkx as nx
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import recognise
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.report.layered_layout import Layout, Point, layered
from fusion.passes.report.picture import (
    FRONT,
    INPUT,
    STOP,
    UNEXPLAINED,
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

# Inches.
_COLUMN, _LAYER, _BOX_WIDTH, _BOX_HEIGHT = 2.1, 0.7, 1.95, 0.42
_MARGIN, _BETWEEN, _HEADING, _LEGEND_ROW = 0.3, 0.9, 0.8, 0.3
_NARROWEST, _LINE, _LETTER = 3.6, 0.2, 0.11

_FITTING = 25
"""Letters of an op's name that fit into a box at the usual size."""
_LETTERS = 46
"""Letters of the words on a side that fit into the narrowest one."""


@dataclass(frozen=True)
class Side:
    """One half of the drawing: a heading, a graph (maybe empty), and words below it."""

    heading: str
    graph: nx.DiGraph
    words: tuple[str, ...] = ()


def draw_column(before: GraphView, after: GraphView, column: ColumnReport) -> bytes:
    """Returns an SVG: left what a column is made of, right what it becomes or why it stays.

    Args:
        before: the graph or function that the column is in.
        after: the same after a rewrite.
        column: what was reported about it.
    """
    lookup = recognise(before, column.anchor)
    if column.op is not None:
        left = stock_picture(before, lookup)
        right = emitted_picture(before, after, lookup, column.op)
        fused = Side(_counted("fused", right), right)
    else:
        failure = NoMatch(column.reason or "", column.node or column.anchor)
        left = stock_picture(before, lookup, failure)
        lines = textwrap.wrap(f"{failure.reason}, at {failure.node}", _LETTERS)
        fused = Side("stays as it is", nx.DiGraph(), tuple(lines))
    where = f"   in function {column.function}" if column.function else ""
    return draw_svg(f"{column.name}{where}", Side(_counted("stock", left), left), fused)


def _counted(what: str, graph: nx.DiGraph) -> str:
    own = sum(role != INPUT for _, role in graph.nodes(data="role"))
    return f"{what}: {own} nodes"


def draw_svg(title: str, left: Side, right: Side) -> bytes:
    """Returns an SVG with the two sides beside each other and a legend below the right one.

    Equal graphs give equal bytes.
    """
    layouts = [layered(side.graph) for side in (left, right)]
    widths = [max(layout.width * _COLUMN, _NARROWEST) for layout in layouts]
    roles = _used_roles(left, right)
    top, middle = _MARGIN + _HEADING, _MARGIN + widths[0] + _BETWEEN
    legend = top + layouts[1].height * _LAYER + len(right.words) * _LINE + _LAYER / 2
    height = max(top + layouts[0].height * _LAYER, legend + (len(roles) + 1) * _LEGEND_ROW)
    # Neither settings of the user's nor a window have a part in this.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.hashsalt": "fusion", "svg.fonttype": "none"})
        figure = Figure(figsize=(middle + widths[1] + _MARGIN, height + _MARGIN))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, figure.get_figwidth()), ylim=(figure.get_figheight(), 0))
        axes.axis("off")
        title = _clipped(printable(title), figure.get_figwidth())
        _write(axes, (_MARGIN, _MARGIN), title, fontsize=11, va="center")
        _draw_side(axes, left, layouts[0], (_MARGIN, top))
        _draw_side(axes, right, layouts[1], (middle, top))
        _draw_legend(axes, roles, (middle, legend))
        buffer = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _write(axes: Axes, point: Point, text: str, **style: Any) -> None:
    """Writes words as they are: XML has no control characters, and a name no formulas."""
    axes.text(*point, printable(text), parse_math=False, **style)


def _clipped(title: str, inches: float) -> str:
    letters = int(inches / _LETTER)
    return title if len(title) <= letters else f"…{title[1 - letters :]}"


def _used_roles(*sides: Side) -> list[str]:
    used = {role for side in sides for _, role in side.graph.nodes(data="role")}
    return [role for role in _ROLES if role in used]


def _draw_side(axes: Axes, side: Side, layout: Layout, corner: Point) -> None:
    left, top = corner
    _write(axes, (left, top - 0.25), side.heading, fontsize=10, weight="bold", va="center")

    for i, line in enumerate(side.words):
        _write(axes, (left, top + i * _LINE), line, fontsize=9, va="center")

    def scaled(point: Point) -> Point:
        return left + point[0] * _COLUMN, top + point[1] * _LAYER

    for points in layout.edges.values():
        _draw_edge(axes, [scaled(point) for point in points])
    for name, point in layout.nodes.items():
        node = side.graph.nodes[name]
        last = side.graph.out_degree(name) == 0
        _draw_box(axes, scaled(point), node["op"], node["label"], node["role"], last)


def _draw_box(axes: Axes, centre: Point, op: str, label: str, role: str, last: bool) -> None:
    x, y = centre
    axes.add_patch(
        FancyBboxPatch(
            (x - _BOX_WIDTH / 2, y - _BOX_HEIGHT / 2),
            _BOX_WIDTH,
            _BOX_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.06",
            facecolor=_ROLES[role][0],
            edgecolor="#222222" if last else "#777777",
            linewidth=1.8 if last else 0.8,
            zorder=2,
        )
    )
    middle: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 3}
    size = min(7.5, 7.5 * _FITTING / len(op))
    _write(axes, (x, y - 0.08), op, fontsize=size, weight="bold", **middle)
    _write(axes, (x, y + 0.1), label, fontsize=6, color="#444444", **middle)


def _draw_edge(axes: Axes, points: list[Point]) -> None:
    """Draws a line from the first box to the last: curved between layers, straight within."""
    half = _BOX_HEIGHT / 2
    (x, y), *rest = points
    vertices, codes = [(x, y + half)], [Path.MOVETO]
    y += half
    for i, (xb, yb) in enumerate(rest, 1):
        middle = (y + yb - half) / 2
        vertices += [(x, middle), (xb, middle), (xb, yb - half)]
        codes += [Path.CURVE4] * 3
        x, y = xb, yb + half
        if i < len(rest):
            vertices.append((x, y))
            codes.append(Path.LINETO)
    axes.add_patch(
        FancyArrowPatch(
            path=Path(vertices, codes),
            arrowstyle="-|>",
            mutation_scale=7,
            linewidth=0.8,
            color="#777777",
            zorder=1,
        )
    )


def _draw_legend(axes: Axes, roles: list[str], corner: Point) -> None:
    x, y = corner
    for i, role in enumerate(roles):
        colour, text = _ROLES[role]
        top = y + i * _LEGEND_ROW
        axes.add_patch(
            FancyBboxPatch(
                (x, top),
                0.3,
                0.18,
                boxstyle="round,pad=0,rounding_size=0.04",
                facecolor=colour,
                edgecolor="#777777",
                linewidth=0.8,
            )
        )
        axes.text(x + 0.42, top + 0.09, text, fontsize=8, va="center")
    axes.text(x, y + len(roles) * _LEGEND_ROW + 0.09, "constants are left out", fontsize=8)
