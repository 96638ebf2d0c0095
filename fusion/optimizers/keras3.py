"""Row-sparse optimizers for Keras 3."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from fusion.optimizers import rows
from fusion.tables.initial_rows import ZerosOnDemand
from fusion.tables.registry import embedding_variable_of
from fusion.tables.slots import first_values, following


class _RowSparse(rows.RowSparse, keras.optimizers.Optimizer):
    """What the optimizers below add to Keras's: a sparse gradient moves its rows alone."""

    #: Variables in the order of their optimizer variables that are made without them.
    _unreferenced: Iterator[Any] = iter(())
    _has_reference = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows.refuse(self, self.use_ema, "use_ema", "the averages of all rows move at every step")
        rows.refuse(
            self,
            self.gradient_accumulation_steps,
            "gradient_accumulation_steps",
            "accumulated gradients are dense and do not show which rows had one",
        )
        rows.refuse(
            self,
            self.loss_scale_factor,
            "loss_scale_factor",
            "Keras cannot divide a sparse gradient by it, keras.optimizers.LossScaleOptimizer can",
        )

    def build(self, variables: Any) -> None:
        """Makes the optimizer variables; those of embedding variables' tables on demand."""
        self._unreferenced = iter(variables)
        super().build(variables)
        self._unreferenced = iter(())

    def add_variable(self, shape: Any, initializer: Any = "zeros", **named: Any) -> Any:
        """An optimizer variable; in Keras 3.6 Adagrad and Ftrl make one for each variable so."""
        is_known = isinstance(initializer, ZerosOnDemand) or self._has_reference
        variable = None if is_known else embedding_variable_of(next(self._unreferenced, None))
        if variable is None:
            return super().add_variable(shape, initializer=initializer, **named)
        return self._on_demand(
            variable, initializer, functools.partial(self.add_variable, shape, **named)
        )

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        """An optimizer variable; of an embedding variable's table zeros on demand."""
        variable = embedding_variable_of(reference_variable)
        add = functools.partial(super().add_variable_from_reference, reference_variable, name=name)
        self._has_reference = True
        try:
            if variable is None:
                return add(initializer=initializer)
            return self._on_demand(variable, initializer, add)
        finally:
            self._has_reference = False

    def _on_demand(self, variable: Any, initializer: Any, add: Callable[..., Any]) -> Any:
        """A slot of an embedding variable, made by `add` with an initializer."""
        slot_initializer = keras.initializers.get(initializer)
        first = first_values(slot_initializer, variable.dimension, variable.dtype)
        with variable.own_variables(), following(variable, first):
            return add(initializer=ZerosOnDemand())

    def update_step(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        """Updates a variable, or of an `IndexedSlices` gradient its rows."""
        rate = tf.cast(learning_rate, variable.dtype)
        if not isinstance(gradient, tf.IndexedSlices):
            rows.decay(self, variable, rate, None)
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        rows.refuse_constraint(self._trainable_variables[index])
        gradient = rows.after_filling(self._prepared(gradient, variable), variable)
        rows.decay(self, variable, rate, gradient.indices)
        self._update_rows(gradient, variable, rate, index)

    def _slots(self, index: int, *lists: str) -> tuple[tf.Variable, ...]:
        return tuple(getattr(self, name)[index].value for name in lists)


@keras.saving.register_keras_serializable("fusion")
class Adagrad(_RowSparse, keras.optimizers.Adagrad):
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

    def _rule(self) -> str:
        return "adagrad"

    def _prepared(self, gradient: tf.IndexedSlices, variable: tf.Variable) -> tf.IndexedSlices:
        """The gradient in the variable's dtype: each value of an id is squared by itself."""
        return tf.cast(gradient, variable.dtype)

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        g, ids = gradient.values, gradient.indices
        accumulator = self._accumulators[index].value
        if rows.has_program(variable, "adagrad"):
            slots = (variable, accumulator)
            rows.update_by_program("adagrad", gradient, slots, (rate, self.epsilon))
            return
        accumulator.scatter_add(tf.IndexedSlices(tf.square(g), ids))
        # TensorFlow's ResourceSparseApplyAdagradV2 adds epsilon to the root.
        root = tf.sqrt(rows.gather_rows(accumulator, ids) + self.epsilon)
        rows.subtract_from_rows(variable, ids, rate * g / root)


@keras.saving.register_keras_serializable("fusion")
class LazyAdam(_RowSparse, keras.optimizers.Adam):
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

    def _rule(self) -> str:
        return "amsgrad" if self.amsgrad else "adam"

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        g, ids = gradient.values, gradient.indices
        beta_1_power, beta_2_power = rows.beta_powers(self, rate.dtype)
        alpha = rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)
        if rows.has_program(variable, self._rule()):
            numbers = (alpha, 1 - self.beta_1, 1 - self.beta_2, self.epsilon)
            lists = ("_momentums", "_velocities", *["_velocity_hats"] * self.amsgrad)
            slots = (variable, *self._slots(index, *lists))
            rows.update_by_program(self._rule(), gradient, slots, numbers)
            return
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


