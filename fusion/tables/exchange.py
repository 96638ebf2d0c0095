"""Export and import of rows of embedding variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.tables import files
from fusion.tables.keyed_rows import put_rows, read_rows


def export_rows(
    path: str | os.PathLike[str],
    partitions: Sequence[tuple[Any, Any]],
    since: int,
    about: dict[str, Any],
) -> int:
    """Writes keys and rows to a new folder, see `files`; returns how many.

    Args:
      path: the folder.
      partitions: table and index of an embedding variable, or of each partition of one.
      since: the step since which keys were trained.
      about: what else the manifest says.

    Raises:
      FileExistsError: there is something at `path`.
    """
    parts = [(table, i, ops.embedding_key_entries(index=i.handle)) for table, i in partitions]
    table = partitions[0][0]
    step = max(int(entries.clock[0]) for *_, entries in parts)
    chunks = (
        (keys, rows)
        for table, index, entries in parts
        for keys, (rows,) in blocks([table], index, entries, since)
    )
    about = {"dtype": table.dtype.name, "step": step, **about}
    return files.write_table(path, int(table.shape[1]), chunks, about)


def blocks(
    variables: Sequence[Any], index: Any, entries: Any, since: int = 0
) -> Iterator[tuple[files.Array, list[files.Array]]]:
    """Keys [n], and of each variable their rows [n, D], at most `files.CHUNK_ROWS` at a time.

    Args:
      variables: the table of an embedding variable, and slots of it.
      index: the variable of its index.
      entries: of that, see `EmbeddingKeyEntries`.
      since: the step since which keys were trained.
    """
    chosen = np.flatnonzero((entries.rows.numpy() >= 0) & (entries.steps.numpy() >= since))
    keys, rows = entries.keys.numpy()[chosen], entries.rows.numpy()[chosen]
    for first in range(0, len(keys), files.CHUNK_ROWS):
        some = slice(first, first + files.CHUNK_ROWS)
        tensors, are_theirs = read_rows(variables, index, keys[some], rows[some])
        mask = are_theirs.numpy()
        yield keys[some][mask], [values.numpy()[mask] for values in tensors]


def import_rows(
    path: str | os.PathLike[str],
    partitions: Sequence[tuple[Any, Any, Callable[[Any], tf.Tensor] | None]],
) -> int:
    """Gives the keys of a folder its rows; returns how many there are.

    Args:
      path: the folder.
      partitions: table and index of an embedding variable, or of each partition of one, and what
        gives the mask of keys that it has; None: all.

    Raises:
      FileNotFoundError, ValueError: as `files.read_table`.
      tf.errors.ResourceExhaustedError: there is no room for all keys.
    """
    count = 0
    for keys, rows in files.read_table(path, int(partitions[0][0].shape[1])):
        for table, index, is_own in partitions:
            own = slice(None) if is_own is None else is_own(keys).numpy()
            put_rows(tf.constant(keys[own]), tf.constant(rows[own]), table, index)
        count += len(keys)
    return count
