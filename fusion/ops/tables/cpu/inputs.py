"""The inputs of an op that are tensors, not variables."""

from __future__ import annotations

import numpy as np

from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.tensorflow.c_api import tf_delete_tensor, tf_dim, tf_get_input, tf_num_dims


@jit
def take(frame: op.Frame, tensors: Words, index: int, number: int) -> int:
    """The tensor of an input; 0 if it cannot be had.

    Args:
      tensors: where tensors are noted, to be released: zeros in the beginning.
      index: of the input.
      number: of the tensor among these.
    """
    tf_get_input(frame.context, np.int32(index), tensors + 8 * number, frame.status)
    op.check(frame)
    if op.failed(frame):
        tensors[number] = 0
    return tensors[number]


@jit
def release(tensors: Words, count: int) -> None:
    """Releases tensors; 0 is none."""
    for k in range(count):
        if tensors[k] != 0:
            tf_delete_tensor(tensors[k])


@jit
def element_count(tensor: int) -> int:
    """The number of elements of a tensor."""
    elements = int64(1)
    for axis in range(tf_num_dims(tensor)):
        elements *= tf_dim(tensor, np.int32(axis))
    return elements
