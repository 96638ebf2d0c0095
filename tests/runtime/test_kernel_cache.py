"""Where kernels are kept, for whom, and by which of the processes that need them."""

import errno
import fcntl
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fusion.runtime import doctor
from fusion.runtime.cache import kernel_cache, processor, trusted_files
from fusion.runtime.cache.kernel_cache import FolderState, KernelCache

USER = Path(__file__).with_name("cache_user.py")
WAITING = "waiting for another process that compiles kernel.o"
STRANGER = 12345


@pytest.fixture
def start():
    """Starts processes that need a kernel."""
    started = []

    def start_one(folder, seconds=600, *more):
        command = [sys.executable, str(USER), str(folder), str(seconds), *more]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def line(process):
    return process.stdout.readline().rstrip("\n")


def give(process, code):
    process.stdin.write(f"{code}\n")
    process.stdin.flush()


def test_of_processes_that_start_together_one_compiles(tmp_path, start):
    processes = [start(tmp_path) for _ in range(5)]
    lines = [line(process) for process in processes]
    assert sorted(lines) == ["compiling", *[WAITING] * 4]
    give(processes[lines.index("compiling")], "code")
    assert [line(process) for process in processes] == ["got code"] * 5
    assert [process.wait() for process in processes] == [0] * 5
    assert os.listdir(tmp_path) == ["kernel.o"]
    assert line(start(tmp_path)) == "got code"


def test_kernels_are_waited_for_one_by_one(tmp_path):
    """What is compiled does not keep others from compiling something else."""
    cache = KernelCache(str(tmp_path))
    assert cache.get("one.o", lambda: cache.get("two.o", lambda: b"two") + b" one") == b"two one"


@pytest.mark.parametrize("more", [[], ["fork"]])
def test_one_that_dies_blocks_nobody(tmp_path, start, more):
    first = start(tmp_path, 600, *more)
    child = int(line(first).split()[1]) if more else None
    assert line(first) == "compiling"
    second = start(tmp_path)
    assert line(second) == WAITING
    first.kill()  # a child that it forked lives on, with its descriptors
    try:
        assert line(second) == "compiling"
        give(second, "code")
        assert line(second) == "got code"
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
    assert os.listdir(tmp_path) == ["kernel.o"]


def test_one_that_hangs_blocks_nobody_for_long(tmp_path, start):
    first = start(tmp_path)
    assert line(first) == "compiling"
    first.send_signal(signal.SIGSTOP)
    second = start(tmp_path, 0.2)
    assert line(second) == WAITING
    assert line(second) == "no longer waiting for the process that compiles kernel.o"
    assert line(second) == "compiling"
    third = start(tmp_path)
    assert line(third) == WAITING
    give(second, "code")
    assert line(second) == "got code"
    assert line(third) == "got code"  # it waited for the file and not for the lock
    first.send_signal(signal.SIGCONT)
    give(first, "late")
    assert line(first) == "got late"
    assert os.listdir(tmp_path) == ["kernel.o"]


@pytest.mark.parametrize(("works_until", "gives_up_after"), [(0, 30), (100, 130), (1000, 600)])
def test_one_is_waited_for_while_it_works(tmp_path, monkeypatch, works_until, gives_up_after):
    def locked(*_):
        raise BlockingIOError

    now = [0.0]
    monkeypatch.setattr(fcntl, "lockf", locked)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda _: now.append(now.pop() + 1))
    monkeypatch.setattr(kernel_cache, "_holders_seconds", lambda _: min(now[0], works_until) / 9)
    assert KernelCache(str(tmp_path)).get("kernel.o", lambda: b"code") == b"code"
    assert now == [gives_up_after]


CHILD = """
import subprocess, sys
work = "import select; ready = []\\nwhile not ready: ready = select.select([0], [], [], 0)[0]"
with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE) as child:
    child.wait()  # which ends when the pipe does
"""
BUSY = {"itself": "while True: pass", "child": CHILD}


