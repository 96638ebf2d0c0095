"""Whether the GPU is tried once, in another process, and what becomes of the answer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fusion.gpu_ops.host import availability, cuda_driver
from fusion.ops.base import facts, probe
from fusion.runtime.cache import kernel_cache
from fusion.runtime.cache.kernel_cache import KernelCache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where answers are kept; there seems to be a GPU."""
    monkeypatch.setattr(kernel_cache, "default", lambda: KernelCache(str(tmp_path)))
    monkeypatch.setattr(availability, "why_not", lambda: "")
    return tmp_path


def answers(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(probe, "_PROGRAM", program)


def test_the_answer_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "print('noise'); print('fusion: kernels work')")
    assert probe.why_not() == ""
    answers(monkeypatch, "raise SystemExit('not to be run')")
    assert probe.why_not() == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert "not to be run" in probe.why_not()  # another question
    assert len(list(folder.iterdir())) == 2


def test_what_is_wrong_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers(monkeypatch, "print('fusion: there is no stream')")
    with caplog.at_level(logging.WARNING, "fusion"):
        assert probe.why_not() == "there is no stream"
    assert caplog.messages == ["ops stay on the CPU: there is no stream"]
    answers(monkeypatch, "print('fusion: kernels work')")
    assert probe.why_not() == "there is no stream"
    assert probe.verdict(again=True) == ""
    assert probe.why_not() == ""


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with status -11"),
        ("raise RuntimeError('so it is')", "ended with status 1: RuntimeError: so it is"),
    ],
)
def test_a_process_that_dies_tells_how(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, wanted: str
) -> None:
    answers(monkeypatch, program)
    assert probe.why_not().endswith(wanted)


def test_one_that_takes_too_long_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 1)
    answers(monkeypatch, "import time; time.sleep(60)")
    assert "took more than 1 seconds" in probe.why_not()
    assert not list(folder.iterdir())


def test_the_process_that_tries_does_not_ask(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, "raise SystemExit('not to be run')")
    monkeypatch.setenv(probe.PROBE_VARIABLE, "1")
    assert probe.why_not() == ""
    probe.run()  # there is no GPU here
    assert capsys.readouterr().out.startswith("fusion: TensorFlow does not see a GPU")


def test_doctor_tries_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpus:
        number = 1

        def description(self, gpu: int) -> str:
            return f"number {gpu}"

    monkeypatch.setattr(cuda_driver, "Cuda", Gpus)
    answers(monkeypatch, "print('fusion: there is no stream')")
    found = facts.facts()
    assert found[0] == ("GPU 0", "number 0", True)
    assert found[-1] == ("GPU kernels", "there is no stream", False)
    answers(monkeypatch, "print('fusion: kernels work')")
    assert facts.facts()[-1][2]
