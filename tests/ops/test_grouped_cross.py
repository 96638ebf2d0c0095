"""GroupedCross: ids, their order and errors are those of TensorFlow's ops, bit by bit."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.ops.ids.stock import grouped_cross
from fusion.schema.attributes import CROSS_FORMS, MAX_CROSSED
from tests import reference
from tests.reference import MODES

#: Rows around the sizes of blocks, which threads share.
ROWS = (0, 1, 5, 255, 256, 257, 600)
BUCKETS = (0, 1, 7, 1000, 2**31, 2**32 + 1, 2**63 - 25)
#: The key that TensorFlow's functions take.
KEY = 0xDECAFCAFFE
NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 2**33 + 5, 2**63 - 1, -(2**63), 10**15]


class Features:
    """Random features of so many rows."""

    def __init__(self, seed, rows):
        self.random, self.rows = random.Random(seed), rows

    def value(self, dtype):
        if dtype == tf.string:
            return self.random.randbytes(self.random.choice([0, 1, 3, 6, 12, 20, 40, 90]))
        number = self.random.choice([*NUMBERS, self.random.randrange(1000)])
        return number if dtype == tf.int64 else number % 2**32 - 2**31

    def sparse(self, dtype, counts):
        """Values, indices and shape; a row has one of the counts."""
        sizes = [self.random.choice(counts) for _ in range(self.rows)]
        pairs = [(row, place) for row, size in enumerate(sizes) for place in range(size)]
        values = tf.constant([self.value(dtype) for _ in pairs], dtype, [len(pairs)])
        shape = [self.rows, max(sizes, default=0)]
        return values, tf.constant(pairs, tf.int64, [len(pairs), 2]), tf.constant(shape, tf.int64)

    def dense(self, dtype, width):
        items = [self.value(dtype) for _ in range(self.rows * width)]
        return tf.constant(items, dtype, [self.rows, width])

    def vector(self, dtype):
        return tf.constant([self.value(dtype) for _ in range(self.rows)], dtype, [self.rows])

    def masked(self, dtype, width):
        """A matrix of which some are -1 or empty."""
        none = b"" if dtype == tf.string else -1
        items = [self.random.choice([none, self.value(dtype)]) for _ in range(self.rows * width)]
        return tf.constant(items, dtype, [self.rows, width])


class Call:
    """The arguments of an op, cross by cross."""

    def __init__(self):
        self.values, self.indices, self.shapes = [], [], []
        self.attrs: dict[str, Any] = {
            "num_crosses": 0,
            "num_sparse": 0,
            **{name: [] for name in ("feature_counts", "feature_forms", "ignored", "hashes")},
            **{name: [] for name in ("num_buckets", "keys", "forms")},
        }

    def add(self, *features, kind="seeded", buckets=1000, key=(KEY, 0), form="indices"):
        """Adds a cross of features: the form of each, and its tensors."""
        for name, *tensors in features:
            self.attrs["feature_forms"].append(name)
            self.values.append(tensors[0])
            if name == "sparse":
                self.indices.append(tensors[1])
                self.shapes.append(tensors[2])
        self.attrs["ignored"] += [-1] * len(features)
        self.attrs["feature_counts"].append(len(features))
        self.attrs["hashes"].append(kind)
        self.attrs["num_buckets"].append(buckets)
        self.attrs["keys"] += key
        self.attrs["forms"].append(form)
        self.attrs["num_crosses"] += 1
        self.attrs["num_sparse"] = len(self.indices)
        return self

    @property
    def inputs(self):
        return [*self.values, *self.indices, *self.shapes]

    def run(self, *inputs):
        """The op's results, of these inputs or of its own."""
        inputs = inputs or self.inputs
        values, rest = inputs[: len(self.values)], inputs[len(self.values) :]
        count = len(self.indices)
        return tf.nest.flatten(
            ops.grouped_cross(
                values=[*values], indices=[*rest[:count]], shapes=[*rest[count:]], **self.attrs
            )
        )

    def check(self):
        expected = grouped_cross(self.attrs, self.inputs)
        for result, other in zip(self.run(), expected, strict=True):
            assert result.shape == other.shape
            np.testing.assert_array_equal(result, other)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("buckets", BUCKETS)
