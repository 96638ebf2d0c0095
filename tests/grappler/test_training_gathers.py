"""Models of plain gathers, trained with fusion on: one op looks up, gradients stay stock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from tests.grappler.executed import executed

ROWS, DIM, BATCH, COLUMNS, STEPS = 3000, 8, 16, 4, 3
GROUPED, GATHERS = "GroupedEmbeddingLookup", ("GatherV2", "ResourceGather")

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda kit: kit.optimizers.SGD(0.05),
    "momentum": lambda kit: kit.optimizers.SGD(0.05, momentum=0.9),
    "adagrad": lambda kit: kit.optimizers.Adagrad(0.05),
    "adam": lambda kit: kit.optimizers.Adam(0.01),
}
Inputs = Sequence[Any]


@dataclass(frozen=True)
class Form:
    """A way in which rows come together.

    Attributes:
        join: (kit, inputs) -> [batch, any].
        length: of a column's ids; None: 6 that the model does not know.
        fused: how many lookups become one op.
        columns: how many there are.
    """

    join: Callable[[Any, Inputs], Any]
    length: int | None = 1
    fused: int = COLUMNS
    columns: int = COLUMNS


def _rows(kit: Any, ids: Any, **options: Any) -> Any:
    return kit.layers.Embedding(ROWS, DIM, **options)(ids)


def flat(kit: Any, inputs: Inputs) -> Any:
    rows = [kit.layers.Flatten()(_rows(kit, ids)) for ids in inputs]
    return kit.layers.Concatenate()(rows)


def reshaped(kit: Any, inputs: Inputs) -> Any:
    rows = [kit.layers.Reshape([DIM])(_rows(kit, ids)) for ids in inputs]
    return kit.layers.Concatenate()(rows)


def one_axis_more(kit: Any, inputs: Inputs) -> Any:
    rows = [_rows(kit, ids) for ids in inputs]
    return kit.layers.Flatten()(kit.layers.Concatenate(axis=1)(rows))


def sequences(kit: Any, inputs: Inputs) -> Any:
    rows = [_rows(kit, ids) for ids in inputs]
    return kit.layers.GlobalAveragePooling1D()(kit.layers.Concatenate()(rows))


def masked(kit: Any, inputs: Inputs) -> Any:
    rows = [kit.layers.Flatten()(_rows(kit, ids, mask_zero=True)) for ids in inputs]
    return kit.layers.Concatenate()(rows)


def of_widths(kit: Any, inputs: Inputs) -> Any:
    rows = [
        kit.layers.Flatten()(kit.layers.Embedding(ROWS, 3 + n)(ids)) for n, ids in enumerate(inputs)
    ]
    return kit.layers.Concatenate()(rows)


def of_one_table(kit: Any, inputs: Inputs) -> Any:
    table = kit.layers.Embedding(ROWS, DIM)
    return kit.layers.Concatenate()([kit.layers.Flatten()(table(ids)) for ids in inputs])


def partly_frozen(kit: Any, inputs: Inputs) -> Any:
    rows = [_rows(kit, ids, trainable=n > 1) for n, ids in enumerate(inputs)]
    return kit.layers.Concatenate()([kit.layers.Flatten()(one) for one in rows])


def beside_dense(kit: Any, inputs: Inputs) -> Any:
    """A trained matrix stands between them, whose gradient is sliced out, too."""
    rows = [kit.layers.Flatten()(_rows(kit, ids)) for ids in inputs]
    dense = kit.layers.Dense(5, "tanh")(rows[0])
    return kit.layers.Concatenate()([rows[1], rows[2], dense, rows[3]])


def towers(kit: Any, inputs: Inputs) -> Any:
    """Two concats side by side in a third."""
    half = len(inputs) // 2
    return kit.layers.Concatenate()([flat(kit, inputs[:half]), flat(kit, inputs[half:])])


def uneven_towers(kit: Any, inputs: Inputs) -> Any:
    """A concat in a concat in a concat, beside dense matrices and a lookup alone."""
    kinds, (first, *others) = kit.layers, inputs
    row = kinds.Flatten()(_rows(kit, first))
    inner = kinds.Concatenate()([of_widths(kit, others[1:]), kinds.Dense(3, "tanh")(row)])
    return kinds.Concatenate()([kinds.Flatten()(_rows(kit, others[0])), inner, row])


def towers_read_elsewhere(kit: Any, inputs: Inputs) -> Any:
    """Each tower is needed itself: they stay apart."""
    one, other = flat(kit, inputs[:2]), flat(kit, inputs[2:])
    both = kit.layers.Concatenate()([one, other])
    return kit.layers.Concatenate()([both, kit.layers.Multiply()([one, other])])


def regularized(kit: Any, inputs: Inputs) -> Any:
    """One table is read whole as well, and all of its rows move."""
    rows = [
        kit.layers.Flatten()(_rows(kit, ids, embeddings_regularizer=None if n else "l2"))
        for n, ids in enumerate(inputs)
    ]
    return kit.layers.Concatenate()(rows)


def summed(kit: Any, inputs: Inputs) -> Any:
    rows = [kit.layers.Lambda(lambda one: tf.reduce_sum(one, 1))(_rows(kit, x)) for x in inputs]
    return kit.layers.Concatenate()(rows)


def averaged(kit: Any, inputs: Inputs) -> Any:
    rows = [kit.layers.GlobalAveragePooling1D()(_rows(kit, ids)) for ids in inputs]
    return kit.layers.Concatenate()(rows)


FORMS = {
    "flat": Form(flat),
    "many": Form(flat, fused=18, columns=18),
    "reshaped": Form(reshaped),
    "one axis more": Form(one_axis_more),
    "sequences": Form(sequences, length=5),
    "sequences of any length": Form(sequences, length=None),
    "masked": Form(masked),
    "widths": Form(of_widths),
    "one table": Form(of_one_table),
    "partly frozen": Form(partly_frozen),
    "beside dense": Form(beside_dense, fused=COLUMNS - 1),
    "towers": Form(towers),
    "uneven towers": Form(uneven_towers, fused=COLUMNS - 1),
    "towers read elsewhere": Form(towers_read_elsewhere),
    "regularized": Form(regularized),
    "sums": Form(summed, length=5),
    "means": Form(averaged, length=5),
}


@dataclass
class Trained:
    """What a training gives: losses, all variables, and the ops of its last step."""

    losses: list[float]
    variables: list[np.ndarray]
    ran: Counter[str]

    def assert_same(self, other: Trained) -> None:
        assert self.losses == other.losses
        assert len({*self.losses}) == len(self.losses)
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def _data(form: Form) -> tuple[list[np.ndarray], np.ndarray]:
    """Ids, some of which are repeated or count from the end, and labels."""
    rng = np.random.default_rng(0)
    shape = [STEPS * BATCH, form.length or 6]
    ids = [rng.integers(0, ROWS, shape).astype(np.int32) for _ in range(form.columns)]
    for column in ids:
        column[::3] %= 5
    return ids, rng.integers(0, 2, [STEPS * BATCH, 1]).astype(np.float32)


def _model(kit: Any, form: Form, optimizer: str) -> Any:
    kit.utils.set_random_seed(1)
    inputs = [kit.Input([form.length], dtype="int32") for _ in range(form.columns)]
    joined = form.join(kit, inputs)
    model = kit.Model(inputs, kit.layers.Dense(1)(kit.layers.Dense(8, "tanh")(joined)))
    model.compile(OPTIMIZERS[optimizer](kit), kit.losses.BinaryCrossentropy(from_logits=True))
    return model


def by_fit(model: Any, ids: list[np.ndarray], labels: np.ndarray) -> list[float]:
    batches = tf.data.Dataset.from_tensor_slices((tuple(ids), labels)).batch(BATCH)
    losses = model.fit(batches, epochs=3, verbose=0).history["loss"]
    return [float(loss) for loss in losses]


def by_train_on_batch(model: Any, ids: list[np.ndarray], labels: np.ndarray) -> list[float]:
    return [
        float(model.train_on_batch([column[part] for column in ids], labels[part]))
        for part in _parts()
    ]


def by_tape(model: Any, ids: list[np.ndarray], labels: np.ndarray) -> list[float]:
    variables, optimizer = model.trainable_variables, model.optimizer

    @tf.function(reduce_retracing=True)
    def step(ids: list[tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.loss(labels, model(ids))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    shape = tf.TensorSpec([None, ids[0].shape[1]], tf.int32)
    step = tf.function(
        step.python_function, [[shape] * len(ids), tf.TensorSpec([None, 1], tf.float32)]
    )
    return [float(step([column[part] for column in ids], labels[part])) for part in _parts()]


def _parts() -> list[slice]:
    return [slice(n * BATCH, (n + 1) * BATCH) for n in range(STEPS)]


LOOPS = {"fit": by_fit, "train_on_batch": by_train_on_batch, "tape": by_tape}


def trained(kit: Any, form: Form, optimizer: str, loop: str) -> Trained:
    model = _model(kit, form, optimizer)
    with executed() as ran:
        losses = LOOPS[loop](model, *_data(form))
    slots = model.optimizer.variables
    slots = slots() if callable(slots) else slots
    values = [
        variable.numpy() for variable in (*model.variables, *slots) if variable.dtype != "string"
    ]
    return Trained(losses, values, ran)


def check(kit: Any, name: str, optimizer: str, loop: str) -> Trained:
    """Trains a model twice; what was fused has to run, and to give the same bits."""
    form = FORMS[name]
    stock = trained(kit, form, optimizer, loop)
    with fusion.fused():
        before = fusion.stats()
        fused = trained(kit, form, optimizer, loop)
        after = fusion.stats()
    assert after.failures == before.failures
    # Old versions of Keras trace `train_on_batch` several times.
    count = after.columns_fused - before.columns_fused
    assert count in range(form.fused, (1 + STEPS) * form.fused, form.fused)
    fused.assert_same(stock)
    assert stock.ran[GROUPED] == 0
    assert fused.ran[GROUPED] > 0
    return fused


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    check(keras, form, "sgd", "fit")


@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("loop", ["fit", "tape"])
def test_concats_of_concats_are_one_op_forward_and_none_backward(kit: Any, loop: str) -> None:
    ran = check(kit, "towers", "adagrad", loop).ran
    assert ran[GROUPED] == (STEPS if loop == "tape" else 3 * STEPS)
    assert sum(ran[op] for op in ("ConcatV2", "Slice", "SplitV", "ConcatOffset")) == 0


#: Each loop, and each optimizer with one of them.
PAIRS = (
    *(("sgd", loop) for loop in LOOPS),
    *zip(("momentum", "adagrad", "adam"), LOOPS, strict=True),
)


@pytest.mark.parametrize(("optimizer", "loop"), PAIRS)
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_loops_and_optimizers(kit: Any, optimizer: str, loop: str) -> None:
    check(kit, "flat", optimizer, loop)


def _features(step: int) -> dict[str, tf.Tensor]:
    """One id per row, which may be none (-1), of batches of other sizes each."""
    rng = np.random.default_rng(step)
    return {f"c{n}": tf.constant(rng.integers(-1, ROWS, [BATCH + step, 1])) for n in range(COLUMNS)}


def columns_trained() -> Trained:
    """Trains stock columns in our layer, by a loop of one's own."""
    keras.utils.set_random_seed(1)
    identity = tf.feature_column.categorical_column_with_identity
    columns = [
        tf.feature_column.embedding_column(identity(f"c{n}", ROWS), DIM) for n in range(COLUMNS)
    ]
    layer, head = fusion.feature_column.DenseFeatures(columns), keras.layers.Dense(1)
    layer(_features(0))
    head.build([None, COLUMNS * DIM])
    variables = layer.trainable_variables + head.trainable_variables
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(features: dict[str, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(head(layer(features)) - 1.0))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    with executed() as ran:
        losses = [float(step(_features(number))) for number in range(STEPS)]
    return Trained(losses, [variable.numpy() for variable in variables], ran)


def test_stock_columns_of_one_id_per_row() -> None:
    """Their gradients find the distinct ids, which the op for the forward does without."""
    stock = columns_trained()
    with fusion.fused():
        fused = columns_trained()
    fused.assert_same(stock)
    assert (stock.ran[GROUPED], fused.ran[GROUPED]) == (0, STEPS)
    assert fused.ran["ResourceGather"] == 0


def _bags(splits: str) -> tuple[tf.RaggedTensor, ...]:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 6, BATCH * STEPS).astype(splits) for _ in range(2)]
    return tuple(
        tf.RaggedTensor.from_row_lengths(rng.integers(0, ROWS, one.sum()), one) for one in lengths
    )


