import io

import pytest
from rich.console import Console

from benchmarks import costs, runner
from benchmarks.report import load
from tests.benchmarks.canned import case, process


def run(names, out, **options):
    return runner.run(names, runner.Options(**options), out, Console(file=io.StringIO()))


def test_each_workload_gets_its_processes_and_a_file(tmp_path, monkeypatch):
    asked = []

    def worker(name, options, *rest):
        asked.append((name, options["end_to_end"]))
        return process(case(float(len(asked))))

    monkeypatch.setattr(runner, "run_worker", worker)
    assert run(["multihot26", "shared"], tmp_path / "out", processes=2) == []
    assert asked == [(name, first) for name in ("multihot26", "shared") for first in (True, False)]
    found = load(tmp_path / "out")
    assert list(found) == ["multihot26", "shared"]
    assert found["shared"]["processes"] == 2
    assert found["shared"]["machine"]["torch"]
    assert found["shared"]["cases"][0]["sides"]["fusion"]["net_ms"]["median"] == 3.5


def test_a_process_that_fails_is_named_and_the_rest_go_on(tmp_path):
    (failure,) = run(["no-such-workload"], tmp_path, processes=2)
    assert failure.startswith("no-such-workload: exit code 1")
    assert "KeyError" in failure
    assert load(tmp_path) == {}


def test_a_new_process_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(costs, "_START", "raise SystemExit('broken {fused}')")
    with pytest.raises(RuntimeError, match="broken True"):
        costs.startup(True, lambda line: None)


def test_clients_count_their_calls():
    assert costs._calls_per_second(lambda: None, 3, seconds=0.03) > 1000


def test_memory_is_held_against_the_outputs_and_the_tables():
    found = {cost.name: cost for cost in costs.memory(True, lambda line: None)}
    growth = found["growth of the peak during calls"]
    assert growth.most == pytest.approx(1 + 2.56)
    assert growth.value >= 0
