"""Models of embedding columns, trained step by step: what Grappler sees of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusion
from tests.grappler.executed import executed

ROWS, DIM, BATCH, DENSE, MAX_IDS = 50, 4, 16, 3, 100
v1 = tf.compat.v1

TRAINED = ("GroupedEmbeddingPreLookUp", "GroupedEmbeddingPostLookUp")
GRADIENT = "GroupedEmbeddingPostLookUpGrad"
STOCK = ("SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum", "SegmentSum", "Unique")

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
}


@dataclass(frozen=True)
class Column:
    """A column of sparse ids.

    Attributes:
      weighted: whether its ids have weights.
      plain: whether no rows are filled, by embedding_lookup_sparse.
      options: arguments of the lookup.
      table: the number of its table; columns may share one.
    """

    combiner: str = "mean"
    weighted: bool = False
    plain: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    table: int | None = None


@dataclass(frozen=True)
class Run:
    """The losses, the variables after training, and what ran in the last step."""

    losses: np.ndarray
    variables: list[np.ndarray]
    ran: Counter[str]

    def assert_same(self, other: Run) -> None:
        """All bits are equal, and training went on."""
        np.testing.assert_array_equal(self.losses, other.losses)
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert len({*self.losses.tolist()}) == len(self.losses)

    def assert_close(self, other: Run) -> None:
        """Equal but for rounding."""
        np.testing.assert_allclose(self.losses, other.losses, rtol=1e-5)
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)

    def count(self, *ops: str) -> int:
        """How many ops of these types ran in the last step."""
        return sum(self.ran[op] for op in ops)


Join = Callable[[tf.Tensor, list[tf.Tensor]], tf.Tensor]


def side_by_side(dense: tf.Tensor, columns: list[tf.Tensor]) -> tf.Tensor:
    """The dense features and the columns in one matrix."""
    return tf.concat([dense, *columns], 1)


def train(
    columns: Sequence[Column],
    optimizer: str = "sgd",
    steps: int = 4,
    join: Join = side_by_side,
    frozen: frozenset[int] = frozenset(),
    whole: bool = False,
    static: bool = False,
) -> Run:
    """Trains a model of columns and dense features in a tf.function.

    Args:
      join: (dense features, columns) -> the matrix that the model reads.
      frozen: tables that are not trained.
      whole: whether the lookups are given what is read of the tables.
      static: whether the size of the batch is known, as of one without a remainder, and ids are
        matrices of which 0 is none.
    """
    rng = np.random.default_rng(1)
    numbers = [n if c.table is None else c.table for n, c in enumerate(columns)]
    start = {n: rng.standard_normal((ROWS, DIM)).astype(np.float32) for n in range(len(columns))}
    tables = {n: tf.Variable(start[n], trainable=n not in frozen) for n in sorted({*numbers})}
    probe = join(tf.zeros([1, DENSE]), [tf.zeros([1, DIM]) for _ in columns])
    kernel = tf.Variable(rng.standard_normal((probe.shape[1], 5)).astype(np.float32) / 5)
    last = tf.Variable(rng.standard_normal((5, 1)).astype(np.float32))
    variables = [*tables.values(), kernel, last]
    trained = [variable for variable in variables if variable.trainable]
    made = OPTIMIZERS[optimizer]()
    made.build(trained)
    sparse = tf.SparseTensorSpec([None, None], tf.int64)
    weights = tf.SparseTensorSpec([None, None], tf.float32)
    batch = BATCH if static else None
    signature = [
        [tf.TensorSpec([BATCH, MAX_IDS], tf.int64) if static else sparse] * len(columns),
        [weights] * len(columns),
        tf.TensorSpec([batch, DENSE]),
        tf.TensorSpec([batch, 1]),
    ]

    def as_sparse(ids: Any) -> Any:
        return tf.sparse.from_dense(ids) if static else ids

    def table_of(number: int) -> Any:
        return tables[number].read_value() if whole else tables[number]

    @tf.function(input_signature=signature)
    def step(ids: Any, weights: Any, dense: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            vectors = [
                _look_up(column, table_of(numbers[n]), as_sparse(ids[n]), weights[n])
                for n, column in enumerate(columns)
            ]
            hidden = tf.nn.relu(join(dense, vectors) @ kernel)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, hidden @ last)
            loss = tf.reduce_mean(losses)
        made.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return loss

    batches = [_batch(rng, len(columns)) for _ in range(steps)]
    if static:
        batches = [([*map(_matrix, ids)], *rest) for ids, *rest in batches]
    losses = [step(*batch).numpy() for batch in batches[:-1]]
    with executed() as ran:
        losses.append(step(*batches[-1]).numpy())
    return Run(np.array(losses), [variable.numpy() for variable in variables], ran)


def _look_up(column: Column, table: Any, ids: Any, weights: Any) -> tf.Tensor:
    weights = weights if column.weighted else None
    if column.plain:
        ids = ids.with_values(tf.abs(ids.values))
        return tf.nn.embedding_lookup_sparse(table, ids, weights, column.combiner, **column.options)
    return tf.nn.safe_embedding_lookup_sparse(
        table, ids, sparse_weights=weights, combiner=column.combiner, **column.options
    )


def _matrix(ids: tf.SparseTensor) -> tf.Tensor:
    """The ids, zeros elsewhere."""
    matrix = np.zeros((BATCH, MAX_IDS), np.int64)
    matrix[tuple(ids.indices.numpy().T)] = ids.values
    return tf.constant(matrix)


def _batch(rng: np.random.Generator, count: int) -> tuple[Any, ...]:
    ids, weights = [], []
    for _ in range(count):
        lengths = rng.integers(0, 5, BATCH)
        lengths[rng.integers(BATCH)] = rng.integers(0, 20)
        lengths[-1] = 2  # plain lookups end at the last row that has an entry
        rows = np.repeat(np.arange(BATCH), lengths)
        indices = np.stack([rows, np.arange(len(rows))], 1).astype(np.int64)
        values = rng.integers(-2, ROWS, len(rows))
        ids.append(tf.SparseTensor(indices, values, [BATCH, MAX_IDS]))
        numbers = rng.standard_normal(len(rows)).astype(np.float32) + 0.5
        weights.append(tf.SparseTensor(indices, numbers, [BATCH, MAX_IDS]))
    dense = rng.standard_normal((BATCH, DENSE)).astype(np.float32)
    labels = rng.integers(0, 2, (BATCH, 1)).astype(np.float32)
    return ids, weights, tf.constant(dense), tf.constant(labels)


def train_both(*args: Any, **options: Any) -> tuple[Run, Run]:
    """Trains without fusion and with it."""
    stock = train(*args, **options)
    with fusion.fused():
        return stock, train(*args, **options)
