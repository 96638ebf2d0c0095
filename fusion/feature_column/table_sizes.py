"""`embedding_sizes`: how many rows embedding tables have, and how long these are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Where a workflow of NVTabular keeps what `Categorify` has found, and the names of files there.
_CATEGORIES, _UNIQUE, _META, _SUFFIX = "categories", "unique.", "meta.", ".parquet"


def embedding_sizes(
    source: Mapping[str, int] | str | os.PathLike[str],
    *,
    minimum: int = 16,
    maximum: int = 512,
) -> dict[str, tuple[int, int]]:
    """The size of an embedding table for each column, as `nvtabular.ops.get_embedding_sizes`.

    A table of n rows has the dimension round(1.6 n^0.56), which is at least `minimum` and at most
    `maximum`.

    Args:
      source: the number of rows by column, such as what `fusion.data.cardinalities` reads from the
        statistics of Parquet files; or the folder of an NVTabular workflow, or of its categories.
        NVTabular is not needed: the files there say how many ids `Categorify` gives, those for
        padding, nulls and unknown values included. Columns that are encoded jointly are one, under
        the name of their file.
      minimum: of dimensions, 16 in NVTabular; its first versions had none.
      maximum: of dimensions, 512 in NVTabular.

    Returns:
      (rows, dimension) by column, sorted by name. Lists are among them, while NVTabular gives them
      in a second dict.

    Raises:
      ValueError: a number of rows below 1; bounds that are no bounds; a folder without categories,
        or files in it that are not those of NVTabular.
      ImportError: a folder, without pyarrow.
    """
    if not 1 <= minimum <= maximum:
        raise ValueError(f"minimum must be between 1 and maximum, got {minimum} and {maximum}")
    rows = source if isinstance(source, Mapping) else _rows_of_workflow(Path(source))
    for name, count in rows.items():
        if count < 1:
            raise ValueError(f"column {name!r} must have at least one row, got {count}")
    return {
        name: (int(count), min(max(minimum, round(1.6 * count**0.56)), maximum))
        for name, count in sorted(rows.items())
    }


def _rows_of_workflow(folder: Path) -> dict[str, int]:
    """The number of ids of each column that a workflow has encoded."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(
            f"{folder}: reading it needs pyarrow: pip install 'tf-embedding-fusion[data]'"
        ) from error
    categories = folder / _CATEGORIES if (folder / _CATEGORIES).is_dir() else folder
    paths = sorted(categories.glob(f"{_UNIQUE}*{_SUFFIX}"))
    if not paths:
        raise ValueError(f"{folder}: no file {_CATEGORIES}/{_UNIQUE}*{_SUFFIX} of a workflow")
    try:
        return {_column(path): _row_count(path, pq) for path in paths}
    except pa.ArrowException as error:
        raise ValueError(f"{folder}: cannot be read as Parquet: {error}") from error


def _column(path: Path) -> str:
    return path.name.removeprefix(_UNIQUE).removesuffix(_SUFFIX)


def _row_count(path: Path, pq: Any) -> int:
    """The number of ids of a column, from the file, or folder of files, of its values."""
    meta = path.with_name(f"{_META}{_column(path)}{_SUFFIX}")
    if meta.exists():  # newer versions: what ids are for, and how many of each
        table = pq.read_table(meta)
        if "num_indices" not in table.column_names:
            raise ValueError(f"{meta}: no column num_indices")
        return int(sum(table.column("num_indices").to_pylist()))
    # In older ones the file has a row for nulls as well.
    files = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]
    return sum(pq.read_metadata(file).num_rows for file in files)
