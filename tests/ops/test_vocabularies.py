"""VocabularyIndex and GroupedIds: ids are those of stock tables, and of a dict."""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.ops.ids.stock import grouped_ids
from tests import reference, zygote
from tests.reference import MODES

DEFAULT, SIZE = -(2**63), -1
#: The first word of an index, and how many words come before its vocabularies and are one's head.
WORDS, HEAD, VOCABULARY = 1, 3, 8

#: Texts of all sizes, and some that differ from one of them in a byte.
TEXTS = [random.Random(size).randbytes(size) for size in range(301)]
TEXTS += [text[:-1] + bytes([text[-1] ^ 1]) for text in TEXTS[1:]]
TEXTS += [text[:16] + b"?" + text[17:] for text in TEXTS[17:301:7]]
TEXTS += [b"\0" * size for size in range(1, 40)] + [b"\xff" * size for size in range(1, 40)]
NUMBERS = sorted({sign * 2**k + d for k in range(63) for d in (-1, 0, 1) for sign in (1, -1)})
NUMBERS = [-(2**63), 2**63 - 1, *NUMBERS[1:-1]]


@dataclass(frozen=True)
class Vocabulary:
    """Keys, what they have, and what is beside them."""

    keys: Any
    values: Any
    default: int = -1
    mask: Any = None
    mask_value: int = 0
    dtype: Any = tf.string

    def found(self, one: Any) -> int:
        """What a value has, as a dict says it."""
        known = dict(zip(reversed(list(self.keys)), reversed(list(self.values)), strict=True))
        if self.mask is not None:
            known[self.mask] = self.mask_value
        return known.get(one, self.default)


def numbered(keys, dtype=tf.string, **options):
    return Vocabulary(keys, list(range(10, 10 + len(keys))), dtype=dtype, **options)


def index_of(*vocabularies):
    masked = [k for k, one in enumerate(vocabularies) if one.mask is not None]
    return ops.vocabulary_index(
        keys=[tf.constant(list(one.keys), one.dtype) for one in vocabularies],
        key_values=[tf.constant(list(one.values), tf.int64) for one in vocabularies],
        defaults=[tf.constant(one.default, tf.int64) for one in vocabularies],
        masks=[tf.constant(vocabularies[k].mask, vocabularies[k].dtype) for k in masked],
        mask_values=[tf.constant(vocabularies[k].mask_value, tf.int64) for k in masked],
        num_vocabularies=len(vocabularies),
        num_masks=len(masked),
        Tmasks=[vocabularies[k].dtype for k in masked],
        masked=masked,
    )


def ids_of(values, index, vocabularies=(0,), **attrs):
    count = len(values)
    attrs = {"hashes": ["fast"] * count, "num_buckets": [0] * count, **attrs}
    return ops.grouped_ids(
        values=values,
        index=[] if index is None else [index],
        num_columns=count,
        num_indices=0 if index is None else 1,
        vocabularies=list(vocabularies),
        **attrs,
    )


def check(vocabulary, values, shape=None):
    """Values have what a dict says."""
    tensor = tf.constant(list(values), vocabulary.dtype, shape)
    (ids,) = ids_of([tensor], index_of(vocabulary))
    assert ids.shape == tensor.shape
    flat = np.array([vocabulary.found(one) for one in values], np.int64)
    np.testing.assert_array_equal(ids, flat.reshape(tensor.shape))


@pytest.mark.parametrize("mask", [None, b"", TEXTS[300], b"in no key"])
def test_texts_of_all_sizes(mask):
    keys = TEXTS[::2]
    random.Random(1).shuffle(keys)
    check(numbered(keys, mask=mask, mask_value=-7), [*TEXTS, b"in no key", *keys])


