"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

PARTIAL = ".partial"
"""What the name of a file ends in that is not whole yet."""


def put(path: Path, write: Callable[[Path], object]) -> None:
    """Lets a file appear, in the place of one that may be there.

    Args:
        path: the file.
        write: writes it to another path beside it.
    """
    partial = path.with_name(f"{path.name}{PARTIAL}")
    write(partial)
    os.replace(partial, path)


def put_text(path: Path, text: str) -> None:
    """Lets a file have a text, at once."""
    put(path, lambda partial: partial.write_text(text))
