"""From categories to ids: by hashing, or by a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from modelzoo.criteo.schema import CATEGORICAL, DataError
from modelzoo.criteo.tsv import Encoder


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
    counts: dict[str, pa.Table] = {}
    for table in tables:
        for name in CATEGORICAL:
            found = table.select([name]).rename_columns(["word"]).drop_null()
            found = found.append_column("count", pa.array([1] * len(found), pa.int64()))
            before = [counts[name]] if name in counts else []
            counts[name] = _summed(pa.concat_tables([*before, found]))
    words = {}
    for name, table in counts.items():
        kept = table.filter(pc.greater_equal(table["count"], least))
        kept = kept.sort_by([("count", "descending"), ("word", "ascending")])
        words[name] = kept["word"].combine_chunks()
    return words


def _summed(table: pa.Table) -> pa.Table:
    return table.group_by("word").aggregate([("count", "sum")]).rename_columns(["word", "count"])


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
