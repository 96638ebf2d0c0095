"""The cache of compiled code on disk, shared by processes: its folders, files and locks.

Code from a file runs in this process, so only files that root or this user wrote are trusted
(`trusted_files`). If several processes need the same file at the same time, one makes it while the
others wait for a while. A lock, which the system releases when its holder dies, decides which one.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import NamedTuple

from fusion.runtime.cache import trusted_files
from fusion.runtime.cache.trusted_files import File, UntrustedError

#: Names the only folder that is used, by an absolute path.
CACHE_VARIABLE = "FUSION_CACHE_DIR"

#: A process waits for another one that makes the file it needs while that uses processor time: on
#: a busy machine it may take long. After so many seconds without any, as if it were stopped, or so
#: many in all, it makes the file itself.
IDLE_SECONDS, WAIT_SECONDS = 30.0, 600.0
_LOOK_SECONDS = 0.05

#: The folder in the package with the objects that come with it.
PACKAGED_FOLDER = "kernels"

_PACKAGE = Path(__file__).resolve().parents[2]
_MAGIC = b"fusion object 1\n"
_HEAD_BYTES = len(_MAGIC) + hashlib.sha256().digest_size

#: A `struct flock`: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = "hhqqi4x"

_logger = logging.getLogger("fusion")


class FolderState(NamedTuple):
    """Whether a folder of the cache can be read and written.

    Attributes:
      path: of the folder.
      kernels: the names of the kernels' files in it, if they can be used.
      problem: why nothing can be written to it; "" if it can.
      is_used: whether kernels are read from it.
      fix_command: a command that solves the problem; "" if none is known.
    """

    path: str
    kernels: tuple[str, ...] = ()
    problem: str = ""
    is_used: bool = True
    fix_command: str = ""


class _Opened(NamedTuple):
    """A folder that can be written, and a lock in it: descriptors, and the lock's name."""

    folder: int
    lock: int
    lock_name: str

    def close(self, is_ours: bool) -> None:
        """Closes both, and deletes the lock file if the lock is ours.

        A process that waits for a deleted lock file, or makes a new one, first checks whether the
        file that it is about to make exists.
        """
        if is_ours:
            with suppress(OSError):
                os.unlink(self.lock_name, dir_fd=self.folder)
        os.close(self.lock)
        os.close(self.folder)


class KernelCache:
    """Files of compiled code: read from all folders, written to the first that is writable.

    If none is, files go to a temporary folder of this process and its forks, which is removed when
    the process ends, and a warning says why.
    """

    def __init__(self, *folders: str, is_chosen: bool = False) -> None:
        """Makes a cache of folders.

        Args:
          folders: absolute paths; they need not exist.
          is_chosen: whether the user has set the only one.
        """
        self.folders = folders
        self._is_chosen = is_chosen
        self._private: tuple[str, ...] | None = None
        self._warned: set[str] = set()

    def read(self, name: str) -> File | None:
        """A file; None if no folder has an undamaged and trusted one."""
        for path in (*self.folders, *(self._private or ())):
            try:
                with trusted_files.opened_folder(path) as folder:
                    file = self._read_in(folder, path, name)
            except UntrustedError as problem:
                if self._is_chosen:  # there is no other, so that this says it all
                    self._warn_unkept([str(problem)])
                elif os.path.lexists(path):
                    self._warn(path, "kernels in %s are not used: %s", path, problem)
            except OSError:
                continue
            else:
                if file is not None:
                    return file
        return None

    def _read_in(self, folder: int, path: str, name: str) -> File | None:
        try:
            return _unwrapped(trusted_files.read(folder, name))
        except UntrustedError as problem:
            self._warn(f"{path}/", "a kernel in %s is not used: %s", path, problem)
        except OSError:
            pass
        return None

    def get(
        self, name: str, make: Callable[[], bytes], accepts: Callable[[File], bool] | None = None
    ) -> bytes:
        """The content of a file, which is made and written if it is missing.

        Args:
          name: of the file.
          make: makes the content.
          accepts: whether a file will do; any does by default.
        """

        def usable() -> File | None:
            file = self.read(name)
            return file if file is None or accepts is None or accepts(file) else None

        if existing := usable():
            return existing.content
        opened = self._open_to_write(f".{name}.lock")
        if opened is None:
            return make()
        is_ours = False
        try:
            existing, is_ours = _wait(opened.lock, name, usable)
            if existing:
                return existing.content
            content = make()
            try:
                trusted_files.write(opened.folder, name, _wrapped(content))
            except OSError as problem:
                self._warn_unkept([problem.strerror or str(problem)])
            return content
        finally:
            opened.close(is_ours)

    def kernels(self) -> list[str]:
        """The names of the kernels' files that can be read."""
        names = list[str]()
        for path in self.folders:
            with suppress(OSError, UntrustedError), trusted_files.opened_folder(path) as folder:
                names += _kernels_in(folder)
        return names

    def can_keep(self) -> bool:
        """Whether a folder that later processes read can be written."""
        return any(not state.problem for state in self.states())

    def offer(self, name: str, content: bytes) -> None:
        """Writes a file that can be made again: a failure is not reported."""
        for path in self.folders:
            with suppress(OSError, UntrustedError):
                folder = trusted_files.open_folder(path, create=True)
                try:
                    trusted_files.write(folder, name, _wrapped(content))
                finally:
                    os.close(folder)
                return

    def states(self) -> list[FolderState]:
        """The state of each folder, created if missing; the temporary folder comes last."""
        return [self._state(path) for path in (*self.folders, *(self._private or ()))]

    def _state(self, path: str) -> FolderState:
        problem = fix_command = ""
        try:
            _open(path, ".probe.lock", path in self.folders).close(is_ours=True)
        except UntrustedError as error:
            # Other users may need the folders above it as they are.
            problem = str(error)
            fix_command = error.fix_command if error.path == path else ""
        except OSError as error:
            problem = _text(error)
        if path not in self.folders:
            problem = "removed when this process ends"
        try:
            with trusted_files.opened_folder(path) as folder:
                kernels = _kernels_in(folder)
        except (OSError, UntrustedError):
            return FolderState(path, (), problem, False, fix_command)
        return FolderState(path, tuple(kernels), problem, True, fix_command)

    def _open_to_write(self, lock_name: str) -> _Opened | None:
        """The first folder that can be written, with a lock; None if there is none at all."""
        problems = []
        for path in self.folders:
            try:
                return _open(path, lock_name)
            except (OSError, UntrustedError) as error:
                text = _text(error)
                problems.append(text if path in text else f"{path}: {text}")
        self._warn_unkept(problems)
        for path in self._private_folder():
            with suppress(OSError, UntrustedError):
                return _open(path, lock_name, create=False)
        return None

    def _private_folder(self) -> tuple[str, ...]:
        """The temporary folder, created if missing; none where no disk can be written.

        That of a parent process is removed when the parent ends.
        """
        if self._private is None or not all(map(os.path.isdir, self._private)):
            self._private = ()
            with suppress(OSError):
                path = tempfile.mkdtemp(prefix="fusion-kernels-")
                self._private = (path,)
                # Children of multiprocessing run no function of atexit.
                Finalize(None, shutil.rmtree, (path,), {"ignore_errors": True}, exitpriority=0)
        return self._private

    def _warn_unkept(self, problems: list[str]) -> None:
        why = "; ".join(problems)
        self._warn("", "kernels cannot be kept, each process compiles them again: %s", why)

    def _warn(self, about: str, text: str, *values: object) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _logger.warning(f"{text}; see docs/cache.md", *values)


