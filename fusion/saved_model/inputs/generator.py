"""Inputs on which two models are compared: generated, reproducible, and fit to be accepted."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.saved_model.inputs.cases import CASES, Case, Ids
from fusion.saved_model.inputs.constraints import Array, Bounds, Extent, Key, Role
from fusion.saved_model.inputs.dataflow import Meaning, signature_meanings
from fusion.saved_model.inputs.layout import BAGS, RowLayout
from fusion.saved_model.inputs.records import Feature
from fusion.saved_model.inputs.serialized import RecordMaker
from fusion.saved_model.inputs.signature import Signature, TensorSpec
from fusion.saved_model.inputs.values import UNUSUAL, bounded, integers, known_numbers, known_words
from fusion.saved_model.inputs.vocabularies import Known, Vocabularies

_OTHER_DIM = 3
_NESTED = 3
"""How many records lie in one, where parsing pads them to equally many."""
_WORDS = ("a", "bb", "unseen", "", "7", "sparse table", "\u00e9\u00e8")


class Unsupported(Exception):
    """An input for which no value can be generated."""


class InputGenerator:
    """Generates the inputs of one signature; equal arguments give equal inputs."""

    def __init__(
        self,
        signature: Signature,
        meaning: Meaning,
        words: Sequence[bytes],
        known: Mapping[Key, Known] | None = None,
    ) -> None:
        """Takes the signature and the facts about its inputs.

        Args:
            signature: the signature.
            meaning: the result of `input_meaning`.
            words: worth trying as strings of inputs that no table of known words is for.
            known: what inputs may hold so that the tables that they are looked up in know it.
        """
        self._signature = signature
        self._meaning = meaning
        self._known = known or {}
        self._words = [*words, *(word.encode() for word in _WORDS)]
        constraints = meaning.constraints
        self._bounds = constraints.ordered_bounds(
            constraints.bounds
            | {
                key: constraints.bounds.get(key, Bounds()).clipped(Bounds(0, rows - 1))
                for key, rows in meaning.rows.items()
            }
        )
        shapes = {spec.key: spec.shape for spec in signature.inputs}
        triples = [t for t in meaning.sparse if _may_be_sparse([shapes.get(key, ()) for key in t])]
        # Weights are found with the indices of their ids too: first those of one sparse tensor.
        uses = Counter(values for _, values, _ in triples)
        triples.sort(key=lambda triple: (uses[triple[1]], triple))
        self._triples = _disjoint((*signature.sparse, *triples))

    def cases(self) -> tuple[Case, ...]:
        """Returns the batches that are unlike each other for this signature."""
        one_by_one = bool(self._meaning.records)
        rows = RowLayout(
            self._signature, self._meaning.constraints, self._triples, CASES[0], self._rng
        )
        groups = len(rows.groups())
        asserted = self._known.keys() & self._meaning.asserted
        useful = {
            Ids.UNEQUAL: one_by_one or groups > 1,
            Ids.BEYOND: bool(self._meaning.rows),
            Ids.UNKNOWN: bool(self._known),
            Ids.UNKNOWN_ELSEWHERE: 0 < len(asserted) < len(self._known),
            Ids.MISSING: one_by_one or groups > 0 or bool(self._meaning.rows),
        }
        return tuple(case for case in CASES if useful.get(case.ids, True))

    def __call__(self, case: Case) -> dict[str, Array]:
        """Returns an array for each input of the signature, by key.

        Raises:
            Unsupported: no value can be generated for an input.
        """
        specs = {spec.key: spec for spec in self._signature.inputs}
        constraints = self._meaning.constraints
        rows = RowLayout(self._signature, constraints, self._triples, case, self._rng)
        feeds: dict[str, Array] = {}
        for triple in self._triples:
            parts = [specs[key] for key in triple]
            feeds.update(self._sparse(case, parts, rows.bags(Extent(Key(triple[1])))))
        for name, spec in specs.items():
            if name not in feeds:
                values = rows.divided(spec)
                feeds[name] = self._dense(case, spec, rows) if values is None else values
        self._miss_together(case, feeds)
        for _ in constraints.orders:  # a pair that is ordered may bring another out of order
            for (first, second), strict in constraints.orders.items():
                self._order(feeds, first, second, strict)
        return feeds

    def violation(self, feeds: Mapping[str, Array]) -> str | None:
        """Returns in what inputs are not parts of ragged or sparse tensors; see `Constraints`."""
        return self._meaning.constraints.violation(feeds, self._triples)

    def batch_size(self, feeds: Mapping[str, Array]) -> int:
        """Returns the number of examples in a batch.

        That is the number of rows that inputs say there are, or the length of one that may be of
        any; 1 if there is neither.
        """
        if self._triples:
            return int(feeds[self._triples[0][2]][0])
        constraints = self._meaning.constraints
        lengths, ids = [], []
        for spec in self._signature.inputs:
            array, key = feeds[spec.key], Key(spec.key)
            role = constraints.divider(key)
            if array.ndim == 1 and role is Role.ROW_IDS:
                ids.append(int(array[-1]) + 1 if array.size else 0)
            elif array.ndim == 1 and role is not None:
                return len(array) - (role is Role.SPLITS)
            elif array.ndim and (spec.shape or (-1,))[0] < 0:
                is_divided = any(extent.is_inside for extent in constraints.linked(Extent(key)))
                lengths += [] if is_divided else [len(array)]
        return next(iter(lengths + ids), 1)

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
        if rank == 1:
            bags = np.minimum(bags, 1)
        inner = _inner_dims(rank, max(BAGS))
        rows = np.repeat(np.arange(case.batch), bags)
        positions = np.concatenate([np.arange(0), *(np.arange(n) for n in bags)]).astype(np.int64)
        columns = np.unravel_index(positions, inner) if inner else ()
        count = int(bags.sum())
        return {
            indices.key: np.stack([rows, *columns], axis=1).astype(np.int64).reshape(count, rank),
            values.key: self._values(rng, case, values.dtype, (count,), Key(values.key)),
            shape.key: np.array([case.batch, *inner], np.int64),
        }

    def _dense(self, case: Case, spec: TensorSpec, rows: RowLayout) -> Array:
        key = Key(spec.key)
        shape = (-1,) if spec.shape is None else spec.shape
        dims = [
            dim if dim >= 0 else (rows.length(key) if index == 0 else _OTHER_DIM)
            for index, dim in enumerate(shape)
        ]
        rng = self._rng(case, spec.key)
        if key in self._meaning.records:
            make = self._record_maker(rng, case)
            texts = np.empty(int(np.prod(dims)), dtype=object)
            texts[:] = [make(key) for _ in texts]
            return texts.reshape(dims)
        if (op := self._meaning.opaque.get(spec.key)) is not None:
            raise Unsupported(f"input {spec.key!r} is read by {op}, and what it reads is unknown")
        return self._values(rng, case, spec.dtype, tuple(dims), key)

    def _values(
        self,
        rng: np.random.Generator,
        case: Case,
        dtype: int,
        shape: tuple[int, ...],
        key: Key,
    ) -> Array:
        tf_dtype = tf.dtypes.as_dtype(dtype) if dtype else tf.float32
        ids, missing = self._shown(case.ids, key), case.ids is Ids.MISSING
        bounds, rows = self._bounds.get(key), self._meaning.rows.get(key)
        if tf_dtype == tf.string:
            return self._texts(rng, ids, shape, key)
        if tf_dtype == tf.bool:
            return rng.random(shape) < 0.5
        is_integer = tf_dtype.is_integer and not tf_dtype.is_quantized
        if is_integer and missing and rows is not None and not tf_dtype.is_unsigned:
            return np.full(shape, -1, tf_dtype.as_numpy_dtype)
        if key in self._known and (is_integer or tf_dtype.is_floating):
            known = self._known[key]
            known_values = known_numbers(rng, ids, tf_dtype, shape, known, rows, bounds)
            if known_values is not None:
                return known_values
        if is_integer:
            return integers(rng, ids, tf_dtype, shape, rows, bounds)
        if tf_dtype.is_floating or tf_dtype.is_complex:
            numbers = rng.standard_normal(shape)
            numbers = numbers if bounds is None else bounded(rng, numbers, bounds)
            return numbers.astype(tf_dtype.as_numpy_dtype)
        raise Unsupported(f"input {key.input!r} has dtype {tf_dtype.name}")

    def _shown(self, ids: Ids, key: Key) -> Ids:
        """Returns the kind of ids of one input in a batch."""
        if ids is not Ids.UNKNOWN_ELSEWHERE:
            return ids
        return Ids.IN_RANGE if key in self._meaning.asserted else Ids.UNKNOWN

    def _texts(self, rng: np.random.Generator, ids: Ids, shape: tuple[int, ...], key: Key) -> Array:
        if ids is not Ids.MISSING and key in self._known:
            texts = known_words(rng, ids, shape, self._known[key], self._words)
            if texts is not None:
                return texts
        words = np.array([b""] if ids is Ids.MISSING else self._words, dtype=object)
        drawn: Array = words[rng.integers(len(words), size=shape)]
        return drawn

    def _record_maker(self, rng: np.random.Generator, case: Case) -> RecordMaker:
        """Returns a maker of records, with one number of values each but for unequal ones."""
        missing = case.ids is Ids.MISSING

        def values(key: Key, dtype: int, count: int) -> list[Any]:
            result: list[Any] = self._values(rng, case, dtype, (count,), key).tolist()
            return result

        def length(feature: Feature, key: Key) -> int:
            bag = 0 if missing else int(rng.choice(BAGS))
            if key in self._meaning.records and case.ids is not Ids.UNEQUAL:
                return 0 if missing else _NESTED
            return bag

        return RecordMaker(
            self._meaning.records,
            self._meaning.constraints,
            values,
            length,
            lambda: missing or rng.random() < UNUSUAL,
            is_equal=case.ids is not Ids.UNEQUAL,
        )

    def _miss_together(self, case: Case, feeds: dict[str, Array]) -> None:
        """Lets inputs that drop what stands for a missing value drop the same elements."""
        for name, array in feeds.items():
            same = self._meaning.constraints.same_missing(Key(name))
            arrays = [feeds[key.input] for key in same if not key.path]
            if not same or any(other.shape != array.shape for other in arrays):
                continue
            rng = self._rng(case, repr(min(same)))
            mask = rng.random(array.shape) < (1.0 if case.ids is Ids.MISSING else UNUSUAL)
            missing = same[Key(name)]
            others = array[array != missing].ravel()
            present = others[0] if others.size else _present(array, missing)
            feeds[name] = np.where(array == missing, present, array).astype(array.dtype)
            feeds[name][mask] = missing

    def _order(self, feeds: dict[str, Array], first: Key, second: Key, strict: bool) -> None:
        """Lets each element of one input be less than that of another."""
        if first.path or second.path or not {first.input, second.input} <= feeds.keys():
            return
        a, b = feeds[first.input], feeds[second.input]
        if a.shape != b.shape or a.dtype != b.dtype or a.dtype == object:
            return
        low, high = np.minimum(a, b), np.maximum(a, b)
        unit, equal = np.array(1, a.dtype), (low == high) & strict
        # Down rather than up, where the last row of a table may be.
        down = equal & (low > 0) & self._bounds[first].hold(low - unit)
        up = equal & ~down & self._bounds[second].hold(high + unit)
        feeds[first.input] = np.where(down, low - unit, low)
        feeds[second.input] = np.where(up, high + unit, high)


def _present(array: Array, missing: float | bytes) -> Any:
    """Returns a value that is not the marker of a missing one."""
    if array.dtype == object:
        return b"a"
    return 1 if missing == 0 else 0


def _disjoint(triples: Iterable[tuple[str, str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Returns the triples that share no part with one before."""
    used: set[str] = set()
    chosen = []
    for triple in triples:
        if used.isdisjoint(triple):
            chosen.append(triple)
            used.update(triple)
    return tuple(chosen)


