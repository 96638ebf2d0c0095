"""Paths that are no SavedModel: their format, and the way to a SavedModel."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

#: Commands that copy a folder from where programs often have models.
_COPY_COMMANDS = {
    "gs": "gcloud storage cp -r",
    "s3": "aws s3 cp --recursive",
    "hdfs": "hdfs dfs -get",
}

_KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_HDF5, _TFLITE = b"\x89HDF\r\n\x1a\n", b"TFL3"
_SHARD = re.compile(r"\.data-\d{5}-of-\d{5}$")

_EXPORT = "give the folder that its model.export(folder) writes"
_KERAS = f"a file of Keras, which has no graph; load it with keras.models.load_model, and {_EXPORT}"
_WEIGHTS = f"weights of a Keras model without the model; build it, load them, and {_EXPORT}"
_CHECKPOINT = (
    "a checkpoint, which has variables and no graph; build the model, restore it, and give the "
    "folder that tf.saved_model.save, or model.export of Keras, writes"
)
_META_GRAPH = (
    "a graph without its variables; load it with tf.compat.v1.train.import_meta_graph, restore the "
    "checkpoint beside it, and give the folder that tf.compat.v1.saved_model.simple_save writes"
)
_LITE = "a model of TensorFlow Lite; give the SavedModel that it was converted from"


def scheme_of(path: str | os.PathLike[str]) -> str:
    """Returns the scheme of an address such as "gs://bucket/model"; "" for a local path."""
    text = os.fspath(path)
    match = _SCHEME.match(text)
    return "" if match is None or os.path.lexists(text) else match[1].lower()


def why_not_read(path: str | os.PathLike[str]) -> str:
    """Returns why an address is not read, and what to do instead; "" for a local path."""
    scheme, text = scheme_of(path), os.fspath(path)
    if not text:
        return "the path is empty"
    if not scheme:
        return ""
    if scheme == "file":
        return "give the path of a local file without file://"
    command = _COPY_COMMANDS.get(scheme)
    example = "" if command is None else f" ({command} {text} .)"
    return f"models are read from local folders alone; copy it to one first{example}"


def way_from(path: Path) -> str:
    """Returns the format of a path that is no SavedModel, and what to do with it.

    Args:
        path: of a file, a folder, or the prefix of a checkpoint's files.

    Returns:
        "" where nothing is known about it.
    """
    if path.is_dir():
        return _way_from_folder(path)
    if not path.exists():
        return _CHECKPOINT if path.with_name(f"{path.name}.index").is_file() else ""
    if path.is_file():
        return _way_from_file(path)
    return ""


def _way_from_folder(folder: Path) -> str:
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    if "checkpoint" in names or any(_SHARD.search(name) for name in names):
        return f"the folder of {_CHECKPOINT}"
    if models := [name for name in names if (folder / name / "saved_model.pb").is_file()]:
        return f"a folder of models; give one of them, as {folder / max(models, key=_version)}"
    return ""


def _version(name: str) -> tuple[int, str]:
    return int(name) if name.isdecimal() else -1, name


def _way_from_file(file: Path) -> str:
    with open(file, "rb") as opened:
        head = opened.read(8)
    if file.name.endswith(".weights.h5"):
        return _WEIGHTS
    if head == _HDF5 or file.suffix in _KERAS_SUFFIXES:
        return _KERAS
    if file.suffix == ".meta":
        return _META_GRAPH
    if file.name == "checkpoint" or file.suffix == ".index" or _SHARD.search(file.name):
        return f"a file of {_CHECKPOINT}"
    return _LITE if head[4:] == _TFLITE else ""
