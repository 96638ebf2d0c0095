"""Random graphs over inputs of requests and of candidates.

A program is a list of steps; each takes values that there are and adds one. What a step takes is
drawn when it runs, from a generator of the program's seed and the step's number: to leave out the
last steps leaves the others as they are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tests.request_splits import Array, Model, model_of

v1 = tf.compat.v1

#: Names of nodes of planted steps begin with this.
PLANTED = "planted"
#: Rows of tables of embeddings.
IDS = 9


@dataclass(frozen=True)
class Value:
    """A tensor of a program.

    Attributes:
        tensor: it.
        shape: what it is, None for the axis of rows.
    """

    tensor: tf.Tensor
    shape: tuple[int | None, ...]

    @property
    def axis(self) -> int:
        """The axis of rows."""
        return self.shape.index(None)

    @property
    def inner(self) -> list[int]:
        """The other axes."""
        return [axis for axis in range(len(self.shape)) if axis != self.axis]

    @property
    def columns(self) -> int:
        """How many elements a row has."""
        return math.prod(size for size in self.shape if size is not None)


class Program:
    """A graph that is being built, with the values that there are so far."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: list[Value] = []
        self.ids: list[Value] = []
        for name, shape, known in (
            ("u_a", (None, 4), True),
            ("u_b", (None, 20), True),
            ("u_c", (None, 3), False),
            ("u_h", (None, 5, 4), rng.random() < 0.7),
            ("c_a", (None, 4), True),
            ("c_b", (None, 3, 4), rng.random() < 0.7),
            ("c_c", (None,), True),
            ("u_d", (None,), True),
        ):
            own = shape if known else [None] * len(shape)
            self.values.append(Value(v1.placeholder(tf.float32, own, name), shape))
        for name, shape in (("u_id", (None,)), ("u_ids", (None, 5)), ("c_id", (None,))):
            self.ids.append(Value(v1.placeholder(tf.int64, shape, name), shape))
        rng.shuffle(self.values)

    def array(self, *shape: int | None) -> Array:
        """Returns random numbers."""
        generator = np.random.default_rng(self.rng.randrange(2**32))
        return generator.normal(size=[size or 1 for size in shape]).astype(np.float32) / 2

    def take(self) -> Value:
        """Returns a value, rather a late one."""
        recent = self.values[-6:] if self.rng.random() < 0.7 else self.values
        return self.rng.choice(recent)

    def first(self, value: Value) -> Value:
        """Returns a value with the axis of rows in front."""
        if not value.axis:
            return value
        order = [value.axis, *value.inner]
        return Value(tf.transpose(value.tensor, order), tuple(value.shape[k] for k in order))

    def rows(self, value: Value) -> Any:
        """Returns what a reshape takes for the number of rows."""
        is_known = None not in value.tensor.shape[1:].as_list()
        return -1 if is_known and self.rng.random() < 0.6 else tf.shape(value.tensor)[0]

    def flat(self, value: Value) -> Value:
        """Returns a value as a matrix."""
        value = self.first(value)
        if len(value.shape) == 2:
            return value
        shape = (None, value.columns)
        return Value(tf.reshape(value.tensor, [self.rows(value), value.columns]), shape)

    def dense(self, value: Value, width: int | None, activation: bool = True) -> Value:
        """Returns a layer of a value."""
        flat, rng, width = self.flat(value), self.rng, width or 1
        scale = np.float32(1 / np.sqrt(flat.columns))
        found = tf.matmul(flat.tensor, self.array(flat.columns, width) * scale)
        if rng.random() < 0.7:
            bias = self.array(width)
            found = tf.nn.bias_add(found, bias) if rng.random() < 0.5 else found + bias
        if activation and rng.random() < 0.7:
            found = rng.choice([tf.nn.relu, tf.tanh, tf.sigmoid])(found)
        return Value(found, (None, width))

    def like(self, value: Value, other: Value) -> Value:
        """Returns a value with the shape of another one."""
        if value.shape == other.shape:
            return value
        flat = self.dense(value, other.columns, False)
        sizes = [other.shape[axis] for axis in other.inner]
        found = Value(tf.reshape(flat.tensor, [-1, *sizes]), (None, *sizes))
        if other.axis:
            order = [
                1 + other.inner.index(k) if k in other.inner else 0 for k in range(len(other.shape))
            ]
            return Value(tf.transpose(found.tensor, order), other.shape)
        return found


Step = Callable[[Program], "Value | None"]


