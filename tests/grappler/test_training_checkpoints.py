"""A model trained with fusion goes on without it, and the other way round, slots included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.feature_column import DenseFeatures, embedding_column
from tests.grappler.training_steps import OPTIMIZERS, ROWS
from tests.tiers import ALL_CASES

STEPS, BATCH = 100 if ALL_CASES else 20, 8
fc = tf.feature_column


def model(do_fusion: str | None) -> Any:
    """A compiled model of two columns; `do_fusion` is that of the columns."""
    keras.utils.set_random_seed(2)
    columns = [
        embedding_column(fc.categorical_column_with_identity(name, ROWS), 4, do_fusion=do_fusion)
        for name in ("one", "many")
    ]
    inputs = {
        "one": keras.Input([1], dtype="int64", name="one"),
        "many": keras.Input([4], dtype="int64", name="many"),
    }
    return keras.Model(inputs, keras.layers.Dense(1)(DenseFeatures(columns)(inputs)))


class Training:
    """A model and its optimizer, trained in a tf.function that has not been traced yet."""

    def __init__(self, optimizer: str, do_fusion: str | None) -> None:
        self.model = model(do_fusion)
        self.optimizer = OPTIMIZERS[optimizer]()
        self.optimizer.build(self.model.trainable_variables)
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)

        @tf.function
        def step(batch: Any, labels: Any) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(batch, training=True) - labels) ** 2)
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, [variable.value for variable in variables])
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        self._step = step

    def run(self, first: int, fused: bool) -> list[float]:
        """The losses of `STEPS` steps, with fusion on or off; `first` chooses their data."""
        rng = np.random.default_rng(first)
        losses = []
        for _ in range(STEPS):
            batch = {
                "one": tf.constant(rng.integers(0, ROWS, (BATCH, 1))),
                "many": tf.constant(rng.integers(-1, ROWS, (BATCH, 4))),
            }
            labels = tf.constant(rng.random((BATCH, 1)), tf.float32)
            if fused:
                with fusion.fused():
                    losses.append(float(self._step(batch, labels)))
            else:
                losses.append(float(self._step(batch, labels)))
        return losses

    def values(self) -> list[np.ndarray]:
        """All variables, the optimizer's too."""
        variables = [*self.model.variables, *self.optimizer.variables]
        return [np.asarray(variable) for variable in variables]


@pytest.mark.parametrize("do_fusion", [None, "v2"])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "momentum"])
def test_checkpoints_are_those_of_stock(
    optimizer: str, do_fusion: str | None, tmp_path: Path
) -> None:
    stock, fused = Training(optimizer, None), Training(optimizer, do_fusion)
    np.testing.assert_allclose(fused.run(1, True), stock.run(1, False), rtol=1e-5)
    of_stock = stock.checkpoint.write(str(tmp_path / "stock"))
    of_fused = fused.checkpoint.write(str(tmp_path / "fused"))
    names = [
        {name: shape for name, shape in tf.train.list_variables(path) if "OBJECT" not in name}
        for path in (of_stock, of_fused)
    ]
    assert names[0] == names[1]

    # Each goes on from the checkpoint of the other.
    resumed, other = Training(optimizer, None), Training(optimizer, do_fusion)
    resumed.checkpoint.read(of_fused).assert_consumed()
    other.checkpoint.read(of_stock).assert_consumed()
    for mine, theirs in zip(resumed.values(), fused.values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    expected = stock.run(2, False)
    np.testing.assert_allclose(other.run(2, True), expected, rtol=1e-5)
    np.testing.assert_allclose(resumed.run(2, False), expected, rtol=1e-4)
