"""What FusedEmbeddingUpdate refuses, at run time and when a node of it is made."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.ops.update_cases import ADAM, INVALID, Case, refused
from tests.update_programs import PROGRAMS, same

#: As it is where values are not summed.
CODE = Case(PROGRAMS["k3_sgd"], 20, 4, 3).code()


@pytest.mark.parametrize("name", ["k3_sgd", "k3_adagrad", "k3_adam", "tk_adam"])
@pytest.mark.parametrize("tid", [tf.int32, tf.int64])
def test_ids_outside_the_table(name, tid):
    case = Case(PROGRAMS[name], 20, 4, 3)
    variables = case.variables()
    for bad in (20, 2**31 - 1):
        text = rf"ids\[2\] = {bad} is not in \[0, 20\), the rows"
        ids = tf.constant([0, 5, bad], tid)
        assert refused(case, variables, INVALID, text, ids=ids)
        assert refused(case, variables, INVALID, text, ids=ids, deduplicate=True)
        text = rf"ids\[2\] = {bad} is not in \[-20, 20\), the rows"
        assert refused(case, variables, INVALID, text, ids=ids, wrap_negative=True)
    negative = tf.constant([0, -1, 5], tid)
    if name != "k3_adam":
        text = r"ids\[1\] = -1 is not in \[0, 20\), the rows"
        assert refused(case, variables, INVALID, text, ids=negative)
        text, below = r"ids\[2\] = -21 is not in \[-20, 20\)", tf.constant([0, -20, -21], tid)
        assert refused(case, variables, INVALID, text, ids=below, wrap_negative=True)


def of_unknown_shapes(case, variables):
    """A function of ids, values and scalars that are checked only when it runs."""
    whole, real = tf.TensorSpec(None, tf.int32), tf.TensorSpec(None)
    counts_of = case.counts

    @tf.function(input_signature=[whole, [real] * counts_of["x"], [real] * counts_of["s"]])
    def run(ids, values, scalars):
        case.update(variables, ids=ids, values=values, scalars=scalars)

    return run


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"ids": [1, 2, 3, 4]}, r"values\[0\] has 3 rows, fewer than the 4 ids"),
        ({"ids": [[1, 2], [3, 4]]}, r"values\[0\] has 3 rows, fewer than the 4 ids"),
        ({"values": [np.zeros([2, 10])]}, r"values\[0\] has 2 rows, fewer than the 3 ids"),
        ({"values": [np.zeros([3])]}, r"values\[0\] has rank 1, not 2"),
        ({"values": [np.zeros([3, 4])]}, r"values\[0\] has 4 columns, fewer than 4 from 1 on"),
        ({"scalars": [1, 1, [1, 1], 1]}, r"scalars\[2\] has 2 elements, not 1"),
        ({"scalars": [1, 1, [], 1]}, r"scalars\[2\] has 0 elements, not 1"),
    ],
)
def test_shapes(changed, match):
    case = Case(ADAM, 20, 4, 3)
    case.offsets = [1]
    variables = case.variables()
    run = of_unknown_shapes(case, variables)
    inputs = {"ids": [1, 2, 3], "values": [np.zeros([3, 5])], "scalars": [0.5, [0.5], [[0.5]], 1]}
    with pytest.raises(INVALID, match=match):
        run(**as_tensors(inputs | changed))
    for variable, start in zip(variables, case.start, strict=True):
        assert same(variable.numpy(), start)
    run(**as_tensors(inputs))


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ([4, 4], r"values\[0\] has 4 rows, but there are 3 ids"),
        ([2, 4], r"values\[0\] has 2 rows, but there are 3 ids"),
        ([3, 5], r"values\[0\] has 5 columns, not 4"),
        ([3, 3], r"values\[0\] has 3 columns, not 4"),
    ],
)
def test_shapes_of_whole_values(shape, match):
    case = Case(ADAM, 20, 4, 3)
    case.offsets = [-1]
    assert refused(case, case.variables(), INVALID, match, values=[tf.zeros(shape)])


def as_tensors(inputs):
    floats = {
        name: [tf.constant(value, tf.float32) for value in inputs[name]]
        for name in ("values", "scalars")
    }
    return {"ids": tf.constant(inputs["ids"], tf.int32), **floats}


def test_variables_of_other_sizes():
    case = Case(ADAM, 20, 4, 3)
    odd = [*case.variables()[:2], tf.Variable(tf.zeros([21, 4]), name="odd")]
    assert refused(case, odd, INVALID, "behind .* has 84 elements, but the table 80")
    odd = [tf.Variable(tf.zeros([79])), *case.variables()[1:]]
    assert refused(case, odd, INVALID, "has 79 elements, which are no rows of 4")
    other = [*case.variables()[:2], tf.Variable(tf.zeros([20, 4], tf.float64))]
    assert refused(case, other, INVALID, "is not of dtype float32")
    (table, slot, _) = case.variables()
    assert refused(case, [table, slot, slot], INVALID, "is there twice")


def test_what_was_never_assigned():
    case = Case(PROGRAMS["k3_sgd"], 20, 4, 3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[20, 4], shared_name="nothing")
        op = ops.fused_embedding_update(
            [handle], [1], [[[1.0, 2, 3, 4]]], [0.5], 0, 4, [0], [True], case.text, case.code()
        )
        with pytest.raises(tf.errors.FailedPreconditionError, match='name="nothing"'):
            session.run(op)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"code": b""}, "code has 0 bytes, which are no instructions"),
        ({"num_results": 1}, "code has 0 results, not 1"),
        ({"offsets": []}, "offsets has 0 items, not 1"),
        ({"offsets": [-2]}, "offsets must not be below -1"),
        ({"deduplicate": True, "code": CODE}, "code: instruction 0 is not valid"),
        ({"sparse": [True, True]}, "sparse has 2 items, not 1"),
        ({"dim": 0}, "dim"),
    ],
)
def test_nodes_that_cannot_be_made(changed, match):
    case = Case(PROGRAMS["k3_sgd"], 20, 4, 3)
    variables = case.variables()
    assert refused(case, variables, (INVALID, ValueError), match, **changed)
