"""Ops that parse tf.Examples become fused ones."""

from __future__ import annotations

from collections.abc import Iterator

from fusion.passes.emit.parsing import emit_parser
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.values import named
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.safety import refuse_device
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.parsing import PARSERS, match_parsers
from fusion.passes.report.report import ParserReport
from fusion.schema.names import PARSE_EXAMPLE

#: What graphs have in which Examples may be parsed.
RULE = ((PARSERS,),)

_DEVICES = frozenset({"CPU"})


def fuse_parsers(
    view: GraphView, refusal: str, tasks: frozenset[str] | None, edit: GraphEdit | None
) -> tuple[tuple[ParserReport, ...], GraphEdit | None]:
    """Replaces ops that parse Examples; returns what is said of them, and the edit.

    Args:
        view: the graph.
        refusal: why all of it has to stay as it is; "" if it need not.
        tasks: the processes that know the fused op; None: all.
        edit: of other changes to the graph; None if there are none.
    """
    reports = [*_reports_before(view)]
    for node, spec in match_parsers(view):
        why = spec if isinstance(spec, NoMatch) else _refuse(view, node.name, refusal, tasks)
        served = view.is_served(node.name)
        if isinstance(spec, NoMatch) or why is not None:
            assert why is not None
            report = ParserReport(node.name, view.function, 0, why.reason, why.node, served=served)
        else:
            edit = GraphEdit(view) if edit is None else edit
            emit_parser(edit, node.name, spec)
            count = len(spec.features)
            report = ParserReport(node.name, view.function, count, served=served)
        reports.append(report)
    return tuple(reports), edit


def _refuse(
    view: GraphView, name: str, refusal: str, tasks: frozenset[str] | None
) -> NoMatch | None:
    """Returns why an op stays as it is though its features are known."""
    if refusal:
        return NoMatch(refusal, name)
    return refuse_device(view, name, _DEVICES, tasks)


def _reports_before(view: GraphView) -> Iterator[ParserReport]:
    """Yields the ops that are fused already."""
    for node in named(view, PARSE_EXAMPLE):
        keys = (node.attr(key) for key in ("sparse_keys", "dense_keys", "ragged_keys"))
        count = sum(len(attr.list.s) for attr in keys if attr is not None)
        served = view.is_served(node.name)
        yield ParserReport(node.name, view.function, count, fused_before=True, served=served)