def _unary(p: Program) -> Value:
    one = p.take()
    op = p.rng.choice(
        [
            *(tf.tanh, tf.nn.relu, tf.sigmoid, tf.square, tf.negative, tf.abs, tf.identity),
            *(tf.stop_gradient, tf.nn.softplus, tf.nn.elu, tf.nn.relu6, tf.zeros_like),
            *(tf.ones_like, tf.floor, tf.nn.leaky_relu, lambda x: tf.exp(tf.tanh(x))),
            lambda x: tf.cast(tf.cast(x, tf.float64), tf.float32),
            lambda x: tf.math.log1p(tf.square(x)),
        ]
    )
    return Value(op(one.tensor), one.shape)


def _with_constant(p: Program) -> Value:
    one, rng = p.take(), p.rng
    shape = [
        1 if k == one.axis or rng.random() < 0.3 else one.shape[k] for k in range(len(one.shape))
    ]
    drop = rng.choice([0, one.axis + 1, len(shape)]) if rng.random() < 0.8 else 0
    number = p.array(*shape[drop:])
    op = rng.choice([tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum])
    return Value(
        op(*((one.tensor, number) if rng.random() < 0.6 else (number, one.tensor))), one.shape
    )


def _binary(p: Program) -> Value:
    one, rng = p.take(), p.rng
    if rng.random() < 0.3 and one.inner:
        axis = rng.choice(one.inner)
        other = Value(tf.reduce_mean(p.like(p.take(), one).tensor, axis, keepdims=True), one.shape)
    else:
        other = p.like(p.take(), one)
    op = rng.choice(
        [tf.add, tf.add, tf.subtract, tf.multiply, tf.maximum, tf.math.squared_difference]
    )
    operands = (one.tensor, other.tensor)
    return Value(op(*(operands if rng.random() < 0.5 else operands[::-1])), one.shape)


def _chosen(p: Program) -> Value:
    one = p.take()
    a, b = p.like(p.take(), one), p.like(p.take(), one)
    return Value(tf.where(one.tensor > 0, a.tensor, b.tensor), one.shape)


def _add_n(p: Program) -> Value:
    one = p.take()
    return Value(tf.add_n([one.tensor, p.like(p.take(), one).tensor]), one.shape)


def _concat(p: Program) -> Value:
    rng = p.rng
    parts = [p.flat(p.take()) for _ in range(rng.randint(2, 5))]
    if rng.random() < 0.2:
        rows = tf.shape(parts[0].tensor)[0]
        parts.append(Value(tf.ones([rows, 1]), (None, 1)))
    width = sum(part.columns for part in parts)
    return Value(tf.concat([part.tensor for part in parts], rng.choice([1, -1])), (None, width))


def _concat_inner(p: Program) -> Value | None:
    one = p.take()
    if not one.inner:
        return None
    axis = p.rng.choice(one.inner)
    shape = (*one.shape[:axis], 2 * (one.shape[axis] or 1), *one.shape[axis + 1 :])
    return Value(tf.concat([one.tensor, p.like(p.take(), one).tensor], axis), shape)


def _dense(p: Program) -> Value:
    return p.dense(p.take(), p.rng.choice([1, 4, 6, 16, 24]))


def _deep(p: Program) -> Value:
    """A concat of several, and layers."""
    found = _concat(p)
    for width in (16, 8):
        found = p.dense(found, width)
    return found


