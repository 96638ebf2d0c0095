"""Where samples come from: synthetic ones, or files of any format that is known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from modelzoo.criteo.blocks import BLOCK, Block, dataset_of, without_first
from modelzoo.criteo.encoding import hashing
from modelzoo.criteo.parquet import list_columns, parquet_loader, rows_of, to_block
from modelzoo.criteo.schema import CATEGORICAL, NUMERIC, DataError, cardinalities
from modelzoo.criteo.synthetic import CriteoData
from modelzoo.criteo.tfrecord import counts_are_floats, read_tfrecord
from modelzoo.criteo.tsv import Malformed, encoded, read_tsv
from modelzoo.files import put_text

SYNTHETIC = "synthetic"
"""Instead of a path: samples that are made up."""

INFO = "criteo.json"
"""The file beside converted data that says how they were made."""

FORMATS = {"parquet": (".parquet",), "tfrecord": (".tfrecord",), "tsv": (".tsv", ".txt", ".csv")}
"""What the names of files end in, also with .gz behind, by format."""


@dataclass(frozen=True)
class Info:
    """How data were converted.

    Attributes:
        rows: how many ids each categorical feature has.
        encoding: "hash", "vocabulary" or "ids", as they came.
        is_log: whether counts are logarithms already.
        samples: how many there are.
        malformed: how many lines were left out.
        source: the files that were converted, and how.
        words: a digest of the vocabularies, if there are any.
    """

    rows: Mapping[str, int]
    encoding: str
    is_log: bool
    samples: int
    malformed: int = 0
    source: Mapping[str, object] = field(default_factory=dict)
    words: str = ""

    def write(self, folder: Path) -> None:
        """Writes it to a folder, whole or not at all."""
        put_text(folder / INFO, json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def read(folder: Path) -> Info | None:
        """What was written to a folder; None if nothing was.

        Raises:
            DataError: the file holds something else.
        """
        file = folder / INFO
        if not file.is_file():
            return None
        try:
            return Info(**json.loads(file.read_text()))
        except (TypeError, ValueError) as error:
            raise DataError(f"{file}: does not say how data were converted: {error}") from error


class Source(Protocol):
    """Samples.

    Attributes:
        rows: how many ids each categorical feature has.
        lists: the features that have any number of ids, whose tensors are sparse.
        is_log: whether counts are logarithms already.
        whole_counts: whether counts are integers in Examples.
        words: a digest of the vocabularies by which ids were made, or "".
        malformed: the lines left out so far.
    """

    rows: Mapping[str, int]
    lists: tuple[str, ...]
    is_log: bool
    whole_counts: bool
    words: str
    malformed: Malformed

    def dataset(self, batch_size: int, skip_batches: int = 0) -> tf.data.Dataset:
        """Batches (features, labels): float32 counts, int64 ids and float32 labels, all [n, 1].

        Missing counts and ids are -1; features among `lists` are sparse. Behind the last sample it
        ends.

        Args:
            batch_size: samples of a batch.
            skip_batches: how many batches are left out at the beginning.
        """


@dataclass
class Synthetic:
    """Samples that are made up, in an order of their own; there is no end of them."""

    data: CriteoData
    first: int = 0
    lists: tuple[str, ...] = ()
    is_log: bool = False
    whole_counts: bool = False
    words: str = ""

    def __post_init__(self) -> None:
        self.rows: Mapping[str, int] = cardinalities(self.data.cap)
        self.malformed = Malformed()

    def dataset(self, batch_size: int, skip_batches: int = 0) -> tf.data.Dataset:
        """See `Source`."""
        skip = skip_batches * batch_size
        size = BLOCK // 8

        def make() -> Iterator[Block]:
            place = self.first + skip // size
            while True:
                yield synthetic_block(self.data, size, place)
                place += 1

        return dataset_of(lambda: without_first(make(), skip % size), batch_size)


def synthetic_block(data: CriteoData, size: int, place: int) -> Block:
    """Block `place` of samples that are made up."""
    batch = data.batch(size, place)
    counts = np.concatenate([batch.features[name] for name in NUMERIC], axis=1)
    ids = np.concatenate([batch.features[name] for name in CATEGORICAL], axis=1)
    return Block(batch.labels[:, 0], counts, ids)


@dataclass
class _Files:
    files: list[Path]
    rows: Mapping[str, int]
    is_log: bool = False
    lists: tuple[str, ...] = ()
    whole_counts: bool = False
    words: str = ""

    def __post_init__(self) -> None:
        self.malformed = Malformed()


class ParquetFiles(_Files):
    """Samples of Parquet files."""

    def dataset(self, batch_size: int, skip_batches: int = 0) -> tf.data.Dataset:
        """See `Source`."""
        loader = parquet_loader(self.files, batch_size, self.lists)
        return loader.resume(0, min(skip_batches, len(loader)))


class TsvFiles(_Files):
    """Samples of Criteo's own files, whose categories are hashed."""

    def dataset(self, batch_size: int, skip_batches: int = 0) -> tf.data.Dataset:
        """See `Source`."""
        encode = hashing(self.rows)

        def make() -> Iterator[Block]:
            self.malformed.count = 0
            self.malformed.examples.clear()
            for lines in read_tsv(self.files, self.malformed):
                yield to_block(encoded(lines.table, encode))

        return dataset_of(lambda: without_first(make(), skip_batches * batch_size), batch_size)


