"""`explain`: what would be fused in a graph, a function or a model, and why the rest would not."""

from __future__ import annotations

import os

from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from fusion.arguments import wrong_type
from fusion.functions import explain_function
from fusion.graphs import explain_graph
from fusion.passes.report import FusionReport
from fusion.saved_model import explain_saved_model


def explain(
    model: graph_pb2.GraphDef | ConcreteFunction | str | os.PathLike[str],
) -> FusionReport:
    """Returns, for every segment reduction, the heart of an embedding column, what becomes of it.

    Each is reported with what it computes, if all of it was understood, or else with the parts
    that were, the reason why not the rest, and the node where that shows. `str()` of the report is
    for people, `.to_dict()` for programs. Nothing is changed or written.

    Args:
        model: a GraphDef (see `fuse_graph`), a concrete function (see `fuse_function`), or the
            directory of a SavedModel (see `fuse_saved_model`). For something that is fused already
            this tells about the lookups that still are not.

    Raises:
        TypeError: none of these.
        ModelError: a SavedModel that cannot be read; a ValueError.
    """
    if isinstance(model, graph_pb2.GraphDef):
        return explain_graph(model)
    if isinstance(model, ConcreteFunction):
        return explain_function(model)
    if isinstance(model, (str, os.PathLike)):
        return explain_saved_model(model)
    wanted = "a GraphDef, a concrete function or the path of a SavedModel"
    raise wrong_type("explain", "model", wanted, model)
