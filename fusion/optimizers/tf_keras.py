"""The row-sparse Adam for tf_keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from fusion.optimizers import rows


@tf_keras.saving.register_keras_serializable("fusion")
class LazyAdam(tf_keras.optimizers.Adam):
    """`tf_keras.optimizers.Adam` that moves only the rows that have a gradient.

    What it does to rows is described at `fusion.optimizers.keras3.LazyAdam`. Arguments and
    optimizer variables are Adam's: each can restore the other's checkpoints.

    `jit_compile`, which only allows XLA, is not used: the number of rows differs between steps, and
    XLA would compile for each.

    Raises:
      ValueError: if use_ema or mesh is given; when gradients are applied, for a variable with a
        sparse gradient and a constraint.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows.refuse(self, self.use_ema, "use_ema", "the averages of all rows move at every step")
        rows.refuse(self, self._mesh, "mesh", "its variables have no sparse updates")
        self.jit_compile = False

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        """Updates a variable, or of an `IndexedSlices` gradient of distinct ids its rows."""
        rate = tf.cast(self.learning_rate, variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            self._update_rows(gradient, variable, rate)
        else:
            rows.decay(self, variable, rate, None)
            super().update_step(gradient, variable)

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor
    ) -> None:
        """Updates the rows of distinct ids, each operation as Adam does it to all rows."""
        rows.refuse_constraint(variable)
        dtype = variable.dtype
        g, ids = gradient.values, gradient.indices
        rows.decay(self, variable, rate, ids)
        beta_1_power, beta_2_power = rows.beta_powers(self, dtype)
        alpha = rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)
        epsilon = self.epsilon * (tf.sqrt(1 - beta_2_power) if self.adaptive_epsilon else 1)
        index = self._index_dict[self._var_key(variable)]
        m = rows.update_rows(
            self._momentums[index],
            ids,
            lambda m: m + (-m * (1 - self.beta_1)) + g * (1 - self.beta_1),
        )
        v = rows.update_rows(
            self._velocities[index],
            ids,
            lambda v: v + (-v * (1 - self.beta_2)) + tf.square(g) * (1 - self.beta_2),
        )
        if self.amsgrad:
            v = rows.update_rows(self._velocity_hats[index], ids, lambda hat: tf.maximum(hat, v))
        rows.subtract_from_rows(variable, ids, m * alpha / (tf.sqrt(v) + epsilon))

    def _clip_gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        return rows.clip(self, grads, super()._clip_gradients)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Nothing: which rows decay depends on the gradient, which `update_step` has."""

    def get_config(self) -> dict[str, Any]:
        """Adam's, and the argument that it leaves out."""
        return {**super().get_config(), "adaptive_epsilon": self.adaptive_epsilon}