@pytest.mark.parametrize("who", BUSY)
def test_the_work_of_the_process_that_has_a_lock_is_seen(tmp_path, who):
    program = "import fcntl; file = open('lock', 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
    program += "print('locked', flush=True)\n" + BUSY[who]
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert line(process) == "locked"
            with (tmp_path / "lock").open("r+") as file:
                first = kernel_cache._holders_seconds(file.fileno())
                while kernel_cache._holders_seconds(file.fileno()) <= first:
                    assert process.poll() is None
        finally:
            process.kill()
    with (tmp_path / "lock").open("r+") as file:
        assert kernel_cache._holders_seconds(file.fileno()) == 0


def test_one_that_fails_leaves_the_work_to_the_next(tmp_path):
    cache = KernelCache(str(tmp_path))

    def fail():
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        cache.get("kernel.o", fail)
    assert os.listdir(tmp_path) == []
    assert cache.get("kernel.o", lambda: b"code") == b"code"


def test_a_disk_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    cache = KernelCache(str(tmp_path))
    assert cache.get("kernel.o", lambda: b"code") == b"code"
    assert cache.get("kernel.o", lambda: b"never") == b"code"


def test_the_first_folder_that_can_be_written_gets_new_files(tmp_path):
    (tmp_path / "file").write_text("no folder")
    blocked, second, third = (str(tmp_path / name) for name in ("file/x", "second", "third"))
    KernelCache(third).get("old.o", lambda: b"old")
    cache = KernelCache(blocked, second, third)
    assert cache.get("new.o", lambda: b"new") == b"new"
    assert cache.get("old.o", lambda: b"never") == b"old"
    assert (os.listdir(second), os.listdir(third)) == (["new.o"], ["old.o"])
    assert cache.states() == [
        FolderState(blocked, (), "Not a directory", is_used=False),
        FolderState(second, ("new.o",)),
        FolderState(third, ("old.o",)),
    ]


def test_what_is_not_accepted_is_made_again(tmp_path):
    cache = KernelCache(str(tmp_path))
    cache.get("answer", lambda: b"no")
    assert cache.get("answer", lambda: b"never") == b"no"
    assert cache.get("answer", lambda: b"yes", lambda kept: kept.content == b"yes") == b"yes"
    assert cache.get("answer", lambda: b"never", lambda kept: kept.content == b"yes") == b"yes"


def without_the_end(messages):
    assert all(message.endswith("; see docs/cache.md") for message in messages)
    return [message.removesuffix("; see docs/cache.md") for message in messages]


UNKEPT = "kernels cannot be kept, each process compiles them again: "


