"""Whether memory may become code is asked before anything is compiled."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fusion
from fusion.runtime.llvm import require_executable_memory
from tests import zygote

#: Denies it to the process that runs it, and to its children, as systemd does; from Linux 6.3 on.
DENY = "import ctypes; denied = ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)\n"
STUB = f"""
import sys, types
package = types.ModuleType("fusion")
package.__path__ = [{str(Path(fusion.__file__).parent)!r}]
sys.modules["fusion"] = package
from fusion.runtime.llvm import require_executable_memory
require_executable_memory()
"""


def mapped_pages():
    return Path("/proc/self/maps").read_text().count("\n")


def test_it_may_here_and_nothing_is_left():
    require_executable_memory()
    before = mapped_pages()
    for _ in range(100):
        require_executable_memory()
    assert mapped_pages() - before < 50


def test_where_it_may_not_that_is_an_import_error():
    done = subprocess.run(
        [sys.executable, "-c", DENY + "print(denied)" + STUB],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.strip() != "0":
        pytest.skip("this Linux has no PR_SET_MDWE")
    assert done.returncode == 1
    assert "ImportError: fusion cannot work here" in done.stderr
    assert re.search("MemoryDenyWriteExecute.*SELinux", done.stderr)


def test_importing_fusion_asks():
    program = f"""
import types, sys
package = types.ModuleType("fusion")
package.__path__ = [{str(Path(fusion.__file__).parent)!r}]
sys.modules["fusion"] = package
from fusion.runtime import llvm
def refuse(): raise ImportError("not here")
llvm.require_executable_memory = refuse
try:
    import fusion.ops.registered
except ImportError as error:
    print(error)
"""
    done = zygote.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        server=zygote.without_fusion(),
    )
    assert done.stdout == "not here\n"


def test_what_the_system_says_is_told(monkeypatch):
    class Function:
        argtypes = None

        def __call__(self, *_):
            ctypes.set_errno(13)
            return -1

    real = ctypes.CDLL

    def library(*arguments, **options):
        found = real(*arguments, **options)
        found.mprotect = Function()  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(ctypes, "CDLL", library)
    with pytest.raises(ImportError, match=r"executable \(Permission denied\)"):
        require_executable_memory()
