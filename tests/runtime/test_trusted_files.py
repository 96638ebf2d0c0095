"""Only what root or this user wrote is read, whatever the path."""

import grp
import os
import pwd
import struct

import pytest

from fusion.runtime.cache import trusted_files
from fusion.runtime.cache.trusted_files import UntrustedError

STRANGER = 12345

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@pytest.fixture
def folder(tmp_path):
    """A folder in a folder, with a file."""
    made = tmp_path / "above" / "kernels"
    made.mkdir(parents=True)
    made.chmod(0o755)
    made.parent.chmod(0o755)
    (made / "file").write_bytes(b"content")
    (made / "file").chmod(0o644)
    return made


def read(path, name="file"):
    with trusted_files.opened_folder(str(path)) as opened:
        return trusted_files.read(opened, name).content


def test_a_file_of_ours_is_read(folder):
    assert read(folder) == b"content"
    with trusted_files.opened_folder(str(folder)) as opened:
        file = trusted_files.read(opened, "file")
        assert file.modified == (folder / "file").stat().st_mtime
        assert trusted_files.names(opened) == ["file"]


@pytest.mark.parametrize("what", ["file", "folder", "above"])
@pytest.mark.parametrize("mode", [0o757, 0o777])
def test_nothing_that_others_can_write_is_read(folder, what, mode):
    path = {"file": folder / "file", "folder": folder, "above": folder.parent}[what]
    path.chmod(mode)
    with pytest.raises(
        UntrustedError, match=rf"{path.name} can be written by others \(mode {mode:o}"
    ):
        read(folder)


def test_a_sticky_folder_may_be_above_and_is_no_place_for_files(folder):
    folder.parent.chmod(0o1777)
    assert read(folder) == b"content"
    folder.chmod(0o1777)
    with pytest.raises(UntrustedError, match="can be written by others"):
        read(folder)


@needs_root
@pytest.mark.parametrize("what", ["file", "folder", "above"])
@pytest.mark.parametrize("sticky", [0, 0o1000])
def test_nothing_of_another_user_is_read(folder, what, sticky):
    folder.parent.chmod(0o755 | sticky)
    path = {"file": folder / "file", "folder": folder, "above": folder.parent}[what]
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(UntrustedError, match=rf"{path.name} belongs to another user \(uid 12345\)"):
        read(folder)


@needs_root
def test_root_and_this_user_are_trusted(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert read(folder) == b"content"  # all is root's
    os.chown(folder, STRANGER, STRANGER)
    assert read(folder) == b"content"


@needs_root
@pytest.mark.parametrize("group", [0, STRANGER])
def test_neither_roots_group_nor_that_of_others_may_write(folder, group):
    """Users without a name, as containers have them, belong to root's."""
    folder.chmod(0o775)
    os.chown(folder, -1, group)
    with pytest.raises(UntrustedError, match=rf"by others \(mode 775, gid {group}\)"):
        read(folder)


def access_list(*entries):
    """As the kernel has it: of each entry a tag, rights, and whose they are."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_an_access_list_makes_no_group_private(folder, monkeypatch):
    """The mode's bits of the group are then those of everybody in the list."""
    monkeypatch.setattr(trusted_files, "_is_private", lambda _: True)
    folder.chmod(0o775)
    assert read(folder) == b"content"
    nobody = 0xFFFFFFFF
    entries = (
        *((1, 7, nobody), (2, 7, STRANGER), (4, 5, nobody)),
        *((16, 7, nobody), (32, 5, nobody)),
    )
    try:
        os.setxattr(folder, "system.posix_acl_access", access_list(*entries))
    except OSError:
        # A file system without such lists: that there is one is made up.
        monkeypatch.setattr(os, "getxattr", lambda *_: b"list")
    with pytest.raises(UntrustedError, match=r"by others \(mode 775"):
        read(folder)


@pytest.mark.parametrize(
    ("group", "members", "primary", "others", "wanted"),
    [
        ("ann", [], 77, {}, True),
        ("ann", ["ann"], 77, {}, True),
        ("ann", [], 77, {"bob": 78}, True),
        ("ann", ["bob"], 77, {}, False),
        ("ann", [], 77, {"bob": 77}, False),
        ("staff", [], 77, {}, False),
        ("ann", [], 78, {}, False),
    ],
)
def test_a_private_group_has_the_users_name_and_no_other_member(
    monkeypatch, group, members, primary, others, wanted
):
    class Entry:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    users = {"ann": primary, **others}
    entries = [Entry(pw_name=name, pw_gid=gid) for name, gid in users.items()]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: entries[0])
    monkeypatch.setattr(pwd, "getpwall", lambda: entries)
    entry = Entry(gr_name=group, gr_mem=members)
    monkeypatch.setattr(grp, "getgrgid", lambda _: entry)
    assert trusted_files._is_private(77) == wanted