def input_generators(
    model: Path, meta: meta_graph_pb2.MetaGraphDef, known: Sequence[Signature]
) -> dict[str, InputGenerator]:
    """Returns the generators of the inputs of a model's signatures, by title.

    Args:
        model: the folder of the model.
        meta: its meta graph.
        known: signatures of it.
    """
    vocabularies, meanings = Vocabularies(model, meta), signature_meanings(meta, known)
    words = vocabularies.words()
    generators = {}
    for signature in known:
        meaning = meanings[signature.title]
        of_tables = vocabularies.known(meaning.lookups)
        generators[signature.title] = InputGenerator(signature, meaning, words, of_tables)
    return generators


def _may_be_sparse(shapes: Sequence[tuple[int, ...] | None]) -> bool:
    """Whether indices, values and dense shape have these shapes."""
    return all(
        shape is None or len(shape) == rank for shape, rank in zip(shapes, (2, 1, 1), strict=True)
    )


def _inner_dims(rank: int, cells: int) -> list[int]:
    """Returns the dimensions after the first of a rank-`rank` row with at least `cells` cells."""
    if rank < 3:
        return [cells] * (rank - 1)
    return [1] * (rank - 3) + [4, -(-cells // 4)]


def _sparse_rank(indices: TensorSpec, shape: TensorSpec) -> int:
    candidates = [(indices.shape or ())[1:2], (shape.shape or ())[0:1]]
    return next((dims[0] for dims in candidates if dims and dims[0] > 0), 2)
