"""`saved_model_load`: TensorFlow's own loader of SavedModels, which is given rewritten graphs.

Variables and assets stay where they are, and the loader reads them there; the rewritten graph is in
memory alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.runtime_ops import running_release
from fusion.passes.report.report import FusionReport
from fusion.passes.targets import checked_target
from fusion.runtime.tensorflow.private import ControlStatusCtx, Status, load, load_v1_in_v2
from fusion.saved_model.model.source import MANIFEST_FILE
from fusion.saved_model.rewriting.graphs import Reported
from fusion.saved_model.rewriting.models import rewrite_meta_graph

_REPORT = "fusion_report"

_Rewrite = Callable[[meta_graph_pb2.MetaGraphDef], None]


def saved_model_load(
    path: str | os.PathLike[str],
    tags: str | Iterable[str] | None = None,
    options: tf.saved_model.LoadOptions | None = None,
    *,
    target: str = "fused",
) -> Any:
    """Loads a SavedModel as `tf.saved_model.load` does, with its embedding lookups fused.

    Nothing is written, and TensorFlow's graph optimizer has no part in it: this works where
    `enable` does not. Signatures, functions, variables, assets and gradients are those of the
    model, and so are the numbers, as of a model that `fuse_saved_model` has written; that function
    also compares them. Of a TensorFlow 1 model, `prune` finds no nodes inside of fused lookups.

    Args:
        path: the directory of a SavedModel, made by compat.v1 or by TensorFlow 2.
        tags: those of the meta graph to load, if there are several.
        options: as of `tf.saved_model.load`.
        target: what the lookups become, as of `fuse_saved_model`: "fused" or "stock",
            here for the TensorFlow that is running.

    Returns:
        What `tf.saved_model.load` returns, with an attribute more: `fusion_report`, which says what
        was fused in the loaded meta graph, and for each column that was not, why.

    Raises:
        ModelError: fusion makes no sense of the graph, or fused ops of the model cannot become
            stock ones; a ValueError.
        ValueError: an unknown target, or the model has an attribute `fusion_report` of its own.
        Exception: what `tf.saved_model.load` raises, an OSError for a path without a SavedModel.
    """
    chosen = checked_target("saved_model_load", target)
    reports: list[FusionReport] = []

    def rewrite(meta: meta_graph_pb2.MetaGraphDef) -> None:
        model = os.fsdecode(path)
        was_rewritten = Path(model, MANIFEST_FILE).is_file()
        result = rewrite_meta_graph(
            meta, chosen, model, was_rewritten=was_rewritten, runtime=running_release()
        )
        tags = frozenset(meta.meta_info_def.tags)
        reported = Reported(Path(os.path.abspath(model)), chosen, running_release(), tags=tags)
        reports.append(reported.in_report(result.report))

    # Called while a function is traced: AutoGraph would translate all of it.
    with ControlStatusCtx(Status.DISABLED):
        loaded = _loader(rewrite)(path, tags, options)
    (report,) = reports
    if hasattr(loaded, _REPORT):
        raise ValueError(
            f"saved_model_load: path {os.fsdecode(path)!r}: the model has an attribute {_REPORT!r} "
            "of its own"
        )
    setattr(loaded, _REPORT, report)
    return loaded


def _loader(rewrite: _Rewrite) -> Callable[..., Any]:
    """Returns `tf.saved_model.load` with `rewrite` called for the meta graph that it loads.

    It has no parameter for that, and a change of its modules would be one for all threads.
    """

    def load_objects(objects: Any, saved_model: Any, *arguments: Any) -> Any:
        (meta,) = saved_model.meta_graphs
        rewrite(meta)
        return load.Loader(objects, saved_model, *arguments)

    load_v1 = _with_names(load_v1_in_v2.load, _EagerSavedModelLoader=partial(_V1Loader, rewrite))
    load_partial = _with_names(
        load.load_partial, Loader=load_objects, load_v1_in_v2=SimpleNamespace(load=load_v1)
    )
    return _with_names(load.load, load_partial=load_partial)


class _V1Loader(load_v1_in_v2._EagerSavedModelLoader):
    """The loader of meta graphs that have no object graph, or are not the only one."""

    def __init__(self, rewrite: _Rewrite, path: str) -> None:
        super().__init__(path)
        self._rewrite = rewrite

    def get_meta_graph_def_from_tags(self, tags: Any) -> meta_graph_pb2.MetaGraphDef:
        meta = super().get_meta_graph_def_from_tags(tags)
        self._rewrite(meta)
        return meta


def _with_names(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """Returns a copy of a function in which some global names stand for something else."""
    copy = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    copy.__defaults__ = function.__defaults__
    return copy
