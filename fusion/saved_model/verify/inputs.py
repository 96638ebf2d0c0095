"""Inputs on which two models are compared: generated, reproducible, and fit to be accepted."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.saved_model.verify.dataflow import Meaning, Source
from fusion.saved_model.verify.examples import Feature
from fusion.saved_model.verify.signature import Signature, TensorSpec

Array = NDArray[Any]

# Bag lengths: empty rows, short rows, and more than the 9 entries up to which stock kernels
# take a different path.
_BAGS = (0, 1, 1, 2, 3, 11)
_UNKNOWN_ROWS = 10
_OTHER_DIM = 3
_UNUSUAL = 0.25
_WORDS = ("a", "bb", "unseen", "", "7", "sparse table", "\u00e9\u00e8")
_MAX_WORDS = 1000
_SAVERS = frozenset(["SaveV2", "RestoreV2", "Save", "Restore"])


class Ids(Enum):
    """What the ids of a batch, and the rows that they are in, are like."""

    IN_RANGE = "in range"
    """Inside their tables, and in all sparse inputs the same number of them in a row."""
    UNEQUAL = "unequal rows"
    """Inside their tables; each sparse input has rows of its own lengths."""
    NEGATIVE = "negative"
    """Some are negative."""
    BEYOND = "out of range"
    """Some are too large for their table, as far as it is known."""
    MISSING = "missing"
    """There are none: sparse rows are empty, and dense ones hold -1 and ""."""


@dataclass(frozen=True)
class Case:
    """One batch to generate.

    Attributes:
        name: for messages.
        batch: the length of each unknown leading dimension.
        ids: what is unusual about it. One thing at a time, because a model that raises an error
            over one thing shows nothing of another.
    """

    name: str
    batch: int
    ids: Ids = Ids.IN_RANGE


CASES = (
    Case("batch 1", 1),
    Case("batch 32", 32),
    Case("batch 32 of unequal rows", 32, Ids.UNEQUAL),
    Case("batch 32 with negative ids", 32, Ids.NEGATIVE),
    Case("batch 32 with ids out of range", 32, Ids.BEYOND),
    Case("batch 32 of empty rows", 32, Ids.MISSING),
    Case("empty batch", 0),
)


class Unsupported(Exception):
    """An input for which no value can be generated."""


class InputGenerator:
    """Generates the inputs of one signature; equal arguments give equal inputs."""

    def __init__(self, signature: Signature, meaning: Meaning, words: Sequence[bytes]) -> None:
        """Takes what `input_meaning` found, and words worth trying as strings."""
        self._signature = signature
        self._meaning = meaning
        self._words = [*words, *(word.encode() for word in _WORDS)]
        keys = {spec.key for spec in signature.inputs}
        found = sorted(t for t in meaning.sparse if keys.issuperset(t))
        self._triples = tuple(dict.fromkeys((*signature.sparse, *found)))

    def cases(self) -> tuple[Case, ...]:
        """Returns the batches that are unlike each other for this signature."""
        one_by_one = bool(self._meaning.examples)
        sparse = len(self._triples)
        useful = {
            Ids.UNEQUAL: one_by_one or sparse > 1,
            Ids.BEYOND: bool(self._meaning.rows),
            Ids.MISSING: one_by_one or sparse > 0 or bool(self._meaning.rows),
        }
        return tuple(case for case in CASES if useful.get(case.ids, True))

    def __call__(self, case: Case) -> dict[str, Array]:
        """Returns an array for each input of the signature, by key.

        Raises:
            Unsupported: an input has a dtype of which no value can be made.
        """
        specs = {spec.key: spec for spec in self._signature.inputs}
        feeds: dict[str, Array] = {}
        bags = self._rng(case, "").choice(_BAGS, size=case.batch)
        if case.ids is Ids.MISSING:
            bags = np.zeros_like(bags)
        for triple in self._triples:
            if feeds.keys().isdisjoint(triple):
                feeds.update(self._sparse(case, [specs[key] for key in triple], bags))
        for key, spec in specs.items():
            if key not in feeds:
                feeds[key] = self._dense(case, spec)
        return feeds

    def _rng(self, case: Case, key: str) -> np.random.Generator:
        text = "\0".join((*self._signature.tags, self._signature.name, case.name, key))
        return np.random.default_rng(zlib.crc32(text.encode()))

    def _sparse(
        self, case: Case, specs: Sequence[TensorSpec], bags: NDArray[np.int64]
    ) -> dict[str, Array]:
        """Returns indices int64[n, rank], values [n] and dense_shape int64[rank]."""
        indices, values, shape = specs
        rng = self._rng(case, values.key)
        rank = _sparse_rank(indices, shape)
        if case.ids is Ids.UNEQUAL:
            bags = rng.permutation(bags)
        if rank == 1:
            bags = np.minimum(bags, 1)
        inner = _inner_dims(rank, max(_BAGS))
        rows = np.repeat(np.arange(case.batch), bags)
        places = np.concatenate([np.arange(0), *(np.arange(n) for n in bags)]).astype(np.int64)
        columns = np.unravel_index(places, inner) if inner else ()
        count = int(bags.sum())
        return {
            indices.key: np.stack([rows, *columns], axis=1).astype(np.int64).reshape(count, rank),
            values.key: self._values(rng, case, values.dtype, (count,), Source(values.key)),
            shape.key: np.array([case.batch, *inner], np.int64),
        }

    def _dense(self, case: Case, spec: TensorSpec) -> Array:
        shape = (-1,) if spec.shape is None else spec.shape
        dims = [
            dim if dim >= 0 else (case.batch if place == 0 else _OTHER_DIM)
            for place, dim in enumerate(shape)
        ]
        rng = self._rng(case, spec.key)
        if spec.key in self._meaning.examples:
            return self._examples(rng, case, spec, dims)
        return self._values(rng, case, spec.dtype, tuple(dims), Source(spec.key))

    def _values(
        self,
        rng: np.random.Generator,
        case: Case,
        dtype: int,
        shape: tuple[int, ...],
        source: Source,
    ) -> Array:
        kind = tf.dtypes.as_dtype(dtype) if dtype else tf.float32
        missing = case.ids is Ids.MISSING
        if kind == tf.string:
            words = np.array([b""] if missing else self._words, dtype=object)
            return words[rng.integers(len(words), size=shape)]
        if kind == tf.bool:
            return rng.random(shape) < 0.5
        if kind.is_integer and not kind.is_quantized:
            rows = self._meaning.rows.get(source)
            if missing and rows is not None and not kind.is_unsigned:
                return np.full(shape, -1, kind.as_numpy_dtype)
            return _integers(rng, case.ids, kind, shape, rows)
        if kind.is_floating or kind.is_complex:
            return rng.standard_normal(shape).astype(kind.as_numpy_dtype)
        raise Unsupported(f"input {source.input!r} has dtype {kind.name}")

    def _examples(
        self, rng: np.random.Generator, case: Case, spec: TensorSpec, dims: Sequence[int]
    ) -> Array:
        """Returns a string tensor of serialized Examples."""
        features = self._meaning.examples[spec.key].features
        count = int(np.prod(dims))
        texts = np.empty(count, dtype=object)
        for place in range(count):
            bag = int(rng.choice(_BAGS))
            bag = 0 if case.ids is Ids.MISSING else bag
            texts[place] = self._example(rng, case, spec.key, features, bag)
        return texts.reshape(dims)

    def _example(
        self,
        rng: np.random.Generator,
        case: Case,
        key: str,
        features: Sequence[Feature],
        bag: int,
    ) -> bytes:
        example = tf.train.Example()
        for feature in features:
            if feature.shape is None:
                length = int(rng.choice(_BAGS)) if case.ids is Ids.UNEQUAL else bag
            else:
                length = int(np.prod([dim if dim >= 0 else 2 for dim in feature.shape]))
            source = Source(key, feature.key)
            values = self._values(rng, case, feature.dtype, (length,), source).tolist()
            target = example.features.feature[feature.key]
            if feature.dtype == types_pb2.DT_INT64:
                target.int64_list.value.extend(values)
            elif feature.dtype == types_pb2.DT_FLOAT:
                target.float_list.value.extend(values)
            else:
                target.bytes_list.value.extend(values)
        serialized: bytes = example.SerializeToString(deterministic=True)
        return serialized


def _integers(
    rng: np.random.Generator, ids: Ids, kind: tf.DType, shape: tuple[int, ...], rows: int | None
) -> Array:
    """Returns integers in [0, rows), and about a quarter of those that a batch is to show.

    Args:
        rng: what to draw them with.
        ids: what the batch is to show.
        kind: their dtype.
        shape: their shape.
        rows: those of the table that they index; None if they index none that is known.
    """
    largest = int(kind.max)
    count = min(_UNKNOWN_ROWS if rows is None else rows, largest)
    values: Array = rng.integers(0, max(count, 1), size=shape).astype(kind.as_numpy_dtype)
    others: list[int] = []
    if ids is Ids.NEGATIVE and not kind.is_unsigned:
        others = [n for n in (-1, -2, -count) if n >= int(kind.min)]
    elif ids is Ids.BEYOND and rows is not None:
        others = [n for n in (rows, rows + 1, 2 * rows) if n <= largest]
    if others and values.size:
        chosen = np.asarray(rng.random(shape) < _UNUSUAL)
        chosen.reshape(-1)[rng.integers(chosen.size)] = True
        drawn = np.array(others, kind.as_numpy_dtype)[rng.integers(len(others), size=shape)]
        values = np.where(chosen, drawn, values)
    return values


def _inner_dims(rank: int, cells: int) -> list[int]:
    """Returns the dimensions after the first of a rank-`rank` row with at least `cells` cells."""
    if rank < 3:
        return [cells] * (rank - 1)
    return [1] * (rank - 3) + [4, -(-cells // 4)]


def _sparse_rank(indices: TensorSpec, shape: TensorSpec) -> int:
    candidates = [(indices.shape or ())[1:2], (shape.shape or ())[0:1]]
    return next((dims[0] for dims in candidates if dims and dims[0] > 0), 2)


def vocabulary(model: Path, graph: graph_pb2.GraphDef) -> list[bytes]:
    """Returns words that the model may know: lines of its assets and its string constants.

    Random strings alone would miss every vocabulary and compare nothing but empty rows.
    """
    words: dict[bytes, None] = {}
    for file in sorted((model / "assets").glob("*")):
        if file.is_file():
            with open(file, "rb") as lines:
                head = lines.read(1 << 16).split(b"\n")
            words.update(dict.fromkeys(word for word in head[:-1][:_MAX_WORDS] if len(word) < 256))
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    for body in bodies:
        # The names of saved tensors are no words of the model.
        of_savers = {i.partition(":")[0] for n in body if n.op in _SAVERS for i in n.input}
        for node in body:
            if node.op == "Const" and node.name not in of_savers:
                strings = node.attr["value"].tensor.string_val
                if len(strings) > 1:
                    words.update(dict.fromkeys(strings[:_MAX_WORDS]))
    return list(words)[: 4 * _MAX_WORDS]
