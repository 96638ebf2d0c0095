"""Graphs that stock TensorFlow builds, ids to feed them, and a way to run them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training import saver as saver_lib

from tests import tables

v1 = tf.compat.v1
Feeds = Mapping[str, npt.NDArray[Any]]

ROWS, DIM = 20, 6


@dataclass(frozen=True)
class Case:
    """One form of the stock lookup."""

    table: str = "resource"  # resource, ref, constant
    combiner: str = "mean"
    default_id: int | None = None
    fast: bool = False
    ids: Any = tf.int64
    dtype: Any = tf.float32
    rank: int | None = 2
    ragged: bool = False
    weighted: bool = False
    max_norm: float | None = None
    shards: int = 1
    strategy: str = "div"

    @property
    def is_exact(self) -> bool:
        """Whether fused lookups give the bits of stock ones."""
        return not self.weighted and self.max_norm is None

    def __str__(self) -> str:
        parts = [self.table, self.combiner, f"default{self.default_id}", self.ids.name]
        parts += [self.dtype.name, f"rank{self.rank}", "fast" if self.fast else "classic"]
        parts += ["ragged"] * self.ragged + ["weighted"] * self.weighted
        parts += [f"max{self.max_norm}"] * (self.max_norm is not None)
        parts += [f"{self.shards}-{self.strategy}"] * (self.shards > 1)
        return "-".join(parts)


def table_values(dtype: Any = tf.float32, seed: int = 0, dim: int = DIM) -> npt.NDArray[Any]:
    """Row 0 holds a NaN, so that it shows whether zeros of empty rows are really zeros."""
    rng = np.random.default_rng(seed)
    values: npt.NDArray[Any] = rng.normal(size=(ROWS, dim)).astype(dtype.as_numpy_dtype)
    values[0, 1] = np.nan
    return values


def make_table(case: Case, name: str = "table") -> Any:
    values = table_values(case.dtype)
    if case.shards > 1:
        parts = tables.split(values, case.shards, case.strategy)
        single = replace(case, shards=1)
        return [_make_matrix(single, part, f"{name}_{i}") for i, part in enumerate(parts)]
    return _make_matrix(case, values, name)


def _make_matrix(case: Case, values: npt.NDArray[Any], name: str) -> Any:
    if case.table == "constant":
        return tf.constant(values, name=name)
    return v1.get_variable(name, initializer=values, use_resource=case.table == "resource")


def sparse_placeholder(case: Case, name: str = "ids") -> Any:
    """Ids of the case: `name/values`, `name/indices` and `name/shape`, or `name/row_splits`."""
    if case.ragged:
        values = v1.placeholder(case.ids, [None], f"{name}/values")
        splits = v1.placeholder(tf.int64, [None], f"{name}/row_splits")
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    shape = None if case.rank is None else [None] * case.rank
    return v1.sparse_placeholder(case.ids, shape, name=name)


def lookup(table: Any, ids: Any, case: Case, **kwargs: Any) -> tf.Tensor:
    if case.weighted:
        weights = v1.placeholder(case.dtype, [None], "weights")
        is_ragged = isinstance(ids, tf.RaggedTensor)
        like = ids.with_values if is_ragged else partial(_with_values, ids)
        kwargs["sparse_weights"] = like(weights)
    kwargs |= {"max_norm": case.max_norm, "partition_strategy": case.strategy}
    return v1.nn.safe_embedding_lookup_sparse(
        table,
        ids,
        combiner=case.combiner,
        default_id=case.default_id,
        allow_fast_lookup=case.fast,
        **kwargs,
    )


def _with_values(ids: tf.SparseTensor, values: tf.Tensor) -> tf.SparseTensor:
    return tf.SparseTensor(ids.indices, values, ids.dense_shape)


def build(case: Case) -> graph_pb2.GraphDef:
    """Nodes `out` (the result), `init`, and the placeholders `ids/...`."""
    with tf.Graph().as_default() as graph:
        table = make_table(case)
        tf.identity(lookup(table, sparse_placeholder(case), case), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def feeds(case: Case, seed: int = 1, batch: int = 7, name: str = "ids") -> dict[str, Any]:
    """Bags of 0 to 12 ids; some ids are negative, some rows empty, the rows not in order."""
    rng = np.random.default_rng(seed)
    inner = () if case.rank in (None, 2) else (3,) * (case.rank - 2)
    shape = (batch, *inner, 12)
    indices = np.argwhere(rng.random(shape) < 0.35).astype(np.int64)
    indices = indices[~((indices[:, 0] % 4) == 3)]
    rng.shuffle(indices)
    values = rng.integers(-2, ROWS, len(indices)).astype(case.ids.as_numpy_dtype)
    found: dict[str, Any] = {
        f"{name}/indices:0": indices,
        f"{name}/values:0": values,
        f"{name}/shape:0": np.array(shape, np.int64),
    }
    if case.ragged:
        lengths = np.bincount(indices[:, 0], minlength=batch)
        found = {f"{name}/values:0": values, f"{name}/row_splits:0": np.cumsum([0, *lengths])}
    if case.weighted:
        weights = rng.choice([-1.0, 0.0, 0.5, 2.0, np.nan], len(values))
        found[f"{name.removesuffix('ids')}weights:0"] = weights.astype(case.dtype.as_numpy_dtype)
    return found


def run(
    graph_def: graph_pb2.GraphDef,
    feed: Feeds,
    fetches: Iterable[str] = ("out:0",),
    optimize: bool = True,
) -> list[npt.NDArray[Any]]:
    """Imports the graph, runs `initialize`, and returns the fetched values."""
    return run_imported(imported(graph_def), feed, fetches, optimize)


def imported(graph_def: graph_pb2.GraphDef) -> tf.Graph:
    """The graph.

    Raises:
        ValueError: TensorFlow does not take it for one.
    """
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    return graph


def run_imported(
    graph: tf.Graph, feed: Feeds, fetches: Iterable[str] = ("out:0",), optimize: bool = True
) -> list[npt.NDArray[Any]]:
    """Runs `initialize`, and returns the fetched values."""
    (values,) = run_each(graph, [feed], fetches, optimize)
    return values


def run_each(
    graph: tf.Graph,
    feeds: Iterable[Feeds],
    fetches: Iterable[str] = ("out:0",),
    optimize: bool = True,
) -> list[list[npt.NDArray[Any]]]:
    """Runs `initialize`, and returns the fetched values for each of the feeds."""
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = not optimize
    with v1.Session(graph=graph, config=config) as session:
        session.run("initialize")
        names = {op.name for op in graph.get_operations()}
        fed = (
            {key: v for key, v in feed.items() if key.partition(":")[0] in names} for feed in feeds
        )
        return [list(session.run(list(fetches), one)) for one in fed]


def optimized(graph_def: graph_pb2.GraphDef, keep: Iterable[str] = ("out",)) -> Any:
    """Returns the graph as TensorFlow's own optimizer leaves it."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        fetched = [*keep, "initialize"]
        for name in fetched:
            graph.add_to_collection("train_op", graph.get_operation_by_name(name))
        meta = saver_lib.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
        config = config_pb2.ConfigProto()
        config.graph_options.rewrite_options.min_graph_nodes = -1
        return tf_optimizer.OptimizeGraph(config, meta)
