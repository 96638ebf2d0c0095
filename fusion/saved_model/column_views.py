"""The graphs that a reported column is in: as the model holds it, and as a rewrite would."""

from __future__ import annotations

import os

from tensorflow.core.framework import graph_pb2

from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.view import GraphView
from fusion.passes.report.report import ColumnReport
from fusion.saved_model.meta_graph import lookup_pass
from fusion.saved_model.source import read_saved_model


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
        before = _view(meta.graph_def, column.function)
        if before is not None and column.anchor in before.nodes:
            rewritten = lookup_pass(meta).apply(meta.graph_def)
            after = _view(rewritten.graph_def, column.function)
            assert after is not None, "a rewrite keeps all functions"
            return before, after
    raise ValueError(f"{path} has no column at {column.anchor!r} in {column.function!r}")


def _view(graph_def: graph_pb2.GraphDef, function: str) -> GraphView | None:
    if not function:
        return GraphView.of_graph(graph_def)
    signatures = OpSignatures(graph_def.library.function)
    for definition in graph_def.library.function:
        if definition.signature.name == function:
            return GraphView.of_function(definition, signatures)
    return None
