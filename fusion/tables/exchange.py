"""Rows of embedding variables to files, and from files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.tables import files
from fusion.tables.checkpoint import put_rows


def export_rows(
    path: str | os.PathLike[str], table: Any, index: Any, since: int, about: dict[str, Any]
) -> int:
    """Writes keys and rows to a new folder, see `files`; returns how many.

    Args:
      path: the folder.
      table, index: the variables of the embedding variable.
      since: the step since which keys were trained.
      about: what else the manifest says.

    Raises:
      FileExistsError: there is something at `path`.
    """
    entries = ops.embedding_key_entries(index=index.handle)
    chosen = np.flatnonzero((entries.rows.numpy() >= 0) & (entries.steps.numpy() >= since))
    keys, rows = entries.keys.numpy()[chosen], entries.rows.numpy()[chosen]

    def parts() -> Iterator[tuple[Any, Any]]:
        for first in range(0, len(keys), files.CHUNK_ROWS):
            some = slice(first, first + files.CHUNK_ROWS)
            yield keys[some], tf.gather(table, rows[some]).numpy()

    about = {"dtype": table.dtype.name, "step": int(entries.clock[0]), **about}
    return files.write_table(path, int(table.shape[1]), parts(), about)


def import_rows(path: str | os.PathLike[str], table: Any, index: Any) -> int:
    """Gives the keys of a folder its rows; returns how many there are.

    Args:
      path: the folder.
      table, index: the variables of the embedding variable.

    Raises:
      FileNotFoundError, ValueError: as `files.read_table`.
      tf.errors.ResourceExhaustedError: there is no room for all keys.
    """
    count = 0
    for keys, rows in files.read_table(path, int(table.shape[1])):
        put_rows(tf.constant(keys), tf.constant(rows), table, index)
        count += len(keys)
    return count
