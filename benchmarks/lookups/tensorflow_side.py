"""TensorFlow's sides: stock as a user writes it, stock at its best, and fusion."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context

import fusion
from benchmarks.lookups.batch import Batch, Unsupported
from benchmarks.lookups.feed import Feed, Parts, arguments, columns_of, signature
from benchmarks.lookups.hosts import LookUp, built, ids_of, is_all_by_hand
from benchmarks.lookups.workloads import Program

Array = npt.NDArray[Any]
Way = Literal["stock", "stock_best", "fusion"]


class TensorFlowSide:
    """A program in TensorFlow, with tables and inputs of its own.

    A gather from a variable makes later reads of it copy the whole table, so that no two sides
    share one.

    Attributes:
        call: runs the lookups on the batch that is loaded.
        inputs: runs a graph that makes the same inputs and nothing else.
        ops: how often each op stands in its graph after TensorFlow's optimizers.
        columns_fused: how many lookups of it were replaced.
    """

    def __init__(
        self, program: Program, tables: Mapping[int, Array], batch: Batch, way: Way
    ) -> None:
        self._program = program
        self._way = way
        self._feed = Feed(program)
        self._feed.load(batch)
        look_up, everything = built(program, tables, way)
        self._all: Callable[..., Any] | None = None
        if everything is not None:
            self._all, _, _ = self._first_run(_reading(everything, self._feed), [])
        if everything is not None and program.host != "deepfm":
            look_up = self._consumed(look_up)
        self.call, self.ops, self.columns_fused = self._first_run(_reading(look_up, self._feed), [])
        by_hand = way == "stock_best" and is_all_by_hand(program)
        self.inputs = tf.function(
            lambda: self._make_inputs(by_hand), autograph=False
        ).get_concrete_function()
        self._look_up = look_up
        self._fed: Callable[..., Any] | None = None
        self._arguments: list[tf.Tensor] = []

    def _consumed(self, look_up: LookUp) -> LookUp:
        """What gives only the first of a list of results, and has all the others made."""

        def first(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
            result, *others = look_up(columns, numerics)
            return self._feed.consume([tuple(others)], result)

        return first

    def _make_inputs(self, by_hand: bool) -> tf.Tensor:
        # Each captured tensor costs a call some microseconds, before any op runs.
        for tensor in self.call.captured_inputs:
            tf.compat.v1.get_default_graph().capture(tensor)
        columns = self._feed.read()
        return self._feed.consume([ids_of(parts) for parts in columns] if by_hand else columns)

    def load(self, batch: Batch) -> None:
        """Takes another batch.

        Raises:
            Unsupported: this way of looking up cannot have such ids.
        """
        by_hand = self._way == "stock_best" and is_all_by_hand(self._program)
        if by_hand and (batch.draw.empty or batch.draw.negative):
            raise Unsupported("a gather needs exactly one valid id per row")
        self._feed.load(batch)
        self._arguments = []

    def output(self) -> Array:
        """float32 [batch, width]: the embeddings, or [batch, 1] of a model.

        In training, all numbers in a row: the embeddings or the loss, and gradients.
        """
        if self._all is None:
            return self.call().numpy()
        found = [part.numpy().reshape(-1).astype(np.float32) for part in self._all()]
        return np.concatenate(found)

    def table(self) -> Array:
        """float32 [rows, dim]: the memory of the first column's table, which must be a Variable.

        It is the variable's own memory unless something gathers from the variable.
        """
        column = self._program.columns[0]
        shape = (column.rows, column.dim)
        (variable,) = (one for one in self.call.variables if one.shape == shape)
        return np.asarray(memoryview(variable.read_value()))

    def fed(self, batch: Batch) -> Callable[[], Any]:
        """A call that gets the batch as arguments."""
        if self._fed is None:
            self._arguments = arguments(self._program, batch)
            self._fed, _, _ = self._first_run(
                lambda *flat: self._look_up(columns_of(self._program, list(flat)), flat[-1]),
                self._arguments,
            )
        if not self._arguments:
            self._arguments = arguments(self._program, batch)
        function, flat = self._fed, self._arguments
        return lambda: function(*flat)

    def _first_run(
        self, body: Callable[..., Any], flat: list[tf.Tensor]
    ) -> tuple[Any, dict[str, int], int]:
        """Traces and optimizes a function: gives it, its ops, and how many columns are fused."""
        specs = signature(self._program) if flat else []
        is_by_call = self._way == "fusion" and self._program.is_of_tables
        fused = self._way == "fusion" and not is_by_call
        before = fusion.stats().columns_fused
        scope = fusion.fused()
        with scope if fused else contextlib.nullcontext():
            function = tf.function(body, input_signature=specs, autograph=False)
            concrete = function.get_concrete_function()
            ops = first_run(concrete, flat)
        columns = fusion.stats().columns_fused - before
        if (columns > 0) != fused:
            raise RuntimeError(f"{columns} columns of {self._way} are fused\n{fusion.stats()}")
        return concrete, ops, self._program.lookups if is_by_call else columns


def _reading(look_up: LookUp, feed: Feed) -> Callable[[], Any]:
    return lambda: look_up(feed.read(), feed.numerics())


def first_run(function: Callable[..., Any], flat: Sequence[tf.Tensor] = ()) -> dict[str, int]:
    """Calls a concrete function for the first time, which is when TensorFlow optimizes its graph.

    Returns:
        How often each op that does something stands in that graph, the most frequent ones first.
    """
    context.enable_run_metadata()
    try:
        function(*flat)
        graphs = context.export_run_metadata().partition_graphs
    finally:
        context.disable_run_metadata()
    ops = Counter(node.op for graph in graphs for node in graph.node)
    for free in ("Const", "_Arg", "_Retval", "NoOp"):
        ops.pop(free, None)
    return dict(ops.most_common())