def test_texts_that_differ_in_one_byte_are_different():
    text = bytes(range(64))
    for size in (1, 7, 8, 9, 15, 16, 17, 22, 23, 24, 25, 33, 64):
        whole = text[:size]
        others = [whole[:k] + bytes([whole[k] ^ 128]) + whole[k + 1 :] for k in range(size)]
        longer = [whole + b"\0", whole[:-1], b"\0" + whole]
        check(numbered([whole]), [whole, *others, *longer])
        check(numbered(others), [whole, *others, *longer])


@pytest.mark.parametrize("dtype", [tf.int64, tf.int32])
@pytest.mark.parametrize("mask", [None, 0, -1, 12345])
def test_integers(dtype, mask):
    numbers = [one for one in NUMBERS if dtype.min <= one <= dtype.max]
    check(numbered(numbers[::2], dtype, mask=mask, mask_value=99), [*numbers, 12345])
    check(numbered(numbers, dtype, default=2**63 - 1, mask=mask), numbers)


def test_integers_from_the_lowest_one_on_leave_a_number_for_empty_slots():
    keys = [-(2**63) + k for k in range(50)]
    check(numbered(keys, tf.int64, mask=-(2**63) + 50), [*keys, -(2**63) + 50, -(2**63) + 51, 0])


@pytest.mark.parametrize("dtype", [tf.string, tf.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 50_000])
def test_vocabularies_of_any_size_are_as_stock_tables(count, dtype):
    generator = np.random.default_rng(count)
    keys = np.unique(generator.integers(-(2**40), 2**40, count + 9))[:count]
    values = generator.integers(-(2**63), 2**63 - 1, len(keys))
    asked = np.concatenate([keys[:3000], generator.integers(-(2**40), 2**40, 500)])
    if dtype == tf.string:
        keys, asked = (np.array([b"%d" % n for n in of], object) for of in (keys, asked))
    tensor, stock = tf.constant(asked.tolist(), dtype), np.full(len(asked), -3)
    if count:  # stock has no tables without keys
        initializer = tf.lookup.KeyValueTensorInitializer(
            tf.constant(keys.tolist(), dtype), tf.constant(values), dtype, tf.int64
        )
        stock = tf.lookup.StaticHashTable(initializer, -3).lookup(tensor)
    index = index_of(Vocabulary(keys, values, -3, dtype=dtype))
    np.testing.assert_array_equal(ids_of([tensor], index)[0], stock)


def test_of_equal_keys_the_first_one_counts_and_a_mask_before_all():
    check(Vocabulary([b"a", b"b", b"a", b"b"], [1, 2, 3, 4], mask=b"b", mask_value=5), [b"a", b"b"])
    check(Vocabulary([7, 8, 7], [1, 2, 3], mask=8, mask_value=4, dtype=tf.int64), [7, 8, 9])


@pytest.mark.parametrize("shape", [[], [0], [3, 0, 2], [6], [2, 3], [1, 2, 1, 3, 1]])
def test_any_shape(shape):
    asked = [b"a", b"b", b"", b"c", b"a", b"x"][: int(np.prod(shape))]
    check(numbered([b"a", b"b", b"c"]), asked, shape)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, tf.string) for kind in ("fast", "legacy", "strong")),
        *((kind, tf.int64) for kind in ("fast", "legacy", "strong", "remainder")),
        *((kind, tf.int32) for kind in ("fast", "remainder")),
    ],
)
@pytest.mark.parametrize("start", [SIZE, 0, 77])
@pytest.mark.parametrize("replaced", [DEFAULT, -1, 12])
def test_buckets(kind, dtype, start, replaced):
    pool = TEXTS if dtype == tf.string else [n for n in NUMBERS if dtype.min <= n <= dtype.max]
    vocabulary = numbered(pool[::3], dtype, mask=pool[0], mask_value=12)
    buckets, key = 7, [3, -5] if kind == "strong" else []
    values = tf.constant(pool, dtype)
    (ids,) = ids_of(
        [values],
        index_of(vocabulary),
        hashes=[kind],
        num_buckets=[buckets],
        keys=key,
        replaced=[replaced],
        starts=[start],
    )
    attrs = {"hashes": [kind], "num_buckets": [buckets], "keys": key, "num_indices": 0}
    bucket = grouped_ids(attrs, [values])[0].numpy()
    bucket += len(vocabulary.keys) if start == SIZE else start
    found = np.array([vocabulary.found(one) for one in pool])
    out = vocabulary.default if replaced == DEFAULT else replaced
    np.testing.assert_array_equal(ids, np.where(found == out, bucket, found))