def _reshape(p: Program) -> Value | None:
    one, rng = p.flat(p.take()), p.rng
    divisors = [k for k in range(1, one.columns + 1) if one.columns % k == 0]
    a = rng.choice(divisors)
    return Value(
        tf.reshape(one.tensor, [p.rows(one), a, one.columns // a]), (None, a, one.columns // a)
    )


def _folded(p: Program) -> Value | None:
    """A layer of each of several vectors of a row."""
    one = p.first(p.take())
    if len(one.shape) != 3 or None in one.tensor.shape[1:].as_list():
        return None
    _, a, b = one.shape
    assert a is not None
    assert b is not None
    both = p.dense(Value(tf.reshape(one.tensor, [-1, b]), (None, b)), p.rng.choice([1, 3, b]))
    return Value(tf.reshape(both.tensor, [-1, a, both.columns]), (None, a, both.columns))


def _transpose(p: Program) -> Value:
    one = p.take()
    order = p.rng.sample(range(len(one.shape)), len(one.shape))
    return Value(tf.transpose(one.tensor, order), tuple(one.shape[k] for k in order))


def _reduce(p: Program) -> Value | None:
    one, rng = p.take(), p.rng
    if not one.inner:
        return None
    axes = rng.sample(one.inner, rng.randint(1, len(one.inner)))
    keeps = rng.random() < 0.4
    op = rng.choice([tf.reduce_sum, tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min])
    rank = len(one.shape)
    axes = [axis - rank if rng.random() < 0.4 else axis for axis in axes]
    found = op(one.tensor, axes, keepdims=keeps)
    kept = [axis for axis in range(rank) if axis not in {k % rank for k in axes}]
    shape = [None if k == one.axis else one.shape[k] if k in kept else 1 for k in range(rank)]
    return Value(found, tuple(shape[k] for k in (range(rank) if keeps else kept)))


def _softmax(p: Program) -> Value | None:
    one = p.take()
    if one.axis == len(one.shape) - 1:
        return None
    return Value(p.rng.choice([tf.nn.softmax, tf.nn.log_softmax])(one.tensor), one.shape)


def _sliced(p: Program) -> Value | None:
    one, rng = p.take(), p.rng
    if not one.inner:
        return None
    axis = rng.choice(one.inner)
    size = one.shape[axis]
    assert size is not None
    begin = rng.randrange(size)
    end = rng.randint(begin + 1, size)
    kind = rng.randrange(4)
    where: list[Any] = [slice(None)] * len(one.shape)
    shape = [*one.shape]
    if kind == 0:
        where[axis] = begin
        del shape[axis]
    elif kind == 1:
        where[axis], shape[axis] = slice(begin, end), end - begin
    elif kind == 2:
        where[axis] = slice(None, None, -1)
    else:
        where = [Ellipsis, tf.newaxis, *[slice(None)] * (len(shape) - axis)]
        shape.insert(axis, 1)
    return Value(one.tensor[tuple(where)], tuple(shape))


def _split(p: Program) -> Value | None:
    one, rng = p.take(), p.rng
    axes = [axis for axis in one.inner if (one.shape[axis] or 0) % 2 == 0]
    if not axes:
        return None
    axis = rng.choice(axes)
    size = one.shape[axis]
    assert size is not None
    shape = (*one.shape[:axis], size // 2, *one.shape[axis + 1 :])
    if one.tensor.shape[axis] is None:
        return None
    a, b = tf.split(one.tensor, 2, axis)
    return Value(rng.choice([a, b, a + b, tf.maximum(a, b)]), shape)


def _stack(p: Program) -> Value:
    one, rng = p.flat(p.take()), p.rng
    parts = [p.like(p.take(), one).tensor for _ in range(rng.randint(1, 3))] + [one.tensor]
    return Value(tf.stack(parts, 1), (None, len(parts), one.columns))


def _unstack(p: Program) -> Value | None:
    one = p.take()
    axes = [axis for axis in one.inner if one.tensor.shape.rank and one.tensor.shape[axis]]
    if not axes:
        return None
    axis = p.rng.choice(axes)
    found = tf.unstack(one.tensor, axis=axis)
    return Value(p.rng.choice(found), (*one.shape[:axis], *one.shape[axis + 1 :]))


def _pad(p: Program) -> Value | None:
    one = p.take()
    if not one.inner:
        return None
    axis = p.rng.choice(one.inner)
    amounts = [[0, 0] for _ in one.shape]
    amounts[axis] = [1, 2]
    shape = [*one.shape]
    shape[axis] = (shape[axis] or 0) + 3
    return Value(tf.pad(one.tensor, amounts), tuple(shape))


def _along(p: Program) -> Value | None:
    one = p.take()
    if not one.inner:
        return None
    axis = p.rng.choice(one.inner)
    op = p.rng.choice([tf.cumsum, lambda x, axis: tf.reverse(x, [axis])])
    return Value(op(one.tensor, axis=axis), one.shape)


def _top(p: Program) -> Value | None:
    one = p.take()
    if one.axis == len(one.shape) - 1:
        return None
    count = p.rng.randint(1, min(3, one.shape[-1] or 1))
    return Value(tf.math.top_k(one.tensor, count).values, (*one.shape[:-1], count))


def _tile(p: Program) -> Value | None:
    one = p.take()
    if not one.inner or one.columns > 200:
        return None
    axis = p.rng.choice(one.inner)
    by = [2 if k == axis else 1 for k in range(len(one.shape))]
    shape = [None if size is None else size * k for size, k in zip(one.shape, by, strict=True)]
    return Value(tf.tile(one.tensor, by), tuple(shape))


def _expand(p: Program) -> Value:
    one = p.take()
    axis = p.rng.randint(0, len(one.shape))
    return Value(tf.expand_dims(one.tensor, axis), (*one.shape[:axis], 1, *one.shape[axis:]))


def _squeeze(p: Program) -> Value | None:
    one = p.take()
    axes = [k for k in one.inner if one.shape[k] == 1 and one.tensor.shape[k] == 1]
    if not axes:
        return None
    axis = p.rng.choice(axes)
    return Value(tf.squeeze(one.tensor, [axis]), (*one.shape[:axis], *one.shape[axis + 1 :]))


def _normalised(p: Program) -> Value:
    one = p.flat(p.take())
    if p.rng.random() < 0.5:
        mean, variance = tf.nn.moments(one.tensor, [-1], keepdims=True)
        return Value((one.tensor - mean) * tf.math.rsqrt(variance + 0.1), one.shape)
    width = one.columns
    shaped = tf.reshape(one.tensor, [-1, 1, 1, width])
    scale, offset, mean, variance = (p.array(width) for _ in range(4))
    found, *_ = v1.nn.fused_batch_norm(
        shaped, scale, offset, mean, np.square(variance) + 0.5, is_training=False
    )
    return Value(tf.reshape(found, [-1, width]), one.shape)


def _factorised(p: Program) -> Value:
    parts = [p.dense(p.take(), 4, False).tensor for _ in range(3)]
    fields = (
        tf.stack(parts, 1) if p.rng.random() < 0.5 else tf.reshape(tf.concat(parts, 1), [-1, 3, 4])
    )
    total = tf.square(tf.reduce_sum(fields, 1)) - tf.reduce_sum(tf.square(fields), 1)
    return Value(tf.reduce_sum(total * 0.5, 1, keepdims=True), (None, 1))


def _pairs(p: Program) -> Value:
    fields = tf.stack([p.dense(p.take(), 4, False).tensor for _ in range(3)], 1)
    product = tf.matmul(fields, fields, transpose_b=True)
    flat = tf.reshape(product, [-1, 9])
    return Value(tf.gather(flat, [1, 2, 5], axis=1), (None, 3))


def _attention(p: Program) -> Value:
    history = p.first(p.take())
    if len(history.shape) != 3 or history.columns > 60:
        history = next(v for v in p.values if v.tensor.op.name == "u_h")
    length, width = (size or 1 for size in history.shape[1:])
    query = p.dense(p.take(), width, False).tensor
    kind = p.rng.randrange(3)
    if kind == 0:
        scores = tf.squeeze(tf.matmul(history.tensor, tf.expand_dims(query, 2)), [2])
    elif kind == 1:
        scores = tf.einsum("bld,bd->bl", history.tensor, query)
    else:
        wide = tf.tile(tf.expand_dims(query, 1), [1, length, 1])
        joined = tf.concat([wide, history.tensor, wide - history.tensor, wide * history.tensor], 2)
        shape = (None, 4 * width)
        hidden = p.dense(Value(tf.reshape(joined, [-1, 4 * width]), shape), 8)
        scores = tf.reshape(p.dense(hidden, 1, False).tensor, [-1, length])
    weights = tf.nn.softmax(scores)
    return Value(tf.reduce_sum(tf.expand_dims(weights, 2) * history.tensor, 1), (None, width))


def _einsum(p: Program) -> Value:
    one, rng = p.flat(p.take()), p.rng
    kind = rng.randrange(3)
    if kind == 0:
        return Value(tf.einsum("bi,io->bo", one.tensor, p.array(one.columns, 4)), (None, 4))
    other = p.like(p.take(), one)
    if kind == 1:
        return Value(tf.einsum("bi,bi->b", one.tensor, other.tensor), (None,))
    if one.columns > 12:
        one, other = p.dense(one, 4), p.dense(other, 4)
    found = tf.einsum("bi,bj->bij", one.tensor, other.tensor)
    return Value(found, (None, one.columns, other.columns))


def _embedding(p: Program) -> Value:
    ids = p.rng.choice(p.ids)
    width = p.rng.choice([4, 20])
    found = tf.gather(p.array(IDS, width), ids.tensor)
    return Value(found, (*ids.shape, width))


def _gather(p: Program) -> Value | None:
    one = p.take()
    if not one.inner:
        return None
    axis = p.rng.choice(one.inner)
    picked = [p.rng.randrange(one.shape[axis] or 1) for _ in range(2)]
    shape = (*one.shape[:axis], 2, *one.shape[axis + 1 :])
    return Value(tf.gather(one.tensor, picked, axis=axis), shape)


def _picked(p: Program) -> Value:
    """Elements of a row by numbers of it."""
    one = p.flat(p.take())
    other = p.flat(p.take())
    where = tf.argmax(other.tensor, 1) % one.columns
    return Value(tf.gather(one.tensor, where[:, tf.newaxis], axis=1, batch_dims=1), (None, 1))


def _one_hot(p: Program) -> Value:
    one = p.flat(p.take())
    return Value(tf.one_hot(tf.argmax(one.tensor, 1), one.columns), (None, one.columns))


def _ones(p: Program) -> Value:
    one = p.flat(p.take())
    rows = tf.shape(one.tensor)[0]
    kind = p.rng.randrange(3)
    if kind == 0:
        found = tf.tile(p.array(1, 3), [rows, 1])
    elif kind == 1:
        found = tf.broadcast_to(p.array(3), [rows, 3])
    else:
        found = tf.fill(tf.stack([rows, 3]), 0.5)
    return Value(found, (None, 3))


STEPS: tuple[Step, ...] = (
    *(_unary, _with_constant, _binary, _binary, _chosen, _add_n, _concat, _concat, _concat_inner),
    *(_dense, _dense, _deep, _reshape, _folded, _transpose, _reduce, _reduce, _softmax, _sliced),
    *(_split, _stack, _unstack, _pad, _along, _top, _tile, _expand, _squeeze, _normalised),
    *(_factorised, _pairs, _attention, _einsum, _embedding, _gather, _picked, _one_hot, _ones),
)


def build(seed: int, steps: int, planted: Step | None = None) -> Model:
    """Returns the model of a program of so many steps.

    Args:
        seed: of all that is drawn.
        steps: how many there are.
        planted: a step that is taken in the midst of them, whose value all outputs depend on.
    """
    rng = random.Random(seed)
    at = rng.randrange(steps)
    with tf.Graph().as_default() as graph:
        program, forced = Program(rng), None
        for number in range(steps):
            program.rng = random.Random(seed * 1009 + number)
            found = program.rng.choice(STEPS)(program)
            if found is not None and found.columns <= 600:
                program.values.append(found)
            if planted is not None and number == at:
                with tf.name_scope(PLANTED):
                    forced = planted(program)
                assert forced is not None
                program.values.append(forced)
        program.rng = random.Random(seed + 1)
        price = next(value for value in program.values if value.tensor.op.name == "c_c")
        last = [price, *program.values[-4:], *([] if forced is None else [forced])]
        parts = [program.flat(value).tensor for value in last]
        joined = Value(tf.concat(parts, 1), (None, sum(value.columns for value in last)))
        outputs = [tf.identity(program.dense(joined, 1, False).tensor, "out")]
        outputs.append(tf.identity(program.flat(program.values[-1]).tensor, "last"))
        if forced is not None:
            outputs = outputs[:1]
        return model_of(graph, outputs)


def feeds(seed: int, requests: int, candidates: int) -> dict[str, Array]:
    """Returns what the inputs of a program are fed."""
    generator = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    sizes = {"u_a": (4,), "u_b": (20,), "u_c": (3,), "u_h": (5, 4), "u_d": ()}
    sizes |= {"c_a": (4,), "c_b": (3, 4), "c_c": ()}
    for name, inner in sizes.items():
        count = requests if name[0] == "u" else candidates
        found[name] = generator.normal(size=(count, *inner)).astype(np.float32)
    for name, inner in {"u_id": (), "u_ids": (5,), "c_id": ()}.items():
        count = requests if name[0] == "u" else candidates
        found[name] = generator.integers(0, IDS, (count, *inner))
    return found


# Steps that mix rows


def _batch(p: Program) -> Value:
    """Returns a value that is not the same in each row, as a matrix."""
    names = [value for value in p.values if value.tensor.op.type == "Placeholder"]
    value = p.take() if p.rng.random() < 0.5 else p.rng.choice(names)
    flat = p.flat(value)
    if flat.columns > 40:
        flat = p.dense(flat, 4)
    return flat if flat.columns > 1 else p.dense(flat, 2, False)


def _reduced_over_rows(p: Program) -> Value:
    one = _batch(p)
    op = p.rng.choice([tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min])
    found = op(one.tensor, 0, keepdims=p.rng.random() < 0.5)
    return Value(one.tensor + found, one.shape)


def _reduced_over_all(p: Program) -> Value:
    one = _batch(p)
    return Value(one.tensor * tf.reduce_sum(one.tensor), one.shape)


def _softmax_over_rows(p: Program) -> Value:
    one = p.dense(_batch(p), 1, False)
    if p.rng.random() < 0.5:
        return Value(tf.nn.softmax(tf.reshape(one.tensor, [-1])), (None,))
    return Value(tf.nn.softmax(one.tensor, axis=0), one.shape)


def _cumulated(p: Program) -> Value:
    one = _batch(p)
    return Value(tf.cumsum(one.tensor, axis=p.rng.choice([0, -2])), one.shape)


def _reversed_rows(p: Program) -> Value:
    one = _batch(p)
    found = tf.reverse(one.tensor, [0]) if p.rng.random() < 0.5 else one.tensor[::-1]
    return Value(one.tensor - found, one.shape)


def _rolled(p: Program) -> Value:
    one = _batch(p)
    if p.rng.random() < 0.5:
        return Value(tf.roll(one.tensor, 1, 0) - one.tensor, one.shape)
    return Value(tf.concat([one.tensor[1:], one.tensor[:1]], 0) - one.tensor, one.shape)


def _sorted_rows(p: Program) -> Value:
    one = _batch(p)
    return Value(tf.sort(one.tensor, axis=0), one.shape)


def _scored_in_batch(p: Program) -> Value:
    one = _batch(p)
    scores = tf.matmul(one.tensor, one.tensor, transpose_b=True)
    return Value(tf.matmul(scores, one.tensor), one.shape)


def _first_row(p: Program) -> Value:
    one = _batch(p)
    kind = p.rng.randrange(4)
    if kind == 0:
        row = one.tensor[:1]
    elif kind == 1:
        row = one.tensor[0]
    elif kind == 2:
        row = tf.gather(one.tensor, [0])
    else:
        row = tf.gather_nd(one.tensor, [[0]])
    return Value(one.tensor * row, one.shape)


def _transposed_and_reshaped(p: Program) -> Value:
    one = _batch(p)
    size = tf.shape(one.tensor)
    turned = tf.transpose(one.tensor)
    shape: Any = p.rng.choice(
        [[-1, one.columns], tf.shape(one.tensor), tf.stack([size[0], size[1]])]
    )
    return Value(tf.reshape(turned, shape), one.shape)


def _halves(p: Program) -> Value:
    """Rows in two halves, each of which gets the other's mean; a copy makes their number even."""
    one = _batch(p)
    if one.columns % 2:
        one = p.dense(one, 2, False)
    mixed = tf.reshape(one.tensor, [2, -1])
    mixed = mixed + tf.reduce_sum(mixed, 0, keepdims=True)
    return Value(tf.reshape(mixed, [-1, one.columns]), one.shape)


def _rows_in_rows(p: Program) -> Value:
    one = _batch(p)
    rows = tf.cast(tf.shape(one.tensor)[0], tf.int64)
    where = tf.argmax(one.tensor, 1) % rows
    return Value(tf.gather(one.tensor, where) - one.tensor, one.shape)


def _top_over_rows(p: Program) -> Value:
    one = _batch(p)
    top = tf.math.top_k(tf.transpose(one.tensor), 1).values
    return Value(one.tensor - tf.transpose(top), one.shape)


def _trained_batch_norm(p: Program) -> Value:
    one = _batch(p)
    if p.rng.random() < 0.5:
        mean, variance = tf.nn.moments(one.tensor, [0])
        return Value((one.tensor - mean) * tf.math.rsqrt(variance + 0.1), one.shape)
    shaped = tf.reshape(one.tensor, [-1, 1, 1, one.columns])
    found, *_ = v1.nn.fused_batch_norm(shaped, p.array(one.columns), p.array(one.columns))
    return Value(tf.reshape(found, [-1, one.columns]), one.shape)


def _number_of_rows(p: Program) -> Value:
    one = _batch(p)
    size = tf.shape(one.tensor)
    kind = p.rng.randrange(6)
    if kind == 0:
        return Value(one.tensor / tf.cast(size[0], tf.float32), one.shape)
    if kind == 1:
        numbers = tf.cast(tf.range(size[0]), tf.float32)
        return Value(one.tensor + numbers[:, tf.newaxis], one.shape)
    if kind == 2:
        return Value(one.tensor * tf.cast(tf.size(one.tensor), tf.float32), one.shape)
    if kind == 3:
        width = tf.minimum(size[0] // 4, one.columns)
        return Value(tf.reduce_sum(one.tensor[:, :width], 1, keepdims=True), (None, 1))
    if kind == 4:
        copies = tf.tile(one.tensor, tf.stack([1, size[0]]))
        return Value(tf.reduce_sum(copies, 1, keepdims=True), (None, 1))
    ones = tf.reduce_sum(tf.ones([size[0], 1]))
    return Value(one.tensor * ones, one.shape)


def _summed_by_einsum(p: Program) -> Value:
    one = _batch(p)
    total = tf.einsum("bi,bj->ij", one.tensor, one.tensor)
    return Value(tf.matmul(one.tensor, total), one.shape)


def _segments(p: Program) -> Value:
    one = _batch(p)
    where = tf.argmax(one.tensor, 1) % 2
    sums = tf.math.unsorted_segment_sum(one.tensor, where, 2)
    return Value(tf.gather(sums, where), one.shape)


def _spread_rows(p: Program) -> Value:
    """All pairs of rows, by broadcasting."""
    one = p.dense(_batch(p), 1, False)
    flat = tf.reshape(one.tensor, [-1])
    return Value(tf.reduce_sum(flat * one.tensor, 1), (None,))


def _tiled_rows(p: Program) -> Value:
    one = _batch(p)
    twice = tf.reshape(tf.tile(one.tensor, [2, 1]), [-1, 2, one.columns])
    return Value(twice[:, 0] - twice[:, 1], one.shape)


def _chosen_by_batch(p: Program) -> Value:
    one = _batch(p)
    return Value(tf.where(tf.reduce_max(one.tensor) > 1.5, one.tensor, -one.tensor), one.shape)


def _shifted_window(p: Program) -> Value:
    one = _batch(p)
    padded = tf.pad(one.tensor, [[1, 0], [0, 0]])
    return Value(padded[:-1] + one.tensor, one.shape)


MIXING: tuple[Step, ...] = (
    *(_reduced_over_rows, _reduced_over_all, _softmax_over_rows, _cumulated, _reversed_rows),
    *(_rolled, _sorted_rows, _scored_in_batch, _first_row, _transposed_and_reshaped, _halves),
    *(_rows_in_rows, _top_over_rows, _trained_batch_norm, _number_of_rows, _summed_by_einsum),
    *(_segments, _spread_rows, _tiled_rows, _chosen_by_batch, _shifted_window),
)


# Steps of any kind


def build_any(seed: int, steps: int) -> Model:
    """Returns the model of ops with operands and attributes that follow no plan."""
    rng = random.Random(seed)
    with tf.Graph().as_default() as graph:
        tensors = [value.tensor for value in Program(rng).values]
        for number in range(steps):
            rng = random.Random(seed * 1009 + number)
            try:
                found = rng.choice(_ANY)(rng, tensors)
            except (ValueError, TypeError, IndexError, tf.errors.OpError):
                continue
            sizes = found.shape.as_list() if found.shape.rank is not None else [None] * 9
            if len(sizes) <= 5 and int(np.prod([size or 6 for size in sizes])) < 20000:
                tensors.append(tf.cast(found, tf.float32))
        outputs: list[tf.Tensor] = []
        price = next(tensor for tensor in tensors if tensor.op.name == "c_c")
        for k, tensor in enumerate(reversed(tensors)):
            if tensor.shape.rank and tensor.shape[0] is None and len(outputs) < 3:
                sizes = [-1, *[1] * (tensor.shape.rank - 1)]
                outputs.append(tf.add(tensor, tf.reshape(price, sizes), f"out_{k}"))
        return model_of(graph, outputs)


Tensors = list[tf.Tensor]


def _pick(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    return rng.choice(tensors[-5:] if rng.random() < 0.6 else tensors)


def _axis(rng: random.Random, tensor: tf.Tensor) -> int:
    return rng.randrange(tensor.shape.rank) - rng.choice([0, 0, tensor.shape.rank])


def _size(rng: random.Random, tensors: Tensors) -> Any:
    tensor = _pick(rng, tensors)
    sizes = tf.shape(tensor)
    kind = rng.randrange(7)
    if kind == 0:
        return rng.choice([-1, -1, 1, 2, 3, 4, 5, 8])
    if kind == 1:
        return sizes[0] * rng.choice([1, 2])
    if kind == 2:
        return tf.minimum(sizes[0], rng.choice([1, 3, 4]))
    if kind == 3:
        return sizes[0] - rng.choice([0, 1])
    if kind == 4:
        return sizes[0] // rng.choice([1, 2])
    return sizes[_axis(rng, tensor)]


def _any_shape(rng: random.Random, tensors: Tensors) -> Any:
    if rng.random() < 0.3:
        return tf.shape(_pick(rng, tensors))
    return tf.stack([_size(rng, tensors) for _ in range(rng.randint(1, 3))])


def _any_slice(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    tensor = _pick(rng, tensors)
    where: list[Any] = []
    for _ in range(rng.randint(1, tensor.shape.rank)):
        kind = rng.randrange(8)
        bound = _size(rng, tensors)
        if kind == 0:
            where.append(rng.choice([0, 1, -1]))
        elif kind == 1:
            where.append(tf.newaxis)
        elif kind == 2:
            where.append(slice(bound, None))
        elif kind == 3:
            where.append(slice(rng.choice([None, 0]), bound))
        elif kind == 4:
            where.append(slice(None, None, rng.choice([1, -1, 2])))
        else:
            where.append(slice(None))
    if rng.random() < 0.2:
        where[rng.randrange(len(where))] = Ellipsis
    return tensor[tuple(where)]


def _any_reduction(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    tensor = _pick(rng, tensors)
    axes = [_axis(rng, tensor) for _ in range(rng.randint(1, 2))]
    op = rng.choice([tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_prod])
    return op(
        tensor,
        axes if len({k % tensor.shape.rank for k in axes}) == len(axes) else axes[0],
        keepdims=rng.random() < 0.5,
    )


def _any_binary(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    op = rng.choice([tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum])
    return op(_pick(rng, tensors), _pick(rng, tensors))


def _any_constant(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    shape = [rng.choice([1, 1, 3, 4, 6]) for _ in range(rng.randint(0, 3))]
    number = np.random.default_rng(rng.randrange(2**32)).normal(size=shape).astype(np.float32)
    return rng.choice([tf.add, tf.multiply])(_pick(rng, tensors), number)


def _any_matmul(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    a, b = _pick(rng, tensors), _pick(rng, tensors)
    if rng.random() < 0.5:
        width = a.shape[-1] or 4
        numbers = np.random.default_rng(rng.randrange(2**32)).normal(size=(width, 4))
        b = tf.constant(numbers.astype(np.float32))
    return tf.matmul(a, b, transpose_a=rng.random() < 0.3, transpose_b=rng.random() < 0.3) * 0.5


def _any_einsum(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    a, b = _pick(rng, tensors), _pick(rng, tensors)
    letters = [[rng.choice("abcd") for _ in range(one.shape.rank)] for one in (a, b)]
    known = sorted({letter for term in letters for letter in term})
    result = rng.sample(known, rng.randint(1, min(3, len(known))))
    equation = f"{''.join(letters[0])},{''.join(letters[1])}->{''.join(result)}"
    return tf.einsum(equation, a, b)


def _any_gather(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    tensor = _pick(rng, tensors)
    if rng.random() < 0.5:
        return tf.gather(tensor, [0, 1, 0], axis=_axis(rng, tensor))
    ids = tf.cast(tf.abs(_pick(rng, tensors)), tf.int32) % 2
    batched = rng.choice([0, 0, 1])
    return tf.gather(tensor, ids, axis=_axis(rng, tensor), batch_dims=batched)


def _any_filled(rng: random.Random, tensors: Tensors) -> tf.Tensor:
    shape = _any_shape(rng, tensors)
    kind = rng.randrange(3)
    if kind == 0:
        return tf.fill(shape, 0.5)
    if kind == 1:
        return tf.broadcast_to(_pick(rng, tensors), shape)
    return tf.tile(_pick(rng, tensors), shape)


_ANY: tuple[Callable[[random.Random, Tensors], tf.Tensor], ...] = (
    lambda rng, ts: rng.choice([tf.tanh, tf.nn.relu, tf.negative, tf.identity])(_pick(rng, ts)),
    *(_any_binary, _any_binary, _any_constant, _any_matmul, _any_einsum, _any_reduction),
    *(_any_slice, _any_slice, _any_gather, _any_filled),
    lambda rng, ts: tf.reshape(_pick(rng, ts), _any_shape(rng, ts)),
    lambda rng, ts: tf.reshape(_pick(rng, ts), _any_shape(rng, ts)),
    lambda rng, ts: tf.transpose(
        one := _pick(rng, ts), rng.sample(range(one.shape.rank), one.shape.rank)
    ),
    lambda rng, ts: tf.concat(
        [one := _pick(rng, ts), rng.choice([one, _pick(rng, ts)])], _axis(rng, one)
    ),
    lambda rng, ts: tf.stack([one := _pick(rng, ts), one * 2.0], _axis(rng, one)),
    lambda rng, ts: tf.expand_dims(one := _pick(rng, ts), _axis(rng, one)),
    lambda rng, ts: tf.squeeze(one := _pick(rng, ts), rng.choice([None, [_axis(rng, one)]])),
    lambda rng, ts: tf.nn.softmax(one := _pick(rng, ts), axis=_axis(rng, one)),
    lambda rng, ts: tf.cumsum(one := _pick(rng, ts), axis=_axis(rng, one)),
    lambda rng, ts: tf.reverse(one := _pick(rng, ts), [_axis(rng, one)]),
    lambda rng, ts: tf.math.top_k(_pick(rng, ts), 2).values,
    lambda rng, ts: tf.pad(
        one := _pick(rng, ts),
        [[rng.choice([0, 0, 1]), rng.choice([0, 0, 1])] for _ in range(one.shape.rank)],
    ),
    lambda rng, ts: tf.slice(
        one := _pick(rng, ts),
        [rng.choice([0, 0, 1]) for _ in range(one.shape.rank)],
        tf.stack([_size(rng, ts) for _ in range(one.shape.rank)]),
    ),
    lambda rng, ts: tf.one_hot(tf.argmax(one := _pick(rng, ts), _axis(rng, one)), 3),
    lambda rng, ts: tf.where(_pick(rng, ts) > 0, _pick(rng, ts), _pick(rng, ts)),
    lambda rng, ts: tf.split(one := _pick(rng, ts), 2, _axis(rng, one))[0],
    lambda rng, ts: tf.unstack(one := _pick(rng, ts), axis=_axis(rng, one))[0],
)
