"""Graphs that write and read lists of tensors, and near misses; see `row_cases`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

raw = tf.raw_ops


def unstacked(tensor: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """A list of the parts of a tensor along its first axis."""
    return raw.TensorListFromTensor(tensor=tensor, element_shape=shape)


def stacked(whole: tf.Tensor, shape: list[int]) -> tf.Tensor:
    return raw.TensorListStack(
        input_handle=whole, element_shape=shape, element_dtype=tf.float32, num_elements=-1
    )


def item(whole: tf.Tensor, index: Any, shape: list[int]) -> tf.Tensor:
    return raw.TensorListGetItem(
        input_handle=whole, index=index, element_shape=shape, element_dtype=tf.float32
    )


def reserved(count: Any, shape: Any = (-1, 4)) -> tf.Tensor:
    return raw.TensorListReserve(element_shape=shape, num_elements=count, element_dtype=tf.float32)


def with_item(whole: tf.Tensor, index: Any, value: tf.Tensor) -> tf.Tensor:
    return raw.TensorListSetItem(input_handle=whole, index=index, item=value)


def pushed(*values: tf.Tensor) -> tf.Tensor:
    whole = raw.EmptyTensorList(
        element_shape=[-1, 4], max_num_elements=-1, element_dtype=tf.float32
    )
    for value in values:
        whole = raw.TensorListPushBack(input_handle=whole, tensor=value)
    return whole


def popped(whole: tf.Tensor) -> Any:
    return raw.TensorListPopBack(
        input_handle=whole, element_shape=[-1, 4], element_dtype=tf.float32
    )


def steps(side: Any) -> tf.Tensor:
    """[3, rows, 4]."""
    return tf.transpose(side.y, [1, 0, 2])


def pair(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    return with_item(with_item(reserved(2), 0, first), 1, second)


CASES: dict[str, list[Any]] = {
    "TensorListFromTensor": [
        lambda a, b: item(unstacked(steps(a), [-1, 4]), 1, [-1, 4]) * b.x,
        lambda a, b: stacked(unstacked(steps(a), [-1, 4]), [-1, 4])[2] * b.x,
        lambda a, b: (
            b.y
            * tf.transpose(
                stacked(unstacked(tf.transpose(a.y, [2, 1, 0]), [3, -1]), [3, -1]), [2, 1, 0]
            )
        ),
    ],
    "TensorListReserve": [
        lambda a, b: stacked(with_item(reserved(3), 1, a.x), [-1, 4])[1] + b.x,
        lambda a, b: stacked(pair(a.x, b.x), [-1, 4])[1],
        lambda a, b: item(with_item(reserved(2, tf.shape(a.x)), 0, a.x), 0, [-1, 4]) - b.x,
    ],
    "TensorListStack": [
        lambda a, b: tf.reduce_sum(stacked(pair(a.x, tf.tanh(a.x)), [-1, 4]), 0) * b.x,
    ],
    "TensorListGetItem": [
        lambda a, b: item(pair(a.x, a.x * 2.0), tf.constant([1])[0], [-1, 4]) * b.x,
    ],
    "TensorListSetItem": [
        lambda a, b: item(with_item(pair(a.x, a.x), 0, tf.exp(a.x)), 0, [-1, 4]) * b.x,
    ],
    "EmptyTensorList": [lambda a, b: stacked(pushed(a.x, a.x + 1.0), [-1, 4])[1] * b.x],
    "TensorListPushBack": [lambda a, b: stacked(pushed(a.x, b.x), [-1, 4])[0] + b.x],
    "TensorListPopBack": [
        lambda a, b: popped(pushed(a.x, tf.exp(a.x))).tensor * b.x,
        lambda a, b: popped(popped(pushed(a.x, tf.exp(a.x))).output_handle).tensor * b.x,
    ],
    "TensorListLength": [
        lambda a, b: b.x * tf.cast(raw.TensorListLength(input_handle=pair(a.x, a.x)), tf.float32),
    ],
}

OTHERS: dict[str, list[Any]] = {
    "TensorListFromTensor": [
        lambda a, b: item(unstacked(a.x, [4]), 0, [4]) * b.x,
        lambda a, b: stacked(unstacked(a.y, [3, 4]), [3, 4])[::-1, 0] * b.x,
    ],
    "TensorListReserve": [
        lambda a, b: (
            stacked(with_item(reserved(tf.shape(a.x)[0], [4]), 0, tf.zeros([4])), [4]) + b.x
        ),
        lambda a, b: item(reserved(2), 0, [-1, 4]) + a.x + b.x,
    ],
    "TensorListGetItem": [
        lambda a, b: item(pair(a.x, a.x), tf.cast(a.n[0], tf.int32), [-1, 4]) * b.x,
    ],
    "TensorListSetItem": [
        lambda a, b: stacked(with_item(pair(a.x, a.x), 0, tf.ones([1, 4])), [-1, 4])[1] * b.x,
        lambda a, b: stacked(with_item(pair(a.x, a.x), 0, tf.transpose(a.x)), [-1, -1])[1] * b.x,
        lambda a, b: (
            item(with_item(pair(a.x, a.x), tf.shape(a.x)[0] % 2, 2.0 * a.x), 0, [-1, 4]) * b.x
        ),
        lambda a, b: item(with_item(pair(a.x, a.x), 0, a.x[::-1]), 0, [-1, 4]) * b.x,
    ],
    "TensorListPushBack": [
        lambda a, b: stacked(pushed(a.x, tf.reverse(a.x, [0])), [-1, 4])[1] * b.x,
    ],
}
