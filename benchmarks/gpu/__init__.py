"""The GPU kernels by themselves, without TensorFlow: are they right, and how fast are they?"""

from __future__ import annotations

import sys
import types
from pathlib import Path

try:
    import tensorflow  # noqa: F401
except ImportError:
    # `fusion` itself needs TensorFlow; the kernels do not.
    _package = types.ModuleType("fusion")
    _package.__path__ = [str(Path(__file__).resolve().parents[2] / "fusion")]
    sys.modules["fusion"] = _package
