"""Reading a SavedModel directory: its protocol buffer and the list of its other files."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.saved_model.errors import ModelError, reason_of

MODEL_FILE = "saved_model.pb"
FINGERPRINT_FILE = "fingerprint.pb"
MANIFEST_FILE = "fusion.json"


@dataclass(frozen=True)
class SourceModel:
    """A SavedModel as read from disk; the variables stay there.

    Attributes:
        path: the model's directory, absolute.
        proto: the parsed `saved_model.pb`.
        content: the bytes it was parsed from.
    """

    path: Path
    proto: saved_model_pb2.SavedModel
    content: bytes

    @property
    def sha256(self) -> str:
        """The hexadecimal SHA-256 of `saved_model.pb`."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def meta_graphs(self) -> tuple[meta_graph_pb2.MetaGraphDef, ...]:
        """The meta graphs in file order."""
        return tuple(self.proto.meta_graphs)


def read_saved_model(path: str | os.PathLike[str]) -> SourceModel:
    """Reads the `saved_model.pb` of the SavedModel directory `path`.

    Raises:
        ModelError: the path does not exist, is no SavedModel, or its `saved_model.pb` cannot be
            read or parsed.
    """
    directory = Path(os.path.abspath(path))
    if not directory.exists():
        raise ModelError(f"{path}: no such file or directory")
    if not directory.is_dir():
        raise ModelError(f"{path}: not a directory; give the folder that holds {MODEL_FILE}")
    file = directory / MODEL_FILE
    if not file.is_file():
        raise ModelError(f"{path}: not a SavedModel: {_why_no_model_file(directory)}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {reason_of(error)}") from error
    return SourceModel(directory, _parse(file, content), content)


def _why_no_model_file(directory: Path) -> str:
    if (directory / MODEL_FILE).exists():
        return f"{MODEL_FILE} is not a regular file"
    for other in ("saved_model.pbtxt", "saved_model.cpb"):
        if (directory / other).exists():
            return f"it holds {other}, and only {MODEL_FILE} is supported"
    return f"it holds no {MODEL_FILE}"


def _parse(file: Path, content: bytes) -> saved_model_pb2.SavedModel:
    proto = saved_model_pb2.SavedModel()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ModelError(
            f"{file}: truncated or damaged ({len(content)} bytes do not parse as a SavedModel)"
        ) from error
    if not proto.meta_graphs:
        raise ModelError(f"{file}: truncated or damaged (it holds no graph)")
    return proto


class ModelFiles(NamedTuple):
    """What lies below a model's directory: paths relative to it, sorted."""

    folders: tuple[Path, ...]
    files: tuple[Path, ...]


def model_files(directory: Path) -> ModelFiles:
    """Lists the folders and files below `directory`.

    Symbolic links are followed, as model stores link the files of a model to a common pool.

    Raises:
        ModelError: a folder cannot be listed, links run in a circle, or an entry is neither a
            file nor a folder.
    """
    folders: list[Path] = []
    files: list[Path] = []
    _collect(directory, Path(), (), folders, files)
    return ModelFiles(tuple(sorted(folders)), tuple(sorted(files)))


def _collect(
    root: Path,
    relative: Path,
    above: tuple[Path, ...],
    folders: list[Path],
    files: list[Path],
) -> None:
    here = root / relative
    real = here.resolve()
    if real in above:
        raise ModelError(f"{here}: a link to a folder that contains it")
    try:
        entries = sorted(os.listdir(here))
    except OSError as error:
        raise ModelError(f"{here}: cannot be listed: {reason_of(error)}") from error
    for entry in entries:
        path = here / entry
        if path.is_dir():
            folders.append(relative / entry)
            _collect(root, relative / entry, (*above, real), folders, files)
        elif path.is_file():
            files.append(relative / entry)
        else:
            raise ModelError(f"{path}: neither a file nor a folder; remove it from the model")
