"""GroupedSplit: parts of texts are those of TensorFlow's ops, and their ids those of GroupedIds."""

from __future__ import annotations

import threading
from random import Random

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import ops
from fusion.schema.attributes import HASHES, PARTS, ROW_FORMS
from tests import reference
from tests.reference import MODES

DELIMITERS = (b"|", b"\0", b"\xff", b", ", b"aa", b"ab|", b"exactly8", b"of more than 8")
#: Texts of all numbers of bytes at which something else is done: in the tensor's element, in words.
SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 20, 21, 22, 23, 24, 31, 40, 300)
WORDS = [b"", b"red", b"a colour of more than 16 bytes", b"exactly16bytes!!", b"green"]


def texts_of(random: Random, delimiter: bytes, count: int) -> list[bytes]:
    """Texts of any bytes, most of them with delimiters, or parts of them."""
    found = []
    for _ in range(count):
        pieces = [
            random.choice(
                (delimiter, delimiter[:1], b"", random.choice(WORDS), random.randbytes(3))
            )
            for _ in range(random.randrange(9))
        ]
        text = b"".join(pieces)
        found.append(random.choice((text, text[: random.choice(SIZES)])))
    return found


def stock(texts: tf.Tensor, delimiter: bytes, parts: str) -> tuple[tf.Tensor, ...]:
    """Indices, parts and the dense shape."""
    if parts == "all":
        return tuple(tf.raw_ops.StringSplitV2(input=texts, sep=delimiter, maxsplit=-1))
    skips = parts == "nonempty"
    return tuple(tf.raw_ops.StringSplit(input=texts, delimiter=delimiter, skip_empty=skips))


def ours(texts, delimiters, parts, forms, index=(), **options):
    count = len(texts)
    options.setdefault("hashes", ["fast"] * count)
    options.setdefault("num_buckets", [1000] * count)
    return ops.grouped_split(
        texts=list(texts),
        index=list(index),
        num_columns=count,
        num_indices=len(index),
        delimiters=list(delimiters),
        parts=list(parts),
        forms=list(forms),
        **options,
    )


def ids_of(values, **options):
    """What GroupedIds makes of values, in the attrs of one column."""
    return ops.grouped_ids(
        values=[values], index=options.pop("index", []), num_columns=1, **options
    )[0]


def check(texts, delimiter, parts, hash_kind="fast", key=(3, -5)):
    """Compares a column in both forms."""
    indices, values, shape = stock(texts, delimiter, parts)
    options = {"hashes": [hash_kind], "num_buckets": [1000], "keys": list(key)}
    expected = ids_of(values, **options)
    both = {name: value * 2 for name, value in options.items()}
    found = ours([texts] * 2, [delimiter] * 2, [parts] * 2, ROW_FORMS, **both)
    np.testing.assert_array_equal(found.ids[0], expected)
    np.testing.assert_array_equal(found.ids[1], expected)
    np.testing.assert_array_equal(found.rows[0], indices)
    counts = np.bincount(indices[:, 0], minlength=len(texts))
    np.testing.assert_array_equal(found.rows[1], [0, *np.cumsum(counts)])
    for one in found.dense_shapes:
        np.testing.assert_array_equal(one, shape)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("delimiter", DELIMITERS)
def test_parts_are_those_of_stock(delimiter, parts):
    if parts != "all" and len(delimiter) > 1:
        delimiter = delimiter[:1]  # StringSplit has a set of delimiters
    random = Random(str((delimiter, parts)))
    for count in (0, 1, 5, 64, 700):
        texts = tf.constant(texts_of(random, delimiter, count), tf.string, [count])
        check(texts, delimiter, parts)


@pytest.mark.parametrize("kind", [kind for kind in HASHES if kind != "remainder"])
def test_all_hashes(kind):
    check(tf.constant(texts_of(Random(kind), b"|", 300)), b"|", "all", kind)


@pytest.mark.parametrize(
    "texts",
    [[b""], [b"|"], [b"||||"], [b"", b""], [b"a"], [b"|a"], [b"a|"], [b"a||b"], [b"a" * 5000]],
)
@pytest.mark.parametrize("parts", PARTS)
def test_edges(texts, parts):
    check(tf.constant(texts), b"|", parts)
    check(tf.constant([b"x|y|z", *texts, b"x|y"]), b"|", parts)


def test_overlapping_delimiters_are_found_from_the_left():
    texts = [b"a" * count for count in range(40)] + [b"aab" * 9, b"baa" * 9, b"abaa"]
    check(tf.constant(texts), b"aa", "all")
    check(tf.constant(texts), b"aba", "all")


def index_of(words, default=-1, mask=None):
    """An index of a vocabulary."""
    masks = [] if mask is None else [tf.constant([mask[0]])]
    return ops.vocabulary_index(
        keys=[tf.constant(words)],
        key_values=[tf.range(len(words), dtype=tf.int64) + 7],
        defaults=[tf.constant(default, tf.int64)],
        masks=masks,
        mask_values=[] if mask is None else [tf.constant([mask[1]], tf.int64)],
        num_vocabularies=1,
        masked=[0] * len(masks),
    )


