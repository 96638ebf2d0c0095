"""The same programs with fusion on and without it: the same bits, from other ops."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests import zygote
from tests.grappler.programs import PROGRAMS

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {"plain": {}, "legacy": {"TF_USE_LEGACY_KERAS": "1"}}


def start(kind, out, sizes, *options):
    columns = ",".join(map(str, sizes))
    command = [sys.executable, "-m", "tests.grappler.worker", kind, str(out), columns, *options]
    environment = {**os.environ, **ENVIRONMENTS[kind]}
    return zygote.start(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(process, out):
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()[-3000:]
    return pickle.loads(out.read_bytes())


@pytest.mark.parity("tf.function", "pass")
@pytest.mark.parity("Keras 3 models trained", "pass")
@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_give_the_same_bits_and_run_the_fused_op(kind, tmp_path):
    check_programs(kind, tmp_path, (1, 5))


def check_programs(kind, folder, sizes):
    """Runs all programs of a kind with numbers of columns, with fusion and without it."""
    files = [folder / "stock", folder / "fused"]
    processes = [start(kind, files[0], sizes), start(kind, files[1], sizes, "--fused")]
    stock, fused = [finish(*pair) for pair in zip(processes, files, strict=True)]
    raised = {case: text for case, text in {**fused, **stock}.items() if isinstance(text, str)}
    assert not raised, "\n".join(f"{case}: {text}" for case, text in raised.items())
    assert fused.pop("failures") == stock.pop("failures") == 0
    assert stock.keys() == fused.keys()
    assert len(fused) == len(sizes) * len(PROGRAMS[kind])
    for case, (outputs, ran) in stock.items():
        _, size = case
        calls = ran["stock"]
        assert calls >= size, case
        assert calls % size == 0, case
        assert ran == {"stock": calls, "fused": 0}, case
        fused_outputs, fused_ran = fused[case]
        # Lookups side by side are one op.
        assert fused_ran["stock"] == 0, case
        assert 1 <= fused_ran["fused"] <= calls, case
        same = [ours == theirs for ours, theirs in zip(fused_outputs, outputs, strict=True)]
        assert all(same), (case, same)
