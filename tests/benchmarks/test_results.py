import pytest

from benchmarks.results import combine
from tests.benchmarks.canned import case, process, side


def only_case(*processes):
    (found,) = combine(processes)["cases"]
    return found


def test_ratios_are_of_the_times_net_of_the_inputs_in_each_process():
    found = only_case(*(process(case(fusion)) for fusion in (2.0, 3.0, 4.0)))
    assert found["ratios"]["stock"] == {"median": 4.0, "low": 3.0, "high": 6.0}
    assert found["sides"]["fusion"]["net_ms"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert found["sides"]["fusion"]["graph_ms"]["runs"] == 60
    assert found["end_to_end_ratio"]["median"] == 4.0


def test_end_to_end_times_may_come_from_one_process():
    other = case(2.0)
    for one in other["sides"].values():
        del one["end_to_end_ms"]
    found = only_case(process(case(3.0)), process(other))
    assert found["end_to_end_ratio"] == {"median": 4.0, "low": 4.0, "high": 4.0}
    assert only_case(process(other))["end_to_end_ratio"] is None


def test_the_limit_is_the_traffic_at_the_memory_s_rate():
    found = only_case(process(case(2.0)))
    assert found["limit_ms"] == pytest.approx(0.5)
    assert found["headroom"] == pytest.approx(24.0)
    assert found["gb_per_s"] == pytest.approx(5.0)
    assert found["warnings"] == []


def test_what_even_the_caches_cannot_give_is_a_bug_in_the_benchmark():
    assert only_case(process(case(0.11)))["warnings"] == []
    (warning,) = only_case(process(case(0.09, inputs=0.1)))["warnings"][:1]
    assert "bug in the benchmark" in warning


def test_columns_that_are_not_fused_are_named():
    sides = {"stock": side(12.0), "fusion": side(2.0, columns_fused=25)}
    assert only_case(process(case(2.0, sides=sides)))["warnings"] == ["25 of 26 columns are fused"]


def test_lookups_that_vanish_beside_their_inputs_are_named():
    sides = {"stock": side(12.0), "fusion": side(0.5, inputs=6.0, columns_fused=26)}
    (warning,) = only_case(process(case(2.0, sides=sides)))["warnings"]
    assert "less than a tenth" in warning


def test_bits_are_the_same_only_if_they_are_in_every_process():
    other = case(2.0)
    other["sides"]["fusion"] |= {"same_bits": False, "largest_difference": 0.25}
    fusion = only_case(process(case(2.0)), process(other))["sides"]["fusion"]
    assert (fusion["same_bits"], fusion["largest_difference"]) == (False, 0.25)


def test_processes_that_measured_different_cases_do_not_go_together():
    with pytest.raises(ValueError, match="zip"):
        combine([process(case(2.0)), process()])


def test_costs_are_spread_over_processes_too():
    cost = {"name": "growth", "unit": "MiB", "most": 2.0, "least": None}
    found = combine([{"costs": [{**cost, "value": value}]} for value in (1.0, 5.0, 3.0)])
    assert found == {"costs": [{**cost, "value": {"median": 3.0, "low": 1.0, "high": 5.0}}]}
