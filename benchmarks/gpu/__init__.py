"""The GPU kernels by themselves, without TensorFlow: are they right, and how fast are they?"""

from __future__ import annotations

import sys
import types
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def prepare_package() -> None:
    """Makes the kernels importable where there is no TensorFlow, which `fusion` itself needs."""
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        package = types.ModuleType("fusion")
        package.__path__ = [str(_ROOT / "fusion")]
        sys.modules["fusion"] = package
