"""Building a directory out of sight, and publishing it complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fusion.saved_model.errors import ModelError, reason_of

_COPY_CHUNK = 1 << 30


def check_destination(src: Path, dst: str | os.PathLike[str]) -> Path:
    """Returns `dst` as an absolute path after checking that a model can be created there.

    Raises:
        ModelError: it exists, its parent folder does not, or it lies inside `src`.
    """
    path = Path(os.path.abspath(dst))
    if os.path.lexists(path):
        raise ModelError(f"{dst}: already exists; choose a new path or remove it first")
    if not path.parent.is_dir():
        raise ModelError(f"{dst}: its parent folder {path.parent} does not exist; create it first")
    if (path.parent.resolve() / path.name).is_relative_to(src.resolve()):
        raise ModelError(f"{dst}: lies inside the source model {src}; choose a path outside it")
    return path


@contextmanager
def staged_directory(dst: Path) -> Iterator[Path]:
    """Yields an empty directory beside `dst` that becomes `dst` when the block ends normally.

    Its parent, a private folder that nothing survives of, may hold scratch files. When the block
    raises, whatever it raises, `dst` does not appear and everything built is removed.

    Raises:
        ModelError: the folder cannot be written, or `dst` appeared in the meantime.
    """
    try:
        private = Path(tempfile.mkdtemp(prefix=".fusion-", suffix=".partial", dir=dst.parent))
    except OSError as error:
        raise ModelError(f"{dst.parent}: cannot be written: {reason_of(error)}") from error
    try:
        # mkdtemp's folder is private; the one inside it has the mode the user's umask asks for.
        staging = private / "model"
        try:
            staging.mkdir()
            yield staging
            _sync_directories(staging)
            os.rename(staging, dst)
            _sync_directory(dst.parent)
        except OSError as error:
            # Mostly of a full disk, whatever was being done in the block.
            raise ModelError(f"{dst}: cannot be written: {reason_of(error)}") from error
    finally:
        shutil.rmtree(private, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Creates `path` with `content`, on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def copy_file(src: Path, dst: Path) -> None:
    """Copies the bytes and the mode of `src`; shares the blocks where the file system can.

    Never a hard link: an edit of one model must not change the other.

    Raises:
        ModelError: `src` cannot be opened.
    """
    dst.parent.mkdir(parents=True, exist_ok=True)
    try:
        source = open(src, "rb")  # noqa: SIM115
    except OSError as error:
        raise ModelError(f"{src}: cannot be read: {reason_of(error)}") from error
    with source, open(dst, "xb") as target:
        if not _copy_in_kernel(source.fileno(), target.fileno()):
            source.seek(0)
            target.seek(0)
            target.truncate()
            shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
    shutil.copymode(src, dst)


def _copy_in_kernel(source: int, target: int) -> bool:
    """Copies with copy_file_range; returns whether every byte arrived."""
    copied = 0
    try:
        while chunk := os.copy_file_range(source, target, _COPY_CHUNK):
            copied += chunk
    except OSError:
        # Another file system, or one without the call; a full disk shows again in the plain copy.
        return False
    return copied == os.fstat(source).st_size


def _sync_directories(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        _sync_directory(Path(directory))


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
