"""More graphs as in `row_cases`: texts that are split, ragged tensors, masks, images in parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tests.passes.row_cases import Case, Inputs, numbers

raw = tf.raw_ops

CASES: dict[str, list[Case]] = {}
OTHERS: dict[str, list[Case]] = {}


def _keeps(op: str, *cases: Case) -> None:
    CASES.setdefault(op, []).extend(cases)


def _mixes(op: str, *cases: Case) -> None:
    OTHERS.setdefault(op, []).extend(cases)


def _rows(side: Inputs) -> tf.Tensor:
    return tf.shape(side.x)[0]


def _turned(tensor: tf.Tensor) -> tf.Tensor:
    return tf.transpose(tensor, [1, 0, 2])


def _words(text: tf.Tensor) -> Any:
    """Indices, values and shape of the words of each text; a text of a number has one or two."""
    texts = tf.strings.regex_replace(text, r"\.", " ")
    return raw.StringSplitV2(input=texts, sep="", maxsplit=-1)


def _padded_words(words: Any, rows: tf.Tensor, count: tf.Tensor, width: int = 3) -> tf.Tensor:
    return raw.RaggedTensorToTensor(
        shape=[-1, width],
        values=tf.strings.length(words.values),
        default_value=0,
        row_partition_tensors=[count, rows],
        row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
    )


_keeps(
    "StringSplitV2",
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[:, 0], w.shape[0]),
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[:, 0], tf.identity(w.shape[0])),
)
_mixes(
    "StringSplitV2",
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[:, 0], w.shape[1]),
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[:, 1], w.shape[0]),
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[:, 0], 2 * w.shape[0]),
    lambda a, b: _padded_words(_words(a.text), (w := _words(b.text)).indices[:, 0], w.shape[0]),
    lambda a, b: _padded_words(
        (w := _words(a.text)), w.indices[:, 0], tf.cast(tf.shape(a.x)[0], tf.int64)
    ),
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[::-1, 0], w.shape[0]),
    lambda a, b: a.x * tf.cast(_words(a.text).shape[0], tf.float32),
    lambda a, b: a.x * tf.cast(_words(a.text).shape[1], tf.float32),
)


def _ragged(side: Inputs) -> tf.RaggedTensor:
    """The words of each text, with splits that are counted from row numbers."""
    return tf.strings.split(tf.strings.regex_replace(side.text, r"\.", " "))


def _n_grams(values: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    parts = raw.StringNGrams(
        data=values,
        data_splits=splits,
        separator=" ",
        ngram_widths=[1, 2],
        left_pad="",
        right_pad="",
        pad_width=0,
        preserve_short_sequences=False,
    )
    grams = tf.RaggedTensor.from_row_splits(parts[0], parts[1], validate=False)
    return tf.strings.length(grams.to_tensor("", shape=[None, 5]))


_keeps("StringNGrams", lambda a, b: _n_grams((r := _ragged(a)).values, r.row_splits))
_mixes(
    "StringNGrams",
    lambda a, b: _n_grams(_ragged(a).values, _ragged(b).row_splits),
    lambda a, b: _n_grams((r := _ragged(a)).values, r.row_splits[::-1]),
    lambda a, b: _n_grams(_ragged(a).values[::-1], _ragged(a).row_splits),
)


def _codes(text: tf.Tensor) -> Any:
    return raw.UnicodeDecode(input=text, input_encoding="UTF-8")


def _padded_codes(values: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False).to_tensor(
        0, shape=[None, 4]
    )


_keeps("UnicodeDecode", lambda a, b: _padded_codes((c := _codes(a.text))[1], c[0]))
_mixes(
    "UnicodeDecode",
    lambda a, b: _padded_codes(_codes(a.text)[1], _codes(b.text)[0]),
    lambda a, b: _padded_codes(tf.reverse((c := _codes(a.text))[1], [0]), c[0]),
    lambda a, b: _codes(a.text)[1][: tf.shape(a.text)[0]],
)


def _upscaled(images: tf.Tensor, count: Any) -> tf.Tensor:
    sizes = tf.stack([count, 8, 8, 3]) if not isinstance(count, int) else [count, 8, 8, 3]
    return raw.Conv2DBackpropInput(
        input_sizes=sizes,
        filter=np.sin(numbers(2, 2, 3, 2)),
        out_backprop=images,
        strides=[1, 2, 2, 1],
        padding="SAME",
    )


_keeps("Conv2DBackpropInput", lambda a, b: _upscaled(a.image * b.image, tf.shape(a.image)[0]))
_mixes(
    "Conv2DBackpropInput",
    lambda a, b: _upscaled(a.image, 6),
    lambda a, b: _upscaled(tf.transpose(a.image, [1, 0, 2, 3]), 4),
    lambda a, b: _upscaled(a.image, tf.cast(tf.reduce_max(b.n), tf.int32) + 3),
    lambda a, b: raw.Conv2DBackpropInput(
        input_sizes=tf.stack([tf.shape(a.image)[0], 8, 8, 2]),
        filter=tf.reshape(b.image[:1], [2, 2, 2, 4])[..., :2],
        out_backprop=a.image,
        strides=[1, 2, 2, 1],
        padding="SAME",
    ),
)


def _parts_of_space(images: tf.Tensor) -> tf.Tensor:
    return raw.SpaceToBatchND(input=images, block_shape=[2, 2], paddings=[[0, 0], [0, 0]])


def _whole_space(images: tf.Tensor, parts: Any = (2, 2)) -> tf.Tensor:
    return raw.BatchToSpaceND(input=images, block_shape=[*parts], crops=[[0, 0]] * len(parts))


for _op in ("SpaceToBatchND", "BatchToSpaceND"):
    _keeps(
        _op,
        lambda a, b: _whole_space(
            tf.nn.conv2d(_parts_of_space(a.image * b.image), numbers(2, 2, 2, 3), 1, "SAME")
        ),
    )
_mixes(
    "SpaceToBatchND",
    lambda a, b: _parts_of_space(a.image),
    lambda a, b: tf.reshape(_parts_of_space(a.image), [-1, 4, 4, 2]),
    lambda a, b: _parts_of_space(a.image)[: tf.shape(a.image)[0]],
    lambda a, b: tf.transpose(
        _whole_space(_parts_of_space(tf.transpose(a.image, [1, 0, 2, 3]))), [1, 0, 2, 3]
    ),
)
_mixes(
    "BatchToSpaceND",
    lambda a, b: _whole_space(a.image),
    lambda a, b: _whole_space(tf.tile(a.image, [6, 1, 1, 1]), (2, 4)),
    lambda a, b: _whole_space(tf.tile(tf.reshape(a.image, [-1, 2, 2, 2]), [2, 1, 1, 1])),
)


def _triangle(side: Inputs, lower: int = 0, upper: int = -1) -> tf.Tensor:
    return tf.linalg.band_part(tf.ones_like(side.y), lower, upper)


def _masked(whole: tf.Tensor, mask: tf.Tensor, columns: int, rows: Any = -1) -> tf.Tensor:
    """What TFRS's DotInteraction takes of a matrix."""
    return tf.reshape(tf.boolean_mask(whole, mask), tf.stack([rows, columns]))