class TfrecordFiles(_Files):
    """Samples of TFRecord files."""

    def dataset(self, batch_size: int, skip_batches: int = 0) -> tf.data.Dataset:
        """See `Source`."""
        return read_tfrecord(self.files, batch_size, skip_batches * batch_size)


def open_source(
    path: str | Path,
    cap: int | None = None,
    seed: int = 0,
    missing: float = 0.02,
    rows: int | None = None,
) -> Source:
    """Opens data.

    Args:
        path: `SYNTHETIC`, a file, or a folder of files; beside converted ones it is said how many
            ids there are. Other Parquet files are asked.
        cap: the most ids that a feature gets, of synthetic data and where categories are hashed.
        seed: of synthetic data.
        missing: the share of ids that are missing in synthetic data.
        rows: how many ids each feature has, of Parquet and TFRecord files that others made; Parquet
            files are asked otherwise, if they know.

    Raises:
        DataError: there is nothing, or it is not known what it is.
    """
    if str(path) == SYNTHETIC:
        return Synthetic(CriteoData(cap=cap, missing=missing, seed=seed))
    files, kind = find_files(Path(path))
    info = Info.read(files[0].parent)
    if kind == "tsv":
        return TsvFiles(files, cardinalities(cap))
    given = None if rows is None else dict.fromkeys(CATEGORICAL, rows)
    whole = kind == "tfrecord" and not counts_are_floats(files[0])
    if info is None and kind == "tfrecord" and given is None:
        raise DataError(
            f"{path}: beside no {INFO}, TFRecord files do not tell how many ids there are (--rows)"
        )
    lists = tuple(list_columns(files)) if kind == "parquet" else ()
    if info is None:
        info = Info(given or rows_of(files), "ids", False, 0)
    if kind == "parquet":
        return ParquetFiles(files, info.rows, info.is_log, lists, words=info.words)
    return TfrecordFiles(files, info.rows, info.is_log, whole_counts=whole, words=info.words)


def find_files(path: Path) -> tuple[list[Path], str]:
    """The files of a path, in the order of their names, and their format, see `FORMATS`.

    Day files have no ending: day_0, day_1.gz.

    Raises:
        DataError: there is none, or there are several formats.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    found: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if kind := _format(file):
            found.setdefault(kind, []).append(file)
    if not found:
        raise DataError(f"{path}: no Parquet, TFRecord or tab-separated file")
    if len(found) > 1:
        raise DataError(f"{path}: files of several formats: {', '.join(sorted(found))}")
    ((kind, files),) = found.items()
    return sorted(files, key=_in_order), kind


def _format(file: Path) -> str | None:
    name = file.name.removesuffix(".gz")
    if name.startswith((".", "_")) or file.is_dir():
        return None
    if name.startswith("day_") and name[len("day_") :].isdigit():
        return "tsv"
    for kind, endings in FORMATS.items():
        if name.endswith(endings):
            return kind
    return None


def _in_order(file: Path) -> tuple[int, str]:
    """day_10 comes after day_9."""
    digits = file.name.removesuffix(".gz").removeprefix("day_")
    return (int(digits) if digits.isdigit() else 0), file.name