def test_features_of_all_kinds(rows, buckets):
    features, call = Features(rows, rows), Call()
    for dtype, other in ((tf.string, tf.int64), (tf.int64, tf.string), (tf.int32, tf.int64)):
        call.add(
            ("sparse", *features.sparse(dtype, [0, 1, 2, 3])),
            ("masked", features.masked(other, 2)),
            ("dense", features.dense(dtype, 2)),
            ("dense", features.dense(other, 1)),
            buckets=buckets,
            key=(features.random.randrange(-(2**63), 2**63), 0),
        )
        call.add(
            ("masked", features.masked(dtype, 1)),
            ("sparse", *features.sparse(other, [1])),
            buckets=buckets,
            form="row_splits",
        )
        call.add(
            ("sparse", *features.sparse(dtype, [1])),
            ("sparse", *features.sparse(other, [1])),
            ("dense", features.dense(dtype, 1)),
            buckets=buckets,
        )
        call.add(("dense", features.dense(dtype, 3)), ("dense", features.dense(other, 2)))
        call.add(("dense", features.dense(dtype, 1)), buckets=buckets, form="row_splits")
        call.add(
            ("vector", features.vector(dtype)),
            ("dense", features.dense(other, 1)),
            buckets=buckets,
            form="matrix",
        )
        call.add(("masked", features.masked(dtype, 2)), ("vector", features.vector(other)))
    call.check()


@pytest.mark.parametrize("rows", [0, 1, 300])
@pytest.mark.parametrize("kind", ["plain", "strong"])
def test_hashes_of_the_later_op(rows, kind):
    features, call = Features(rows, rows), Call()
    key = (3, -5)
    for dtype in (tf.string, tf.int64, tf.int32):
        call.add(("sparse", *features.sparse(dtype, [1, 2])), kind=kind, key=key, buckets=0)
        call.add(
            ("sparse", *features.sparse(dtype, [1])),
            ("masked", features.masked(dtype, 1)),
            ("dense", features.dense(tf.string, 1)),
            kind=kind,
            key=key,
        )
        call.add(("sparse", *features.sparse(dtype, [1])), kind=kind, key=key)
    call.add(("dense", features.dense(tf.string, 1)), ("dense", features.dense(tf.string, 1)))
    if kind == "plain":
        call.add(("dense", features.dense(tf.int64, 2)), ("dense", features.dense(tf.int32, 1)))
    call.check()


@pytest.mark.parametrize("form", CROSS_FORMS)
@pytest.mark.parametrize("widths", [[1, 1], [2, 3], [0, 2], [1], [2, 1, 2, 3]])
@pytest.mark.parametrize("rows", [0, 4, 300])
def test_forms_of_results(form, widths, rows):
    features = Features(1, rows)
    dense = [("dense", features.dense(tf.int64, width)) for width in widths]
    Call().add(*dense, form=form).check()


@pytest.mark.parametrize(
    "rows_of_entries",
    [[0, 0, 2], [2, 1, 0], [0, 2, 1], [-1, 0, 1], [0, 5, 1], [1, 1, 0, 1], [3, 3], []],
)
def test_entries_that_are_not_in_order(rows_of_entries):
    pairs = [(row, place) for place, row in enumerate(rows_of_entries)]
    count = len(pairs)
    entries = (
        tf.range(count, dtype=tf.int64),
        tf.constant(pairs, tf.int64, [count, 2]),
        tf.constant([4, 9], tf.int64),
    )
    dense = ("dense", tf.constant([["a"], ["b"], ["c"], ["d"]]))
    call = Call().add(("sparse", *entries), dense).add(("sparse", *entries), form="row_splits")
    call.check()