def columns_of_an_op():
    """Values, the index and attrs of columns of all kinds."""
    vocabularies = [
        numbered(TEXTS[::2], mask=b""),
        numbered(NUMBERS[::2], tf.int64, default=5),
        numbered(TEXTS[1::2]),
    ]
    attrs = {
        "hashes": ["fast", "legacy", "fast", "strong", "remainder"],
        "num_buckets": [9, 100, 0, 4, 3],
        "keys": list(range(10)),
        "replaced": [DEFAULT, DEFAULT, DEFAULT, -1, 5],
        "starts": [0, 0, 0, SIZE, 1000],
    }
    places = [-1, -1, 1, 2, 1]
    pools = [TEXTS, NUMBERS, NUMBERS, TEXTS, NUMBERS]
    return vocabularies, attrs, places, pools


def expected_of_an_op(values):
    vocabularies, attrs, places, _ = columns_of_an_op()
    hashed = grouped_ids(
        {
            **attrs,
            "num_buckets": [max(n, 1) for n in attrs["num_buckets"]],
            "num_indices": 0,
        },
        [tf.constant(one) for one in values],
    )
    expected = []
    for k, column in enumerate(values):
        if places[k] < 0:
            expected.append(hashed[k].numpy())
            continue
        vocabulary = vocabularies[places[k]]
        found = np.array([vocabulary.found(one) for one in column], np.int64)
        if attrs["num_buckets"][k]:
            start, out = attrs["starts"][k], attrs["replaced"][k]
            bucket = hashed[k].numpy() + (len(vocabulary.keys) if start == SIZE else start)
            found = np.where(
                found == (vocabulary.default if out == DEFAULT else out), bucket, found
            )
        expected.append(found)
    return expected


