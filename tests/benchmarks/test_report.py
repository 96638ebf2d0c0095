import json

import pytest

from benchmarks.plots import plot
from benchmarks.report import headlines, load, render, reproduced, verdicts
from benchmarks.results import combine
from tests.benchmarks.canned import case, process


def result(*processes, workload="multihot26", **facts):
    return {
        "workload": workload,
        "about": "26 columns.",
        "date": "2026-01-02",
        "machine": {"processor": "one", "cores": 2},
        "processes": len(processes),
        "quick": False,
        "scale": 1.0,
        **combine(processes),
        **facts,
    }


def verdict(results, baseline="stock", batch=512):
    (found,) = (
        text
        for target, _, text in verdicts(results)
        if (target.workload, target.batch, target.baseline) == ("multihot26", batch, baseline)
    )
    return found


def test_targets_are_met_or_missed():
    assert verdict({"multihot26": result(process(case(2.4)))}) == "met"
    assert verdict({"multihot26": result(process(case(2.5)))}) == "**missed**"


def test_targets_without_a_number_say_why():
    results = {"multihot26": result(process(case(2.0)))}
    assert verdict(results, batch=64) == "not measured"
    assert verdict(results, baseline="torch") == "torch is not installed (extra bench)"
    quick = {"multihot26": result(process(case(2.0)), quick=True)}
    assert verdict(quick) == "a quick run is no measurement"


def test_variants_are_not_what_targets_are_about():
    results = {"multihot26": result(process(case(2.0, variant="negative")))}
    assert verdict(results) == "not measured"


def test_the_report_has_every_number():
    times = (2.0, 3.0, 4.0)
    text = render({"multihot26": result(*(process(case(time)) for time in times))}, [])
    assert "1 met" not in text
    assert "| multihot26 dim16 | 512 | stock | 5.0 | 4 (3 to 6) | **missed** |" in text
    assert "| dim16, batch 512 | 1,000 | 12.000 | 3.000 | 0.500 | 3.3 |" in text
    assert "| dim16, batch 512 | 4 (3 to 6) | 24.0 | 4 (3 to 6) | 10 to 10 |" in text
    assert "no torch: torch is not installed (extra bench)" in text
    assert "- multihot26: 2026-01-02, 3 processes, processor one, cores 2" in text


def test_a_busy_machine_and_a_quick_run_are_named():
    assert "do not trust" not in render({"multihot26": result(process(case(2.0)))}, [])
    busy = result(process(case(2.0), busy=0.5), quick=True)
    text = render({"multihot26": busy}, [])
    assert "other programs were running" in text
    assert "a quick run" in text


def test_costs_are_held_against_their_bounds():
    costs = [
        {"name": "growth", "value": 3.0, "unit": "MiB", "most": 2.0, "least": None},
        {"name": "clients", "value": 3.0, "unit": "x", "most": None, "least": 1.0},
    ]
    text = render({"memory": result({"costs": costs}, workload="memory")}, [])
    assert "| growth | 3 | MiB | at most 2 | **missed** |" in text
    assert "| clients | 3 | x | at least 1 | met |" in text


def test_headlines_are_plain():
    text = headlines({"multihot26": result(process(case(2.0), case(3.0, batch=64)))})
    assert "multihot26 dim16 batch 512: 2.000 ms, 6.00x stock" in text
    assert "met: multihot26 dim16, batch 512, over stock, 6.00 of 5.0" in text
    assert text.count("no torch: torch is not installed (extra bench)") == 1
    assert "other programs" not in text
    assert "other programs" in headlines({"multihot26": result(process(case(2.0), busy=0.5))})


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [(6.4, "1.88, outside of"), (6.0, "2, within"), (3.0, "4, within"), (2.5, "4.8, outside of")],
)
def test_what_is_measured_again_is_held_against_the_range(milliseconds, said):
    earlier = {"multihot26": result(*(process(case(fusion)) for fusion in (3.0, 4.0, 6.0)))}
    now = {"multihot26": result(process(case(milliseconds), case(1.0, batch=64)))}
    (line,) = reproduced(now, earlier)
    assert line == (
        f"multihot26 dim16 batch 512: {said} the 3 (2 to 4) of the README's 3 processes "
        "(2026-01-02)"
    )
    assert not [*reproduced(now, {})]


def test_results_are_found_among_other_files(tmp_path):
    (tmp_path / "multihot26.json").write_text(json.dumps(result(process(case(2.0)))))
    (tmp_path / "pass.json").write_text("{}")
    assert list(load(tmp_path)) == ["multihot26"]


@pytest.mark.parametrize(
    ("commits", "is_drawn"), [(("a", "a"), True), (("a", "b"), False), (("", ""), False)]
)
def test_headlines_are_drawn_of_one_commit(commits, is_drawn, tmp_path):
    results = {
        name: {**result(process(case(2.0)), workload=name), "headlines": True, "commit": commit}
        for name, commit in zip(("multihot26", "criteo26"), commits, strict=True)
    }
    assert ("headlines.png" in {name for name, _ in plot(results, tmp_path)}) == is_drawn


def test_plots_are_pictures(tmp_path):
    linear = [case(time, program=f"dim{dim}") for time, dim in ((2.0, 4), (4.0, 8))]
    results = {
        "linear": result(process(*linear), workload="linear"),
        "multihot26": result(process(case(2.0), case(3.0, batch=4096))),
    }
    names = {name for name, _ in plot(results, tmp_path)}
    assert names == {"speedup-multihot26-dim16.png", "bandwidth.png", "linear-dim.png"}
    for name in names:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert "![multihot26 dim16" in render(results, [("a.png", "multihot26 dim16")])
