"""Lookups in tables of packed rows, against the same lookups in a float32 table.

python -m benchmarks.packed [--megabytes 1024] [--seconds 5] [--dims 16 64 128] [--out FOLDER]

All formats are in one process and take turns. Ids are uniform, so that most rows are not in the
caches; a lookup is one op, of several columns that have the table in common.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_COLUMNS, _BATCHES, _CALLS = 8, (512, 4096), 16
#: Ids of a row, in the mean.
_IDS = 10
#: Rows that are made and packed at a time.
_BLOCK = 1 << 16


def measure(megabytes: float, dims: Sequence[int], seconds: float) -> dict[str, Any]:
    """Measures the formats for each dimension and batch.

    Args:
        megabytes: of the float32 table.
        dims: D of the tables.
        seconds: of the calls of each dimension and batch.

    Returns:
        Of each dimension the bytes of the tables, and of each batch the seconds of the calls of
        each format, in rounds.
    """
    return {str(dim): _measure(int(megabytes * 2**20 / (4 * dim)), dim, seconds) for dim in dims}


def _measure(rows: int, dim: int, seconds: float) -> dict[str, Any]:
    from benchmarks.measure import in_turns

    tables = _tables(rows, dim)
    result: dict[str, Any] = {
        "bytes": {name: table.shape.num_elements() * 4 for name, table in tables.items()},
        "seconds": {},
    }
    for batch in _BATCHES:
        calls = {name: _Calls(table, name, dim, batch) for name, table in tables.items()}
        for call in calls.values():
            call.check()
        times = in_turns([*calls.values()], seconds)
        result["seconds"][str(batch)] = {
            name: [each / _CALLS for each in own] for name, own in zip(calls, times, strict=True)
        }
    return result


def _tables(rows: int, dim: int) -> dict[str, Any]:
    """The same table in each row format, as tensors."""
    import numpy as np
    import tensorflow as tf

    from fusion.schema.row_formats import PACKED_FORMATS, PLAIN, pack_rows, packed_words

    words = {PLAIN: dim} | {name: packed_words(name, dim) for name in PACKED_FORMATS}
    arrays = {name: np.empty((rows, width), np.float32) for name, width in words.items()}
    random = np.random.default_rng(dim)
    for first in range(0, rows, _BLOCK):
        block = random.standard_normal((min(_BLOCK, rows - first), dim), np.float32)
        for name, array in arrays.items():
            array[first : first + _BLOCK] = block if name == PLAIN else pack_rows(block, name)
    return {name: tf.constant(arrays.pop(name)) for name in words}


class _Calls:
    """Looks up batches of ids in a table, one after the other in one function.

    What a call of a function costs is no part of a lookup in a model.
    """

    def __init__(self, table: Any, row_format: str, dim: int, batch: int) -> None:
        self._table, self._format, self._dim = table, row_format, dim
        random, rows = _random(batch), int(table.shape[0])
        self._batches = [_ids(random, rows, batch) for _ in range(_CALLS)]
        self._function = _lookup(row_format, dim)
        self._all = _in_order(self._function, table, self._batches)

    def __call__(self) -> None:
        self._all()

    def check(self) -> None:
        """Compares the first batch with that of the plain rows that a table stands for.

        Raises:
            AssertionError: bits differ.
        """
        import numpy as np
        import tensorflow as tf

        from fusion.schema.row_formats import PLAIN, unpack_rows

        ids, splits = self._batches[0]
        found, places = np.unique(np.concatenate(ids), return_inverse=True)
        rows = tf.gather(self._table, found).numpy()
        if self._format != PLAIN:
            rows = unpack_rows(rows, self._format, self._dim)
        own = [
            tf.constant(part) for part in np.split(places, np.cumsum([len(i) for i in ids])[:-1])
        ]
        wanted = _lookup(PLAIN, self._dim)(tf.constant(rows), own, splits)
        got = self._function(self._table, ids, splits)
        assert got.numpy().tobytes() == wanted.numpy().tobytes(), self._format


def _in_order(function: Callable[..., Any], table: Any, batches: Sequence[Any]) -> Any:
    """A function that looks up each batch when the one before is done."""
    import tensorflow as tf

    @tf.function
    def run() -> Any:
        firsts: list[Any] = []
        for batch in batches:
            with tf.control_dependencies(firsts[-1:]):
                firsts.append(function(table, *batch)[0, 0])
        return tf.add_n(firsts)

    return run.get_concrete_function()


def _random(seed: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed)


def _ids(random: Any, rows: int, batch: int) -> tuple[list[Any], list[Any]]:
    """Ids and row splits of each column."""
    import numpy as np
    import tensorflow as tf

    ids, splits = [], []
    for _ in range(_COLUMNS):
        ends = np.cumsum(random.integers(0, 2 * _IDS + 1, batch))
        ids.append(tf.constant(random.integers(0, rows, ends[-1])))
        splits.append(tf.constant(np.concatenate(([0], ends))))
    return ids, splits


def _lookup(row_format: str, dim: int) -> Callable[..., Any]:
    """A function (table, ids, row splits) -> the columns side by side."""
    import tensorflow as tf

    from fusion import ops
    from fusion.schema.columns import COLUMN_ATTRS
    from fusion.schema.row_formats import PLAIN

    own = {"forms": "row_splits", "combiners": "sum", "dims": dim, "row_formats": row_format}
    lists = {name: [own.get(name, attr.default)] * _COLUMNS for name, attr in COLUMN_ATTRS.items()}

    vectors = [tf.TensorSpec([None], tf.int64)] * _COLUMNS

    @tf.function(input_signature=[tf.TensorSpec([None, None]), vectors, vectors])
    def look_up(table: Any, ids: list[Any], splits: list[Any]) -> Any:
        return ops.grouped_embedding_lookup(
            tables=[table] * _COLUMNS,
            ids=ids,
            entry_rows=splits,
            dense_shapes=[tf.zeros([1], tf.int64)] * _COLUMNS,
            weights=[tf.ones([1])] * _COLUMNS,
            boundaries=[],
            boundary_counts=[0] * _COLUMNS,
            Tpacked="float32" if row_format == PLAIN else "uint8",
            **lists,
        )

    return look_up


def report(found: Mapping[str, Any]) -> str:
    """What was measured, in Markdown: ratios are medians of those of rounds, with quartiles."""
    from benchmarks.markdown import table as markdown

    lines = []
    for dim, measured in found["dims"].items():
        for batch, times in measured["seconds"].items():
            plain = times["plain"]
            for name, seconds in times.items():
                size = measured["bytes"][name] / measured["bytes"]["plain"]
                low, middle, high = _quartiles(
                    [one / other for one, other in zip(plain, seconds, strict=True)]
                )
                milliseconds = f"{1e3 * statistics.median(seconds):.3f}"
                ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})"
                lines.append((dim, batch, name, f"{size:.3f}", milliseconds, ratio))
    head = ("D", "batch", "row format", "bytes of float32", "ms", "times as fast as float32")
    return markdown(head, lines)


def _quartiles(numbers: Sequence[float]) -> list[float]:
    return statistics.quantiles(numbers, n=4, method="inclusive")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1024, help="of the float32 table")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each dimension and batch")
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64, 128], help="D of tables")
    parser.add_argument("--out", type=Path, help="a folder for the numbers, packed.json")
    options = parser.parse_args()
    from fusion.runtime.machine import machine

    dims = measure(options.megabytes, options.dims, options.seconds)
    numbers = {"machine": machine(), "megabytes": options.megabytes, "dims": dims}
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "packed.json").write_text(json.dumps(numbers, indent=2) + "\n")
    print(report(numbers))


if __name__ == "__main__":
    main()
