"""`explain`: what would be fused in a graph, a function or a model, and why the rest would not."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tensorflow.core.framework import graph_pb2

from fusion.arguments import wrong_type
from fusion.passes.report.report import FusionReport
from fusion.running.functions import explain_function
from fusion.running.graphs import explain_graph
from fusion.running.optimized import explain_optimized_function, explain_optimized_graph
from fusion.runtime.tensorflow.private import ConcreteFunction
from fusion.saved_model import explain_saved_model

_ENABLE, _REWRITE = "enable", "rewrite"


def explain(
    model: graph_pb2.GraphDef | ConcreteFunction | str | os.PathLike[str],
    *,
    under: str | None = None,
    outputs: Iterable[str] | None = None,
) -> FusionReport:
    """Returns, for every segment reduction, the heart of an embedding column, what becomes of it.

    Each is reported with what it computes, if all of it was understood, or else with the parts
    that were, the reason why not the rest, and the node where that shows. `str()` of the report is
    for people, `.to_dict()` for programs; `.to_networkx()` returns the graphs before and after.
    Nothing is changed, run or written.

    Args:
        model: a GraphDef, a concrete function, or the directory of a SavedModel.
        under: by what. "enable" (see `enable`) sees what TensorFlow's own optimizers leave of a
            graph or a function: nodes have the names, and columns the forms, that they have then.
            "rewrite" sees the model as it is, as do `fuse_graph`, `fuse_function` and
            `fuse_saved_model`. By default "rewrite" for the directory of a SavedModel, "enable" for
            anything else that can run: not for a graph that is nothing but functions, or a function
            that XLA compiles.
        outputs: what of a GraphDef is fetched, as of `fuse_graph`. By default all final nodes;
            under "enable" first those that do something, as a step of training does, then all
            others for the columns that the first do not have.

    Raises:
        TypeError: none of these.
        ValueError: another `under`; "enable" with a directory, or for what cannot run here; no such
            output.
        ModelError: a SavedModel that cannot be read; a ValueError.
        tf.errors.UnimplementedError, tf.errors.AlreadyExistsError: under "enable", as `enable`.
    """
    if under not in (None, _ENABLE, _REWRITE):
        raise ValueError(f"explain: under must be {_ENABLE!r} or {_REWRITE!r}, got {under!r}")
    if isinstance(model, graph_pb2.GraphDef):
        if under == _REWRITE or not model.node:
            return explain_graph(model, outputs)
        return explain_optimized_graph(model, outputs)
    if outputs is not None:
        raise wrong_type("explain", "model", "a GraphDef, since outputs are named", model)
    if isinstance(model, ConcreteFunction):
        report = None if under == _REWRITE else explain_optimized_function(model)
        return explain_function(model) if report is None else report
    if isinstance(model, (str, os.PathLike)):
        if under == _ENABLE:
            raise ValueError(
                "explain: under='enable' is for what runs in this process; load the model, and "
                "pass one of its signatures"
            )
        return explain_saved_model(model)
    expected = "a GraphDef, a concrete function or the path of a SavedModel"
    raise wrong_type("explain", "model", expected, model)
