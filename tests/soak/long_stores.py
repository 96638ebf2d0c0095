"""Large tables in files: an index of many keys in little memory, whoever is killed meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from fusion.stores.local_files import LocalFiles, write_table
from fusion.stores.tier import TableDescription

_ROWS, _BLOCK = 20_000_000, 1 << 20

#: The keys of a block and their slots, and the slots of a segment before and behind; and what
#: Python's allocator holds.
_MAX_BYTES = 100 << 20

_OPENS = """
import re
import sys
from pathlib import Path
from fusion.stores.local_files import LocalFiles
from fusion.stores.tier import TableDescription

def megabytes(name):
    return int(re.search(name + r":\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

small, large = LocalFiles(sys.argv[1]), LocalFiles(sys.argv[1])
small.open_table(TableDescription("small", 1))  # kernels are loaded
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = megabytes("VmRSS")
print("begins", flush=True)
large.open_table(TableDescription("large", 1))
print(megabytes("VmHWM") - before)
"""


def keys_of(rows: np.ndarray) -> np.ndarray:
    """Distinct keys all over int64."""
    return (rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def write(path: Path, rows: int) -> None:
    numbers = (np.arange(k, min(k + _BLOCK, rows)) for k in range(0, rows, _BLOCK))
    write_table(path, ((keys_of(some), some.astype(np.float32)[:, None]) for some in numbers))


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _OPENS, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    return process


def test_an_index_of_twenty_million_keys(tmp_path: Path) -> None:
    write(tmp_path / "small", 1000)
    write(tmp_path / "large", _ROWS)
    # Its index is made by one that is not killed, after others that are, at any moment.
    for seconds in (0.05, 0.2, 0.4, 0.6, 0.8):
        killed = start(tmp_path)
        try:
            killed.wait(seconds)
            (tmp_path / "large" / "key_index").unlink()
        except subprocess.TimeoutExpired:
            killed.kill()
            killed.wait()
    (tmp_path / "large" / "key_index").unlink(missing_ok=True)
    process = start(tmp_path)
    output, _ = process.communicate()
    assert process.returncode == 0
    print(f"{float(output):.0f} MB above what the process had, for {_ROWS:,} keys")
    assert float(output) * (1 << 20) < _MAX_BYTES
    names = {file.name for file in (tmp_path / "large").iterdir()}
    assert names == {"key", "emb_vector", "key_index", "manifest.json"}

    tier = LocalFiles(tmp_path)
    tier.open_table(TableDescription("large", 1))
    for first in range(0, _ROWS, _BLOCK):
        numbers = np.arange(first, min(first + _BLOCK, _ROWS))
        rows = np.zeros((len(numbers), 1), np.float32)
        assert tier.fetch("large", keys_of(numbers), rows).all()
        np.testing.assert_array_equal(rows[:, 0], numbers.astype(np.float32))
        assert not tier.fetch("large", keys_of(numbers + _ROWS), rows).any()