def test_users_and_groups_need_no_names(monkeypatch):
    def unknown(_):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert not trusted_files._is_private(77)


@pytest.mark.parametrize("path", ["kernels", "./kernels", "~/kernels", "", "../kernels"])
def test_a_path_is_absolute(path, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UntrustedError, match="is not an absolute path"):
        read(path)


def test_links_to_files_are_not_followed(folder):
    (folder / "link").symlink_to(folder / "file")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        read(folder, "link")


@pytest.mark.parametrize("target", ["above/kernels", "above/../above/./kernels", "absolute"])
def test_links_of_ours_to_folders_are(folder, target):
    root = folder.parent.parent
    link = root / "link"
    link.symlink_to(folder if target == "absolute" else target)
    assert read(link) == b"content"
    assert read(f"{root}//above/./../link/") == b"content"
    folder.parent.chmod(0o777)  # what it leads to counts
    with pytest.raises(UntrustedError, match="above can be written by others"):
        read(link)


@needs_root
def test_links_of_others_are_not(folder):
    link = folder.parent.parent / "link"
    link.symlink_to(folder)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(UntrustedError, match="link belongs to another user"):
        read(link)


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        read(tmp_path / "one")


def test_what_is_no_file_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe")
    (folder / "below").mkdir()
    for name in ("pipe", "below"):
        with pytest.raises(OSError, match="is no regular file"):
            read(folder, name)
    with pytest.raises(NotADirectoryError):
        read(folder / "file")
    with pytest.raises(FileNotFoundError):
        read(folder, "none")


@pytest.mark.parametrize(
    ("umask", "folders", "files"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600), (0, 0o755, 0o644)]
)
def test_modes_follow_the_umask_and_others_never_write(tmp_path, umask, folders, files):
    before = os.umask(umask)
    try:
        opened = trusted_files.open_folder(str(tmp_path / "new" / "kernels"), create=True)
        trusted_files.write(opened, "file", b"content")
        os.close(trusted_files.open_lock(opened, "lock"))
        os.close(opened)
    finally:
        os.umask(before)
    made = tmp_path / "new" / "kernels"
    assert [path.stat().st_mode & 0o7777 for path in (made.parent, made)] == [folders, folders]
    assert (made / "file").stat().st_mode & 0o7777 == files
    assert (made / "lock").stat().st_mode & 0o7777 == 0o600
    assert sorted(os.listdir(made)) == ["file", "lock"]
    assert read(made) == b"content"


def test_what_cannot_be_written_leaves_nothing(folder, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with (
        trusted_files.opened_folder(str(folder)) as opened,
        pytest.raises(OSError, match="No space"),
    ):
        trusted_files.write(opened, "other", b"content")
    assert os.listdir(folder) == ["file"]


def test_nothing_stays_open(folder):
    before = os.listdir("/proc/self/fd")
    folder.parent.chmod(0o777)
    for _ in range(3):
        with pytest.raises(UntrustedError):
            read(folder)
    folder.parent.chmod(0o755)
    (folder.parent.parent / "link").symlink_to(folder)
    read(folder.parent.parent / "link")
    assert len(os.listdir("/proc/self/fd")) == len(before)
