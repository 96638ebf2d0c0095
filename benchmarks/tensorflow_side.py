"""TensorFlow's sides: stock as a user writes it, stock at its best, and fusion."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context

import fusion
from benchmarks.batch import NUMERICS, Batch, boundaries, table_numbers
from benchmarks.deepfm import DeepFM
from benchmarks.errors import Unsupported
from benchmarks.feed import Feed, Parts, arguments, columns_of, signature
from benchmarks.many_tables import look_up_tables, of_all_rows
from benchmarks.workloads import Program

Array = npt.NDArray[Any]
Way = Literal["stock", "stock_best", "fusion"]
LookUp = Callable[[list[Parts], tf.Tensor], Any]

_MLPS = ((32,), (1024, 1024, 128))
"""Widths of the layers over the dense features, and over everything."""


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
        everything, look_up = self._trained(program, tables, way)
        look_up = look_up or _lookups(program, tables, way)
        self._all: Callable[..., Any] | None = None
        if everything is not None:
            made = everything
            self._all, _, _ = self._first_run(
                lambda: made(self._feed.read(), self._feed.numerics()), []
            )

        self.call, self.ops, self.columns_fused = self._first_run(
            lambda: look_up(self._feed.read(), self._feed.numerics()), []
        )
        by_hand = way == "stock_best" and _all_by_hand(program)
        self.inputs = tf.function(
            lambda: self._make_inputs(by_hand), autograph=False
        ).get_concrete_function()
        self._look_up = look_up
        self._fed: Callable[..., Any] | None = None
        self._arguments: list[tf.Tensor] = []

    def _trained(
        self, program: Program, tables: Mapping[int, Array], way: Way
    ) -> tuple[LookUp | None, LookUp | None]:
        """What gives all numbers, and what is measured; None if there is one result."""
        if program.host not in ("gradients", "deepfm") and not program.is_of_tables:
            return None, None
        if way == "stock_best" and program.host == "tables":
            raise Unsupported("each is a lookup of its own")
        if way == "stock_best":
            raise Unsupported("a gather has another gradient")
        if program.is_of_tables:
            params, count = _params(program, tables), len(program.columns)
            look_up = look_up_tables(program, [*map(params, range(count))], way == "fusion")
            return of_all_rows(look_up, count), self._consumed(look_up)
        if program.host == "deepfm":
            model = DeepFM(program, tables, way == "fusion")
            return model.everything, model.step
        everything = _gradients(program, tables)
        return everything, self._consumed(everything)

    def _consumed(
        self, look_up: Callable[[list[Parts], tf.Tensor], Any]
    ) -> Callable[[list[Parts], tf.Tensor], tf.Tensor]:
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
        return self._feed.consume([_ids(parts) for parts in columns] if by_hand else columns)

    def load(self, batch: Batch) -> None:
        """Takes another batch.

        Raises:
            Unsupported: this way of looking up cannot have such ids.
        """
        by_hand = self._way == "stock_best" and _all_by_hand(self._program)
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


def _ids(parts: Parts) -> Parts:
    """What a gather by hand needs of a column."""
    return parts[1:2] if len(parts) > 1 else parts


def _all_by_hand(program: Program) -> bool:
    return all(
        column.one_hot and column.kind in ("sparse", "dense", "bucketized")
        for column in program.columns
    )


def _lookups(
    program: Program, tables: Mapping[int, Array], way: Way
) -> Callable[[list[Parts], tf.Tensor], tf.Tensor]:
    """What makes the output of the tensors of the columns and of the dense features."""
    if program.host == "model":
        if way == "stock_best":
            raise Unsupported("nobody writes a whole model by hand")
        return whole_model(program, tables)
    if way == "stock_best" and _all_by_hand(program):
        return _by_hand(program, _params(program, tables))
    if program.host == "features":
        if way == "stock_best":
            raise Unsupported("the columns need more than a gather")
        return only_features(program, tables)
    return _safe_lookups(program, _params(program, tables), way == "stock_best")


def _params(program: Program, tables: Mapping[int, Array]) -> Callable[[int], Any]:
    """What gives the table of a column inside a graph: a variable, its shards or a constant."""
    numbers = table_numbers(program)
    if program.frozen:
        # Made inside the function: a constant from outside would be an argument of it.
        return lambda place: tf.constant(tables[numbers[place]])
    shards = {number: program.columns[place].shards for place, number in enumerate(numbers)}
    variables = {
        number: [tf.Variable(part) for part in np.array_split(table, shards[number])]
        for number, table in tables.items()
    }
    single = {number: parts[0] if len(parts) == 1 else parts for number, parts in variables.items()}
    return lambda place: single[numbers[place]]


def _safe_lookups(
    program: Program, params: Callable[[int], Any], fast: bool
) -> Callable[[list[Parts], tf.Tensor], tf.Tensor]:
    def look_up(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        found = []
        for place, (column, parts) in enumerate(zip(program.columns, columns, strict=True)):
            indices, values, shape = parts[:3]
            found.append(
                tf.nn.safe_embedding_lookup_sparse(
                    params(place),
                    tf.SparseTensor(indices, values, shape),
                    tf.SparseTensor(indices, parts[3], shape) if column.weighted else None,
                    combiner=column.combiner,
                    max_norm=column.max_norm,
                    allow_fast_lookup=fast,
                )
            )
        return _concat(found)

    return look_up


def _gradients(
    program: Program, tables: Mapping[int, Array]
) -> Callable[[list[Parts], tf.Tensor], Any]:
    """Embeddings, and for each table the ids and the values of its gradient.

    The gradient of the embeddings is the embeddings.
    """
    params = _params(program, tables)
    forward = _safe_lookups(program, params, fast=False)
    variables = [params(place) for place in range(len(program.columns))]

    def look_up(columns: list[Parts], numerics: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            embeddings = forward(columns, numerics)
        gradients = tape.gradient(embeddings, variables, tf.stop_gradient(embeddings))
        return [embeddings, *(part for one in gradients for part in (one.indices, one.values))]

    return look_up


def _by_hand(
    program: Program, params: Callable[[int], Any]
) -> Callable[[list[Parts], tf.Tensor], tf.Tensor]:
    def look_up(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        found = []
        for place, (column, parts) in enumerate(zip(program.columns, columns, strict=True)):
            (ids,) = _ids(parts)
            ids = ids if column.kind == "sparse" else tf.squeeze(ids, 1)
            if column.kind == "bucketized":
                ids = tf.raw_ops.Bucketize(input=ids, boundaries=boundaries(column.rows))
            found.append(tf.gather(params(place), ids))
        return _concat(found)

    return look_up


def _concat(found: list[tf.Tensor]) -> tf.Tensor:
    return found[0] if len(found) == 1 else tf.concat(found, 1)


def only_features(
    program: Program, tables: Mapping[int, Array]
) -> Callable[[list[Parts], tf.Tensor], tf.Tensor]:
    """DenseFeatures over stock feature columns."""
    # tf_keras is for the baselines alone; importing it takes seconds.
    from tf_keras.layers import DenseFeatures

    if program.frozen:
        raise Unsupported("DenseFeatures has Variables")
    numbers = table_numbers(program)
    # The layer sorts its columns by name.
    keys = [f"column{place:04}" for place in range(len(program.columns))]
    layer = DenseFeatures(
        [
            _feature_column(column, key, tables[number])
            for column, key, number in zip(program.columns, keys, numbers, strict=True)
        ]
    )
    # Calling it would gather from the variables.
    layer.build(None)

    def look_up(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        features = {
            key: parts[0] if len(parts) == 1 else tf.SparseTensor(*parts)
            for key, parts in zip(keys, columns, strict=True)
        }
        return layer(features)

    return look_up


def _feature_column(column: Any, key: str, table: Array) -> Any:
    columns = tf.feature_column
    if column.kind == "bucketized":
        source = columns.bucketized_column(columns.numeric_column(key), boundaries(column.rows))
    elif column.kind in ("dense", "sparse"):
        source = columns.categorical_column_with_identity(key, column.rows)
    else:
        dtype = tf.int64 if column.kind == "hashed" else tf.string
        source = columns.categorical_column_with_hash_bucket(key, column.rows, dtype)

    def initializer(shape: Any, dtype: Any = None, **options: Any) -> Array:
        return table

    return columns.embedding_column(
        source,
        column.dim,
        combiner=column.combiner,
        initializer=initializer,
        max_norm=column.max_norm,
    )


def whole_model(
    program: Program, tables: Mapping[int, Array]
) -> Callable[[list[Parts], tf.Tensor], tf.Tensor]:
    """Embeddings and dense features through the layers of `_MLPS`, to one number per row."""
    embed = only_features(program, tables)
    rng = np.random.default_rng(2)
    bottom = _layers(rng, (NUMERICS, *_MLPS[0]))
    top = _layers(rng, (program.width + _MLPS[0][-1], *_MLPS[1], 1))

    def look_up(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        dense = _through(bottom, numerics)
        return _through(top, tf.concat([embed(columns, numerics), dense], 1))

    return look_up


def _layers(rng: np.random.Generator, widths: tuple[int, ...]) -> list[tuple[Any, Any]]:
    return [
        (
            tf.Variable((rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32)),
            tf.Variable(np.zeros(b, np.float32)),
        )
        for a, b in itertools.pairwise(widths)
    ]


def _through(layers: list[tuple[Any, Any]], value: tf.Tensor) -> tf.Tensor:
    for kernel, bias in layers:
        value = tf.nn.relu(tf.matmul(value, kernel) + bias)
    return value
