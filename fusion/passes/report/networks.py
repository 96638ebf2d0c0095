"""The graphs of a report before and after a rewrite, as networkx has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import networkx as nx

from fusion.passes.graph.networks import network
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.control_dependencies import input_tensors
from fusion.passes.recognise.lookup import recognise_all
from fusion.passes.report.report import ColumnReport, FusionReport, Networks, RewrittenGraph

_SEPARATOR = ", "

#: Columns of a graph with their indices in the report.
_Numbered = Sequence[tuple[int, ColumnReport]]
#: The indices of the columns that each node is a part of.
_Parts = dict[str, set[int]]


def networks(report: FusionReport, graphs: Sequence[RewrittenGraph]) -> Networks:
    """Returns what `FusionReport.to_networkx` does.

    Args:
        report: on all of the graphs.
        graphs: what rewriting them again has made.

    Raises:
        ValueError: they are not those that the report is on.
    """
    now = FusionReport.merge(graph.report for graph in graphs)
    is_same = all(graph.before.keys() == graph.after.keys() for graph in graphs)
    if not is_same or _verdicts(now) != _verdicts(report):
        raise ValueError("to_networkx: the model's lookups have changed since the report was made")
    both = Networks(nx.MultiDiGraph(), nx.MultiDiGraph())
    first, first_other = 0, len(report.columns)
    for number, graph in enumerate(graphs):
        columns = [
            *enumerate(graph.report.columns, first),
            *enumerate(graph.report.others, first_other),
        ]
        first += len(graph.report.columns)
        first_other += len(graph.report.others)
        for function, before in graph.before.items():
            own = [(index, column) for index, column in columns if column.function == function]
            suffix = (f"@{function}" if function else "") + (f"#{number}" if number else "")
            for whole, part in zip(both, _body(before, graph.after[function], own), strict=True):
                nx.set_node_attributes(part, function, "function")
                names = {name: f"{name}{suffix}" for name in part} if suffix else {}
                whole.update(nx.relabel_nodes(part, names) if names else part)
    return both


def _verdicts(report: FusionReport) -> list[tuple[str, str, bool, str | None]]:
    """Returns a key that is equal for reports on the same graph."""
    return [(c.function, c.anchor, c.fused, c.op) for c in report.lookups]


def _body(before: GraphView, after: GraphView, columns: _Numbered) -> Networks:
    """Returns the networks of a main graph or function."""
    both = Networks(network(before), network(after))
    parts = _parts(before, columns)
    new = {name for name, op in both.after.nodes(data="op") if op != before.op(name)}
    reasons: dict[str | None, dict[str, None]] = defaultdict(dict)
    for _, column in columns:
        if not column.fused and column.reason is not None:
            reasons[column.node][column.reason] = None
    names = {index: column.name for index, column in columns}
    all_parts = parts, _parts_after(both.after, parts, new, columns)
    for graph, own, other in zip(both, all_parts, (after, before), strict=True):
        for name, attributes in graph.nodes.items():
            own_columns = sorted(own.get(name, ()))
            attributes["changed"] = attributes["op"] != other.op(name)
            attributes["columns"] = _SEPARATOR.join(dict.fromkeys(names[n] for n in own_columns))
            attributes["lookups"] = _SEPARATOR.join(map(str, own_columns))
            attributes["reason"] = _SEPARATOR.join(reasons.get(name, ()))
    return both


def _parts(view: GraphView, columns: _Numbered) -> _Parts:
    """Returns the parts of columns as far as they are explained."""
    parts: _Parts = defaultdict(set)
    matches = {match.anchor: match for match in recognise_all(view)}
    for index, column in columns:
        match = matches.get(column.anchor)
        nodes = () if match is None else (*match.nodes(), *match.front())
        for name in (column.anchor, *nodes):
            parts[name].add(index)
    return parts


def _parts_after(
    graph: nx.MultiDiGraph, before: _Parts, new: set[str], columns: _Numbered
) -> _Parts:
    """Returns the parts of columns after a rewrite.

    A new node is a part of the columns whose inputs it reads. If it reads none, it is of those that
    the new nodes it reads are of, or else of those that read it, as constants are.
    """
    read: _Parts = defaultdict(set)
    for index, column in columns:
        for tensor in () if column.spec is None else input_tensors(column.spec):
            read[tensor.node].add(index)
    parts: _Parts = defaultdict(set, {n: own for n, own in before.items() if n not in new})
    results: _Parts = defaultdict(set)
    for index, column in columns:
        if column.op is not None:
            results[column.op].add(index)
    order = [*nx.topological_sort(graph.subgraph(new))]
    for name in order:
        sources = {*graph.predecessors(name)}
        inherited = _union(read, sources - new) or _union(parts, sources & new)
        parts[name] = inherited | results.get(name, set())
    for name in reversed(order):
        parts[name] = parts[name] or _union(parts, graph.successors(name))
    return parts


def _union(parts: _Parts, names: Iterable[str]) -> set[int]:
    return set().union(*(parts.get(name, ()) for name in names))
