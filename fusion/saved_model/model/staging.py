"""Building a directory out of sight, and publishing it complete or not at all."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fusion.saved_model.errors import ModelError, reason_of
from fusion.saved_model.model.other_formats import scheme_of

_PREFIX, _SUFFIX = ".fusion-", ".partial"
_LOCK = "lock"

#: The private folders of this process: those that an interrupt kept from being removed are removed
#: at its end.
_ours: set[Path] = set()


def check_destination(src: Path, dst: str | os.PathLike[str], *sibling_names: str) -> Path:
    """Returns `dst` as an absolute path after checking that a model can be created there.

    Args:
        src: the source model.
        dst: where to create it.
        sibling_names: files to be created in the same folder.

    Raises:
        ModelError: one of them exists, their folder does not, it lies inside `src`, is remote, or
            is empty.
    """
    if not os.fspath(dst):
        raise ModelError("the path of the new model is empty")
    if scheme_of(dst):
        raise ModelError(f"{dst}: models are written to local folders alone; copy it from there")
    path = Path(os.path.abspath(dst))
    for file in (path, *(path.with_name(name) for name in sibling_names)):
        if os.path.lexists(file):
            shown = dst if file == path else file
            raise ModelError(f"{shown}: already exists; choose a new path or remove it first")
    if not path.parent.is_dir():
        if os.path.lexists(path.parent):
            raise ModelError(f"{dst}: its parent {path.parent} is no folder")
        raise ModelError(f"{dst}: its parent folder {path.parent} does not exist; create it first")
    if (path.parent.resolve() / path.name).is_relative_to(src.resolve()):
        raise ModelError(f"{dst}: lies inside the source model {src}; choose a path outside it")
    return path


@contextmanager
def staged_directory(dst: Path) -> Iterator[Path]:
    """Yields an empty directory next to `dst` that becomes `dst` when the block ends normally.

    Its parent, a private folder that nothing survives of, may hold scratch files. When the block
    raises, whatever it raises, `dst` does not appear and everything built is removed.

    Raises:
        ModelError: the folder cannot be written, or `dst` appeared in the meantime.
    """
    with _private_folder(dst) as private:
        # That folder is private; the one inside it has the mode the user's umask asks for.
        staging = private / "model"
        staging.mkdir()
        yield staging
        _sync_directories(staging)
        os.rename(staging, dst)
        _sync_published(dst.parent)


@contextmanager
def staged_files(*destinations: Path) -> Iterator[tuple[Path, ...]]:
    """Yields a path for each of the files `destinations`, which appear when the block ends.

    They lie in one folder and appear one after the other: when the last one is there, all are.
    The paths' parent may hold scratch files. When the block raises, none appears.

    Raises:
        ModelError: the folder cannot be written, or a destination appeared in the meantime.
    """
    with _private_folder(destinations[-1]) as private:
        staged = tuple(private / f"file-{index}" for index in range(len(destinations)))
        yield staged
        with contextlib.ExitStack() as published:
            for file, dst in zip(staged, destinations, strict=True):
                _publish(file, dst)
                published.callback(dst.unlink)
            published.pop_all()
        _sync_published(destinations[-1].parent)


def _publish(file: Path, dst: Path) -> None:
    """Gives `file` the name `dst`, which nothing must have."""
    try:
        os.link(file, dst)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links, where what appears this very moment is replaced.
        if os.path.lexists(dst):
            raise
        os.rename(file, dst)


@contextmanager
def _private_folder(dst: Path) -> Iterator[Path]:
    """Yields a new folder next to `dst`, locked as long as this process lives, and removes it."""
    try:
        _remove_abandoned(dst.parent)
        private, lock = _locked_folder(dst.parent)
    except OSError as error:
        raise ModelError(f"{dst.parent}: cannot be written: {reason_of(error)}") from error
    try:
        yield private
    except OSError as error:
        # Mostly of a full disk, whatever was being done in the block.
        raise ModelError(f"{dst}: cannot be written: {reason_of(error)}") from error
    finally:
        _remove(private)
        os.close(lock)


@atexit.register
def _remove_ours() -> None:
    for folder in tuple(_ours):
        _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _ours.discard(folder)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    """Makes a folder in `parent`; returns it and the open file with its lock."""
    while True:
        # The name is known before there is a folder, which an interrupt may follow at once.
        private = parent / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
        _ours.add(private)
        try:
            os.mkdir(private, 0o700)
            lock = _lock(private, fcntl.LOCK_EX)
        except OSError:
            _remove(private)
            raise
        # Without: another process took the folder, not locked yet, for an abandoned one.
        if lock is not None:
            return private, lock
        _ours.discard(private)


def _lock(folder: Path, how: int) -> int | None:
    """Locks a folder and returns the open file; None if it is locked, or gone."""
    try:
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, how)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        # A file system without locks: no folder counts as abandoned there.
        if how & fcntl.LOCK_NB:
            os.close(lock)
            return None
        return lock
    if not os.fstat(lock).st_nlink:
        os.close(lock)
        return None
    return lock


def _remove_abandoned(parent: Path) -> None:
    """Removes the folders of killed runs in `parent`: those that no process locks."""
    for folder in parent.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock is not None:
                # Renamed at first: should a process use it after all, that one fails as a whole.
                dead = folder.with_name(f"{folder.name.removesuffix(_SUFFIX)}-dead{_SUFFIX}")
                os.rename(folder, dead)
                shutil.rmtree(dead, ignore_errors=True)
                os.close(lock)


def write_file(path: Path, content: bytes) -> None:
    """Creates `path` with `content`, on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directories(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        _sync_directory(Path(directory))


def _sync_published(parent: Path) -> None:
    """Makes a new name in `parent` last; should that fail, it is there and complete even so."""
    with contextlib.suppress(OSError):
        _sync_directory(parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
