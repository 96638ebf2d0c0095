"""Calls of FusedParseExample beside those of stock's ParseExampleV2."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from fusion import ops

Form = Literal["fixed", "default", "padded", "sparse", "ragged"]
Dtype = Literal["int64", "float32", "string"]

FORMS: tuple[Form, ...] = ("fixed", "default", "padded", "sparse", "ragged")
DTYPES: tuple[Dtype, ...] = ("int64", "float32", "string")

_DEFAULTS: dict[str, Any] = {"int64": 7, "float32": 0.5, "string": b"the default of a string"}


@dataclass(frozen=True)
class Asked:
    """A feature that is asked for.

    Attributes:
        key: its name.
        form: whether its rows have one size ("fixed"; "default": and a default), are filled up to
            the longest, or are lists.
        dtype: of its values.
        shape: of a row; of "padded" ones that of a stride.
        splits: the dtype of row splits.
        buckets: how many its strings are hashed to; 0 if they are not.
    """

    key: bytes
    form: Form = "fixed"
    dtype: Dtype = "int64"
    shape: tuple[int, ...] = ()
    splits: str = "int64"
    buckets: int = 0

    @property
    def value_dtype(self) -> str:
        """Of what the op gives."""
        return "int64" if self.buckets else self.dtype

    @property
    def is_dense(self) -> bool:
        """Whether it is one tensor of rows."""
        return self.form in ("fixed", "default", "padded")

    @property
    def is_required(self) -> bool:
        """Whether there is no default; for stock one without elements is none."""
        return self.form == "fixed" or (self.form == "default" and 0 in self.shape)

    @property
    def dims(self) -> list[int]:
        """The shape, where -1 is not known."""
        return [-1, *self.shape] if self.form == "padded" else [*self.shape]

    @property
    def default(self) -> tf.Tensor:
        """For stock; without elements if there is none."""
        if self.is_required:
            return tf.zeros([0], self.dtype)
        shape = () if self.form == "padded" else self.shape
        return tf.fill(shape, tf.constant(_DEFAULTS[self.dtype], self.dtype))


@dataclass(frozen=True)
class Call:
    """Examples, and what is asked of them.

    Attributes:
        features: what is asked for.
        examples: serialized.
        is_single: whether the first one is parsed alone, without a batch.
        names: of Examples.
        outputs: the number of the output of each dense feature, and how many values are in front of
            it in a row; else each has its own.
    """

    features: tuple[Asked, ...]
    examples: tuple[bytes, ...]
    is_single: bool = False
    names: tuple[bytes, ...] = ()
    outputs: tuple[tuple[int, int], ...] = ()

    @property
    def places(self) -> list[tuple[int, int]]:
        """The numbers of the outputs of dense features, and where these lie in a row."""
        return [*self.outputs] or [(k, 0) for k in range(len(self.dense))]

    @property
    def numbers(self) -> list[int]:
        """The first of these."""
        return [number for number, _ in self.places]

    @property
    def serialized(self) -> tf.Tensor:
        """The input of both ops."""
        if self.is_single:
            return tf.constant((*self.examples, b"")[0])
        return tf.constant(self.examples, tf.string, [len(self.examples)])

    def of(self, *forms: str) -> list[Asked]:
        """The features of some forms, in their order."""
        return [one for one in self.features if one.form in forms]

    @property
    def dense(self) -> list[Asked]:
        """The features whose values are tensors of rows."""
        return [one for one in self.features if one.is_dense]


Arrays = list[npt.NDArray[Any]]
Result = Arrays | str
"""All outputs, or the text of an InvalidArgumentError in ASCII."""


def keys(features: Sequence[Asked]) -> list[bytes]:
    """The names of features."""
    return [one.key for one in features]


def stock(call: Call) -> Result:
    """What TensorFlow makes of a call."""
    sparse, dense, ragged = call.of("sparse"), call.dense, call.of("ragged")

    def parsed() -> list[list[tf.Tensor]]:
        result = tf.raw_ops.ParseExampleV2(
            serialized=call.serialized,
            names=tf.constant(call.names, tf.string, [len(call.names)]),
            sparse_keys=tf.constant(keys(sparse), tf.string, [len(sparse)]),
            dense_keys=tf.constant(keys(dense), tf.string, [len(dense)]),
            ragged_keys=tf.constant(keys(ragged), tf.string, [len(ragged)]),
            dense_defaults=[one.default for one in dense],
            num_sparse=len(sparse),
            sparse_types=[tf.as_dtype(one.dtype) for one in sparse],
            ragged_value_types=[tf.as_dtype(one.dtype) for one in ragged],
            ragged_split_types=[tf.as_dtype(one.splits) for one in ragged],
            dense_shapes=[[None if n < 0 else n for n in one.dims] for one in dense],
        )
        indices, values, shapes, rows, others, splits = result
        hashed = (_hashed(*pair) for pair in ((values, sparse), (rows, dense), (others, ragged)))
        values, rows, others = hashed
        return [indices, values, shapes, _side_by_side(call, rows), others, splits]

    return result_of(parsed)


def _side_by_side(call: Call, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The rows of features that have one output, joined."""
    places = {place: row for row, place in zip(rows, call.places, strict=True)}
    outputs = [
        [places[place] for place in sorted(places) if place[0] == k]
        for k in sorted({*call.numbers})
    ]
    batch = [] if call.is_single else [len(call.examples)]
    return [
        one[0] if len(one) == 1 else tf.concat([_flat(row, batch) for row in one], -1)
        for one in outputs
    ]