@pytest.mark.parametrize("buckets", [0, 5])
@pytest.mark.parametrize("parts", PARTS)
def test_parts_are_looked_up(buckets, parts):
    index = index_of(WORDS[1:], mask=(b"", 3))
    options = {
        "hashes": ["fast"],
        "num_buckets": [buckets],
        "vocabularies": [0],
        "replaced": [-1],
        "starts": [-1],
    }
    random = Random(buckets)
    for count in (0, 3, 40, 900):
        texts = tf.constant(texts_of(random, b"|", count), tf.string, [count])
        indices, values, _ = stock(texts, b"|", parts)
        expected = ids_of(values, index=[index], num_indices=1, **options)
        found = ours([texts], [b"|"], [parts], ["indices"], [index], **options)
        np.testing.assert_array_equal(found.ids[0], expected)
        np.testing.assert_array_equal(found.rows[0], indices)


def test_columns_of_all_kinds_at_once():
    random, index = Random(4), index_of(WORDS)
    columns = [
        (b"|", "all", "indices", "fast", 10, -1),
        (b"--", "all", "row_splits", "strong", 11, -1),
        (b";", "of_texts", "indices", "fast", 0, 0),
        (b";", "nonempty", "row_splits", "legacy", 3, 0),
    ]
    texts = [tf.constant(texts_of(random, one[0], 300 * k)) for k, one in enumerate(columns, 1)]
    delimiters, parts, forms, hashes, buckets, vocabularies = zip(*columns, strict=True)
    given = {"hashes": hashes, "num_buckets": buckets, "vocabularies": vocabularies}
    options = {name: list(values) for name, values in given.items()}
    options |= {"keys": [1, 2] * 4, "replaced": [-1] * 4, "starts": [100] * 4}
    found = ours(texts, delimiters, parts, forms, [index], **options)
    for k, one in enumerate(texts):
        indices, values, shape = stock(one, delimiters[k], parts[k])
        own = {name: values[k : k + 1] for name, values in options.items() if name != "keys"}
        has_index = {"index": [index], "num_indices": 1} if vocabularies[k] >= 0 else {}
        expected = ids_of(values, keys=[1, 2], **has_index, **own)
        np.testing.assert_array_equal(found.ids[k], expected)
        np.testing.assert_array_equal(found.dense_shapes[k], shape)
        assert (
            found.rows[k].shape == (len(indices), 2) if forms[k] == "indices" else (len(one) + 1,)
        )


@pytest.mark.parametrize("mode", MODES)
def test_in_every_way_that_graphs_run(mode):
    texts = np.array(texts_of(Random(1), b"|", 50), object)

    def split(_, texts):
        found = ours([texts], [b"|"], ["nonempty"], ["row_splits"])
        return found.ids[0], found.rows[0], found.dense_shapes[0]

    def expected(_, texts):
        indices, values, shape = stock(texts, b"|", "nonempty")
        ids = tf.strings.to_hash_bucket_fast(values, 1000)
        counts = tf.math.bincount(tf.cast(indices[:, 0], tf.int32), minlength=50)
        return ids, tf.concat([[0], tf.cumsum(tf.cast(counts, tf.int64))], 0), shape

    for one, other in zip(
        reference.run(mode, split, {"texts": texts}),
        reference.run(mode, expected, {"texts": texts}),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_threads_at_once():
    texts = [tf.constant(texts_of(Random(k), b"|", 3000)) for k in range(4)]
    expected = [
        tf.strings.to_hash_bucket_fast(stock(one, b"|", "all")[1], 999).numpy() for one in texts
    ]
    failures: list[int] = []

    def run(number):
        for _ in range(10):
            found = ours([texts[number]], [b"|"], ["all"], ["indices"], num_buckets=[999])
            if not np.array_equal(found.ids[0], expected[number]):
                failures.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_static_shapes():
    with tf.Graph().as_default():
        texts = tf.compat.v1.placeholder(tf.string, [None])
        found = ours([texts], ["|"], ["all"], ["indices"])
        assert found.ids[0].shape.as_list() == [None]
        assert found.dense_shapes[0].shape.as_list() == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delimiters": [b""]}, r"delimiters\[0\] is empty"),
        ({"delimiters": []}, "an item for each of 1 columns"),
        ({"forms": ["indices"] * 2}, "an item for each of 1 columns"),
        ({"num_buckets": [0]}, "num_buckets must be at least 1, not 0"),
        ({"hashes": ["remainder"]}, "which strings do not have"),
        ({"vocabularies": [0]}, "num_indices must be 1, not 0"),
    ],
)
def test_bad_attrs(changes, message):
    arguments = {"delimiters": [b"|"], "parts": ["all"], "forms": ["indices"]} | changes
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ours([tf.constant([b"a"])], **arguments)


def test_texts_that_are_no_vector():
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="texts"):
        ours([tf.constant([[b"a"]])], [b"|"], ["all"], ["indices"])


def test_an_index_of_something_else():
    numbers = tf.zeros([100], tf.int64)
    options = {"num_buckets": [0], "vocabularies": [0]}
    with pytest.raises(tf.errors.InvalidArgumentError, match="index has no vocabulary 0"):
        ours([tf.constant([b"a"])], [b"|"], ["all"], ["indices"], [numbers], **options)


def test_calls_are_counted():
    before = {one.op: one.rows for one in fusion.stats().ops}.get("GroupedSplit", 0)
    ours([tf.constant([b"a|b", b"c"])], [b"|"], ["all"], ["indices"])
    assert {one.op: one.rows for one in fusion.stats().ops}["GroupedSplit"] == before + 3
