"""Programs as users write them, with stock lookups inside: each gives arrays, and what ran.

They say nothing of fusion: the same program runs with and without it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tests.grappler.executed import executed

v1 = tf.compat.v1
fc = tf.feature_column

ROWS, DIM, BATCH = 30, 5, 8
COMBINERS = ("mean", "sum", "sqrtn")
DEFAULTS = (None, 0, 7)


@dataclass(frozen=True)
class Columns:
    """As many columns, each with a table, ids and options of its own."""

    count: int
    arrays: list[tuple[Any, Any]] = field(init=False)

    def __post_init__(self) -> None:
        found = [_ids(np.random.default_rng(place)) for place in range(self.count)]
        object.__setattr__(self, "arrays", found)

    def tables(self) -> list[Any]:
        """A variable per column."""
        return [tf.Variable(table_values(place)) for place in range(self.count)]

    def ids(self) -> list[tf.SparseTensor]:
        """What is looked up, one batch per column."""
        return [tf.SparseTensor(*pair, [BATCH, 12]) for pair in self.arrays]

    def sparse_placeholders(self) -> list[Any]:
        """Where a v1 graph is fed with ids."""
        return [v1.sparse_placeholder(tf.int64, [None, None]) for _ in range(self.count)]

    def dense(self) -> dict[str, Any]:
        """Ids by feature name, [BATCH, 3] without negative ones."""
        rng = np.random.default_rng(5)
        shape = (BATCH, 3)
        return {f"f{place}": rng.integers(0, ROWS, shape) for place in range(self.count)}

    def feature_columns(self) -> list[Any]:
        """Stock embedding columns, of single features each."""

        def values(place: int) -> Callable[..., Any]:
            return lambda shape, dtype=tf.float32, **_: tf.constant(table_values(place), dtype)

        return [
            fc.embedding_column(
                fc.categorical_column_with_identity(f"f{place}", ROWS),
                DIM,
                COMBINERS[place % 3],
                values(place),
            )
            for place in range(self.count)
        ]


def table_values(place: int) -> Any:
    return np.random.default_rng(100 + place).normal(size=(ROWS, DIM)).astype(np.float32)


def look_up(tables: Any, ids: Any) -> tf.Tensor:
    """The columns side by side."""
    found = [
        v1.nn.safe_embedding_lookup_sparse(
            table, one, combiner=COMBINERS[place % 3], default_id=DEFAULTS[place % 7 % 3]
        )
        for place, (table, one) in enumerate(zip(tables, ids, strict=True))
    ]
    return tf.concat(found, 1)


Result = tuple[list[Any], Counter[str]]


def function(columns: Columns) -> Result:
    tables, ids = columns.tables(), columns.ids()
    run = tf.function(lambda ids: look_up(tables, ids))
    with executed() as ran:
        output = run(ids)
    return [output], ran


def nested_functions(columns: Columns) -> Result:
    tables, ids = columns.tables(), columns.ids()
    inner = tf.function(lambda ids: look_up(tables, ids))
    outer = tf.function(lambda ids: inner(ids) + tf.function(lambda: 2 * inner(ids))())
    with executed() as ran:
        output = outer(ids)
    return [output], ran


def functions_that_stay(columns: Columns) -> Result:
    """A function that is not inlined is optimized on its own."""
    tables, ids = columns.tables(), columns.ids()
    inner = tf.function(
        lambda ids: look_up(tables, ids), experimental_attributes={"_noinline": True}
    )
    outer = tf.function(lambda ids: inner(ids) + 1)
    with executed() as ran:
        output = outer(ids)
    return [output], ran


def while_body(columns: Columns) -> Result:
    tables, ids = columns.tables(), columns.ids()

    @tf.function
    def run(ids: Any) -> Any:
        total = tf.zeros([BATCH, DIM * columns.count])
        for i in tf.range(3):
            # Other ids each time, so that nothing can be done before the loop.
            step = tf.cast(i, tf.int64)
            total += look_up(tables, [one.with_values((one.values + step) % ROWS) for one in ids])
        return total

    with executed() as ran:
        output = run(ids)
    return [output], ran


def cond_branch(columns: Columns) -> Result:
    tables, ids = columns.tables(), columns.ids()

    @tf.function
    def run(ids: Any, flag: Any) -> Any:
        return tf.cond(
            flag,
            lambda: look_up(tables, ids),
            lambda: tf.ones([BATCH, DIM * columns.count]),
        )

    with executed() as ran:
        outputs = [run(ids, tf.constant(flag)) for flag in (True, False)]
    return outputs, ran


def keras3(columns: Columns) -> Result:
    import keras

    from fusion.feature_column import DenseFeatures

    assert keras.__version__.startswith("3.")
    return _fit_and_predict(keras, DenseFeatures, columns)


def tf_keras(columns: Columns) -> Result:
    keras = tf.keras
    assert keras.Model.__module__.startswith("tf_keras.")
    return _fit_and_predict(keras, keras.layers.DenseFeatures, columns)


def _fit_and_predict(keras: Any, layer: Any, columns: Columns) -> Result:
    features = columns.dense()
    labels = np.random.default_rng(6).normal(size=(BATCH, 1)).astype(np.float32)
    inputs = {name: keras.Input((3,), name=name, dtype="int64") for name in features}
    hidden = layer(columns.feature_columns())(inputs)
    score = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    model = keras.Model(inputs, score(hidden))
    model.compile("adam", "mse")
    history = model.fit(features, labels, batch_size=4, epochs=3, shuffle=False, verbose=0)
    with executed() as ran:
        output = model.predict(features, batch_size=4, verbose=0)
    return [output, history.history["loss"], *model.get_weights()], ran


def session(columns: Columns) -> Result:
    with tf.Graph().as_default():
        tables = [
            v1.get_variable(f"t{place}", initializer=table_values(place), use_resource=use)
            for place, use in enumerate([True, False] * columns.count)
            if place < columns.count
        ]
        ids = columns.sparse_placeholders()
        output = look_up(tables, ids)
        feeds = {
            tensor: v1.SparseTensorValue(*pair, [BATCH, 12])
            for tensor, pair in zip(ids, columns.arrays, strict=True)
        }
        with v1.Session() as run:
            run.run(v1.global_variables_initializer())
            with executed() as ran:
                outputs = [run.run(output, feeds)]
                outputs += run.run([output[:, 0], output[:, -1]], feeds)
    return outputs, ran


def signature(columns: Columns) -> Result:
    module = tf.Module()
    module.tables = columns.tables()
    specs = [tf.SparseTensorSpec([None, None], tf.int64)] * columns.count
    module.run = tf.function(
        lambda ids: {"found": look_up(module.tables, ids)}, input_signature=[specs]
    )
    flat = [
        tensor for one in columns.ids() for tensor in (one.indices, one.values, one.dense_shape)
    ]
    names = [f"{part}{place}" for place in range(columns.count) for part in "ivs"]

    def serve(**features: Any) -> Any:
        parts = [features[name] for name in names]
        return module.run([tf.SparseTensor(*parts[k : k + 3]) for k in range(0, len(parts), 3)])

    shapes = {"i": [None, 2], "v": [None], "s": [2]}
    given = {name: tf.TensorSpec(shapes[name[0]], tf.int64, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        concrete = tf.function(serve).get_concrete_function(**given)
        tf.saved_model.save(module, folder, signatures=concrete)
        loaded = tf.saved_model.load(folder)
        with executed() as ran:
            output = loaded.signatures["serving_default"](**dict(zip(names, flat, strict=True)))
    return [output["found"]], ran


def data_map(columns: Columns) -> Result:
    tables = columns.tables()
    batches = tf.data.Dataset.from_tensors(tuple(columns.ids())).repeat(3)
    mapped = batches.map(lambda *ids: look_up(tables, ids), num_parallel_calls=2)
    with executed() as ran:
        outputs = list(mapped)
    return outputs, ran


def mirrored(columns: Columns) -> Result:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        tables = columns.tables()
    ids = columns.ids()
    run = tf.function(lambda ids: strategy.run(lambda ids: look_up(tables, ids), args=(ids,)))
    with executed() as ran:
        output = strategy.experimental_local_results(run(ids))
    assert len(output) == 2
    return list(output), ran


def training(columns: Columns) -> Result:
    """Several steps of gradient descent with momentum: losses, predictions and weights."""
    tables, ids = columns.tables(), columns.ids()
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)

    @tf.function
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(tables, ids) ** 2)
        gradients = tape.gradient(loss, tables)
        optimizer.apply_gradients(zip(gradients, tables, strict=True))
        return loss

    predict = tf.function(lambda ids: look_up(tables, ids))
    losses = [step(ids) for _ in range(4)]
    with executed() as ran:
        output = predict(ids)
    return [output, *losses, *tables], ran


#: By the process that they need: one of its own makes devices or chooses a Keras first.
PROGRAMS: dict[str, tuple[Callable[[Columns], Result], ...]] = {
    "plain": (
        function,
        nested_functions,
        functions_that_stay,
        while_body,
        cond_branch,
        keras3,
        session,
        signature,
        data_map,
        training,
    ),
    "legacy": (tf_keras, mirrored),
}


def _ids(rng: np.random.Generator) -> tuple[Any, Any]:
    """Indices and values: empty rows, long ones, and ids below 0."""
    indices = np.argwhere(rng.random((BATCH, 12)) < 0.4).astype(np.int64)
    indices = indices[indices[:, 0] % 4 != 3]
    return indices, rng.integers(-2, ROWS, len(indices))