def _taken(flat: tf.Tensor, mask: tf.Tensor, columns: int) -> tf.Tensor:
    places = tf.squeeze(tf.where(tf.reshape(mask, [-1])), [1])
    return tf.reshape(tf.gather(flat, places), [-1, columns])


_keeps(
    "Where",
    lambda a, b: _taken(tf.reshape(a.y, [-1]), _triangle(a), 9),
    lambda a, b: _masked(a.y * b.y, _triangle(a), 9, _rows(a)),
    lambda a, b: _masked(a.y, _triangle(b), 9),
    lambda a, b: _masked(a.y, tf.ones_like(b.y) - _triangle(b), 3),
    lambda a, b: _masked(a.y, tf.cast(_triangle(a, 1, 1), tf.bool), 8),
)
_mixes(
    "Where",
    lambda a, b: _masked(a.y, tf.cast(a.y > 0, tf.float32), 9, _rows(a)),
    lambda a, b: _masked(a.y, _triangle(a), 6, -1),
    lambda a, b: _masked(a.y, tf.ones_like(a.y) - tf.ones_like(a.y), 9, -1),
    lambda a, b: _masked(a.x, tf.ones_like(a.k), 2, -1),
    lambda a, b: _masked(_turned(a.y), tf.ones_like(_turned(a.y)), 12, -1),
    lambda a, b: tf.reshape(
        tf.gather(tf.reshape(a.y, [-1]), tf.where(tf.reshape(_triangle(a), [-1]))[::-1, 0]),
        [-1, 9],
    ),
    lambda a, b: _taken(tf.reshape(a.x, [-1]), _triangle(a), 9),
    lambda a, b: _taken(tf.reshape(a.y, [-1, 2]), _triangle(a), 9),
    lambda a, b: _taken(tf.reshape(_turned(a.y), [-1]), _triangle(a), 9),
    lambda a, b: _taken(tf.tile(tf.reshape(a.y, [-1]), [2]), _triangle(a), 9),
    lambda a, b: _masked(a.y, _triangle(a) * a.y, 9, _rows(a)),
    lambda a, b: _masked(a.y, tf.linalg.band_part(tf.ones_like(a.y), tf.size(a.n), -1), 9),
)


Reduce = Callable[..., tf.Tensor]


def _segments(
    reduce: Reduce, side: Inputs, count: Callable[[tf.RaggedTensor], Any], of: Inputs | None = None
) -> tf.Tensor:
    """The lengths of words of each text, reduced by the rows that they, or others', are of."""
    words = _ragged(side)
    others = words if of is None else _ragged(of)
    lengths = tf.cast(tf.strings.length(words.values), tf.float32)
    return reduce(data=lengths, segment_ids=others.value_rowids(), num_segments=count(words))


Made = Callable[..., tf.Tensor]


