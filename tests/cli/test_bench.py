"""`fusion bench`: its table, its files, and what it says when it cannot measure."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fusion.cli import main
from fusion.saved_model import BenchReport, Measurement, Ratio, bench, fuse_saved_model
from fusion.version import __version__
from tests.cli.test_app import command

Capture = pytest.CaptureFixture[str]

LATENCIES = ["p50 ms", "p90 ms", "p99 ms"]
SHORT = ("--seconds", "0.01", "--batch", "1,5")


def _cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def failure(capsys: Capture, *arguments: object) -> str:
    """The one line that the command fails with."""
    assert main(["bench", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("fusion: error: ")


PARTS = {"parsing": 0.004, "ids": 0.126, "lookups": 0.37, "dense": 0.5}


def _report(*models: str) -> BenchReport:
    measurements = [
        Measurement(way, 64, 2, model, 1234, 0.5, 0.25, 12.345, 98765.4, 0, parts)
        for way, parts in ((bench.IN_GRAPH, PARTS), (bench.END_TO_END, {}))
        for model in range(len(models))
    ]
    ratios = [Ratio(way, 64, 2, 2.0, 1.5, 2.5) for way in (bench.IN_GRAPH, bench.END_TO_END)]
    two = len(models) > 1
    return BenchReport(
        models,
        "rank",
        "generated",
        "alike" if two else None,
        1.0,
        {"processor": "[one]", "cores": 2, "tensorflow": "2.21.0"},
        0.25,
        tuple(measurements),
        tuple(ratios) if two else (),
    )


def _printed(capsys: Capture, monkeypatch: pytest.MonkeyPatch, *models: str) -> list[str]:
    monkeypatch.setattr("fusion.cli.commands.bench.check_model", lambda path: None)
    monkeypatch.setattr("fusion.saved_model.bench_models", lambda *a, **k: _report(*models))
    assert main(["bench", *models]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_table_of_one_model(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    heading, first, second, *notes = _printed(capsys, monkeypatch, "a")
    parts = "% parse/ids/lookups/dense"
    assert _cells(heading) == ["batch", "clients", *LATENCIES, "examples/s", "calls", parts]
    numbers = ["64", "2", "0.5", "0.25", "12.3", "98,765", "1,234"]
    assert _cells(first) == ["in graph", *numbers, "0/13/37/50"]
    assert _cells(second) == ["end to end", *numbers]
    assert notes == [
        "signature rank, generated inputs",
        "[one], 2 cores, TensorFlow 2.21.0; other programs kept 0.2 cores busy",
    ]


def test_the_table_of_two_models(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    heading, first, second, *_, outputs, _, conclusion = _printed(
        capsys, monkeypatch, "models/[a]", "models/b"
    )
    last = ["examples/s", "calls", "times as fast", "% parse/ids/lookups/dense"]
    assert _cells(heading) == ["batch", "clients", "model", *LATENCIES, *last]
    numbers = ["0.5", "0.25", "12.3", "98,765", "1,234"]
    assert _cells(first) == ["in graph", "64", "2", "[a]", *numbers, "0/13/37/50"]
    assert _cells(second) == [
        "in graph",
        "64",
        "2",
        "b",
        *numbers,
        "2.00 (1.50-2.50)",
        "0/13/37/50",
    ]
    assert outputs == "outputs compared: alike"
    clear = "2.00 times as fast (2.00 to 2.00), clearly so under 1 of 1 loads"
    assert conclusion == f"b beside [a]: in graph {clear}; end to end {clear}"


def _of_requests(report: BenchReport) -> BenchReport:
    names, sizes = ("rank", "rank_requests"), (12345, 678)
    measurements = tuple(
        replace(m, requests=8, signature=names[m.model], input_bytes=sizes[m.model])
        for m in report.measurements
    )
    ratios = tuple(replace(ratio, requests=8) for ratio in report.ratios)
    return replace(report, measurements=measurements, ratios=ratios, request_inputs=("a", "b"))


@pytest.mark.parametrize(
    ("models", "both"),
    [(("stock", "new"), "new beside stock"), (("new", "new"), "rank_requests beside rank")],
)
def test_the_table_of_requests(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, models: tuple[str, ...], both: str
) -> None:
    report = _of_requests(_report(*models))
    monkeypatch.setattr("fusion.cli.commands.bench.check_model", lambda path: None)
    monkeypatch.setattr("fusion.saved_model.bench_models", lambda *a, **k: report)
    assert main(["bench", *models, "--requests", "8x8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heading, first, second, *_, once, size, outputs, _, last = lines
    assert _cells(heading)[:4] == ["batch", "clients", "model", "signature"]
    assert _cells(first)[:5] == ["in graph", "8x8", "2", models[0], "rank"]
    assert _cells(second)[1:5] == ["8x8", "2", models[1], "rank_requests"]
    assert "2.00 (1.50-2.50)" in second
    assert once == "once a request: a, b"
    assert size == "bytes of the inputs of a call: 8x8: 12,345 -> 678"
    assert outputs.startswith("outputs compared: ")
    assert last.startswith(f"{both}: in graph 2.00 times as fast")


#: A median, and the range of rounds.
FASTER, SLOWER, MAYBE = (1.5, 1.2, 1.9), (0.8, 0.7, 0.9), (1.1, 0.9, 1.3)


@pytest.mark.parametrize(
    ("loads", "share", "said"),
    [
        ([FASTER], 0.19, "1.50 times as fast (1.50 to 1.50), clearly so under 1 of 1 loads"),
        ([SLOWER], 0.19, "0.80 times as fast (0.80 to 0.80), clearly so under 1 of 1 loads"),
        ([FASTER, MAYBE], 0.19, "1.30 times as fast (1.10 to 1.50), clearly so under 1 of 2 loads"),
        ([MAYBE], 0.19, "no clear difference (1.10 to 1.10), fused ops are 19% of a call"),
        ([MAYBE], 0.0, "no clear difference (1.10 to 1.10)"),
        ([SLOWER, FASTER], 0.0, "no clear difference (0.80 to 1.50)"),
    ],
)
def test_a_difference_is_clear_if_all_rounds_agree(
    loads: list[tuple[float, float, float]], share: float, said: str
) -> None:
    report = _report("a", "b")
    measurements = tuple(replace(m, fused_share=share) for m in report.measurements)
    ratios = tuple(Ratio(bench.IN_GRAPH, 64, 2, *load) for load in loads)
    report = replace(report, measurements=measurements, ratios=ratios)
    assert report.conclusion() == f"b beside a: in graph {said}"


def test_numbers_and_a_picture(models: Path, tmp_path: Path) -> None:
    fuse_saved_model(models / "tf2", tmp_path / "fused", verify=False)
    files = ("--report", tmp_path / "bench.json", "--png", tmp_path / "bench.png")
    pair = (models / "tf2", tmp_path / "fused")
    done = command("bench", *pair, *SHORT, "--clients", "1,2", *files)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + 16 + 5
    assert "outputs equal to the bit" in lines[-4]
    assert "fused beside " in lines[-2]
    assert lines[-1] == f"wrote {tmp_path / 'bench.png'}"
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found.pop("command"), found.pop("version"), found.pop("status")) == (
        "bench",
        __version__,
        0,
    )
    report = BenchReport.from_dict(found)
    assert (len(report.measurements), len(report.ratios)) == (16, 8)
    assert all(bool(one.parts) == (one.way == bench.IN_GRAPH) for one in report.measurements)
    shares = [measurement.fused_share for measurement in report.measurements]
    assert all((share > 0) == (index % 2) for index, share in enumerate(shares))
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "1,x"], "'1,x' is not a list of whole numbers such as 1,64"),
        (["--batch", ""], "'' is not a list of whole numbers"),
        (["--batch", "0,1"], "'0,1' must have different numbers, each at least 1"),
        (["--requests", "200"], "'200' is not a list of different requests and candidates"),
        (["--requests", "0x200"], "'0x200' is not a list of different requests"),
        (["--requests", "1x2,1x2"], "'1x2,1x2' is not a list of different requests"),
        (["--requests", "1x2", "--batch", "1"], "leave --batch out"),
        (["--requests", "1x2"], "no signature takes requests of 'serving_default'"),
        (["--clients", "2,2"], "--clients': '2,2' must have different numbers"),
        (["--seconds", "0"], "--seconds"),
        (["--threads", "0"], "--threads"),
        (["--tolerance", "-1"], "--tolerance"),
        (["--batch", "1", "--inputs", "a.npz"], "--inputs has a batch size of its own"),
        (["--signature", "nowhere"], "signatures embedding, serving_default, none is 'nowhere'"),
        (["--tags", "gpu,serve"], "with the tags serve, none has gpu,serve"),
        (["--inputs", "nowhere.npz"], "nowhere.npz: cannot be read: no such file"),
        (["--report", "no/bench.json"], "does not exist, create it first"),
        (["--png", "."], "is a folder, give a file"),
    ],
)
def test_wrong_arguments_are_one_line(
    models: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    assert message in failure(capsys, models / "tf2", *arguments)


def test_a_model_that_is_none_is_one_line(models: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "no such file or directory" in failure(capsys, tmp_path / "nowhere")
    assert "no such file or directory" in failure(capsys, models / "tf2", tmp_path / "nowhere")


def test_models_with_other_inputs_are_one_line(models: Path, capsys: Capture) -> None:
    assert "has other inputs" in failure(capsys, models / "tf2", models / "example")


def test_a_failing_process_is_one_line_and_verbose_shows_what_it_said(
    models: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "python"
    child.write_text("#!/bin/sh\necho first >&2; echo last >&2; exit 9\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    model = models / "plain"
    assert failure(capsys, model) == f"measuring {model} failed: last"
    assert main(["bench", str(model), "--verbose"]) == 2
    trace = capsys.readouterr().err
    assert "RuntimeError: first\nlast\n" in trace
    assert trace.endswith(f"fusion: error: measuring {model} failed: last\n")


def test_a_picture_without_matplotlib_says_what_to_install(
    models: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fusion.saved_model.bench.draw", raising=False)
    for module in ("matplotlib", "matplotlib.axes"):  # which another test may have imported
        monkeypatch.setitem(sys.modules, module, None)
    line = failure(capsys, models / "tf2", "--png", tmp_path / "bench.png")
    assert line == "--png needs matplotlib: pip install 'tf-embedding-fusion[plot]'"


def test_inputs_of_the_user(models: Path, tmp_path: Path, capsys: Capture) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones([7, 3], np.float32))
    inputs = ("--inputs", str(tmp_path / "inputs.npz"), "--seconds", "0.01")
    assert main(["bench", str(models / "plain"), *inputs]) == 0
    out = capsys.readouterr().out
    assert f"signature serving_default, {tmp_path / 'inputs.npz'} inputs" in out.splitlines()
    assert [_cells(line)[1] for line in out.splitlines()[1:3]] == ["7", "7"]
