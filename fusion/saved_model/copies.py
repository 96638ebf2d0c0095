"""Copying the files of a model that a rewrite leaves as they are, gigabytes of variables mostly."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from fusion.saved_model.errors import ModelError, reason_of

Progress = Callable[[int, int], None]
"""Is called with the number of bytes that are copied and of all that will be."""

_CHUNK = 1 << 26


def copy_files(
    src: Path,
    dst: Path,
    files: Iterable[Path],
    link: bool = False,
    progress: Progress | None = None,
) -> None:
    """Copies `files` from the folder `src` to `dst`, a piece at a time.

    Args:
        src: the folder that they are in.
        dst: the folder in which to create them.
        files: their paths, relative to both.
        link: whether to make hard links instead, where the file system can.
        progress: is called after each piece.

    Raises:
        ModelError: a file in `src` cannot be opened.
        OSError: one in `dst` cannot be written.
    """
    sizes = {file: (src / file).stat().st_size for file in files}
    total, done = sum(sizes.values()), 0

    def copied(count: int) -> None:
        if progress is not None:
            progress(done + count, total)

    for file, size in sizes.items():
        if link and _link(src / file, dst / file):
            copied(size)
        else:
            copy_file(src / file, dst / file, copied)
        done += size


def copy_file(src: Path, dst: Path, copied: Callable[[int], None] = lambda _: None) -> None:
    """Copies the bytes and the mode of `src`; shares the blocks where the file system can.

    Args:
        src: the file.
        dst: the new file.
        copied: is called after each piece with the number of bytes so far.

    Raises:
        ModelError: `src` cannot be opened.
    """
    dst.parent.mkdir(parents=True, exist_ok=True)
    try:
        source = open(src, "rb")  # noqa: SIM115
    except OSError as error:
        raise ModelError(f"{src}: cannot be read: {reason_of(error)}") from error
    with source, open(dst, "xb") as target:
        if not _copy_in_kernel(source.fileno(), target.fileno(), copied):
            source.seek(0)
            target.seek(0)
            target.truncate()
            count = 0
            while piece := source.read(_CHUNK):
                target.write(piece)
                count += len(piece)
                copied(count)
        target.flush()
        os.fsync(target.fileno())
    shutil.copymode(src, dst)


def _copy_in_kernel(source: int, target: int, copied: Callable[[int], None]) -> bool:
    """Copies with copy_file_range; returns whether every byte arrived."""
    count = 0
    try:
        while chunk := os.copy_file_range(source, target, _CHUNK):
            count += chunk
            copied(count)
    except OSError:
        # Another file system, or one without the call; a full disk shows again in the plain copy.
        return False
    return count == os.fstat(source).st_size


def _link(src: Path, dst: Path) -> bool:
    """Makes `dst` another name of the file `src`; returns whether that could be done."""
    dst.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Of a symbolic link the file is meant, wherever it is.
        os.link(src.resolve(), dst)
    except OSError:
        return False
    return True
