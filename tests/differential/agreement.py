"""Whether what the pass makes of random models agrees with stock, and for how long they are drawn.

`HYPOTHESIS_PROFILE=nightly` draws round after round, for `FUZZ_SECONDS` at most.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.report.report import FusionReport
from fusion.passes.targets import PASSES, Target
from fusion.schema.names import OP_NAMES
from tests.passes import stock_graphs as stock

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
#: For how many seconds examples are drawn at most, all areas of a test together.
_SECONDS = float(os.environ.get("FUZZ_SECONDS", "inf"))
#: Of models, in the nightly profile.
_ROUNDS = 40

IN_NUMBERS, IN_RAISING = "in numbers", "in raising"

Array = npt.NDArray[Any]
Graphs = Mapping[str, graph_pb2.GraphDef]


def rounds(most: int, areas: int = 1) -> Iterator[int]:
    """Yields the number of each round of examples: one, or nightly as many as there is time for.

    Args:
      most: how many there are at most.
      areas: of the test, each of which has the same time.
    """
    end = time.monotonic() + _SECONDS / areas
    for number in range(most if IS_NIGHTLY else 1):
        if number and time.monotonic() > end:
            return
        yield number


def check_models(
    area: str, compare: Callable[[], None], agreed: Counter[str], least: float, areas: int = 1
) -> None:
    """Draws models, and checks that enough of them have numbers to compare.

    Args:
      area: what they are.
      compare: draws and compares a round of them.
      agreed: counts how they agree with stock.
      least: of all of them, the part that has to have numbers.
      areas: of the test.
    """
    for _ in rounds(_ROUNDS, areas):
        compare()
    print(f"{area}: {dict(agreed)}")
    assert agreed[IN_NUMBERS] > least * sum(agreed.values()), dict(agreed)


def fused_and_lowered(
    graph_def: graph_pb2.GraphDef, preserve: frozenset[str]
) -> tuple[FusionReport, dict[str, graph_pb2.GraphDef]]:
    """Returns the report of the pass, and what it makes of a graph and of that."""
    fused = PASSES[Target.FUSED](preserve=preserve).apply(graph_def)
    lowered = PASSES[Target.STOCK](preserve=preserve).apply(fused.graph_def).graph_def
    assert not {node.op for node in lowered.node} & {*OP_NAMES}
    return fused.report, {"fused": fused.graph_def, "lowered": lowered}


def agreement(
    graph_def: graph_pb2.GraphDef,
    rewritten: Graphs,
    feed: Mapping[str, Array],
    fetches: Sequence[str],
    compare: Callable[[Array, Array], None],
) -> str:
    """Says how rewritten graphs agree with stock's, which is run as it is.

    Args:
      graph_def: stock's graph.
      rewritten: the others, by what they are.
      feed: of all of them.
      fetches: what is compared.
      compare: (what is computed, what stock computes) -> None; raises where they do not agree.

    Raises:
      AssertionError: one of them does not agree; the message begins with what it is.
    """
    try:
        wanted = stock.run(graph_def, feed, fetches, optimize=False)
    except tf.errors.InvalidArgumentError:
        for name, one in rewritten.items():
            assert _raises(one, feed, fetches), f"{name}: does not raise as stock does"
        return IN_RAISING
    for name, one in rewritten.items():
        try:
            for got, expected in zip(stock.run(one, feed, fetches), wanted, strict=True):
                assert got.shape == expected.shape, f"{got.shape}, not {expected.shape}"
                assert got.dtype == expected.dtype, f"{got.dtype}, not {expected.dtype}"
                compare(got, expected)
        except (AssertionError, tf.errors.OpError) as error:
            raise AssertionError(f"{name}: {error}") from error
    return IN_NUMBERS


def _raises(
    graph_def: graph_pb2.GraphDef, feed: Mapping[str, Array], fetches: Sequence[str]
) -> bool:
    try:
        stock.run(graph_def, feed, fetches, optimize=False)
    except tf.errors.InvalidArgumentError:
        return True
    return False