def _with(made: Made, build: Callable[[Made, Inputs, Inputs], tf.Tensor]) -> Case:
    return lambda a, b: build(made, a, b)


for _name in ("Sum", "Max", "Min", "Prod"):
    _op = f"UnsortedSegment{_name}"
    _made = partial(_segments, getattr(raw, _op))
    _keeps(
        _op,
        _with(_made, lambda made, a, b: made(a, lambda words: words.nrows())),
        _with(_made, lambda made, a, b: made(a, lambda words: _rows(b))[:, tf.newaxis] * a.x),
    )
    _mixes(
        _op,
        _with(_made, lambda made, a, b: made(a, lambda words: 2 * words.nrows())),
        _with(
            _made,
            lambda made, a, b: tf.reshape(made(a, lambda words: 2 * _rows(a)), [2, -1])[0],
        ),
        _with(_made, lambda made, a, b: made(a, lambda words: words.nrows(), b)),
        _with(_made, lambda made, a, b: made(a, lambda words: 6)),
        _with(_made, lambda made, a, b: made(a, lambda words: tf.reduce_max(a.n) + 6)),
    )


def _lengths(side: Inputs) -> tf.RaggedTensor:
    words = _ragged(side)
    lengths = tf.cast(tf.strings.length(words.values), tf.float32)
    return words.with_values(lengths)


def _of_splits(values: tf.RaggedTensor, splits: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values.values, splits, validate=False)


_keeps(
    "ragged",
    lambda a, b: tf.reduce_sum(_lengths(a), 1),
    lambda a, b: tf.reduce_mean(_lengths(a), 1, keepdims=True) * b.x,
    lambda a, b: tf.reduce_max(_lengths(a), 1),
    lambda a, b: tf.cast(_lengths(a).row_lengths(), tf.float32)[:, tf.newaxis] * b.x,
    lambda a, b: tf.cast((p := a.parsed)[9][1:] - p[9][:-1], tf.float32)[:, tf.newaxis] * b.x,
    lambda a, b: tf.math.bincount(tf.strings.length(_ragged(a)), minlength=4, maxlength=4, axis=-1),
)
_mixes(
    "ragged",
    lambda a, b: tf.reduce_sum(_lengths(a), 0)[tf.newaxis, :1] * b.x,
    lambda a, b: tf.reduce_sum(_of_splits(_lengths(a), _lengths(b).row_splits), 1),
    lambda a, b: tf.reduce_sum(_of_splits(_lengths(a), (r := _lengths(a).row_splits)[:1] + r), 1),
    lambda a, b: tf.cast(_lengths(a).row_starts(), tf.float32)[:, tf.newaxis] * b.x,
    lambda a, b: tf.cast((p := a.parsed)[9][1:] - p[10][:-1], tf.float32)[:, tf.newaxis] * b.x,
    lambda a, b: tf.cast((p := a.parsed)[9][1:] + p[9][:-1], tf.float32)[:, tf.newaxis] * b.x,
    lambda a, b: tf.math.bincount(tf.strings.length(_ragged(a)), axis=-1),
    lambda a, b: tf.math.bincount(tf.strings.length(_ragged(a)), minlength=4, axis=-1),
    lambda a, b: tf.reduce_sum(tf.ones(tf.shape(_ragged(a).values)))[tf.newaxis] + a.k,
)


def _of_width(side: Inputs, size: tf.Tensor) -> tf.Tensor:
    empty = np.zeros(0, np.float32)
    return raw.DenseBincount(input=side.m, size=tf.cast(size, tf.int64) * 3 + 3, weights=empty)


_keeps(
    "DenseBincount",
    lambda a, b: tf.reshape(
        tf.math.bincount(a.m, minlength=3, maxlength=3, axis=-1, dtype=tf.float32), [-1, 3]
    ),
    lambda a, b: tf.reduce_sum(_of_width(a, tf.size(a.n) > 0), 1),
)
_mixes(
    "DenseBincount",
    lambda a, b: tf.reduce_mean(_of_width(a, tf.size(a.n) - 5 > 0), 1),
    lambda a, b: tf.reduce_mean(_of_width(a, tf.size(a.n) // 5 > 0), 1),
    lambda a, b: tf.reduce_mean(_of_width(a, tf.shape(a.x)[0] - 5 > 0), 1),
    lambda a, b: tf.reduce_mean(_of_width(a, tf.not_equal(tf.size(a.n), 5)), 1),
    lambda a, b: tf.math.bincount(tf.reshape(a.m, [-1, 1]), minlength=3, maxlength=3, axis=-1),
    lambda a, b: tf.math.bincount(tf.reshape(a.m, [-1]), minlength=3, maxlength=3)[tf.newaxis],
    lambda a, b: tf.reshape(tf.math.bincount(a.m, axis=-1), [-1, 3]),
)
# A column of the indices of a sparse tensor, in another order.
_mixes(
    "StridedSlice",
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[::2, 0], w.shape[0]),
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[1:, 0], w.shape[0]),
    lambda a, b: _padded_words((w := _words(a.text)), w.indices[:, 0][::-1], w.shape[0]),
)