@pytest.mark.parametrize("mode", MODES)
def test_vocabularies_and_hashes_in_one_op(mode):
    vocabularies, attrs, places, pools = columns_of_an_op()
    inputs = {
        f"v{k}": np.array(pool[:200], object if isinstance(pool[0], bytes) else np.int64)
        for k, pool in enumerate(pools)
    }

    def made(_, **values):
        return tuple(ids_of([*values.values()], index_of(*vocabularies), places, **attrs))

    results = reference.run(mode, made, inputs)
    for result, expected in zip(results, expected_of_an_op([*inputs.values()]), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_many_values_and_threads_at_once():
    vocabularies, attrs, places, pools = columns_of_an_op()
    index = index_of(*vocabularies)
    values = [random.Random(k).choices(pool, k=3000 + k) for k, pool in enumerate(pools)]
    columns = [np.array(v, object if isinstance(v[0], bytes) else np.int64) for v in values]
    expected, tensors = expected_of_an_op(columns), [tf.constant(one) for one in columns]
    failures: list[int] = []

    def run(number):
        for _ in range(10):
            results = ids_of(tensors, index, places, **attrs)
            if not all(map(np.array_equal, results, expected)):
                failures.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def strings_of_all_kinds():
    """Tensors of the same strings that TensorFlow made in several ways."""
    texts = np.array([text for text in TEXTS if len(text) < 64], object)
    plain = tf.constant(texts)
    yield plain
    sizes = tf.strings.length(plain)
    yield tf.strings.substr(tf.strings.join(["#", plain, "#"]), tf.ones_like(sizes), sizes)
    yield tf.gather(tf.constant([*texts, b"more"]), tf.range(len(texts)))
    yield tf.reshape(tf.data.Dataset.from_tensors(plain).get_single_element(), [-1])
    yield tf.io.parse_tensor(tf.io.serialize_tensor(plain), tf.string)
    yield tf.concat([plain[:9], plain[9:]], 0)
    yield tf.stack([tf.identity(one) for one in tf.unstack(plain)])
    yield tf.strings.unicode_encode(
        tf.strings.unicode_decode(["é" * 5, "é" * 20], "UTF-8"), "UTF-8"
    )


def test_strings_of_all_kinds():
    made = [*strings_of_all_kinds()]
    for one in made:
        for other in made:
            vocabulary = numbered(one.numpy().tolist())
            index = ops.vocabulary_index(
                keys=[one],
                key_values=[tf.constant(vocabulary.values, tf.int64)],
                defaults=[tf.constant(-1, tf.int64)],
                masks=[],
                mask_values=[],
                num_vocabularies=1,
            )
            (ids,) = ids_of([other], index)
            np.testing.assert_array_equal(ids, [vocabulary.found(text) for text in other.numpy()])


def test_static_shapes():
    with tf.Graph().as_default():
        values = tf.compat.v1.placeholder(tf.string, [None, 3])
        index = index_of(numbered([b"a"]))
        assert ids_of([values], index)[0].shape.as_list() == [None, 3]


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"vocabularies": [0, -1]}, "an item for each of 1 columns"),
        ({"replaced": [0, 0]}, "an item for each of 1 columns"),
        ({"starts": [0, 0]}, "an item for each of 1 columns"),
        ({"vocabularies": [-2]}, r"vocabularies\[0\] must be at least -1, not -2"),
        ({"starts": [-2]}, r"starts\[0\] must be at least -1, not -2"),
        ({"num_buckets": [-1]}, "num_buckets must be at least 0, not -1"),
        ({"hashes": ["remainder"]}, "remainder, which strings do not have"),
        ({"vocabularies": [-1], "num_buckets": [2]}, "num_indices must be 0, not 1"),
        ({"vocabularies": [], "num_buckets": [2]}, "num_indices must be 0, not 1"),
    ],
)
def test_attrs_that_do_not_fit_are_errors(attrs, message):
    index = index_of(numbered([b"a"]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ids_of([tf.constant(["a"])], index, **attrs)


def test_an_index_that_is_missing_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="num_indices must be 1, not 0"):
        ids_of([tf.constant(["a"])], None)


def wrong_indices():
    index = index_of(numbered([b"a", b"b" * 20])).numpy()
    yield np.zeros(0, np.int64), "nothing"
    yield index[:1], "the first word alone"
    yield index[:-1], "truncated"
    yield np.append(index, 0), "longer"
    yield index + np.eye(1, len(index), dtype=np.int64)[0], "another first word"
    yield index_of(numbered([1], tf.int64)).numpy(), "of integers"
    for word, value in [(1, 2**63 - 1), (2, 0), (2, 2**62), (4 + HEAD - 2, 2**62)]:
        other = index.copy()
        other[word] = value
        yield other, f"word {word} is {value}"


@pytest.mark.parametrize(("index", "_"), [*wrong_indices()], ids=lambda one: str(one)[:40])
def test_what_is_no_index_of_the_column_is_an_error(index, _):
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="index has no vocabulary 0 for column 0: VocabularyIndex makes indices",
    ):
        ids_of([tf.constant(["a"])], tf.constant(index))


