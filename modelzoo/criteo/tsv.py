"""Criteo's own files: lines of a label, 13 counts and 26 categories in hexadecimal, by tabs.

Those of the Kaggle challenge and the day files of the 1TB logs are alike, gzipped or plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from modelzoo.criteo.schema import CATEGORICAL, FIELDS, LABEL, NUMERIC, DataError

_BLOCK_BYTES = 16 << 20
_EXAMPLES = 3


@dataclass
class Malformed:
    """Lines that hold something else than a sample; they are left out.

    Attributes:
        count: how many there were.
        examples: the first ones: what is wrong with them.
    """

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, count: int, example: str) -> None:
        """Counts lines, one of which is told."""
        self.count += count
        if len(self.examples) < _EXAMPLES:
            self.examples.append(example)

    def __str__(self) -> str:
        return f"{self.count} malformed lines left out, such as: {'; '.join(self.examples)}"


@dataclass(frozen=True)
class Lines:
    """What some lines hold.

    Attributes:
        table: `label` and counts as int64, of which missing ones are null, and categories as
            strings, of which missing ones are null.
        read: the share of the files that has been read.
    """

    table: pa.Table
    read: float


def read_tsv(files: Sequence[Path], malformed: Malformed) -> Iterator[Lines]:
    """Yields the lines of files, some ten thousand at a time.

    Args:
        files: gzipped if their names end in .gz.
        malformed: is told of lines left out.

    Raises:
        DataError: a file cannot be read, or has no sample at all.
    """
    sizes = [max(file.stat().st_size, 1) for file in files]
    for place, file in enumerate(files):
        found, before = 0, malformed.count
        for table, position in _tables(file, malformed):
            found += len(table)
            yield Lines(table, (sum(sizes[:place]) + position) / sum(sizes))
        if not found:
            count = malformed.count - before
            raise DataError(
                f"{file}: no sample in {count} lines; each is a label, 13 counts and 26 "
                f"categories by tabs" + (f"; {malformed.examples[0]}" if count else "")
            )


def _tables(file: Path, malformed: Malformed) -> Iterator[tuple[pa.Table, int]]:
    def wrong(row: pyarrow.csv.InvalidRow) -> str:
        told = f"{row.actual_columns} fields instead of {row.expected_columns} in {file.name}"
        malformed.add(1, told)
        return "skip"

    raw = pa.OSFile(str(file))
    stream = pa.CompressedInputStream(raw, "gzip") if file.suffix == ".gz" else raw
    try:
        with pyarrow.csv.open_csv(
            stream,
            pyarrow.csv.ReadOptions(
                column_names=FIELDS, block_size=_BLOCK_BYTES, use_threads=False
            ),
            pyarrow.csv.ParseOptions(
                delimiter="\t", quote_char=False, ignore_empty_lines=True, invalid_row_handler=wrong
            ),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(FIELDS, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        ) as reader:
            for batch in reader:
                table = _texts(pa.Table.from_batches([batch]), file, malformed)
                yield _checked(table, file, malformed), raw.tell()
    except (pa.ArrowException, OSError) as error:
        # An empty file is an error of the reader's, too.
        raise DataError(f"{file}: cannot be read as tab-separated values: {error}") from error


def _texts(table: pa.Table, file: Path, malformed: Malformed) -> pa.Table:
    """The lines that are UTF-8, of strings."""
    strings = pa.schema([(name, pa.string()) for name in FIELDS])
    try:
        return table.cast(strings)
    except pa.ArrowInvalid:
        for name in FIELDS:
            is_text = pa.array([_is_text(one) for one in table[name].to_pylist()])
            table = _kept(table, pa.chunked_array([is_text]), name, file, malformed)
        return table.cast(strings)


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _checked(table: pa.Table, file: Path, malformed: Malformed) -> pa.Table:
    """The lines whose label and counts are numbers, as such."""
    label_is_sound = pc.is_in(table[LABEL], pa.array(["0", "1"]))
    table = _kept(table, label_is_sound, LABEL, file, malformed)
    for name in (LABEL, *NUMERIC):
        place = table.schema.get_field_index(name)
        try:
            numbers = pc.cast(table[name], pa.int64())
        except pa.ArrowInvalid:
            is_sound = pc.match_substring_regex(table[name], r"^-?[0-9]{1,18}$")
            table = _kept(table, pc.fill_null(is_sound, True), name, file, malformed)
            numbers = pc.cast(table[name], pa.int64())
        table = table.set_column(place, name, numbers)
    return table


def _kept(
    table: pa.Table, is_sound: pa.ChunkedArray, name: str, file: Path, malformed: Malformed
) -> pa.Table:
    wrong = table.filter(pc.invert(is_sound))
    if len(wrong):
        malformed.add(len(wrong), f"{name} is {wrong[name][0].as_py()!r} in {file.name}")
        return table.filter(is_sound)
    return table


Encoder = Callable[[str, pa.ChunkedArray], pa.ChunkedArray]
"""(the name of a categorical feature, its strings) -> ids, int64; missing ones are null."""


def encoded(table: pa.Table, encoder: Encoder) -> pa.Table:
    """The table with ids for categories."""
    for name in CATEGORICAL:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, encoder(name, table[name]))
    return table
