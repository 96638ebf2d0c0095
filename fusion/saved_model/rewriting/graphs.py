"""The graphs of a reported model before and after a rewrite, also as networkx has them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.view import GraphView
from fusion.passes.report.report import (
    ColumnReport,
    FusionReport,
    Networks,
    NetworkSource,
    RewrittenGraph,
)
from fusion.passes.targets import Target
from fusion.saved_model.errors import graph_errors
from fusion.saved_model.model.meta_graph import lookup_pass
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.op_history import Release


@dataclass(frozen=True)
class Reported:
    """Which model a report is on. It holds no graph, for a report may live as long as the program.

    Attributes:
        path: the model; absolute.
        target: what its lookups become.
        runtime: the TensorFlow release that stock ops are written for; None: that of the model.
        outputs: what is fetched of a frozen graph.
        written: the model that was made of it; None if none was.
        tags: of the only meta graph that the report is on; None: it is on all.
    """

    path: Path
    target: Target = Target.FUSED
    runtime: Release | None = None
    outputs: tuple[str, ...] | None = None
    written: Path | None = None
    tags: frozenset[str] | None = None

    def in_report(self, report: FusionReport) -> FusionReport:
        """Returns a report that has `to_networkx`."""
        return replace(report, networks=NetworkSource(partial(_networks, self)))


def _networks(model: Reported, report: FusionReport) -> Networks:
    from fusion.passes.report.networks import networks

    metas = _meta_graphs(model, model.path)
    results: Iterable[meta_graph_pb2.MetaGraphDef | None] = [None] * len(metas)
    if model.written is not None:
        results = _meta_graphs(model, model.written)
    with graph_errors(model.path):
        graphs = [_rewritten(model, *pair) for pair in zip(metas, results, strict=True)]
    return networks(report, graphs)


def _meta_graphs(
    model: Reported, path: str | os.PathLike[str]
) -> list[meta_graph_pb2.MetaGraphDef]:
    metas = read_saved_model(path, model.outputs).meta_graphs
    wanted = model.tags
    return [meta for meta in metas if wanted in (None, frozenset(meta.meta_info_def.tags))]


def _rewritten(
    model: Reported,
    meta: meta_graph_pb2.MetaGraphDef,
    written: meta_graph_pb2.MetaGraphDef | None,
) -> RewrittenGraph:
    lookups = lookup_pass(meta, model.target, model.runtime)
    graph = lookups.rewritten(meta.graph_def)
    return graph if written is None else replace(graph, after=lookups.views(written.graph_def))


def column_views(path: str | os.PathLike[str], column: ColumnReport) -> tuple[GraphView, GraphView]:
    """Returns the main graph or the function that `column` is in, before and after a rewrite.

    Args:
        path: the directory of a SavedModel.
        column: a column of its report.

    Raises:
        ModelError: `path` cannot be read.
        ValueError: the model has no such column.
    """
    for meta in read_saved_model(path).meta_graphs:
        lookups = lookup_pass(meta)
        before = lookups.views(meta.graph_def).get(column.function)
        if before is not None and column.anchor in before.nodes:
            rewritten = lookups.apply(meta.graph_def).graph_def
            return before, lookups.views(rewritten)[column.function]
    raise ValueError(f"{path} has no column at {column.anchor!r} in {column.function!r}")
