"""From categories to ids: by hashing, or by a vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from modelzoo.criteo.schema import CATEGORICAL, DataError
from modelzoo.criteo.tsv import Encoder

WORDS = "vocabulary"
"""The folder of vocabularies beside converted data."""


def hashing(rows: Mapping[str, int]) -> Encoder:
    """Ids by hashes, TensorFlow's `to_hash_bucket_fast`, into as many buckets as given by name."""

    def encode(name: str, strings: pa.ChunkedArray) -> pa.ChunkedArray:
        # Without nulls NumPy's array of objects is the quickest way to TensorFlow.
        texts = pc.fill_null(strings, "").to_numpy()
        ids = tf.strings.to_hash_bucket_fast(texts, rows[name]).numpy()
        return pa.chunked_array([pa.array(ids, mask=strings.is_null().to_numpy())])

    return encode


def vocabulary(words: Mapping[str, pa.Array]) -> Encoder:
    """Ids by place: 0 is what is in no vocabulary, 1 its first word."""

    def encode(name: str, strings: pa.ChunkedArray) -> pa.ChunkedArray:
        places = pc.fill_null(pc.index_in(strings, words[name]), -1)
        ids = pc.cast(pc.add(places, 1), pa.int64())
        return pc.if_else(strings.is_null(), pa.scalar(None, pa.int64()), ids)

    return encode


def count_words(tables: Iterable[pa.Table], least: int) -> dict[str, pa.Array]:
    """The words of each categorical feature that occur at least so often, most frequent first.

    Words that are equally frequent are in the order of the alphabet.
    """
    counts = {name: _Counts() for name in CATEGORICAL}
    for table in tables:
        for name, own in counts.items():
            found = table.select([name]).rename_columns(["word"]).drop_null()
            own.add(found.append_column("count", pa.array([1] * len(found), pa.int64())))
    words = {}
    for name, own in counts.items():
        table = own.summed()
        kept = table.filter(pc.greater_equal(table["count"], least))
        kept = kept.sort_by([("count", "descending"), ("word", "ascending")])
        words[name] = kept["word"].combine_chunks()
    return words


class _Counts:
    """How often words occurred; what was added is summed up when it is as much as there was."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._summed = self._added = 0

    def add(self, table: pa.Table) -> None:
        """Adds words with counts; of a table of words alone each counts once."""
        table = _sums(table)
        self._parts.append(table)
        self._added += len(table)
        if self._added > max(self._summed, _FEW):
            self.summed()

    def summed(self) -> pa.Table:
        """The sums so far."""
        self._parts = [_sums(pa.concat_tables(self._parts))] if self._parts else [_NONE]
        self._summed, self._added = len(self._parts[0]), 0
        return self._parts[0]


_FEW = 1 << 20
_NONE = pa.table({"word": pa.array([], pa.string()), "count": pa.array([], pa.int64())})


def _sums(table: pa.Table) -> pa.Table:
    return table.group_by("word").aggregate([("count", "sum")]).rename_columns(["word", "count"])


def write_all_words(folder: Path, words: Mapping[str, pa.Array]) -> None:
    """Writes a folder of vocabularies, which appears whole or not at all."""
    partial = folder.with_name(f"{folder.name}.new")
    write_words(partial, words)
    partial.rename(folder)


def digest(folder: Path) -> str:
    """A number that tells vocabularies apart, in hexadecimal."""
    sums = hashlib.sha256()
    for name in CATEGORICAL:
        sums.update(hashlib.sha256((folder / f"{name}.txt").read_bytes()).digest())
    return sums.hexdigest()


def write_words(folder: Path, words: Mapping[str, pa.Array]) -> None:
    """Writes a text file with a word a line for each feature."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in words.items():
        (folder / f"{name}.txt").write_text("".join(f"{word}\n" for word in array.to_pylist()))


def read_words(folder: Path) -> dict[str, pa.Array]:
    """What `write_words` wrote.

    Raises:
        DataError: a file is missing.
    """
    words = {}
    for name in CATEGORICAL:
        file = folder / f"{name}.txt"
        if not file.is_file():
            raise DataError(f"{file}: the vocabulary of {name} is missing")
        words[name] = pa.array(file.read_text().splitlines(), pa.string())
    return words
