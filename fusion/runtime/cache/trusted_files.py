"""Files that only root and this user can have written: opened without trusting any path.

A path is walked from the root, folder by folder, each opened in the one above it without following
links, and what was opened is checked: it belongs to root or to this user, and no other user may
write it. Others may write a folder on the way if it is sticky, as /tmp is: they cannot rename or
remove in it what root or this user owns. A link is followed if it passes the same test.

A group's right to write counts as that of others, unless the group is private to this user: it has
the user's name, is the user's own, has no other member, listed or by being another user's own, and
no access control list says more than the mode. Root's group is never private: users of containers
who have no name belong to it.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

#: Modes of what is made here, less what the umask takes away; others may never write.
_FOLDER_MODE, _FILE_MODE = 0o755, 0o644
#: A file that only this user can open, and so lock.
_LOCK_MODE = 0o600

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40


class UntrustedError(Exception):
    """Another user may have written a file or folder; the message says which, and why.

    Attributes:
      path: of the file or folder.
      fix_command: a command after which it can be trusted; "" if there is none.
    """

    def __init__(self, path: str, why: str, fix_command: str = "") -> None:
        """Makes one of the path, what is wrong with it, and the command."""
        super().__init__(f"{path} {why}")
        self.path, self.fix_command = path, fix_command


class File(NamedTuple):
    """A file's content, and when that was written, in seconds since the epoch."""

    content: bytes
    modified: float


def open_folder(path: str, create: bool = False) -> int:
    """A descriptor of a folder, which serves as a `dir_fd` only.

    Args:
      path: absolute.
      create: make it, and those above it, if they are missing.

    Raises:
      UntrustedError: other users may write to the folder or replace it.
      OSError: it does not exist or cannot be reached.
    """
    folder = _walk(path, create)
    try:
        _check(path, folder, is_passed=False)
    except BaseException:
        os.close(folder)
        raise
    return folder


@contextmanager
def opened_folder(path: str) -> Iterator[int]:
    """A descriptor of a folder that exists, for the length of a `with` block; see `open_folder`."""
    folder = open_folder(path)
    try:
        yield folder
    finally:
        os.close(folder)


def _walk(path: str, create: bool) -> int:
    """A descriptor of the file at a path; each folder and link of the path is checked."""
    if not os.path.isabs(path):
        raise UntrustedError(path, "is not an absolute path")
    folder, folder_path, links = os.open("/", _PATH), "/", 0
    rest = path.split("/")[::-1]
    try:
        _check(folder_path, folder)
        while rest:
            name = rest.pop()
            if name in ("", "."):
                continue
            entry_path = os.path.join(folder_path, name)
            entry = _open_entry(folder, name, create)
            try:
                mode = os.fstat(entry).st_mode
                # Before its rights: to change those of a device is no way out.
                if not stat.S_ISLNK(mode) and not stat.S_ISDIR(mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                _check(entry_path, entry)
                if not stat.S_ISLNK(mode):
                    folder, folder_path, entry = entry, entry_path, folder
                    continue
                target = os.readlink("", dir_fd=entry)
            finally:
                os.close(entry)
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            rest += target.split("/")[::-1]
            if os.path.isabs(target):
                start = os.open("/", _PATH)
                os.close(folder)
                folder, folder_path = start, "/"
    except BaseException:
        os.close(folder)
        raise
    return folder


def _open_entry(folder: int, name: str, create: bool) -> int:
    try:
        return os.open(name, _PATH, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
    return os.open(name, _PATH, dir_fd=folder)


def _check(path: str, descriptor: int, is_passed: bool = True) -> None:
    """Checks that no other user can change an open folder, link or file.

    Args:
      is_passed: it is a folder or link on the way to something else.

    Raises:
      UntrustedError: a user other than root and this one can change it.
    """
    status = os.fstat(descriptor)
    if status.st_uid not in (0, os.geteuid()):
        fix_command = f"chown -R {os.geteuid()} {shlex.quote(path)}"
        raise UntrustedError(path, f"belongs to another user (uid {status.st_uid})", fix_command)
    if stat.S_ISLNK(status.st_mode) or (is_passed and status.st_mode & stat.S_ISVTX):
        return
    by_group = status.st_mode & stat.S_IWGRP
    is_private = by_group and _is_private(status.st_gid) and not _has_access_list(descriptor)
    if (by_group and not is_private) or status.st_mode & stat.S_IWOTH:
        mode = f"mode {stat.S_IMODE(status.st_mode):o}, gid {status.st_gid}"
        # A sticky folder, as /tmp, is meant to be written by all.
        is_shared = status.st_mode & stat.S_ISVTX
        fix_command = "" if is_shared else f"chmod -R go-w {shlex.quote(path)}"
        raise UntrustedError(path, f"can be written by others ({mode})", fix_command)


def _is_private(group_id: int) -> bool:
    """Whether a group is this user's alone."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    primary_members = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == group_id}
    is_own = user.pw_gid == group_id != 0 and group.gr_name == user.pw_name
    return is_own and primary_members | set(group.gr_mem) <= {user.pw_name}


def _has_access_list(descriptor: int) -> bool:
    """Whether there is an access control list; the group bits of the mode then stand for it."""
    try:
        os.getxattr(f"/proc/self/fd/{descriptor}", "system.posix_acl_access")
    except OSError as problem:
        return problem.errno not in (errno.ENODATA, errno.EOPNOTSUPP)
    return True


def read(folder: int, name: str) -> File:
    """A file in a folder of `open_folder`.

    Raises:
      UntrustedError: others may write it.
      OSError: there is none, or no regular file, or it cannot be read.
    """
    # A pipe must not be waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{name} is no regular file")
        _check(name, descriptor, is_passed=False)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return File(file.read(), status.st_mtime)
    finally:
        os.close(descriptor)


def write(folder: int, name: str, content: bytes) -> None:
    """Writes a file into a folder of `open_folder`, atomically.

    Raises:
      OSError: it cannot be written.
    """
    temporary = f".{name}.{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, _FILE_MODE, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def open_lock(folder: int, name: str) -> int:
    """A descriptor of a file that only this user can open, made if need be.

    Raises:
      OSError: nothing can be written in the folder.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, _LOCK_MODE, dir_fd=folder)


def names(folder: int) -> list[str]:
    """The names of the files in a folder of `open_folder`.

    Raises:
      OSError: it cannot be listed.
    """
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.listdir(listed)
    finally:
        os.close(listed)
