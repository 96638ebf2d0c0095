"""Row-sparse optimizers for Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from fusion.optimizers import rows


def _refuse_dense(optimizer: Any) -> None:
    """Raises for arguments that need gradients or changes of all rows.

    Raises:
      ValueError: naming the argument and its value.
    """
    rows.refuse(
        optimizer, optimizer.use_ema, "use_ema", "the averages of all rows move at every step"
    )
    rows.refuse(
        optimizer,
        optimizer.gradient_accumulation_steps,
        "gradient_accumulation_steps",
        "accumulated gradients are dense and do not tell which rows had one",
    )
    rows.refuse(
        optimizer,
        optimizer.loss_scale_factor,
        "loss_scale_factor",
        "Keras cannot divide a sparse gradient by it, keras.optimizers.LossScaleOptimizer can",
    )


@keras.saving.register_keras_serializable("fusion")
class Adagrad(keras.optimizers.Adagrad):
    """`keras.optimizers.Adagrad` that reads and writes only the rows that have a gradient.

    The numbers are the same, within rounding. Of an `IndexedSlices` gradient g, a step does this to
    its rows:

        accumulator += g^2
        row -= learning_rate g / sqrt(accumulator + epsilon)

    Keras computes the root for the whole table. With a dense gradient it is Keras's. Arguments and
    optimizer variables are Adagrad's: each can restore the other's checkpoints.

    Raises:
      ValueError: if weight_decay, use_ema, gradient_accumulation_steps or loss_scale_factor is
        given; when gradients are applied, for a variable with a sparse gradient and a constraint.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows.refuse(self, self.weight_decay, "weight_decay", "all rows decay at every step")
        _refuse_dense(self)

    def update_step(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        """Updates a variable, or of an `IndexedSlices` gradient its rows."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        rows.refuse_constraint(self._trainable_variables[index])
        dtype, ids = variable.dtype, gradient.indices
        g, rate = tf.cast(gradient.values, dtype), tf.cast(learning_rate, dtype)
        accumulator = self._accumulators[index].value
        # As Keras does, for ids that are there more than once too.
        accumulator.scatter_add(tf.IndexedSlices(tf.square(g), ids))
        root = tf.sqrt(rows.gather_rows(accumulator, ids) + self.epsilon)
        rows.subtract_from_rows(variable, ids, rate * g / root)

    def _clip_gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        return rows.clip(self, grads, super()._clip_gradients)


@keras.saving.register_keras_serializable("fusion")
class LazyAdam(keras.optimizers.Adam):
    """`keras.optimizers.Adam` that moves only the rows that have a gradient.

    Step t does this to the rows of an `IndexedSlices` gradient g (values of equal ids are summed
    first):

        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        row -= learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    t counts all steps, not those in which the row had a gradient. All other rows, and their m
    and v, stay as they are; Adam decays m and v and moves each row that ever had a gradient. With
    a dense gradient it is Adam.

    Arguments are Adam's; `weight_decay` and `amsgrad` act on the rows of the gradient. Optimizer
    variables are Adam's too: each can restore the other's checkpoints.

    Raises:
      ValueError: if use_ema, gradient_accumulation_steps or loss_scale_factor is given; when
        gradients are applied, for a variable with a sparse gradient and a constraint.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _refuse_dense(self)

    def update_step(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        """Updates a variable, or of an `IndexedSlices` gradient its rows."""
        rate = tf.cast(learning_rate, variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            self._update_rows(rows.distinct(gradient), variable, rate)
        else:
            rows.decay(self, variable, rate, None)
            super().update_step(gradient, variable, learning_rate)

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor
    ) -> None:
        """Updates the rows of distinct ids, each operation as Adam does it to all rows."""
        index = self._get_variable_index(variable)
        rows.refuse_constraint(self._trainable_variables[index])
        dtype = variable.dtype
        g, ids = tf.cast(gradient.values, dtype), gradient.indices
        rows.decay(self, variable, rate, ids)
        beta_1_power, beta_2_power = rows.beta_powers(self, dtype)
        alpha = rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)
        m = rows.update_rows(
            self._momentums[index].value, ids, lambda m: m + (g - m) * (1 - self.beta_1)
        )
        v = rows.update_rows(
            self._velocities[index].value, ids, lambda v: v + (tf.square(g) - v) * (1 - self.beta_2)
        )
        if self.amsgrad:
            v = rows.update_rows(
                self._velocity_hats[index].value, ids, lambda hat: tf.maximum(hat, v)
            )
        rows.subtract_from_rows(variable, ids, m * alpha / (tf.sqrt(v) + self.epsilon))

    def _clip_gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        return rows.clip(self, grads, super()._clip_gradients)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Nothing: which rows decay depends on the gradient, which `update_step` has."""
