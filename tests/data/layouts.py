"""Random layouts of files, and what their batches must be."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from hypothesis import strategies as st

from fusion.data import ParquetLoader

LABELS, IDS, NUMBERS = ["label"], ["row", "small", "word", "list", "words"], ["x", "vector"]
NULL = {"x": -1.0, "small": -1, "word": "none", "list": -5}
FORMS = ("offsets", "ragged", "sparse", "dense")


@dataclass(frozen=True)
class Layout:
    """Files and how they are read.

    Attributes:
        files: for each file how many rows each of its row groups has.
        longest: the most values of a list.
        nulls: the share of values that are null.
        form: of lists, one of `FORMS`.
        encoding: of files: whether strings are a dictionary, the version of pages.
    """

    files: tuple[tuple[int, ...], ...]
    longest: int
    nulls: float
    form: str
    encoding: tuple[bool, str]
    batch_size: int
    buffer_size: int
    parts_per_chunk: int
    shuffle: bool
    drop_last: bool
    replicas: int
    seed: int
    start: float

    @property
    def rows(self) -> int:
        return sum(map(sum, self.files))

    def write(self, folder: Path) -> list[dict[str, Any]]:
        """Writes the files; the rows as Python objects, as a batch has them."""
        generator = np.random.default_rng(self.seed)
        rows: list[dict[str, Any]] = []
        for number, groups in enumerate(self.files):
            tables = [self._table(size, generator) for size in (0, *groups)]
            is_dictionary, version = self.encoding
            with pq.ParquetWriter(
                folder / f"{number:02}.parquet", tables[0].schema, data_page_version=version,
                use_dictionary=is_dictionary,
            ) as writer:  # fmt: skip
                first = len(rows)
                for made in tables[1:]:
                    ids = pa.array(np.arange(len(rows), len(rows) + len(made)))
                    table = made.set_column(0, "row", ids)
                    writer.write_table(table, row_group_size=max(len(table), 1))
                    rows += table.to_pylist()
                assert first + sum(groups) == len(rows)
        return [filled(row) for row in rows]

    def _table(self, size: int, generator: np.random.Generator) -> pa.Table:
        def some(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
            nulls = generator.random(len(values)) < self.nulls
            return pa.array(
                [None if null else one for one, null in zip(values, nulls, strict=True)], kind
            )

        def lists(values: pa.Array, lengths: np.ndarray) -> list[Any]:
            ends = np.cumsum(lengths)
            plain = values.to_pylist()
            return [plain[end - length : end] for end, length in zip(ends, lengths, strict=True)]

        lengths = generator.integers(0, self.longest + 1, [2, size])
        numbers = some(generator.integers(0, 99, lengths[0].sum()).tolist(), pa.int64())
        words = [f"w{k}" for k in generator.integers(0, 9, lengths[1].sum())]
        return pa.table(
            {
                "row": pa.array(np.zeros(size, np.int64)),
                "small": some(generator.integers(0, 99, size).tolist(), pa.int16()),
                "word": some([f"w{k}" for k in generator.integers(0, 9, size)], pa.string()),
                "list": some(lists(numbers, lengths[0]), pa.list_(pa.int64())),
                "words": pa.array(lists(pa.array(words, pa.string()), lengths[1]),
                                  pa.large_list(pa.string())),
                "x": some(generator.normal(size=size).astype(np.float32).tolist(), pa.float32()),
                "vector": pa.array(
                    generator.normal(size=[size, 3]).astype(np.float32).tolist(),
                    pa.list_(pa.float32(), 3),
                ),
                "label": pa.array(generator.integers(0, 2, size), pa.int8()),
            }
        )  # fmt: skip

    def loader(self, folder: Path, rank: int = 0) -> ParquetLoader:
        forms: dict[str, Any] = {
            "offsets": {},
            "ragged": {"ragged_names": ["list", "words"]},
            "sparse": {"sparse_names": ["list", "words"], "sparse_max": {"list": self.longest}},
            "dense": {"sparse_names": ["list", "words"], "sparse_as_dense": True},
        }
        return ParquetLoader(
            folder,
            self.batch_size,
            LABELS,
            IDS,
            NUMBERS,
            fill_values=NULL,
            shuffle=self.shuffle,
            seed=self.seed,
            buffer_size=self.buffer_size,
            parts_per_chunk=self.parts_per_chunk,
            drop_last=self.drop_last,
            global_size=self.replicas,
            global_rank=rank,
            **forms[self.form],
        )


def filled(row: dict[str, Any]) -> dict[str, Any]:
    """A row without nulls."""
    found = {
        name: NULL.get(name) if value is None else value
        for name, value in row.items()
        if name not in ("list", "words")
    }
    found["list"] = [NULL["list"] if one is None else one for one in row["list"] or []]
    found["words"] = row["words"]
    return found


def rows_of(batch: Any, form: str) -> list[dict[str, Any]]:
    """The rows of a batch as Python objects. Of padded lists the zeros at their ends are left."""
    features, labels = batch
    columns = {name: features[name].numpy()[:, 0].tolist() for name in ("row", "small", "x")}
    columns["word"] = [one.decode() for one in features["word"].numpy()[:, 0]]
    columns["vector"] = features["vector"].numpy().tolist()
    columns["label"] = labels.numpy()[:, 0].tolist()
    for name in ("list", "words"):
        if form == "offsets":
            values = features[f"{name}__values"].numpy().tolist()
            offsets = features[f"{name}__offsets"].numpy()
            assert offsets[0] == 0
            assert offsets[-1] == len(values)
            lists = [values[a:b] for a, b in pairwise(offsets)]
        elif form == "dense":
            lists = features[name].numpy().tolist()
        elif form == "sparse":
            lists = tf.RaggedTensor.from_sparse(features[name]).to_list()
        else:
            lists = features[name].to_list()
        if name == "words":
            lists = [[one.decode() for one in words] for words in lists]
        columns[name] = lists
    names = [*columns]
    return [dict(zip(names, one, strict=True)) for one in zip(*columns.values(), strict=True)]


def as_in_batch(row: dict[str, Any], found: dict[str, Any], form: str) -> dict[str, Any]:
    """A row as it should be in a batch, in which lists are padded as those that were found."""
    if form != "dense":
        return row
    padded = {}
    for name, zero in (("list", 0), ("words", "")):
        padded[name] = row[name] + [zero] * (len(found[name]) - len(row[name]))
    return {**row, **padded}


def check(layout: Layout) -> None:
    """Compares the batches of all replicas with the rows of the files, and goes on in the midst."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = layout.write(folder)
        seen: list[int] = []
        counts = set()
        for rank in range(layout.replicas):
            loader = layout.loader(folder, rank)
            batches = [rows_of(batch, layout.form) for batch in loader]
            own = [row for batch in batches for row in batch]
            assert len(batches) == len(loader)
            counts.add(len(batches))
            sizes = [len(batch) for batch in batches]
            assert all(size == layout.batch_size for size in sizes[:-2])
            assert not sizes or max(sizes) <= layout.batch_size
            assert not layout.drop_last or {*sizes} <= {layout.batch_size}
            for row in own:
                assert as_in_batch(wanted[row["row"]], row, layout.form) == row
            seen += [row["row"] for row in own]
            if rank == layout.seed % layout.replicas:
                start = int(layout.start * len(batches))
                rest = loader.resume(0, start)
                assert len(rest) == len(batches) - start
                assert [rows_of(batch, layout.form) for batch in rest] == batches[start:]
        assert len(counts) == 1
        if layout.drop_last:
            assert len({*seen}) == len(seen) == counts.pop() * layout.batch_size * layout.replicas
        else:
            assert sorted(seen) == [*range(layout.rows)]
            assert layout.shuffle or seen == [*range(layout.rows)]


def groups() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 20), max_size=4).map(tuple)


LAYOUTS = st.builds(
    Layout,
    files=st.lists(groups(), min_size=1, max_size=4).map(tuple).filter(lambda f: sum(map(sum, f))),
    longest=st.integers(1, 4),
    nulls=st.sampled_from([0.0, 0.3]),
    form=st.sampled_from(FORMS),
    encoding=st.tuples(st.booleans(), st.sampled_from(["1.0", "2.0"])),
    batch_size=st.integers(1, 30),
    buffer_size=st.integers(1, 40),
    parts_per_chunk=st.integers(1, 3),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    replicas=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    start=st.floats(0, 1),
)
