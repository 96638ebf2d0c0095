"""The library of ops that a process takes its kernels from, where it compiles none."""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf

from fusion.runtime.registration.library.manifest import read_manifest
from fusion.version import __version__

#: Names the library, or none if it is empty; unset, it is the one beside the package, if there is
#: one.
LIBRARY_VARIABLE = "FUSION_OPS_LIBRARY"

_BESIDE = Path(__file__).parents[3] / "libfusion_ops.so"


def chosen_library() -> Path | None:
    """Returns the library that is to be loaded; None where kernels are compiled."""
    chosen = os.environ.get(LIBRARY_VARIABLE)
    if chosen is None:
        return _BESIDE if _BESIDE.exists() else None
    return Path(chosen) if chosen else None


def load_library(path: Path) -> None:
    """Loads a library of this version's ops, which registers them with TensorFlow.

    Raises:
      ImportError: it cannot be read or loaded, is damaged, or is of another version.
    """
    try:
        manifest = read_manifest(path)
    except (OSError, ValueError) as error:
        raise unusable(path, str(error)) from error
    if manifest.fusion != __version__:
        raise unusable(path, f"it is of fusion {manifest.fusion}, and this is {__version__}")
    try:
        tf.load_op_library(str(path.absolute()))
    except tf.errors.OpError as error:
        raise unusable(path, error.message) from error


def unusable(path: Path, why: str) -> ImportError:
    """The error of a library that cannot be used."""
    return ImportError(
        f"the library of ops {path} cannot be used: {why} ({LIBRARY_VARIABLE} names another, or "
        "none if it is empty)"
    )
