"""Graphs that are split by request, and whether the new ones have the numbers of the original.

Inputs of requests have names that begin with `u`, those of candidates with `c`; each is a tensor
with a row for each request or candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2

from fusion.passes.analysis.rows.facts import Fact, Side, rows
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.match import NoMatch
from fusion.passes.requests.split import SplitGraph, split_by_request

v1 = tf.compat.v1

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

COUNTS = "candidates_per_request"


@dataclass(frozen=True)
class Model:
    """A graph.

    Attributes:
        graph: it.
        outputs: its outputs.
        facts: what the rows of its inputs are of.
    """

    graph: graph_pb2.GraphDef
    outputs: tuple[str, ...]
    facts: Mapping[Tensor, Fact]

    def split(self, *, several: bool = False, exact: bool = False) -> SplitGraph | NoMatch:
        """Splits it, for one request or for several."""
        outputs = [Tensor(name) for name in self.outputs]
        counts = COUNTS if several else None
        return split_by_request(self.graph, self.facts, outputs, counts, exact=exact)

    @property
    def fetches(self) -> list[str]:
        """The names of its outputs."""
        return [f"{name}:0" for name in self.outputs]


def model_of(graph: tf.Graph, outputs: Sequence[tf.Tensor]) -> Model:
    """Returns the model of a graph whose inputs have one axis of rows, the first one."""
    graph_def = graph.as_graph_def()
    facts = {
        Tensor(node.name): side_of(node.name)
        for node in graph_def.node
        if node.op == "Placeholder" and node.name[0] in "uc"
    }
    return Model(graph_def, tuple(one.op.name for one in outputs), facts)


def side_of(name: str) -> Fact:
    """Returns the rows of an input."""
    return rows(Side.REQUEST if name.startswith("u") else Side.CANDIDATE)


def repeated(feed: Feeds, counts: Sequence[int]) -> dict[str, Array]:
    """Returns what the original graph takes: a row of the request for each candidate."""
    return {
        key: np.repeat(value, counts, axis=0) if key.startswith("u") else value
        for key, value in feed.items()
    }


def run(
    graph: graph_pb2.GraphDef, feed: Feeds, fetches: Sequence[str], *, optimized: bool = False
) -> list[Array]:
    """Runs a graph as it is, or optimized by TensorFlow, with the inputs that it has."""
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        with v1.Session(graph=imported) if optimized else session(imported) as running:
            names = {op.name for op in imported.get_operations()}
            fed = {f"{key}:0": value for key, value in feed.items() if key in names}
            return list(running.run(list(fetches), fed))


def session(graph: tf.Graph) -> Any:
    """Returns a session that runs a graph as it is."""
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return v1.Session(graph=graph, config=config)


def run_split(
    model: Model, split: SplitGraph, feed: Feeds, *, optimized: bool = False
) -> list[Array]:
    """Runs what a graph was split into."""
    fetches = [str(split.outputs[Tensor(name)]) for name in model.outputs]
    fetches = [f"{one}:0" if ":" not in one else one for one in fetches]
    return run(split.graph, feed, fetches, optimized=optimized)


def check_numbers(
    model: Model,
    feed: Feeds,
    counts: Sequence[int],
    close: Callable[[Array, Array, bool], None],
    split: Callable[..., SplitGraph | NoMatch] | None = None,
) -> None:
    """Compares a model that can be split with what it is split into, in all ways.

    Args:
        model: it.
        feed: a row for each request and for each candidate.
        counts: the number of candidates of each request; for one alone, the first is taken.
        close: (numbers, the original's, whether these have to be equal) raises if they are not.
        split: in place of the model's.
    """
    alone = {k: v[:1] if k.startswith("u") else v[: counts[0]] for k, v in feed.items()}
    for several, fed, own in ((True, feed, counts), (False, alone, counts[:1])):
        wanted = run(model.graph, repeated(fed, own), model.fetches)
        for exact in (False, True):
            found = (split or model.split)(several=several, exact=exact)
            assert isinstance(found, SplitGraph), f"refused: {found}"
            given = {**fed, COUNTS: np.array(own, np.int64)}
            for got, expected in zip(run_split(model, found, given), wanted, strict=True):
                assert got.shape == expected.shape, f"{got.shape}, not {expected.shape}"
                assert got.dtype == expected.dtype
                # One row alone may have other bits than it has among several.
                close(got, expected, exact and sum(own) > 1)


def close_numbers(got: Array, wanted: Array, exact: bool) -> None:
    """Raises if numbers are not equal, but for rounding of the largest if they need not be."""
    if exact or (wanted.dtype.kind not in "fc" and wanted.dtype != tf.bfloat16.as_numpy_dtype):
        np.testing.assert_array_equal(got, wanted)
        return
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))
    is_finite = np.isfinite(wanted)
    if is_finite.any():
        gap = np.abs(got - wanted)[is_finite].max()
        assert gap <= 1e-5 * max(1.0, np.abs(wanted[is_finite]).max()), f"off by {gap}"
