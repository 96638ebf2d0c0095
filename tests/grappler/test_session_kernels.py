"""Kernels that a Session keeps by the names of nodes, of which two graphs have other ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

import fusion
from fusion.passes.graph.kernel_names import KernelNames
from fusion.passes.graph.view import GraphView

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, DIM = 9, 3


@pytest.fixture
def same_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New stateful nodes of all graphs have one name for each op, whatever they are."""

    own = KernelNames.of

    def of(view: GraphView, added: Mapping[str, node_def_pb2.NodeDef]) -> KernelNames:
        final = {name: f"same/{added[name].op}" for name in own(view, added).final}
        return KernelNames(view, added, final)

    monkeypatch.setattr(KernelNames, "of", staticmethod(of))
    with fusion.fused():
        yield


def test_a_kernel_fails_that_has_other_numbers_of_tensors(same_names: None) -> None:
    rng = np.random.default_rng(0)
    with tf.Graph().as_default(), v1.Session() as session:
        tables = [
            v1.get_variable(f"t{n}", initializer=rng.normal(size=(ROWS, DIM)), use_resource=True)
            for n in range(4)
        ]
        ids = v1.placeholder(tf.int64, [None])
        three = tf.concat([tf.gather(table, ids) for table in tables[:3]], 1)
        two = tf.concat([tf.gather(table, ids) for table in tables[2:]], 1)
        session.run(v1.global_variables_initializer())
        assert session.run(three, {ids: [1, 2]}).shape == (2, 3 * DIM)
        text = "it takes 3 inputs and makes 3 outputs, but the node has 2 and 2"
        with pytest.raises(tf.errors.InternalError, match=text):
            session.run(two, {ids: [1, 2]})
        # It is as it was.
        assert session.run(three, {ids: [1, 2]}).shape == (2, 3 * DIM)


def test_a_kernel_fails_that_has_other_dtypes(same_names: None) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("t", initializer=np.ones([ROWS, DIM]), use_resource=True)
        fed = v1.placeholder(tf.float64, [None, DIM])

        def step(dtype: tf.DType) -> tuple[tf.Tensor, tf.Operation]:
            ids = v1.placeholder(dtype, [None])
            rows = tf.square(fed) * 0.5
            return ids, raw.ResourceScatterSub(resource=table.handle, indices=ids, updates=rows)

        (ids, update), (small_ids, other) = step(tf.int64), step(tf.int32)
        session.run(table.initializer)
        with tf.control_dependencies([update]):
            done = tf.no_op()
        with tf.control_dependencies([other]):
            other_done = tf.no_op()
        session.run(done, {ids: [1], fed: np.ones([1, DIM])})
        text = "its input 1 has DataType 9, but the node's has 3"
        with pytest.raises(tf.errors.InternalError, match=text):
            session.run(other_done, {small_ids: [1], fed: np.ones([1, DIM])})
        assert session.run(table)[:3, 0].tolist() == [1, 0.5, 1]