def means_trained(kit: Any, splits: str) -> Trained:
    """Trains means of ragged ids by `fit`, as tutorials write them."""
    kit.utils.set_random_seed(1)

    class Means(kit.Model):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [
                self.add_weight(shape=(ROWS, DIM), initializer="uniform", name=f"table{n}")
                for n in range(2)
            ]
            self.out = kit.layers.Dense(1)

        def call(self, ids: Sequence[tf.RaggedTensor]) -> tf.Tensor:
            tables = [getattr(table, "value", table) for table in self.tables]
            rows = [
                tf.nn.embedding_lookup(table if kit is keras else self.tables[n], one)
                for n, (table, one) in enumerate(zip(tables, ids, strict=True))
            ]
            return self.out(tf.concat([tf.reduce_mean(one, axis=1) for one in rows], 1))

    model = Means()
    model.compile(OPTIMIZERS["adagrad"](kit), kit.losses.BinaryCrossentropy(from_logits=True))
    labels = np.random.default_rng(0).integers(0, 2, (BATCH * STEPS, 1))
    batches = tf.data.Dataset.from_tensor_slices((_bags(splits), labels)).batch(BATCH)
    with executed() as ran:
        losses = model.fit(batches, epochs=2, verbose=0, shuffle=False).history["loss"]
    return Trained(losses, [variable.numpy() for variable in model.trainable_variables], ran)


@pytest.mark.parametrize(
    ("kit", "splits"), [(keras, "int64"), (tf_keras, "int32")], ids=["keras", "tf_keras"]
)
def test_means_of_ragged_ids(kit: Any, splits: str) -> None:
    stock = means_trained(kit, splits)
    with fusion.fused():
        fused = means_trained(kit, splits)
    fused.assert_same(stock)
    assert (stock.ran[GROUPED], fused.ran[GROUPED]) == (0, 2 * STEPS)
    assert fused.ran["RaggedTensorToSparse"] == 2 * 2 * STEPS
    assert sum(fused.ran[op] for op in ("Where", "UnsortedSegmentSum", "SelectV2")) == 0