def test_why_nothing_can_be_kept_is_told_once(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    cache = KernelCache(f"{tmp_path}/file/x", f"{tmp_path}/file/y")
    with caplog.at_level(logging.INFO, "fusion"):
        for name in ("one.o", "two.o", "one.o"):
            assert cache.get(name, name.encode) == name.encode()
    message = f"{UNKEPT}{tmp_path}/file/x: Not a directory; {tmp_path}/file/y: Not a directory"
    assert without_the_end(caplog.messages) == [message]
    # A process has its own folder for it, of which its children know.
    assert cache.get("one.o", lambda: b"never") == b"one.o"
    *others, private = cache.states()
    assert [state.problem for state in others] == ["Not a directory"] * 2
    assert (len(private.kernels), private.problem) == (2, "removed when this process ends")
    assert os.stat(private.path).st_mode & 0o777 == 0o700


def test_a_full_disk_is_told(tmp_path, caplog, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trusted_files, "write", full)
    assert KernelCache(str(tmp_path)).get("kernel.o", lambda: b"code") == b"code"
    assert without_the_end(caplog.messages) == [f"{UNKEPT}No space left on device"]
    assert os.listdir(tmp_path) == []


def test_no_disk_at_all_is_no_obstacle(tmp_path, monkeypatch):
    def none(**_):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", none)
    (tmp_path / "file").write_text("no folder")
    cache = KernelCache(f"{tmp_path}/file/x")
    assert cache.get("kernel.o", lambda: b"code") == b"code"
    assert cache.get("kernel.o", lambda: b"again") == b"again"


PRIVATE = """
import os, sys
from cache_user import kernel_cache
kept = kernel_cache.KernelCache(sys.argv[1])
kept.get("kernel.o", lambda: b"code")
print(kept.states()[-1].path, flush=True)
if os.fork() == 0:
    assert kept.get("kernel.o", lambda: b"never") == b"code"
    sys.exit()  # ends as a process does, and not as multiprocessing's
assert os.wait()[1] == 0
print(os.path.exists(kept.states()[-1].path))
"""


def test_the_folder_of_a_process_ends_with_it_and_not_with_a_child(tmp_path):
    (tmp_path / "file").write_text("no folder")
    command = [sys.executable, "-c", PRIVATE, str(tmp_path / "file" / "x")]
    environment = {**os.environ, "PYTHONPATH": str(USER.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    path, is_there = done.stdout.split()
    assert "fusion-kernels-" in path
    assert is_there == "True"
    assert not os.path.exists(path)


OF_CHILDREN = """
import multiprocessing, os, sys, time
from cache_user import kernel_cache
kept = kernel_cache.KernelCache(sys.argv[1])

def make():
    kept.get("kernel.o", lambda: b"code")
    print(kept.states()[-1].path, flush=True)

child = multiprocessing.get_context("fork").Process(target=make)
child.start()
child.join()
make()
if os.fork() == 0:
    while os.path.exists(kept.states()[-1].path):
        time.sleep(0.01)  # until the process that made it has ended
    assert kept.get("kernel.o", lambda: b"again") == b"again"
    folder = kept.states()[-1].path
    print(folder, oct(os.stat(folder).st_mode), flush=True)
    sys.exit()
"""


def test_the_folder_of_a_child_ends_with_it_and_is_its_own(tmp_path):
    """Also if it is one of multiprocessing, and when the folder of its parent is gone."""
    (tmp_path / "file").write_text("no folder")
    command = [sys.executable, "-c", OF_CHILDREN, str(tmp_path / "file" / "x")]
    environment = {**os.environ, "PYTHONPATH": str(USER.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *paths, mode = done.stdout.split()
    assert len({*paths}) == 3
    assert mode == "0o40700"
    assert not [path for path in paths if os.path.exists(path)]


@pytest.mark.parametrize("name", ["relative", "writable", "above", "stranger"])
def test_a_chosen_folder_that_others_can_write_is_refused_with_one_warning(
    name, tmp_path, caplog, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "above" / "kernels"
    folder.mkdir(parents=True)
    planted = KernelCache(str(folder))
    planted.get("kernel.o", lambda: b"planted")
    path, why = str(folder), f"{folder} can be written by others (mode 1777, gid 0)"
    if name == "relative":
        path, why = "above/kernels", "above/kernels is not an absolute path"
    elif name == "writable":
        folder.chmod(0o1777)
        why = why.replace("gid 0", f"gid {folder.stat().st_gid}")
    elif name == "above":
        folder.parent.chmod(0o777)
        why = f"{folder.parent} can be written by others (mode 777, gid {folder.stat().st_gid})"
    else:
        why = f"{folder} belongs to another user (uid {os.geteuid()})"
        if os.geteuid() == 0:
            os.chown(folder, STRANGER, STRANGER)
            why = f"{folder} belongs to another user (uid {STRANGER})"
        else:
            monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    cache = KernelCache(path, is_chosen=True)
    for _ in range(2):
        assert cache.get("kernel.o", lambda: b"own") == b"own"
    assert without_the_end(caplog.messages) == [UNKEPT + why]


def test_a_file_that_others_can_write_is_made_again(tmp_path, caplog):
    cache = KernelCache(str(tmp_path), is_chosen=True)
    for name in ("one.o", "two.o"):
        cache.get(name, lambda: b"planted")
        (tmp_path / name).chmod(0o666)
    for name in ("one.o", "two.o", "one.o"):
        assert cache.get(name, lambda: b"own") == b"own"
    mode = f"(mode 666, gid {tmp_path.stat().st_gid})"
    message = f"a kernel in {tmp_path} is not used: one.o can be written by others {mode}"
    assert without_the_end(caplog.messages) == [message]
    assert (tmp_path / "one.o").stat().st_mode & 0o022 == 0


def test_a_default_folder_that_others_can_write_is_passed_over_with_a_warning(tmp_path, caplog):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(mode=0o700)
    first.chmod(0o777)
    cache = KernelCache(str(first), str(second))
    for _ in range(2):
        assert cache.get("kernel.o", lambda: b"own") == b"own"
    mode = f"(mode 777, gid {first.stat().st_gid})"
    message = f"kernels in {first} are not used: {first} can be written by others {mode}"
    assert without_the_end(caplog.messages) == [message]
    assert (os.listdir(first), os.listdir(second)) == ([], ["kernel.o"])


AS_USER = """
import os, sys
from cache_user import kernel_cache
folder, user, content, umask = sys.argv[1:]
os.umask(int(umask, 8))
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
print(kernel_cache.KernelCache(folder, is_chosen=True).get("kernel.o", content.encode).decode())
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


def got_by(user, folder, content, umask="022"):
    """The kernel that a user gets, who would make it of some content."""
    command = [sys.executable, "-c", AS_USER, str(folder), str(user), content, umask]
    environment = {**os.environ, "PYTHONPATH": str(USER.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def public():
    """A folder of root's that all can enter, in a sticky one that all can write."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@needs_root
def test_what_root_compiles_serves_all_users(public):
    assert got_by(0, public / "kernels", "root's") == "root's"
    assert got_by(STRANGER, public / "kernels", "own") == "root's"
    assert got_by(0, public / "hidden", "root's", umask="077") == "root's"
    assert got_by(STRANGER, public / "hidden", "own") == "own"


@needs_root
def test_what_a_user_compiles_serves_that_user_alone(public):
    assert got_by(STRANGER, public / "kernels", "planted") == "planted"
    assert got_by(STRANGER, public / "kernels", "never") == "planted"
    assert got_by(STRANGER + 1, public / "kernels", "own") == "own"
    assert got_by(0, public / "kernels", "root's") == "root's"


@pytest.fixture
def environment(monkeypatch):
    """Sets what decides on the folders; gives those."""
    monkeypatch.setattr(kernel_cache, "default", kernel_cache.default.__wrapped__)

    def folders(**variables):
        for name in ("FUSION_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return kernel_cache.default().folders

    return folders


PACKAGE = str(Path(kernel_cache.__file__).parents[2] / "__pycache__" / "kernels")


def test_folders_are_the_packages_and_the_users_or_the_one_chosen(environment):
    assert environment(HOME="/home/a") == (PACKAGE, "/home/a/.cache/fusion/kernels")
    assert environment(HOME="/home/a", XDG_CACHE_HOME="/b") == (PACKAGE, "/b/fusion/kernels")
    assert environment(HOME="/home/a", FUSION_CACHE_DIR="/c") == ("/c",)
    assert environment(HOME="/home/a", FUSION_CACHE_DIR="") == environment(HOME="/home/a")
    assert environment(FUSION_CACHE_DIR="c") == ("c",)  # refused when it is used


def test_folders_are_absolute(environment, monkeypatch):
    assert environment(HOME="a", XDG_CACHE_HOME="b") == (PACKAGE,)
    assert environment(HOME="/a", XDG_CACHE_HOME="b") == (PACKAGE, "/a/.cache/fusion/kernels")

    def unknown(_):
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert environment() == (PACKAGE,)


def facts_of(monkeypatch, cache):
    """What the doctor says of a cache, and whether it is all right."""
    monkeypatch.setattr(kernel_cache, "default", lambda: cache)
    facts = doctor._cache()
    assert {name for name, _, _ in facts} == {"kernel cache"}
    return [text for _, text, _ in facts], all(ok for _, _, ok in facts)


def test_the_doctor_tells_which_folders_can_be_used(tmp_path, monkeypatch):
    blocked, usable = tmp_path / "blocked", tmp_path / "usable"
    blocked.mkdir()
    blocked.chmod(0o777)
    cache = KernelCache(str(blocked), str(usable))
    cache.get(f"kernel@{processor.target().name}-0.o", lambda: b"code")
    why = f"{blocked} can be written by others (mode 777, gid {blocked.stat().st_gid})"
    not_used = f"{blocked} is not used: {why}; fix it with `chmod -R go-w {blocked}`"
    used = f"{usable} (1 kernel, new ones go here)"
    assert facts_of(monkeypatch, cache) == ([not_used, used], True)
    alone = KernelCache(str(blocked))
    # It goes to the process's own folder.
    alone.get(f"kernel@{processor.target().name}-0.o", lambda: b"code")
    (first, own, last), is_good = facts_of(monkeypatch, alone)
    assert first == not_used
    assert own.endswith("(1 kernel, only read: removed when this process ends)")
    assert (last, is_good) == ("none can be written: see docs/cache.md", False)


def test_the_doctor_tells_how_to_mend_a_folder_of_another_user(tmp_path, monkeypatch):
    folder, stranger = tmp_path / "it's", os.geteuid() + 1
    folder.mkdir(mode=0o755)
    checked = trusted_files._check

    def check(path, *rest, **named):
        if path == str(folder):  # as if it belonged to somebody else
            monkeypatch.setattr(os, "geteuid", lambda: stranger)
        checked(path, *rest, **named)

    if os.geteuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
        owner, stranger = STRANGER, 0
    else:
        monkeypatch.setattr(trusted_files, "_check", check)
        owner = os.geteuid()
    (first, _), is_good = facts_of(monkeypatch, KernelCache(str(folder)))
    assert not is_good
    assert first == (
        f"{folder} is not used: {folder} belongs to another user (uid {owner}); fix it with "
        f"`chown -R {stranger} {shlex.quote(str(folder))}`"
    )


def test_the_doctor_gives_no_command_for_a_folder_above(tmp_path, monkeypatch):
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o777)
    (first, _), _ = facts_of(monkeypatch, KernelCache(f"{tmp_path}/above/kernels"))
    assert f"above/kernels is not used: {tmp_path}/above can be written by others" in first
    assert "fix it" not in first


def test_the_doctor_gives_no_command_for_what_is_meant_to_be_written_by_all(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    (first, _), _ = facts_of(monkeypatch, KernelCache(f"{tmp_path}/shared"))
    assert "can be written by others (mode 1777" in first
    assert "fix it" not in first
    (first, _), _ = facts_of(monkeypatch, KernelCache("/dev/null"))
    assert first == "/dev/null is not used: Not a directory"


def test_the_doctor_is_content_with_a_warm_cache_that_cannot_be_written(tmp_path, monkeypatch):
    target = processor.target().name
    cache = KernelCache(str(tmp_path))
    for name in (f"one@{target}-0.o", f"two@{target}-0.o", "one@pentium-0.o", "old-0.o"):
        cache.get(name, lambda: b"code")
    folder = f"{tmp_path} (4 kernels, 1 of them for older versions, 1 of them for pentium, "
    assert facts_of(monkeypatch, cache) == ([f"{folder}new ones go here)"], True)

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(trusted_files, "open_lock", read_only)
    told = [f"{folder}only read: Read-only file system)"]
    used = f"the 2 kernels for {target} are used; others cannot be kept"
    assert facts_of(monkeypatch, cache) == ([*told, used], True)
    # None of them is for this machine.
    for file in tmp_path.glob(f"*@{target}-*"):
        file.unlink()
    texts, is_good = facts_of(monkeypatch, cache)
    assert (texts[-1], is_good) == ("none can be written: see docs/cache.md", False)