def _kernels_in(folder: int) -> list[str]:
    return sorted(name for name in trusted_files.names(folder) if name.endswith(".o"))


def _open(path: str, lock_name: str, create: bool = True) -> _Opened:
    """A folder, with `create` made if it is missing, and a lock in it.

    Raises:
      UntrustedError, OSError: see `trusted_files`.
    """
    folder = trusted_files.open_folder(path, create)
    try:
        return _Opened(folder, trusted_files.open_lock(folder, lock_name), lock_name)
    except BaseException:
        os.close(folder)
        raise


def _text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _wait(lock: int, name: str, usable: Callable[[], File | None]) -> tuple[File | None, bool]:
    """A file that another process has made, or else whether this one holds the lock to make it.

    The lock is one of POSIX, that a forked child does not inherit. Where there are no such locks,
    as on some network disks, no process waits.
    """
    begun = worked = time.monotonic()
    seconds, is_logged = 0.0, False
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return usable(), True
        except BlockingIOError:
            pass
        except OSError:
            return None, False
        if not is_logged:
            is_logged = True
            _logger.info("waiting for another process that compiles %s", name)
        if file := usable():
            return file, False
        now, holder_seconds = time.monotonic(), _holders_seconds(lock)
        if holder_seconds != seconds:
            worked, seconds = now, holder_seconds
        if now - worked >= IDLE_SECONDS or now - begun >= WAIT_SECONDS:
            _logger.warning("no longer waiting for the process that compiles %s", name)
            return None, False
        time.sleep(_LOOK_SECONDS)


def _holders_seconds(lock: int) -> float:
    """The processor time of the holder of a lock and of its children; 0 if it is unknown."""
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        *_, process = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, request))
    except OSError:
        return 0.0
    return _ticks(Path(f"/proc/{process}")) / os.sysconf("SC_CLK_TCK")


def _ticks(process: Path) -> int:
    """The processor time of a process and its children: compilers of C++ and PTX are some."""
    try:
        # The name in parentheses may have anything in it; of the process and of its children that
        # have ended user and system time follow as 12 to 15.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    running: list[str] = []
    with suppress(OSError):  # a thread has ended, or the kernel does not list children
        for task in (process / "task").iterdir():
            running += (task / "children").read_text().split()
    return sum(map(int, fields[11:15])) + sum(_ticks(process.parent / child) for child in running)


def _wrapped(content: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(content).digest() + content


def _unwrapped(file: File) -> File | None:
    """The file without its header; None if it is damaged."""
    content = file.content[_HEAD_BYTES:]
    return file._replace(content=content) if file.content == _wrapped(content) else None


@cache
def default() -> KernelCache:
    """The cache of this process."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return KernelCache(chosen, is_chosen=True) if chosen else KernelCache(*_folders())


@cache
def packaged() -> KernelCache:
    """The files that are shipped with the package; they are only read."""
    return KernelCache(str(_PACKAGE / PACKAGED_FOLDER))


def _folders() -> list[str]:
    """The package's own folder and the user's cache folder.

    The XDG Base Directory Specification has relative paths ignored.
    """
    user_caches = (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache"))
    paths = [os.path.join(path, "fusion/kernels") for path in user_caches if os.path.isabs(path)]
    return [str(_PACKAGE / "__pycache__" / "kernels"), *paths[:1]]