def _flat(row: tf.Tensor, batch: list[int]) -> tf.Tensor:
    return tf.reshape(row, [*batch, row.shape[len(batch) :].num_elements()])


def _hashed(values: Sequence[tf.Tensor], features: Sequence[Asked]) -> list[tf.Tensor]:
    return [
        tf.strings.to_hash_bucket_fast(one, feature.buckets) if feature.buckets else one
        for one, feature in zip(values, features, strict=True)
    ]


def arguments(call: Call) -> dict[str, Any]:
    """The arguments of the fused op."""
    sparse, dense, ragged = call.of("sparse"), call.dense, call.of("ragged")
    return {
        "serialized": call.serialized,
        "names": tf.constant(call.names, tf.string, [len(call.names)]),
        "dense_defaults": [one.default for one in dense if not one.is_required],
        "num_sparse": len(sparse),
        "sparse_keys": keys(sparse),
        "sparse_types": [one.value_dtype for one in sparse],
        "sparse_buckets": [one.buckets for one in sparse],
        "dense_keys": keys(dense),
        "Tdense": [one.value_dtype for one in dense],
        "dense_buckets": [one.buckets for one in dense],
        "dense_outputs": call.numbers,
        "dense_columns": [column for _, column in call.places],
        "Tvalues": [dense[call.numbers.index(k)].value_dtype for k in sorted({*call.numbers})],
        "dense_ranks": [len(one.dims) for one in dense],
        "dense_dims": [size for one in dense for size in one.dims],
        "required": [one.is_required for one in dense],
        "ragged_keys": keys(ragged),
        "ragged_value_types": [one.value_dtype for one in ragged],
        "ragged_buckets": [one.buckets for one in ragged],
        "ragged_split_types": [one.splits for one in ragged],
    }


def fused(call: Call, **changes: Any) -> Result:
    """What the fused op makes of a call; `changes` of its arguments."""
    return result_of(lambda: ops.fused_parse_example(**{**arguments(call), **changes}))


def result_of(run: Callable[[], Any]) -> Result:
    try:
        return [np.asarray(tensor) for tensors in run() for tensor in tensors]
    except UnicodeDecodeError as error:  # a text with bytes of an Example
        text = error.object
    except tf.errors.InvalidArgumentError as error:
        text = error.message.encode()
    return ascii_text(text)


def ascii_text(message: bytes) -> str:
    """What an error says, without the node; bytes that are no text as the fused op writes them."""
    message = re.sub(rb"^\{\{.*?\}\} ", b"", message, flags=re.DOTALL)
    message = re.sub(rb" \[Op:.*$", b"", message, flags=re.DOTALL)
    return "".join(chr(item) if 0 < item < 128 else f"\\x{item:02x}" for item in message)


def difference(found: Result, expected: Result) -> str | None:
    """How what the fused op gives differs from stock's; None if it does not."""
    if isinstance(found, str) or isinstance(expected, str):
        is_same = type(found) is type(expected) and (
            # A message of stock's ends at the first zero of what it quotes.
            found == expected or str(found).startswith(f"{expected}\\x00")
        )
        return None if is_same else f"fused: {found}\nstock: {expected}"
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        is_same = one.dtype == other.dtype and one.shape == other.shape
        if one.dtype == object:
            is_same = is_same and one.tolist() == other.tolist()
        else:
            is_same = is_same and one.tobytes() == other.tobytes()
        if not is_same:
            return f"output {index}\nfused: {one!r}\nstock: {other!r}"
    return None


def check(call: Call) -> Result:
    """Compares the op with stock's; returns what both give."""
    found = fused(call)
    assert (text := difference(found, stock(call))) is None, f"{text}\n{call}"
    return found
