"""GroupedEmbeddingGather: a gather of each of many variables, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.reference import assert_same_bits

SHAPES = ((50, 16), (7, 3), (3000, 130), (5, 1), (0, 4))


def variables(dtype: str = "float32") -> list[tf.Variable]:
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.standard_normal(shape), dtype=dtype) for shape in SHAPES]


def drawn(counts: tuple[int, ...], *, seed: int = 0) -> list[tf.Tensor]:
    """Keys of each variable, int32 and int64 in turns."""
    rng = np.random.default_rng(seed)
    return [
        tf.constant(rng.integers(0, max(rows, 1), count), ("int32", "int64")[number % 2])
        for number, ((rows, _), count) in enumerate(zip(SHAPES, counts, strict=True))
    ]


def gather(tables: list[tf.Variable], keys: list[Any], **given: Any) -> Any:
    return ops.grouped_embedding_gather(
        tables=[table.handle for table in tables],
        keys=keys,
        T=tables[0].dtype,
        **{"dims": [table.shape[1] for table in tables]} | given,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("counts", [(3, 0, 9, 1, 0), (20_000, 1000, 40_000, 1, 0)])
def test_rows_are_those_of_a_gather(counts: tuple[int, ...], dtype: str) -> None:
    tables, keys = variables(dtype), drawn(counts)
    for found, table, own in zip(gather(tables, keys), tables, keys, strict=True):
        assert_same_bits(found.numpy(), tf.gather(table.value(), own).numpy())


def test_a_variable_that_is_there_twice() -> None:
    table = variables()[0]
    first, second = gather([table, table], [[1, 2], [3]])
    assert_same_bits(tf.concat([first, second], 0).numpy(), table.numpy()[1:4])


def test_the_gradient_has_the_rows_in_their_order() -> None:
    tables, keys = variables()[:2], [tf.constant([4, 1, 4]), tf.constant([6])]

    @tf.function
    def gradients(tables: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tables)
            rows = gather(tables, keys)
            loss = tf.reduce_sum(rows[0] ** 2)  # nobody reads the others
        return rows, tape.gradient(loss, tables)

    (rows, _), (first, second) = gradients(tables)
    assert_same_bits(first.values.numpy(), (2 * rows).numpy())
    assert first.indices.numpy().tolist() == [4, 1, 4]
    assert first.dense_shape.numpy().tolist() == [50, 16]
    assert not second.values.numpy().any()


def test_the_gradient_of_a_function() -> None:
    tables, keys = variables()[:2], [tf.constant([4, 1, 4]), tf.constant([6], tf.int64)]
    function = tf.function(lambda: gather(tables, keys))
    with tf.GradientTape() as tape:
        tape.watch(tables)
        loss = tf.add_n([tf.reduce_sum(rows**2) for rows in function()])
    for gradient, table, own in zip(tape.gradient(loss, tables), tables, keys, strict=True):
        assert_same_bits(gradient.values.numpy(), (2 * tf.gather(table, own)).numpy())
        assert gradient.indices.numpy().tolist() == own.numpy().tolist()


def test_rows_are_read_before_the_same_function_changes_them() -> None:
    table, other = tf.Variable(tf.zeros([4, 2])), tf.Variable(tf.ones([4, 2]))

    @tf.function
    def step() -> Any:
        before = gather([table, other], [[1], [1]])[0]
        table.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1])))
        return before, gather([table, other], [[1], [1]])[0]

    for number in range(3):
        before, after = step()
        assert before.numpy().tolist() == [[number] * 2]
        assert after.numpy().tolist() == [[number + 1] * 2]


def test_shapes() -> None:
    tables = variables()[:2]

    @tf.function(input_signature=[[tf.TensorSpec([3], tf.int64), tf.TensorSpec(None, tf.int32)]])
    def build(keys: Any) -> Any:
        return gather(tables, keys)

    shapes = [output.shape.as_list() for output in build.get_concrete_function().outputs]
    assert shapes == [[3, None], [None, None]]


INVALID = tf.errors.InvalidArgumentError


@pytest.mark.parametrize(
    ("keys", "told", "error", "message"),
    [
        ([[1], [3, 7, -1]], {}, INVALID, r"column 1: indices\[1\] = 7 is not in \[0, 7\)"),
        ([[-1], [3]], {}, INVALID, r"column 0: indices\[0\] = -1 is not in \[0, 50\)"),
        ([[50], [3]], {"column_names": ["a", "b"]}, INVALID, r"column 0 \(a\): indices\[0\] = 50"),
        ([[1], [3]], {"dims": [16, 2]}, INVALID, "column 1: the variable has 84 bytes, which"),
        ([[1], [3]], {"dims": [16, 0]}, INVALID, "dims must be at least 1, not 0"),
        ([[1], [3]], {"dims": [16]}, INVALID, "dims and column_names have 1 and 0 items for 2"),
        ([[1], [3]], {"column_names": ["a"]}, INVALID, "have 2 and 1 items for 2 columns"),
        ([[[1]], [3]], {}, ValueError, r"keys must have shape \[u_p\]"),
    ],
)
def test_errors(keys: Any, told: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        gather(variables()[:2], keys, **told)


def test_no_variable_of_the_dtype() -> None:
    (table, *_), (wide, *_) = variables(), variables("float64")
    with pytest.raises(INVALID, match="is not of dtype float32"):
        gather([table, wide], [[1], [1]], dims=[16, 16])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = [tf.compat.v1.get_variable(name, [3, 2], use_resource=True) for name in "ab"]
        rows = gather(given, [[1], [1]])
        with pytest.raises(tf.errors.FailedPreconditionError, match="no variable behind"):
            session.run(rows)
