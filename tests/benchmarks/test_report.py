from pathlib import Path

import pytest

import benchmarks
from benchmarks import report
from benchmarks.case import DETAILS, Row
from benchmarks.lookups.workloads import RATIOS, TIMES
from benchmarks.plots import plot
from benchmarks.runner import load

RESULTS = Path(benchmarks.__file__).parent / "results"


def spread(median, low=None, high=None):
    return {"median": median, "low": low or median, "high": high or median}


def result(*rows, busy=0.0, **facts):
    options = {"scale": 1.0, "quick": False, **facts.pop("options", {})}
    return {
        "about": "26 columns.",
        "date": "2026-01-02",
        "machine": {"processor": "one", "cores": 2},
        "processes": 3,
        "options": options,
        "busy_elsewhere": busy,
        "rows": [*rows],
        "failures": [],
        **facts,
    }


def lookups(ratio, batch=512, program="dim16", draw="base", **facts):
    key = {"program": program, "batch": batch, "draw": draw}
    memory = {f"{name}, GB/s": 10.0 for name in ("one thread", "all threads")}
    times = {"stock": 12.0, "fusion": 3.0, "row_sums": 2.0, "MB": 10.0, "GB/s": 5.0}
    return [
        Row({"threads": 2}, memory, "Memory"),
        Row(key, times, TIMES),
        Row(key, {"over stock": ratio}, RATIOS, **facts),
    ]


def test_bounds_are_met_or_missed():
    rows = lookups(spread(4.0, 3.0, 6.0), least={"over stock": 5.0})
    text = report.render({"multihot26": result(*rows)})
    assert "0 met, 1 missed." in text
    line = "| multihot26 | dim16 512 base | over stock | at least 5 | 4 (3 to 6) | **missed** |"
    assert line in text
    assert "| dim16 | 512 | base | 4 (3 to 6), **missed** |" in text
    assert not report.is_met(result(*rows))
    assert report.is_met(result(*lookups(6.0, least={"over stock": 5.0})))
    assert not report.is_met(result(failures=["killed"]))


def test_the_report_has_every_number_and_note():
    first = Row({"side": "a"}, {"ms": 1234.4, "equal": "yes"}, notes=["both", "one"])
    other = Row({"side": "b"}, {"ms": spread(0.12345)}, notes=["both"])
    detail = Row({"op": "MatMul"}, {"ms": 1.0}, f"{DETAILS}a step")
    text = report.render({"some": result(first, other, detail)}, [("a.png", "a picture")])
    assert "| side | ms | equal |\n| --- | --- | --- |\n| a | 1,234 | yes |\n" in text
    assert "| b | 0.123 | - |" in text
    assert "- both\n- a: one" in text
    assert "![a picture](a.png)" in text
    assert "MatMul" not in text
    assert "- some: 2026-01-02, 3 processes, processor one, cores 2" in text


def test_a_busy_machine_and_a_quick_run_are_named():
    calm = report.render({"some": result()})
    assert "do not trust" not in calm
    text = report.render({"some": result(busy=0.5, options={"quick": True, "scale": 0.5})})
    assert "other programs were running" in text
    assert "a quick run" in text
    assert "rows times 0.5" in text


@pytest.mark.parametrize(("now", "said"), [(1.9, "outside of"), (2.0, "within"), (4.8, "outside")])
def test_what_is_measured_again_is_held_against_the_range(now, said):
    earlier = {"multihot26": result(*lookups(spread(3.0, 2.0, 4.0)))}
    found = {"multihot26": result(*lookups(now), *lookups(now, batch=64))}
    (line,) = report.reproduced(found, earlier)
    assert line.startswith(f"multihot26 dim16 512 base: {now:g}, {said}")
    assert line.endswith("the 3 (2 to 4) of the README's 3 processes (2026-01-02)")


@pytest.mark.parametrize(
    ("commits", "is_drawn"), [(("a", "a"), True), (("a", "b"), False), (("", ""), False)]
)
def test_headlines_are_drawn_of_one_commit(commits, is_drawn, tmp_path):
    results = {
        name: result(*lookups(spread(2.0)), commit=commit, options={"headlines": True})
        for name, commit in zip(("multihot26", "criteo26"), commits, strict=True)
    }
    assert ("headlines.png" in {name for name, _ in plot(results, tmp_path)}) == is_drawn


def test_plots_are_pictures(tmp_path):
    linear = [row for dim in (4, 8) for row in lookups(2.0, program=f"dim{dim}")]
    rows = [*lookups(2.0), *lookups(spread(3.0, 2.0), batch=4096), *lookups(9.0, draw="uniform")]
    results = {"linear": result(*linear), "multihot26": result(*rows)}
    names = {name for name, _ in plot(results, tmp_path)}
    assert names == {"speedup-multihot26-dim16.png", "bandwidth.png", "linear-dim.png"}
    for name in names:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("folder", ["epyc", "xeon", "headlines", "clients"])
def test_reports_are_those_of_the_results_beside_them(folder):
    """But for pictures, which this does not draw."""
    text = (RESULTS / folder / "report.md").read_text()
    for part in report.render(load(RESULTS / folder)).split("\n\n"):
        assert part.strip() in text


@pytest.mark.parametrize("folder", ["h100", "h200"])
def test_results_of_gpus_are_there_to_be_shown(folder):
    for found in load(RESULTS / folder).values():
        text = report.render({"gpu": found})
        assert "| multihot26, batch 4096 |" in text
