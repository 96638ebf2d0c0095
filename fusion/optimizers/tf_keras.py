"""Row-sparse optimizers for tf_keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from fusion.optimizers import rows
from fusion.tables.keras_slots import OneRow, zeros_like
from fusion.tables.registry import embedding_variable_of
from fusion.tables.slots import following, known_values


class _RowSparse(rows.RowSparse, tf_keras.optimizers.Optimizer):
    """What the optimizers below add to tf_keras': a sparse gradient moves its rows alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows.refuse(self, self.use_ema, "use_ema", "the averages of all rows move at every step")
        rows.refuse(self, self._mesh, "mesh", "its variables have no sparse updates")
        self.jit_compile = False

    def build(self, var_list: Any) -> None:
        """Makes the optimizer variables; those of embedding variables' tables on demand."""
        tables = [v if embedding_variable_of(v) is None else OneRow(v) for v in var_list]
        super().build(tables)

    def add_variable_from_reference(
        self,
        model_variable: Any,
        variable_name: str,
        shape: Any = None,
        initial_value: Any = None,
    ) -> Any:
        """An optimizer variable; of an embedding variable's table zeros on demand."""
        add = super().add_variable_from_reference
        if not isinstance(model_variable, OneRow):
            return add(model_variable, variable_name, shape, initial_value)
        variable = embedding_variable_of(model_variable.table)
        first = None if initial_value is None else known_values(initial_value)
        with variable.own_variables(), following(variable, first):
            return add(model_variable.table, variable_name, shape, zeros_like(variable))

    def _deduplicate_sparse_grad(self, grads: Any) -> Any:
        """Nothing: what ids are repeated for is known in `update_step`."""
        return grads

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        """Updates a variable, or of an `IndexedSlices` gradient its rows."""
        rate = tf.cast(self.learning_rate, variable.dtype)
        if not isinstance(gradient, tf.IndexedSlices):
            rows.decay(self, variable, rate, None)
            super().update_step(gradient, variable)
            return
        rows.refuse_constraint(variable)
        gradient = rows.after_filling(self._prepared(gradient, variable), variable)
        rows.decay(self, variable, rate, gradient.indices)
        self._update_rows(gradient, variable, rate, self._index_dict[self._var_key(variable)])

    def _slots(self, index: int, *lists: str) -> tuple[tf.Variable, ...]:
        return tuple(getattr(self, name)[index] for name in lists)


@tf_keras.saving.register_keras_serializable("fusion")
class Adagrad(_RowSparse, tf_keras.optimizers.Adagrad):
    """`tf_keras.optimizers.Adagrad` by one op, for tables of embedding variables as well.

    The numbers, arguments and optimizer variables are the same: each can restore the other's
    checkpoints. `weight_decay` acts on the rows of the gradient. `jit_compile` is not used.

    Raises:
      ValueError: if use_ema or mesh is given; when gradients are applied, for a variable with a
        sparse gradient and a constraint.
    """

    def _rule(self) -> str:
        return "adagrad"

    def _prepared(self, gradient: tf.IndexedSlices, variable: tf.Variable) -> tf.IndexedSlices:
        """The gradient in the variable's dtype, with each id once."""
        return tf.cast(rows.distinct(gradient), variable.dtype.base_dtype)

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        g, ids = gradient.values, gradient.indices
        (accumulator,) = self._slots(index, "_accumulators")
        if rows.has_program(variable, "adagrad"):
            slots = (variable, accumulator)
            rows.update_by_program("adagrad", gradient, slots, (rate, self.epsilon))
            return
        accumulator.scatter_add(tf.IndexedSlices(tf.square(g), ids))
        root = tf.sqrt(rows.gather_rows(accumulator, ids) + self.epsilon)
        rows.subtract_from_rows(variable, ids, rate * g / root)


@tf_keras.saving.register_keras_serializable("fusion")
class LazyAdam(_RowSparse, tf_keras.optimizers.Adam):
    """`tf_keras.optimizers.Adam` that moves only the rows that have a gradient.

    What it does to rows is described at `fusion.optimizers.keras3.LazyAdam`. Arguments and
    optimizer variables are Adam's: each can restore the other's checkpoints.

    `jit_compile`, which only allows XLA, is not used: the number of rows differs between steps, and
    XLA would compile for each.

    Raises:
      ValueError: if use_ema or mesh is given; when gradients are applied, for a variable with a
        sparse gradient and a constraint.
    """

    def _rule(self) -> str:
        return "amsgrad_in_parts" if self.amsgrad else "adam_in_parts"

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        g, ids = gradient.values, gradient.indices
        beta_1_power, beta_2_power = rows.beta_powers(self, rate.dtype)
        alpha = rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)
        epsilon = self.epsilon * (tf.sqrt(1 - beta_2_power) if self.adaptive_epsilon else 1)
        if rows.has_program(variable, self._rule()):
            numbers = (alpha, 1 - self.beta_1, 1 - self.beta_2, epsilon)
            lists = ("_momentums", "_velocities", *["_velocity_hats"] * self.amsgrad)
            slots = (variable, *self._slots(index, *lists))
            rows.update_by_program(self._rule(), gradient, slots, numbers)
            return
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

    def get_config(self) -> dict[str, Any]:
        """Adam's, and the argument that it leaves out."""
        return {**super().get_config(), "adaptive_epsilon": self.adaptive_epsilon}


@tf_keras.saving.register_keras_serializable("fusion")
class LazyMomentum(rows.Momentum, _RowSparse, tf_keras.optimizers.SGD):
    """`tf_keras.optimizers.SGD` with momentum that moves only the rows that have a gradient.

    What it does to rows is described at `fusion.optimizers.keras3.LazyMomentum`. Arguments and
    optimizer variables are SGD's: each can restore the other's checkpoints. `jit_compile` is not
    used.

    Raises:
      ValueError: if momentum is 0, or if use_ema or mesh is given; when gradients are applied, for
        a variable with a sparse gradient and a constraint.
    """


@tf_keras.saving.register_keras_serializable("fusion")
class LazyFtrl(rows.Ftrl, _RowSparse, tf_keras.optimizers.Ftrl):
    """`tf_keras.optimizers.Ftrl` that moves only the rows that have a gradient.

    What it does to rows is described at `fusion.optimizers.keras3.LazyFtrl`. Arguments and
    optimizer variables are Ftrl's: each can restore the other's checkpoints. `jit_compile` is not
    used.

    Raises:
      ValueError: if use_ema or mesh is given; when gradients are applied, for a variable with a
        sparse gradient and a constraint.
      tf.errors.InvalidArgumentError: in a step with a sparse gradient, if the learning rate is 0.
    """
