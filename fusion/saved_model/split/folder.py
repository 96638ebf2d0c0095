"""The folder of a split model."""

from __future__ import annotations

import os
from pathlib import Path

from fusion.saved_model.model.source import PARTS, SPLIT, manifest_kind

#: The folders in it, and the files of a table.
(LOOKUP, DENSE), TABLES = PARTS, "tables"
KEY, ROWS = "key", "emb_vector"


def is_split(path: str | os.PathLike[str]) -> bool:
    """Returns whether a directory is what `split_saved_model` has made."""
    return manifest_kind(Path(path)) == SPLIT
