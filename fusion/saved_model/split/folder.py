"""The folder of a split model."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fusion.saved_model.source import MANIFEST_FILE

#: The folders in it, and the files of a table.
DENSE, LOOKUP, TABLES = "dense", "lookup", "tables"
KEY, ROWS = "key", "emb_vector"

#: What the manifest calls it.
KIND = "split"


def is_split(path: str | os.PathLike[str]) -> bool:
    """Returns whether a directory is what `split_saved_model` has made."""
    try:
        facts = json.loads((Path(path) / MANIFEST_FILE).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and facts.get("kind") == KIND
