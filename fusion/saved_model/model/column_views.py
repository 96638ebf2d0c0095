"""The graphs that a reported column is in: as the model holds it, and as a rewrite would."""

from __future__ import annotations

import os

from fusion.passes.graph.view import GraphView
from fusion.passes.report.report import ColumnReport
from fusion.saved_model.model.meta_graph import lookup_pass
from fusion.saved_model.model.source import read_saved_model


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
