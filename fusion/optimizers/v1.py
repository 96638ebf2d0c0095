"""The row-sparse Adam for `tf.compat.v1` training."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.optimizers.rows import gather_rows


class LazyAdamOptimizer(tf.compat.v1.train.AdamOptimizer):
    """`tf.compat.v1.train.AdamOptimizer` that moves only the rows that have a gradient.

    Step t does this to the rows of an `IndexedSlices` gradient g (values of equal ids are summed
    first):

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        row -= learning_rate sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon)

    t counts all steps, not those in which the row had a gradient. All other rows, and their m
    and v, stay as they are; AdamOptimizer decays m and v and moves each row that ever had a
    gradient. With a dense gradient it is AdamOptimizer. Variables may be references or resources.

    Arguments and slot variables, with their names, are AdamOptimizer's: each can restore the
    other's checkpoints.
    """

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        return self._apply_rows(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any, indices: Any) -> tf.Operation:
        return self._apply_rows(grad, handle, indices)

    def _apply_rows(self, grad: tf.Tensor, var: Any, ids: tf.Tensor) -> tf.Operation:
        """Updates the rows of distinct `ids` [u] by their gradients [u, ...].

        Each operation is one of AdamOptimizer's, in the same order, so that the rows get the very
        bits that it would give them.
        """

        def as_row_type(value: Any) -> tf.Tensor:
            return tf.cast(value, var.dtype.base_dtype)

        beta1_power, beta2_power = map(as_row_type, self._get_beta_accumulators())
        beta1, beta2 = as_row_type(self._beta1_t), as_row_type(self._beta2_t)
        rate = as_row_type(self._lr_t) * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_rows = gather_rows(m, ids) * beta1 + grad * (1 - beta1)
        v_rows = gather_rows(v, ids) * beta2 + (grad * grad) * (1 - beta2)
        step = rate * m_rows / (tf.sqrt(v_rows) + as_row_type(self._epsilon_t))
        scatter_update = tf.compat.v1.scatter_update
        return tf.group(
            scatter_update(m, ids, m_rows, use_locking=self._use_locking),
            scatter_update(v, ids, v_rows, use_locking=self._use_locking),
            tf.compat.v1.scatter_sub(var, ids, step, use_locking=self._use_locking),
        )
