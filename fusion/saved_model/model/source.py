"""Reading a SavedModel or a frozen graph: its protocol buffer and the list of its other files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fusion.saved_model.errors import ModelError, reason_of
from fusion.saved_model.model.other_formats import way_from, why_not_read

if TYPE_CHECKING:  # commands look at paths before TensorFlow is imported
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

MODEL_FILE = "saved_model.pb"
FINGERPRINT_FILE = "fingerprint.pb"
MANIFEST_FILE = "fusion.json"

SPLIT, PARTS = "split", ("lookup", "dense")
"""What manifests call the folder of a model that was split, and the models in it."""


@dataclass(frozen=True)
class SourceModel:
    """A SavedModel as read from disk; the variables stay there.

    Attributes:
        path: the model's directory, or the file of a frozen graph; absolute.
        proto: the parsed `saved_model.pb`; what a frozen graph is seen as.
        content: the bytes it was parsed from.
        is_frozen: whether it is a frozen graph.
    """

    path: Path
    proto: saved_model_pb2.SavedModel
    content: bytes
    is_frozen: bool = False

    @property
    def sha256(self) -> str:
        """The hexadecimal SHA-256 of `saved_model.pb`, or of the frozen graph."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def meta_graphs(self) -> tuple[meta_graph_pb2.MetaGraphDef, ...]:
        """The meta graphs in file order."""
        return tuple(self.proto.meta_graphs)


def read_saved_model(
    path: str | os.PathLike[str], outputs: Iterable[str] | None = None
) -> SourceModel:
    """Reads the `saved_model.pb` of the SavedModel directory `path`, or the frozen graph `path`.

    Args:
        path: the directory, or the file with a GraphDef.
        outputs: the nodes or tensors that are wanted of a frozen graph; by default the nodes that
            no other node reads. A SavedModel's signatures name its own.

    Raises:
        ModelError: the path does not exist, is neither, cannot be read or parsed, or has no such
            outputs.
    """
    model = find_model(path)
    if not model.is_dir():
        return _read_frozen_graph(model, outputs)
    if outputs is not None:
        raise ModelError(
            f"{path}: outputs are named for frozen graphs; a SavedModel has signatures"
        )
    file = model / MODEL_FILE
    content = _content(file)
    return SourceModel(model, _parse(file, content), content)


def find_model(path: str | os.PathLike[str]) -> Path:
    """Returns the absolute path of a SavedModel's directory, or of a file with a frozen graph.

    Raises:
        ModelError: the path does not exist, or by its name and kind it is neither.
    """
    if why := why_not_read(path):
        raise ModelError(f"{path}: {why}" if os.fspath(path) else why)
    model = Path(os.path.abspath(path))
    if not model.exists():
        raise ModelError(f"{path}: {way_from(model) or 'no such file or directory'}")
    if not model.is_dir():
        _check_file(model)
    elif not (model / MODEL_FILE).is_file():
        raise ModelError(f"{path}: not a SavedModel: {_why_no_model_file(model)}")
    return model


def _check_file(file: Path) -> None:
    """Raises ModelError for a file that is no frozen graph by its name and kind."""
    if file.name == MODEL_FILE:
        raise ModelError(f"{file}: not a directory; give the folder that holds {MODEL_FILE}")
    if file.suffix == ".pbtxt":
        raise ModelError(
            f"{file}: only binary graphs are supported; write it with "
            "tf.io.write_graph(..., as_text=False)"
        )
    if not file.is_file():
        raise ModelError(f"{file}: neither a directory nor a regular file")


def _read_frozen_graph(file: Path, outputs: Iterable[str] | None) -> SourceModel:
    from fusion.saved_model.model.frozen import as_saved_model, parse_graph

    content = _content(file)
    try:
        graph_def = parse_graph(file, content)
    except ModelError as error:
        if way := way_from(file):
            raise ModelError(f"{file}: {way}") from error
        raise
    try:
        proto = as_saved_model(file, graph_def, outputs)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{file}: truncated or damaged ({reason_of(error)})") from error
    return SourceModel(file, proto, content, is_frozen=True)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {reason_of(error)}") from error


def _why_no_model_file(directory: Path) -> str:
    if (directory / MODEL_FILE).exists():
        return f"{MODEL_FILE} is not a regular file"
    for other in ("saved_model.pbtxt", "saved_model.cpb"):
        if (directory / other).exists():
            return f"it holds {other}, and only {MODEL_FILE} is supported"
    if manifest_kind(directory) == SPLIT:
        return f"`fusion split` has made it; name its {' or '.join(PARTS)}, or `fusion join` both"
    return way_from(directory) or f"it holds no {MODEL_FILE}"


def _parse(file: Path, content: bytes) -> saved_model_pb2.SavedModel:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

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


def manifest_kind(directory: Path) -> str:
    """Returns what its manifest calls a directory, if it is no model; "" for nothing."""
    try:
        facts = json.loads((directory / MANIFEST_FILE).read_text())
    except (OSError, ValueError):
        return ""
    return str(facts.get("kind", "")) if isinstance(facts, dict) else ""


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
    folder = root / relative
    real = folder.resolve()
    if real in above:
        raise ModelError(f"{folder}: a link to a folder that contains it")
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        raise ModelError(f"{folder}: cannot be listed: {reason_of(error)}") from error
    for entry in entries:
        path = folder / entry
        if path.is_dir():
            folders.append(relative / entry)
            _collect(root, relative / entry, (*above, real), folders, files)
        elif path.is_file():
            files.append(relative / entry)
        else:
            raise ModelError(f"{path}: neither a file nor a folder; remove it from the model")
