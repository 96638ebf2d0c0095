"""Whether the two models of a split give what the model gives that was split."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusion.saved_model.split.folder import is_split
from fusion.saved_model.split.join import write_joined
from fusion.saved_model.verify import Verification, compare_models


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str], **options: Any) -> Verification:
    """As `compare_models`, also of split models: lookups and the dense model behind them.

    Args:
        a, b: directories of SavedModels, or what `split_saved_model` has made.
        options: see `compare_models`.
    """
    with _joined(a) as first, _joined(b) as second:
        return compare_models(first, second, **options)


@contextmanager
def _joined(path: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """Yields a model, or of a split one both parts as one, with links to its files."""
    if not is_split(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="fusion-joined-") as name:
        write_joined(Path(os.path.abspath(path)), Path(name), os.symlink)
        yield name