def test_many_values_are_crossed_by_several_threads():
    features, call = Features(5, 3000), Call()
    for index in range(6):
        call.add(
            ("sparse", *features.sparse(tf.string, [0, 1, 4] if index % 2 else [1])),
            ("dense", features.dense(tf.int64, 1)),
            form=CROSS_FORMS[index % 2],
        )
    call.check()


def test_threads_at_once():
    features = Features(6, 700)
    calls = [
        Call().add(
            ("sparse", *features.sparse(tf.string, [1, 2])), ("dense", features.dense(tf.int64, 1))
        )
        for _ in range(4)
    ]
    expected = [grouped_cross(call.attrs, call.inputs)[0].numpy() for call in calls]
    failures: list[int] = []

    def run(number):
        for _ in range(20):
            if not np.array_equal(calls[number].run()[0], expected[number]):
                failures.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("mode", MODES)
def test_in_every_way_that_graphs_run(mode):
    features = Features(7, 40)
    call = Call().add(
        ("sparse", *features.sparse(tf.string, [0, 1, 2])), ("dense", features.dense(tf.int64, 1))
    )
    values, indices, shapes = call.inputs[0], call.inputs[2], call.inputs[3]
    inputs = {
        "texts": np.array(values.numpy(), object),
        "numbers": call.inputs[1].numpy(),
        "indices": indices.numpy(),
        "shape": shapes.numpy(),
    }

    def crossed(_, texts, numbers, indices, shape):
        return tuple(call.run(texts, numbers, indices, shape))

    expected = grouped_cross(call.attrs, call.inputs)
    for result, other in zip(reference.run(mode, crossed, inputs), expected, strict=True):
        np.testing.assert_array_equal(result, other)


def sparse(values=("a", "b", "c"), pairs=((0, 0), (0, 1), (2, 0)), shape=(3, 2)):
    return (
        tf.constant(values),
        tf.reshape(tf.constant(pairs, tf.int64), np.shape(pairs)),
        tf.constant(shape, tf.int64),
    )


def dense(rows=3):
    return tf.constant([["x"]] * rows)


@pytest.mark.parametrize(
    ("sparse_features", "dense_features"),
    [
        pytest.param([sparse(pairs=(0, 0, 2))], [dense()], id="indices are a vector"),
        pytest.param([sparse(), sparse(pairs=[[0, 0, 0]] * 3)], [], id="indices of rank 3"),
        pytest.param([sparse(values=[["a"]])], [dense()], id="values are a matrix"),
        pytest.param([sparse(values="a")], [dense()], id="one value"),
        pytest.param([sparse(), sparse(values=["a"])], [], id="fewer values"),
        pytest.param([sparse(shape=[[3, 2]])], [dense()], id="the shape is a matrix"),
        pytest.param([sparse(shape=3)], [dense()], id="the shape is a number"),
        pytest.param([sparse(shape=(3, 2, 1))], [dense()], id="the shape is of rank 3"),
        pytest.param([sparse()], [dense(), tf.constant(["x"])], id="a vector"),
        pytest.param([], [dense(), tf.constant([[["x"]]])], id="rank 3"),
        pytest.param([], [tf.constant("x")], id="a number"),
        pytest.param([sparse()], [dense(), dense(2)], id="fewer rows of a matrix"),
        pytest.param([], [dense(), dense(), dense(4)], id="more rows of a matrix"),
        pytest.param([sparse(), sparse(shape=(4, 2))], [], id="other rows of a sparse tensor"),
        pytest.param([sparse(values=["a"], shape=3)], [dense(1)], id="the first one counts"),
    ],
)
def test_errors_are_those_of_stock(sparse_features, dense_features):
    features = [("sparse", *one) for one in sparse_features]
    features += [("dense", one) for one in dense_features]
    good = ("sparse", *sparse()), ("dense", dense())
    for kind in ("seeded", "plain"):
        call = Call().add(*features, kind=kind)
        with pytest.raises(tf.errors.InvalidArgumentError) as expected:
            grouped_cross(call.attrs, call.inputs)
        text = expected.value.message.split("}} ")[-1].split(" [Op:")[0]
        with pytest.raises(tf.errors.InvalidArgumentError) as found:
            Call().add(*good).add(*features, kind=kind).run()
        assert found.value.message.split("}} ")[-1].split(" [Op:")[0] == text


