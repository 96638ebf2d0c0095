"""Libraries of ops: under many sessions, in TensorFlow without this package, and compiled anew."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ops_library import sessions
from tests.ops_library.conftest import build_library, library, models
from tests.ops_library.test_library import run
from tests.soak import cold_library

__all__ = ["build_library", "library", "models"]

SESSIONS, THREADS = 1000, 16

#: Bytes by which a process may grow more than with stock ops, from the fifth sample on.
_ALLOWED = 16 << 20


def growth(*arguments: object) -> int:
    """The bytes by which a process grows once caches and pools are full."""
    done = run([sessions.__file__, *map(str, arguments)])
    assert done.returncode == 0, done.stderr
    samples = json.loads(done.stdout)
    print([sample >> 20 for sample in samples])
    return int(samples[-1] - samples[len(samples) // 4])


def test_sessions_give_back_their_memory(models: tuple[Path, Path], library: Path) -> None:
    stock, fused = models
    of_stock = growth(stock, SESSIONS, THREADS)
    of_fused = growth(fused, SESSIONS, THREADS, library)
    print(f"stock grows by {of_stock >> 20} MiB, fused by {of_fused >> 20}")
    assert of_fused - max(of_stock, 0) < _ALLOWED


def test_kernels_that_are_compiled_anew_make_the_same_bytes(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    made = []
    for name, options in (("one", []), ("other", ["warm"])):
        folder = tmp_path / name
        folder.mkdir()
        command = [cold_library.__file__, str(folder), str(models[1]), *options]
        done = run(command, FUSION_CACHE_DIR=str(folder / "kernels"))
        assert done.returncode == 0, done.stderr
        made.append([(folder / f"libfusion_ops.{end}").read_bytes() for end in ("so", "a")])
    assert made[0] == made[1]
