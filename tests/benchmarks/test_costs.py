import pytest

from benchmarks import costs


def test_a_new_process_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(costs, "_START", "raise SystemExit('broken {fused}')")
    with pytest.raises(RuntimeError, match="broken True"):
        next(costs.startup(1))


def test_clients_count_their_calls():
    assert costs.calls_per_second(lambda: None, 3, seconds=0.03) > 1000


def test_memory_is_held_against_the_outputs_and_the_tables():
    (row,) = costs.memory(256)
    assert row.most["growth, MiB"] == pytest.approx(1 + 2.56)
    assert row.number("growth, MiB") >= 0
