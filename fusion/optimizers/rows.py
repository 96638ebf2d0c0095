"""Gradients and updates of some rows of a variable; what the Keras optimizers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from fusion.ops import DEVICES, fused_embedding_row_update
from fusion.schema.attributes import ROW_UPDATE_DTYPES


def distinct(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The gradient with each id once, in order of first occurrence; values of one id are summed."""
    ids, index = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, index, tf.size(ids))
    return tf.IndexedSlices(values, ids, gradient.dense_shape)


def gather_rows(variable: Any, ids: tf.Tensor) -> tf.Tensor:
    """The rows [u, ...] of `ids` [u]; nothing else of the variable is read."""
    if hasattr(variable, "handle"):
        # As tf.gather does, but for variables of a distribution strategy, which it reads whole.
        return tf.raw_ops.ResourceGather(
            resource=variable.handle, indices=ids, dtype=variable.dtype.base_dtype
        )
    return tf.gather(variable, ids)  # a v1 reference variable


def update_rows(
    variable: tf.Variable, ids: tf.Tensor, function: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Replaces the rows of distinct `ids` by `function` of them; no other row is read or written.

    Args:
      variable: of shape [rows, ...].
      ids: int32 or int64 [u].
      function: from the rows [u, ...] to what they become.

    Returns:
      The new rows [u, ...].
    """
    rows = function(gather_rows(variable, ids))
    variable.scatter_update(tf.IndexedSlices(rows, ids))
    return rows


def subtract_from_rows(variable: tf.Variable, ids: tf.Tensor, change: tf.Tensor) -> None:
    """Subtracts `change` [n, ...] from the rows of `ids` [n]."""
    variable.scatter_sub(tf.IndexedSlices(change, ids))


class RowSparse:
    """What the row-sparse optimizers of both Keras add to stock ones: a base before theirs."""

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        """Updates the rows of the gradient, each operation as the stock one does it to all rows.

        Args:
          gradient: in the variable's dtype; of distinct ids, but for Keras 3's Adagrad.
          variable: the table.
          rate: the learning rate, a scalar in the variable's dtype.
          index: of the table's optimizer variables in their lists.
        """
        raise NotImplementedError

    def _slots(self, index: int, *lists: str) -> tuple[tf.Variable, ...]:
        """The optimizer variables of a table, out of these lists of the optimizer's."""
        raise NotImplementedError

    def _clip_gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        return clip(self, grads, super()._clip_gradients)  # type: ignore[misc]

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Nothing: which rows decay depends on the gradient, which `update_step` has."""


def clip(optimizer: Any, grads: Sequence[Any], clip_dense: Callable[..., Any]) -> Sequence[Any]:
    """The gradients as `clip_dense`, the method of the optimizer's base class, clips dense ones.

    Once its ids are distinct, the norms of an `IndexedSlices` are those of its values.
    """
    if not (optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue):
        return grads
    grads = [distinct(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
    clipped = clip_dense([g.values if isinstance(g, tf.IndexedSlices) else g for g in grads])
    return [
        tf.IndexedSlices(c, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else c
        for g, c in zip(grads, clipped, strict=True)
    ]


def decay(
    optimizer: Any, variable: tf.Variable, learning_rate: tf.Tensor, ids: tf.Tensor | None
) -> None:
    """Applies the optimizer's weight decay to the rows of distinct `ids` [u], or to all rows."""
    if optimizer.weight_decay is None or not optimizer._use_weight_decay(variable):
        return
    factor = tf.cast(optimizer.weight_decay, variable.dtype)
    if ids is None:
        variable.assign_sub(variable * factor * learning_rate)
    else:
        subtract_from_rows(variable, ids, gather_rows(variable, ids) * factor * learning_rate)


def beta_powers(optimizer: Any, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """beta_1^t and beta_2^t of a Keras Adam in its step t."""
    step = tf.cast(optimizer.iterations + 1, dtype)
    return (
        tf.pow(tf.cast(optimizer.beta_1, dtype), step),
        tf.pow(tf.cast(optimizer.beta_2, dtype), step),
    )


def has_fused_update(variable: tf.Variable) -> bool:
    """Whether one op computes what becomes of a table's rows, in the process that trains.

    Tables on parameter servers have stock ops, of which those that add to rows run there: nothing
    that another worker adds meanwhile is lost. XLA compiles stock ops alone.
    """
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return False
    device = tf.DeviceSpec.from_string(variable.device)
    is_near = device.job != "ps" and device.device_type in (None, DEVICES.home)
    return (
        is_near and variable.shape.rank == 2 and variable.dtype.base_dtype.name in ROW_UPDATE_DTYPES
    )


def update_by_rule(
    rule: str,
    gradient: tf.IndexedSlices,
    variables: Sequence[tf.Variable],
    numbers: Sequence[Any],
) -> None:
    """Updates the rows of distinct ids of a table and of optimizer variables beside it, by one op.

    Args:
      rule: of `fused_embedding_row_update`.
      gradient: of distinct ids, in the dtype of the variables.
      variables: those that the rule has, which `has_fused_update`.
      numbers: those of the rule, tensors of that dtype or Python numbers.
    """
    rows = [gather_rows(variable, gradient.indices) for variable in variables]
    scalars = tf.stack([tf.convert_to_tensor(number, gradient.dtype) for number in numbers])
    updated = fused_embedding_row_update(gradient.values, scalars, rows, rule=rule)
    for variable, new in zip(variables, updated, strict=True):
        variable.scatter_update(tf.IndexedSlices(new, gradient.indices))


class Momentum(RowSparse):
    """The update of rows by a Keras SGD with momentum."""

    def __init__(self, learning_rate: Any, momentum: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(learning_rate, momentum, *args, **kwargs)  # type: ignore[call-arg]
        if not momentum:
            name = type(self).__name__
            raise ValueError(
                f"{name} needs a momentum above 0; SGD without one moves no other rows"
            )

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        sgd: Any = self
        (m,) = self._slots(index, "momentums")
        momentum = tf.cast(sgd.momentum, rate.dtype)
        if has_fused_update(variable):
            rule = "nesterov" if sgd.nesterov else "momentum"
            update_by_rule(rule, gradient, (variable, m), (rate, momentum))
            return
        change = gradient.values * rate
        moved = update_rows(m, gradient.indices, lambda m: m * momentum - change)
        step = moved * momentum - change if sgd.nesterov else moved
        variable.scatter_add(tf.IndexedSlices(step, gradient.indices))


class Ftrl(RowSparse):
    """The update of rows by a Keras Ftrl, in one op."""

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        ftrl: Any = self
        accumulator, linear = self._slots(index, "_accumulators", "_linears")
        l1 = ftrl.l1_regularization_strength
        l2 = ftrl.l2_regularization_strength + ftrl.beta / (2 * rate)
        shrinkage = ftrl.l2_shrinkage_regularization_strength
        if has_fused_update(variable) and ftrl.learning_rate_power == -0.5:
            numbers = (rate, l1, 2 * l2, 2 * shrinkage)
            update_by_rule("ftrl", gradient, (variable, accumulator, linear), numbers)
            return
        tf.raw_ops.ResourceSparseApplyFtrlV2(
            var=variable.handle,
            accum=accumulator.handle,
            linear=linear.handle,
            grad=gradient.values,
            indices=gradient.indices,
            lr=rate,
            l1=l1,
            l2=l2,
            l2_shrinkage=shrinkage,
            lr_power=ftrl.learning_rate_power,
            use_locking=True,
        )


def refuse(optimizer: Any, value: Any, argument: str, reason: str) -> None:
    """Raises if an argument that the optimizer cannot do right has a value.

    Raises:
      ValueError: naming the argument and its value.
    """
    if value:
        name = type(optimizer).__name__
        raise ValueError(f"{name} does not support {argument}, got {value!r}: {reason}")


def refuse_constraint(variable: Any) -> None:
    """Raises if a variable that has a sparse gradient has a constraint.

    Raises:
      ValueError: naming the variable and its constraint.
    """
    if variable.constraint is not None:
        raise ValueError(
            f"variable {variable.name!r} has a sparse gradient, which moves some of its rows, "
            f"and a constraint, which moves all of them: {variable.constraint!r}"
        )
