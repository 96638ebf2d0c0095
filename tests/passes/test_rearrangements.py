"""Ops that hand on all elements of a tensor in their order: what is known of them is so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.analysis.rearrangements import rearranged, rearranged_input, reshaped_input
from fusion.passes.analysis.symbolic_shapes import ShapeMath
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView

v1 = tf.compat.v1
raw = tf.raw_ops


def view_of(graph: tf.Graph) -> GraphView:
    graph_def = graph.as_graph_def(add_shapes=True)
    return GraphView(graph_def.node, OpSignatures(()), frozenset())


def random_slice(rng: np.random.Generator, rank: int) -> dict[str, Any]:
    """Bounds and masks of a StridedSlice that mostly leaves nothing out, and may be malformed."""
    count = int(rng.integers(1, rank + 2))

    def mask(share: float) -> int:
        return int(sum(int(rng.random() < share) << at for at in range(count)))

    return {
        "begin": rng.choice([0, 0, 0, -1, -2, 1], count).astype(np.int32),
        "end": rng.choice([1, 2, 3, 5, 5, -1], count).astype(np.int32),
        "strides": rng.choice([1] * 12 + [2, -1], count).astype(np.int32),
        "begin_mask": mask(0.4),
        "end_mask": mask(0.4),
        "ellipsis_mask": 1 << int(rng.integers(count)) if rng.random() < 0.3 else 0,
        "new_axis_mask": mask(0.1),
        "shrink_axis_mask": mask(0.25),
    }


def test_of_random_slices_those_are_known_that_leave_nothing_out() -> None:
    rng, known = np.random.default_rng(0), 0
    for _ in range(3000):
        shape = [int(rng.choice([1, 1, 1, 2, 3])) for _ in range(rng.integers(1, 4))]
        values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        how = random_slice(rng, len(shape))
        try:
            with tf.Graph().as_default() as graph:
                given = v1.placeholder(tf.float32, shape)
                raw.StridedSlice(input=given, name="slice", **how)
        except ValueError:
            continue  # out of range, which a graph may still say
        view = view_of(graph)
        claimed = rearranged(ShapeMath(), Node(view, "slice"), 0, tuple(shape))
        found = np.asarray(raw.StridedSlice(input=tf.constant(values), **how))
        is_whole = found.size == values.size and np.array_equal(found.ravel(), values.ravel())
        if claimed is None:
            # Where strides are not 1, or an index is neither 0 nor -1, it is not said.
            assert not is_whole or 1 in how["begin"] or (how["strides"] != 1).any(), how
        else:
            assert is_whole
            assert claimed == found.shape
            known += 1
    assert known > 300


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_axes_are_counted_from_both_ends(axis: int) -> None:
    with tf.Graph().as_default() as graph:
        given = v1.placeholder(tf.float32, [1, 1, 1], "given")
        tf.gather(given, 0, axis=axis, name="gather")
        tf.split(given, 1, axis, name="split")
        raw.Unpack(value=given, num=1, axis=axis, name="unstack")
        tf.expand_dims(given, axis, name="expand")
    view = view_of(graph)
    shapes = ShapeMath()
    for name, size in {"gather": 2, "split": 3, "unstack": 2, "expand": 4}.items():
        node = Node(view, name)
        given_at = node.inputs.index(rearranged_input(node))
        shape = rearranged(shapes, node, given_at, (1, 1, 1))
        assert shape == (1,) * size, name
        other = {"gather": 1, "split": 0, "expand": 1}.get(name)
        assert other is None or rearranged(shapes, node, other, (1, 1, 1)) is None


def test_what_undoes_a_slice_has_all_that_is_brought_to_it() -> None:
    with tf.Graph().as_default() as graph:
        one, two = (v1.placeholder(tf.float32, [None, size, 4]) for size in (1, 2))
        top = v1.placeholder(tf.float32, [None, 4], "top")
        for name, rows in (("whole", one), ("part", two)):
            (gradient,) = tf.gradients(rows[:, 0], rows, top)
            tf.identity(gradient, name=name)
        tf.stack([top], 1, name="stacked")
        tf.stack([top, top], 1, name="both")
    view = view_of(graph)
    whole, part = (Node(view, name).input(0).producer for name in ("whole", "part"))
    assert whole.op == part.op == "StridedSliceGrad"
    assert [reshaped_input(node) for node in (part, Node(view, "both"))] == [None, None]
    for node in (whole, Node(view, "stacked")):
        inner = reshaped_input(node)
        assert inner is not None
        assert inner.producer.name == "top"
