"""Copying the files of a model that a rewrite leaves as they are, gigabytes of variables mostly."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fusion.saved_model.errors import ModelError, reason_of

Progress = Callable[[int, int], None]
"""Is called with the number of bytes that are copied and of all that will be."""

_CHUNK = 1 << 26
_READ = 1 << 22


def copy_files(
    src: Path,
    dst: Path,
    files: Iterable[Path],
    link: bool = False,
    progress: Progress | None = None,
) -> None:
    """Copies `files` from the folder `src` to `dst`, a chunk at a time.

    Args:
        src: the folder that they are in.
        dst: the folder in which to create them.
        files: their paths, relative to both.
        link: whether to make hard links instead, where the file system can.
        progress: is called after each chunk.

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
    """Copies the bytes, the holes and the mode of `src`; shares blocks where that is possible.

    Args:
        src: the file.
        dst: the new file.
        copied: is called after each chunk with the number of bytes so far.

    Raises:
        ModelError: `src` cannot be opened.
    """
    dst.parent.mkdir(parents=True, exist_ok=True)
    try:
        source = open(src, "rb")  # noqa: SIM115
    except OSError as error:
        raise ModelError(f"{src}: cannot be read: {reason_of(error)}") from error
    with source, open(dst, "xb") as target:
        size = os.fstat(source.fileno()).st_size
        for start, end in _data(source.fileno(), size):
            done = start
            while done < end:
                count = _copy_chunk(source.fileno(), target.fileno(), done, done, end - done)
                if not count:
                    raise ModelError(f"{src}: became shorter while it was copied; try again")
                done += count
                copied(done)
        target.truncate(size)
        copied(size)
        os.fsync(target.fileno())
    shutil.copymode(src, dst)


def copy_range(src: Path, start: int, size: int, target: BinaryIO) -> None:
    """Appends bytes of the file `src` to an open one.

    Args:
        src: the file.
        start, size: where the bytes begin, and how many there are.
        target: the file at whose place they are written.

    Raises:
        ModelError: `src` cannot be read, or ends too early.
        OSError: `target` cannot be written.
    """
    target.flush()
    done, first = 0, target.tell()
    try:
        source = open(src, "rb")  # noqa: SIM115
    except OSError as error:
        raise ModelError(f"{src}: cannot be read: {reason_of(error)}") from error
    with source:
        while done < size:
            places = start + done, first + done
            count = _copy_chunk(source.fileno(), target.fileno(), *places, size - done)
            if not count:
                raise ModelError(f"{src}: truncated or damaged (it ends too early)")
            done += count
    target.seek(first + size)


def same_range(one: Path, start: int, size: int, other: Path, other_start: int) -> bool:
    """Returns whether so many bytes are the same in two places.

    Args:
        one, start: where they are: a file, and the first of them.
        size: how many there are.
        other, other_start: where else.

    Raises:
        ModelError: a file cannot be read.
    """
    try:
        with open(one, "rb") as left, open(other, "rb") as right:
            left.seek(start)
            right.seek(other_start)
            while size:
                chunk = left.read(min(size, _READ))
                if not chunk or chunk != right.read(min(size, _READ)):
                    return False
                size -= len(chunk)
            return True
    except OSError as error:
        raise ModelError(f"{error.filename}: cannot be read: {reason_of(error)}") from error


def _data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields where the data lies; between are holes, which read as zeros and take no space."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # Nothing but a hole is left.
                return
            yield end, size  # The file system does not report holes.
            return
        end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        yield start, end


def _copy_chunk(source: int, target: int, start: int, place: int, count: int) -> int:
    """Copies up to `count` bytes from one offset to another; returns how many, 0 at the end."""
    try:
        return os.copy_file_range(source, target, min(count, _CHUNK), start, place)
    except OSError:
        # Another file system, or one without the call; a full disk shows again here.
        chunk = os.pread(source, min(count, _READ), start)
        return os.pwrite(target, chunk, place) if chunk else 0


def link_file(src: Path, dst: Path) -> None:
    """Makes `dst` another name of the file `src`, or a copy where that cannot be."""
    if not _link(src, dst):
        copy_file(src, dst)


def _link(src: Path, dst: Path) -> bool:
    """Makes `dst` another name of the file `src`; returns whether that could be done."""
    dst.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Of a symbolic link the file is meant, wherever it is.
        os.link(src.resolve(), dst)
    except OSError:
        return False
    return True
