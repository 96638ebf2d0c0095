"""GroupedIds: the ids are those of TensorFlow's ops, bit by bit."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.ops.ids.stock import grouped_ids
from fusion.schema.attributes import HASHES
from tests import reference
from tests.reference import MODES

#: Texts of all sizes at which a hash takes another way, and integers of all numbers of digits.
TEXTS = [random.Random(size).randbytes(size) for size in range(300)]
NUMBERS = sorted(
    {sign * (10**k + d) for k in range(19) for d in (-1, 0, 1) for sign in (1, -1)}
    | {2**63 - 1, -(2**63)}
)
BUCKETS = (1, 2, 7, 1000, 2**31, 2**32 + 1, 2**63 - 25, 2**63 - 1)


def ours(values, hashes, num_buckets, keys=()):
    return ops.grouped_ids(
        values=list(values),
        index=[],
        num_columns=len(values),
        hashes=list(hashes),
        num_buckets=list(num_buckets),
        keys=list(keys),
    )


def check(values, hashes, num_buckets, keys=()):
    attrs = {"hashes": hashes, "num_buckets": num_buckets, "keys": keys, "num_indices": 0}
    results = ours(values, hashes, num_buckets, keys)
    for result, expected in zip(results, grouped_ids(attrs, values), strict=True):
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("kind", HASHES)
@pytest.mark.parametrize("buckets", BUCKETS)
def test_texts_and_numbers_have_the_ids_of_stock(kind, buckets):
    halves = tf.constant([n for n in NUMBERS if -(2**31) <= n < 2**31], tf.int32)
    values = [tf.constant(NUMBERS, tf.int64)]
    values += [halves] if kind != "remainder" or buckets < 2**31 else []
    values += [tf.constant(TEXTS)] if kind != "remainder" else []
    count = len(values)
    check(values, [kind] * count, [buckets] * count, [3, -5] * count if kind == "strong" else [])


def test_each_column_has_its_own_hash_and_shape():
    shapes = [[], [0], [300], [3, 100], [2, 0], [300, 1, 1]]
    values = [tf.constant(TEXTS[: int(np.prod(shape))], tf.string, shape) for shape in shapes]
    hashes = [kind for kind in HASHES if kind != "remainder"]
    check(values, hashes * 2, [11, 12, 13, 14, 15, 16], range(12))


def test_many_values_are_hashed_by_several_threads():
    generator = np.random.default_rng(1)
    values = [tf.constant(generator.integers(-(2**63), 2**63 - 1, n)) for n in (5000, 1, 0, 9000)]
    values.append(tf.constant(TEXTS * 30))
    check(
        values, ["fast", "legacy", "fast", "strong", "fast"], [10**k for k in range(1, 6)], [7] * 10
    )


@pytest.mark.parametrize("mode", MODES)
def test_in_every_way_that_graphs_run(mode):
    def hashed(_, texts, numbers):
        return tuple(ours([texts, numbers], ["fast", "legacy"], [100, 1000]))

    inputs = {"texts": np.array(TEXTS[:40], object), "numbers": np.array(NUMBERS)}
    for result, expected in zip(
        reference.run(mode, hashed, inputs),
        grouped_ids(
            {
                "hashes": ["fast", "legacy"],
                "num_buckets": [100, 1000],
                "keys": [],
                "num_indices": 0,
            },
            [tf.constant(value) for value in inputs.values()],
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(result, expected)


def test_threads_at_once():
    texts = [tf.constant([b"%d-%d" % (k, n) for n in range(3000)]) for k in range(4)]
    expected = [tf.strings.to_hash_bucket_fast(one, 999).numpy() for one in texts]
    failures: list[int] = []

    def run(number):
        for _ in range(20):
            result = ours([texts[number]], ["fast"], [999])[0]
            if not np.array_equal(result, expected[number]):
                failures.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_static_shapes():
    with tf.Graph().as_default():
        values = tf.compat.v1.placeholder(tf.string, [None, 3])
        others = tf.compat.v1.placeholder(tf.int64, [7])
        results = ours([values, others], ["fast", "fast"], [5, 5])
        assert [one.shape.as_list() for one in results] == [[None, 3], [7]]


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"hashes": ["fast"]}, "an item for each of 2 columns"),
        ({"num_buckets": [5]}, "an item for each of 2 columns"),
        ({"keys": [1, 2, 3]}, "keys two or none"),
        ({"num_buckets": [5, 0]}, "num_buckets must be at least 1, not 0"),
        ({"num_buckets": [5, -7]}, "num_buckets must be at least 1, not -7"),
    ],
)
def test_lists_that_do_not_fit_are_errors(attrs, message):
    good = {"hashes": ["fast", "fast"], "num_buckets": [5, 5], "keys": []}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ours([tf.constant(["a"]), tf.constant([1])], **{**good, **attrs})


def test_an_unknown_hash_is_an_error():
    with pytest.raises(ValueError, match="hashes"):
        ours([tf.constant(["a"])], ["slow"], [5])


def test_strings_have_no_remainder():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"hashes\[1\] is remainder"):
        ours([tf.constant([1]), tf.constant(["a"])], ["remainder"] * 2, [5, 5])


def test_floats_are_not_hashed():
    with pytest.raises(TypeError, match="values must be string or int32 or int64, not float32"):
        ours([tf.constant([1.0])], ["fast"], [5])