def test_a_vocabulary_that_the_index_does_not_have_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="no vocabulary 1 for column 0"):
        ids_of([tf.constant(["a"])], index_of(numbered([b"a"])), [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="no vocabulary 0 for column 1"):
        ids_of([tf.constant(["a"]), tf.constant([1])], index_of(numbered([b"a"])), [0, 0])


def make_index(**changes):
    good = {
        "keys": [tf.constant(["a", "b"]), tf.constant([1], tf.int64)],
        "key_values": [tf.constant([1, 2], tf.int64), tf.constant([3], tf.int64)],
        "defaults": [tf.constant(-1, tf.int64)] * 2,
        "masks": [tf.constant("")],
        "mask_values": [tf.constant(0, tf.int64)],
        "masked": [0],
        "num_vocabularies": 2,
        "num_masks": 1,
        "Tmasks": [tf.string],
    }
    return ops.vocabulary_index(**{**good, **changes})


def long(*values):
    return tf.constant(values, tf.int64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"key_values": [long(1), long(3)]},
            r"keys\[0\] must be as many as key_values\[0\], .*: 2 and 1",
        ),
        (
            {"key_values": [long(1, 2), long()]},
            r"keys\[1\] must be as many as key_values\[1\], .*: 1 and 0",
        ),
        ({"defaults": [long(1), long(1, 2)]}, r"defaults\[1\] must be one element"),
        ({"defaults": [long(), long(1)]}, r"defaults\[0\] must be one element"),
        ({"masks": [tf.constant(["", ""])]}, r"masks\[0\] and mask_values\[0\] must be one"),
        ({"mask_values": [long()]}, r"masks\[0\] and mask_values\[0\] must be one"),
        ({"masked": [1]}, r"masks\[0\] must have the dtype of keys\[1\]"),
        ({"masked": [2]}, "masked must be numbers of the 2 vocabularies in increasing order"),
        ({"masked": [-1]}, "masked must be numbers of the 2 vocabularies in increasing order"),
        ({"masked": []}, "masked must have an item for each of 1 masks"),
    ],
)
def test_what_no_index_is_made_of_is_an_error(changes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        make_index(**changes)


def test_masks_in_another_order_are_an_error():
    masks = {
        "masks": [long(1), tf.constant("")],
        "mask_values": [long(1), long(1)],
        "num_masks": 2,
        "Tmasks": [tf.int64, tf.string],
        "masked": [1, 0],
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match="in increasing order"):
        make_index(**masks)


def corrupted(generator):
    """Yields words that may be no index, though most begin as one does."""
    texts, numbers = TEXTS[::9], NUMBERS[::3]
    index = index_of(numbered(texts, mask=b""), numbered(numbers, tf.int64)).numpy()
    heads = HEAD + 2 * VOCABULARY
    odd = [0, -1, 1, 2**63 - 1, -(2**63), 2**62, 2**61, len(index), len(index) - 1, 8 * len(index)]
    odd += [2**63 - size for size in range(17, 300, 9)]
    for round_ in range(300):
        words = index.copy()
        end = heads if round_ % 3 == 0 else len(words)
        for _ in range(int(generator.integers(1, 20 if round_ % 2 else 4))):
            word = generator.integers(2, end)
            is_odd = generator.random() < 0.6
            words[word] = (
                generator.choice(odd) if is_odd else generator.integers(-(2**63), 2**63 - 1)
            )
        yield words
    for column in range(4):  # a word of every slot
        for value in odd:
            words = index.copy()
            words[heads + column :: 4] = value
            yield words
    for _ in range(100):
        words = generator.integers(-(2**63), 2**63 - 1, int(generator.integers(1, 200)))
        words[:3] = [index[0], len(words), 2][: len(words)]
        yield words


def look_up_in_corrupted_indices(seed):
    """What a process does, which must not crash."""
    texts, numbers, results = tf.constant(TEXTS), tf.constant(NUMBERS), {"ids": 0, "errors": 0}
    for words in corrupted(np.random.default_rng(seed)):
        try:
            ids_of(
                [texts, numbers],
                tf.constant(words),
                [0, 1],
                hashes=["fast", "remainder"],
                num_buckets=[3, 4],
            )
            results["ids"] += 1
        except tf.errors.InvalidArgumentError:
            results["errors"] += 1
    return results


def test_corrupted_indices_do_not_crash_the_process():
    code = "from tests.ops.test_vocabularies import look_up_in_corrupted_indices as run\n"
    code += "results = run(5)\nassert min(results.values()) > 30, results\n"
    done = zygote.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=zygote.ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
