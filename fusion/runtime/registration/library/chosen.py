"""The library of ops that a process uses instead of compiling kernels."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import tensorflow as tf

from fusion.runtime.layout import Layout
from fusion.runtime.registration.library.manifest import read_manifest
from fusion.runtime.registration.library.record import EXPORTED, LibraryRecord
from fusion.runtime.registration.registry import OpRecord, Registry
from fusion.version import __version__

#: The path of the library, empty for none; by default, that in the folder of the package, if it
#: exists.
LIBRARY_VARIABLE = "FUSION_OPS_LIBRARY"

_DEFAULT_PATH = Path(__file__).parents[3] / "libfusion_ops.so"


def chosen_library() -> Path | None:
    """Returns the library that is to be loaded; None where kernels are compiled."""
    chosen = os.environ.get(LIBRARY_VARIABLE)
    if chosen is None:
        return _DEFAULT_PATH if _DEFAULT_PATH.exists() else None
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


def op_tables() -> dict[str, int]:
    """The addresses of the `OpTable` of each op in the chosen library, if it is loaded, by name."""
    path = chosen_library()
    if path is None:
        return {}
    try:
        loaded = ctypes.CDLL(str(path.absolute()), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        record = ctypes.c_int64.in_dll(loaded, EXPORTED).value
    except (OSError, ValueError):  # not loaded, or of another kind
        return {}
    registry = _words(_words(record, LibraryRecord)[LibraryRecord.registry], Registry)
    start, step = registry[Registry.ops], 8 * OpRecord.SIZE
    ops = [_words(start + step * k, OpRecord) for k in range(registry[Registry.op_count])]
    return {ctypes.string_at(op[OpRecord.name]).decode(): op[OpRecord.table] for op in ops}


def _words(address: int, layout: type[Layout]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * layout.SIZE).from_address(address)


def unusable(path: Path, why: str) -> ImportError:
    """The error of a library that cannot be used."""
    return ImportError(
        f"the library of ops {path} cannot be used: {why} ({LIBRARY_VARIABLE} names another, or "
        "none if it is empty)"
    )
