"""What the layers of either Keras do alike to have the variables and lookup tables of columns."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.feature_column.inputs import walk
from fusion.feature_column.single_ids import VOCABULARIES
from fusion.runtime.tensorflow.private import feature_column_v2 as stock


def create_vocabularies(column: Any, state: stock.StateManager) -> None:
    """Lets the vocabularies of a column create their tables now, not inside the first graph."""
    for part in walk(column):
        if isinstance(part, VOCABULARIES):
            with tf.init_scope():
                values = tf.zeros([0], part.dtype)
                nothing = tf.SparseTensor(tf.zeros([0, 2], tf.int64), values, [0, 0])
                part._transform_input_tensor(nothing, state)


def scope_name(name: str) -> str:
    """A column's name as part of a variable's name."""
    sanitized: str = stock._sanitize_column_name_for_variable_scope(name)
    return sanitized


def without_checkpoint(column: Any) -> Any:
    """The column, without the checkpoint that stock restores its table from in each lookup."""
    if getattr(column, "ckpt_to_load_from", None) is None:
        return column
    return column._replace(ckpt_to_load_from=None, tensor_name_in_ckpt=None)
