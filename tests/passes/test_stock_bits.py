"""Whether TensorFlow rounds as the fused op does is found out by running both."""

from __future__ import annotations

import sys

import pytest
from tensorflow.core.framework import types_pb2

from fusion.passes.analysis import stock_bits
from fusion.passes.analysis.stock_bits import APPLIES, RSQRT, has_bits_of
from tests import zygote


@pytest.mark.parametrize("op", [RSQRT, *APPLIES])
@pytest.mark.parametrize("dtype", [types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE])
def test_this_tensorflow_agrees(op: str, dtype: int) -> None:
    assert has_bits_of(op, dtype, 8)
    assert has_bits_of(op, dtype, 24)
    assert has_bits_of(op, dtype, 3) == (op == "ResourceSparseApplyAdagradV2")


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        (RSQRT, "a=sqrt(x0);b=div(a,x0);scatter_update(v0,b)"),
        ("ResourceSparseApplyAdagrad", "g=mul(s0,x0);scatter_sub(v0,g);scatter_sub(v1,g)"),
    ],
)
def test_another_formula_does_not(op: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    formula = stock_bits._FORMULAS[op]._replace(program=wrong)
    monkeypatch.setitem(stock_bits._FORMULAS, op, formula)
    assert not stock_bits._agrees.__wrapped__(op, types_pb2.DT_FLOAT)


def test_a_formula_that_fails_does_not_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stock_bits._agrees.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(stock_bits, "lower", lambda *_: b"")
        assert not has_bits_of(RSQRT, types_pb2.DT_FLOAT, 8)
    assert has_bits_of(RSQRT, types_pb2.DT_FLOAT, 8)


_ONE_THREAD = """
import tensorflow as tf
import fusion
from fusion.passes.analysis import stock_bits

v1 = tf.compat.v1
config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
with tf.Graph().as_default(), v1.Session(config=config) as session, fusion.fused():
    table = v1.get_variable("table", [50, 8], use_resource=True)
    rows = tf.nn.embedding_lookup(table, v1.placeholder_with_default([1, 2, 1], [None]))
    step = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows**2))
    session.run(v1.global_variables_initializer())
    session.run(step)
updates = fusion.stats().last_report.updates
print(stock_bits._agrees.cache_info().currsize, *[update.fused for update in updates])
# Who sets up devices and threads is the user.
tf.config.threading.set_intra_op_parallelism_threads(1)
"""


def test_it_needs_no_other_thread_and_sets_up_nothing() -> None:
    command, server = [sys.executable, "-c", _ONE_THREAD], zygote.without_fusion()
    ran = zygote.run(
        command, capture_output=True, text=True, timeout=300, check=False, server=server
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["1", "True"]
