"""Gradients and updates of some rows of a variable; what the Keras optimizers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.ops.registered import DEVICES
from fusion.ops.updates.cpu_kernels.lowering import Inputs, lower
from fusion.optimizers.programs import PROGRAMS
from fusion.runtime.tensorflow.private import control_flow_util
from fusion.runtime.tensorflow.variable_access import is_updated_in_place
from fusion.schema.attributes import UPDATE_DTYPES
from fusion.tables.registry import embedding_variable_of


def distinct(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The gradient with each id once, in order of first occurrence; values of one id are summed."""
    ids, index = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, index, tf.size(ids))
    return tf.IndexedSlices(values, ids, gradient.dense_shape)


def after_filling(gradient: tf.IndexedSlices, table: Any) -> tf.IndexedSlices:
    """The gradient once the optimizer variables have rows for its keys, if keys have rows at all.

    Args:
      gradient: of `table`, whose keys have got their rows by now.
      table: a variable, of an embedding variable or any other.
    """
    variable = embedding_variable_of(table)
    if variable is None:
        return gradient
    with tf.control_dependencies([gradient.values, gradient.indices]):
        filled = variable.fill_slots()
    with tf.control_dependencies(filled):
        return tf.IndexedSlices(
            tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape
        )


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

    #: Known to the checks of stock optimizers, see `fusion.tables.keras_slots`.
    is_row_sparse = True

    def _rule(self) -> str:
        """The name of what it does to rows, see `update_by_program`."""
        raise NotImplementedError

    def _prepared(self, gradient: tf.IndexedSlices, variable: tf.Variable) -> tf.IndexedSlices:
        """The gradient in the variable's dtype; with each id once, unless one op sees to that."""
        dtype = variable.dtype.base_dtype
        is_one_op = has_program(variable, self._rule())
        if not is_one_op or decays(self, variable) or gradient.dtype != dtype:
            gradient = distinct(gradient)
        return tf.cast(gradient, dtype)

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        """Updates the rows of the gradient, each operation as the stock one does it to all rows.

        Args:
          gradient: as `_prepared`.
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


def decays(optimizer: Any, variable: tf.Variable) -> bool:
    """Whether the optimizer's weight decay acts on a variable."""
    return optimizer.weight_decay is not None and optimizer._use_weight_decay(variable)


def decay(
    optimizer: Any, variable: tf.Variable, learning_rate: tf.Tensor, ids: tf.Tensor | None
) -> None:
    """Applies the optimizer's weight decay to the rows of distinct `ids` [u], or to all rows.

    By stock's ops, whose products TensorFlow's optimizer of graphs rearranges as it does stock's.
    """
    if not decays(optimizer, variable):
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
    """Whether one op updates a table, where its variables are: FusedEmbeddingUpdate, on a CPU.

    Where ops go to a GPU tables have stock ops: FusedEmbeddingUpdate has no kernel for GPUs. So
    have tables on parameter servers: stock ops that add to rows run there, and nothing that another
    worker adds meanwhile is lost. XLA compiles stock ops alone.
    """
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return False
    device = tf.DeviceSpec.from_string(variable.device)
    is_near = device.job != "ps" and device.device_type in (None, "CPU") and DEVICES.home == "CPU"
    dtype = variable.dtype.base_dtype.name
    is_table = variable.shape.rank == 2 and dtype in UPDATE_DTYPES
    return is_near and is_table and is_updated_in_place(dtype)


def has_program(variable: tf.Variable, rule: str) -> bool:
    """Whether `update_by_program` updates a table by a rule."""
    return rule in PROGRAMS and has_fused_update(variable)


def update_by_program(
    rule: str,
    gradient: tf.IndexedSlices,
    variables: Sequence[tf.Variable],
    numbers: Sequence[Any],
) -> None:
    """Updates the rows of a gradient in a table and in optimizer variables beside it, by one op.

    Args:
      rule: of `PROGRAMS`, one that the table has, see `has_program`.
      gradient: in the dtype of the variables.
      variables: those that the rule has, the table first.
      numbers: those of the rule, tensors of that dtype or Python numbers.
    """
    table, program = variables[0], PROGRAMS[rule]
    dtype = table.dtype.base_dtype
    deduplicates = rule != "adagrad"  # which squares each value of an id by itself
    ops.fused_embedding_update(
        [variable.handle for variable in variables],
        gradient.indices,
        [gradient.values],
        [tf.convert_to_tensor(number, dtype) for number in numbers],
        num_results=0,
        dim=table.shape[1],
        offsets=[-1],
        sparse=[True] * len(variables),
        program=program,
        code=lower(program, Inputs(len(variables), 1, len(numbers), 0, deduplicates)),
        deduplicate=deduplicates,
    )


class Momentum(RowSparse):
    """The update of rows by a Keras SGD with momentum."""

    def __init__(self, learning_rate: Any, momentum: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(learning_rate, momentum, *args, **kwargs)  # type: ignore[call-arg]
        if not momentum:
            name = type(self).__name__
            raise ValueError(
                f"{name} needs a momentum above 0; SGD without one moves no other rows"
            )

    def _rule(self) -> str:
        sgd: Any = self
        return "nesterov" if sgd.nesterov else "momentum"

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        sgd: Any = self
        (m,) = self._slots(index, "momentums")
        momentum = tf.cast(sgd.momentum, rate.dtype)
        if has_program(variable, self._rule()):
            update_by_program(self._rule(), gradient, (variable, m), (rate, momentum))
            return
        change = gradient.values * rate
        moved = update_rows(m, gradient.indices, lambda m: m * momentum - change)
        step = moved * momentum - change if sgd.nesterov else moved
        variable.scatter_add(tf.IndexedSlices(step, gradient.indices))


class Ftrl(RowSparse):
    """The update of rows by a Keras Ftrl, in one op."""

    def _rule(self) -> str:
        ftrl: Any = self
        return "ftrl" if ftrl.learning_rate_power == -0.5 else "ftrl with another power"

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor, index: int
    ) -> None:
        ftrl: Any = self
        accumulator, linear = self._slots(index, "_accumulators", "_linears")
        l1 = ftrl.l1_regularization_strength
        l2 = ftrl.l2_regularization_strength + ftrl.beta / (2 * rate)
        shrinkage = ftrl.l2_shrinkage_regularization_strength
        if has_program(variable, self._rule()):
            numbers = [_positive(rate), l1, 2 * l2, 2 * shrinkage, -l1]
            update_by_program("ftrl", gradient, (variable, accumulator, linear), numbers)
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


def _positive(rate: tf.Tensor) -> tf.Tensor:
    """A learning rate that is checked in each step, as TensorFlow's op for Ftrl does."""
    check = tf.debugging.Assert(rate > 0, ["lr is not a positive scalar", rate])
    with tf.control_dependencies([check]):
        return tf.identity(rate)


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