@keras.saving.register_keras_serializable("fusion")
class LazyMomentum(rows.Momentum, _RowSparse, keras.optimizers.SGD):
    """`keras.optimizers.SGD` with momentum that moves only the rows that have a gradient.

    A step does this to the rows of an `IndexedSlices` gradient g (values of equal ids are summed
    first):

        m = momentum m - learning_rate g
        row += m

    and with `nesterov` `row += momentum m - learning_rate g`. All other rows, and their m, stay as
    they are; SGD decays m and moves each row that ever had a gradient. With a dense gradient it is
    SGD. tf_keras' `optimizers.legacy.SGD` does the same as this class.

    Arguments are SGD's; `learning_rate` and `momentum` must be given. `weight_decay` acts on the
    rows of the gradient. Optimizer variables are SGD's too: each can restore the other's
    checkpoints.

    Raises:
      ValueError: if momentum is 0, or if use_ema, gradient_accumulation_steps or loss_scale_factor
        is given; when gradients are applied, for a variable with a sparse gradient and a
        constraint.
    """


@keras.saving.register_keras_serializable("fusion")
class LazyFtrl(rows.Ftrl, _RowSparse, keras.optimizers.Ftrl):
    """`keras.optimizers.Ftrl` that moves only the rows that have a gradient.

    A step does this to the rows of an `IndexedSlices` gradient g (values of equal ids are summed
    first), with p = -learning_rate_power, l1 and l2 the regularization strengths and s the
    shrinkage:

        linear += g + 2 s row - ((accumulator + g^2)^p - accumulator^p) / learning_rate row
        accumulator += g^2
        quadratic = accumulator^p / learning_rate + 2 (l2 + beta / (2 learning_rate))
        row = (clip(linear, -l1, l1) - linear) / quadratic

    (H. B. McMahan et al., Ad Click Prediction, KDD 2013.) All other rows, with their accumulator
    and linear, stay as they are. Ftrl does this to all rows at every step: its first one replaces
    the initial values of rows without a gradient (by 0, if there is no shrinkage); later ones scale
    them to the learning rate of the step, and shrink them. With a dense gradient it is Ftrl.
    `tf.compat.v1`'s FtrlOptimizer and tf_keras' `optimizers.legacy.Ftrl` do the same as this class.

    Arguments are Ftrl's; `weight_decay` acts on the rows of the gradient. Optimizer variables are
    Ftrl's too: each can restore the other's checkpoints.

    Raises:
      ValueError: if use_ema, gradient_accumulation_steps or loss_scale_factor is given; when
        gradients are applied, for a variable with a sparse gradient and a constraint.
      tf.errors.InvalidArgumentError: in a step with a sparse gradient, if the learning rate is 0.
    """