def test_rows_of_a_masked_matrix():
    call = Call().add(("masked", dense(2)), ("sparse", *sparse()))
    with pytest.raises(tf.errors.InvalidArgumentError, match="batch size 2 got 3 at position 1"):
        call.run()
    call = Call().add(("masked", tf.constant(["x"])), ("sparse", *sparse()))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"received shape \[1\] at"):
        call.run()


def test_a_vector_is_one():
    call = Call().add(("dense", dense()), ("vector", dense()))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[3,1\] at dense tensor 1"):
        call.run()
    call = Call().add(("dense", dense(2)), ("vector", tf.constant(["a", "b", "c"])))
    with pytest.raises(tf.errors.InvalidArgumentError, match="size 2 got 3 at dense tensor 1"):
        call.run()


def test_negative_rows_and_too_many_ids_are_errors():
    none = sparse(values=tf.zeros([0], tf.string), pairs=np.zeros([0, 2]), shape=(-1, 2))
    with pytest.raises(tf.errors.InvalidArgumentError, match="there are -1 rows"):
        Call().add(("sparse", *none)).run()
    wide = ("dense", tf.zeros([1, 1 << 12], tf.int64))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory"):
        Call().add(*[wide] * 6).run()
    many = sparse(values=["a"] * 4096, pairs=[[0, 0]] * 4096, shape=(1, 1))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="memory"):
        Call().add(*[("sparse", *many)] * 6).run()


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"hashes": ["seeded"]}, "an item for each of 2 crosses"),
        ({"num_buckets": [5]}, "an item for each of 2 crosses"),
        ({"keys": [1, 2, 3]}, "keys two"),
        ({"forms": ["indices"]}, "an item for each of 2 crosses"),
        ({"feature_counts": [2]}, "an item for each of 2 crosses"),
        ({"feature_counts": [2, 1]}, "add up to the 4 features that there are, not to 3"),
        ({"feature_counts": [4, 0]}, "from 1 to 1024, not 0"),
        ({"feature_counts": [2, 2000]}, "from 1 to 1024, not 2000"),
        ({"feature_counts": [-1, 5]}, "from 1 to 1024, not -1"),
        ({"feature_forms": ["sparse"] * 3}, "an item for each of 4 features"),
        ({"feature_forms": ["sparse"] * 4}, "num_sparse must be .* 4, not 2"),
        ({"ignored": [1]}, "ignored none or one"),
        ({"num_buckets": [5, -7]}, "num_buckets must be at least 0, not -7"),
        ({"forms": ["indices", "matrix"]}, "cross 1 gives a matrix, but its feature 0 is not"),
        ({"hashes": ["seeded", "strong"]}, "feature 3 is a dense one of integers"),
    ],
)
def test_lists_that_do_not_fit_are_errors(attrs, message):
    numbers = ("dense", tf.constant([[1], [2], [3]]))
    call = Call().add(("sparse", *sparse()), numbers).add(("sparse", *sparse()), numbers)
    call.attrs |= attrs
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call.run()


def test_shapes_are_not_known_before():
    with tf.Graph().as_default():
        values = tf.compat.v1.placeholder(tf.string, [None, 3])
        results = Call().add(("dense", values), form="matrix").run()
        assert [one.shape.rank for one in results] == [None] * 3


def test_as_many_features_as_there_may_be():
    one = ("dense", tf.constant([["a"], ["b"]]))
    Call().add(*[one] * MAX_CROSSED).check()
