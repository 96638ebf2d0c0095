"""Shapes of what v1 loops hand from one iteration to the next, as TensorFlow runs all loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.view import GraphView
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
Body = Callable[..., Sequence[Any]]


def looped(body: Body, tensors: Sequence[Any], times: int = 3) -> list[Any]:
    """Tensors after so many iterations, to TensorFlow of any shape."""
    found = v1.while_loop(
        lambda i, *_: i < times,
        lambda i, *given: (i + 1, *body(*given)),
        [tf.constant(0), *tensors],
        shape_invariants=[tf.TensorShape([]), *(tf.TensorShape(None) for _ in tensors)],
    )
    return list(found[1:])


@pytest.fixture(autouse=True)
def v1_loops() -> Any:
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def graph_of(body: Body, shapes: Sequence[Shape | None]) -> graph_pb2.GraphDef:
    """Tensors `in_0` and so on go round, and become `out_0` and so on, which are no constants."""
    with tf.Graph().as_default() as graph:
        given = [v1.placeholder(tf.int64, shape, f"in_{k}") for k, shape in enumerate(shapes)]
        for k, result in enumerate(looped(body, given)):
            tf.math.floormod(result, 5, name=f"out_{k}")
        tf.no_op("initialize")
        return graph.as_graph_def()


def shapes_of(graph_def: graph_pb2.GraphDef, count: int) -> list[Shape | None]:
    view = GraphView.of_graph(graph_def)
    return [view.shape(Tensor(f"out_{k}")) for k in range(count)]


def _nested(a: Any) -> list[Any]:
    return looped(lambda x: [x + 1], [a])


def _nested_longer(a: Any) -> list[Any]:
    return looped(lambda x: [tf.concat([x, x], 1)], [a], 2)


@pytest.mark.parametrize(
    ("body", "given", "expected"),
    [
        (lambda a: [a], [(None, 3)], [(None, 3)]),
        (lambda a: [a * 2 + 1], [(None, 3)], [(None, 3)]),
        (lambda a: [tf.concat([a[:, 1:], a[:, :1]], 1)], [(None, 3)], [(None, 3)]),
        # Of what grows the rest is known, or nothing.
        (lambda a: [tf.concat([a, a], 1)], [(None, 3)], [(None, None)]),
        (lambda a: [tf.concat([a, a], 0)], [(2, 3)], [(None, 3)]),
        (lambda a: [a[None]], [(2, 3)], [None]),
        (lambda a: [tf.transpose(a, [1, 0])], [(None, 3)], [(None, None)]),
        (lambda a: [tf.transpose(a, [1, 0])], [(3, 3)], [(3, 3)]),
        (lambda a: [a + 1], [None], [None]),
        # Several go round together.
        (lambda a, b: [b, a], [(None, 3), (None, 3)], [(None, 3)] * 2),
        (lambda a, b: [b, a], [(2, 3), (2, 4)], [(2, None)] * 2),
        (lambda a, b: [b, a], [(2, 3), (2,)], [None] * 2),
        (lambda a, b: [a + 1, tf.concat([b, a], 1)], [(2, 3), (2, 4)], [(2, 3), (2, None)]),
        # A loss goes from one to the next.
        (
            lambda a, b, c: [tf.concat([a, a], 0), a + 1, b + 1],
            [(2, 3)] * 3,
            [(None, 3)] * 3,
        ),
        (_nested, [(None, 3)], [(None, 3)]),
        (_nested_longer, [(None, 3)], [(None, None)]),
        (lambda a: _nested(tf.concat([a, a], 0)), [(2, 3)], [(None, 3)]),
    ],
)
def test_shapes(body: Body, given: list[Shape | None], expected: list[Shape | None]) -> None:
    assert shapes_of(graph_of(body, given), len(given)) == expected


@pytest.mark.parametrize(("count", "last"), [(12, (None, 3)), (32, None)])
def test_long_ways_from_one_to_the_next(count: int, last: Shape | None) -> None:
    graph_def = graph_of(lambda *all_: [tf.concat(all_[:2], 0), *all_[:-1]], [(2, 3)] * count)
    assert GraphView.of_graph(graph_def).shape(Tensor(f"out_{count - 1}")) == last


def test_loops_behind_each_other() -> None:
    with tf.Graph().as_default() as graph:
        (a,) = looped(lambda a: [a + 1], [v1.placeholder(tf.int64, [None, 3])])
        (b,) = looped(lambda b: [tf.concat([b, b], 0)], [tf.concat([a, a], 1)])
        tf.math.floormod(b, 5, name="out_0")
        tf.math.floormod(a, 5, name="out_1")
    assert shapes_of(graph.as_graph_def(), 2) == [(None, 6), (None, 3)]


def test_a_number_that_comes_in_is_no_size() -> None:
    """It is another one in the next iteration."""
    with tf.Graph().as_default() as graph:
        width, _ = looped(lambda n, x: [n + 1, x], [tf.constant(3), v1.placeholder(tf.int64, [6])])
        tf.fill([2, width], tf.constant(1, tf.int64), name="out_0")
    assert shapes_of(graph.as_graph_def(), 1) == [(2, None)]


def test_damaged_loops() -> None:
    graph_def = graph_of(lambda a: [a + 1], [(None, 3)])
    for node in graph_def.node:
        if node.op == "Enter" and "in_0" in node.input:
            merges = (one for one in graph_def.node if one.op == "Merge" and node.name in one.input)
            node.input[:] = [next(merges).name]
    assert shapes_of(graph_def, 1) == [None]


OPS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    lambda x: x + 1,
    lambda x: tf.transpose(x, [1, 0]),
    lambda x: tf.concat([x, x], 0),
    lambda x: tf.concat([x, x], 1),
    lambda x: x[1:],
    lambda x: x[:, :1],
    lambda x: tf.reduce_sum(x, 0, keepdims=True),
    lambda x: tf.tile(x[:1], [2, 1]),
)


def random_body(rng: np.random.Generator, count: int) -> Body:
    """Each is made of one of those of the iteration before."""
    picks = [(int(rng.integers(count)), rng.choice(len(OPS), 2)) for _ in range(count)]
    return lambda *given: [
        reduce(lambda x, op: OPS[op](x), ops, given[source]) for source, ops in picks
    ]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_loop_does_its_results_have_the_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = 0
    for _ in range(4):
        sizes = rng.integers(1, 4, (3, 2))
        shapes = [tuple(n if rng.random() < 0.8 else None for n in size) for size in sizes]
        graph_def = graph_of(random_body(rng, len(sizes)), shapes)
        feed = {f"in_{k}:0": np.ones(size, np.int64) for k, size in enumerate(sizes)}
        results = stock.run(graph_def, feed, [f"out_{k}:0" for k in range(len(sizes))])
        for result, shape in zip(results, shapes_of(graph_def, len(sizes)), strict=True):
            assert tf.TensorShape(shape).is_compatible_with(result.shape)
            known += sum(size is not None for size in shape or ())
    assert known
