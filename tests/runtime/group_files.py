"""Files of control groups as Linux has them, below a folder of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_groups(root: Path, groups: str, files: Mapping[str, str]) -> None:
    """Writes which groups the process is in, and files by their paths below the root."""
    for path, text in {"proc/self/cgroup": groups, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
