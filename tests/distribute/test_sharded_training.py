"""Models of sharded tables train the same on any number of devices and processes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.distribute import processes

#: `make soak` trains with all of them; the second one embedding variables.
OPTIMIZERS = ["adagrad", "keyed:adagrad"]
STEPS = 3
#: Of tables: of numbered rows, and of keys.
KINDS = ["rows", "keys"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    """What was printed by 2 workers, 3 devices and one, each of which restores the one before."""
    folder = tmp_path_factory.mktemp("saved")

    def of(name: str, restored: str, devices: int, workers: int) -> list[dict[str, Any]]:
        arguments = [str(folder), name, restored, str(devices), str(STEPS), "4", *OPTIMIZERS]
        printed = processes.run("tests.distribute.program", arguments, workers, seconds=300)
        return [json.loads(line) for line in printed]

    return {
        "workers": of("workers", "workers", 1, 2),
        "devices": of("devices", "workers", 3, 1),
        "one": of("one", "devices", 1, 1),
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_those_of_one_device(trained, name):
    (one,) = trained["one"]
    expected = one["trained"][name]["losses"]
    assert len(set(expected)) == 2 * STEPS
    for printed in [*trained["workers"], *trained["devices"]]:
        np.testing.assert_allclose(printed["trained"][name]["losses"], expected, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_goes_on_with_any_number(trained, name):
    """With the rows and the optimizer's variables: 2 workers, then 3 devices, then one."""
    (one,) = trained["one"]
    expected = one["trained"][name]["losses"][STEPS:]
    for printed in (item for some in trained.values() for item in some):
        np.testing.assert_allclose(printed["trained"][name]["restored"], expected, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_sends_distinct_ids_and_their_rows(trained, name):
    """In messages of counts, ids, rows and gradients of each dtype, hardly longer than these."""
    of_two_lookups = {"adagrad": 6 + 6, "keyed:adagrad": 6 + 4}  # of two dtypes, or one
    for printed in trained["workers"]:
        messages, sent, least = printed["trained"][name]["sent"]
        assert messages == of_two_lookups[name] * STEPS
        assert least <= sent <= least * 33 / 32


def test_layers_of_slots_are_fitted(trained):
    """By tf_keras: Keras 3's `fit` knows no strategy of several processes."""
    (one,) = trained["one"]
    assert len(set(one["fitted"])) == 3
    for printed in [*trained["workers"], *trained["devices"]]:
        np.testing.assert_allclose(printed["fitted"], one["fitted"], rtol=1e-6)


def test_owners_admit_and_forget_keys_as_one_does(trained):
    """How many keys were forgotten, how many are there, and how many have rows."""
    (one,) = trained["one"]
    expected = one["trained"]["keyed:adagrad"]["sizes"]
    (evicted,), (keys, admitted), _ = expected
    assert evicted > 0
    assert 0 < admitted < keys
    for printed in trained.values():
        sizes = zip(*(some["trained"]["keyed:adagrad"]["sizes"] for some in printed), strict=True)
        assert [np.sum(of_table, 0).tolist() for of_table in sizes] == expected


def test_all_lookups_bring_rows(trained):
    (one,) = trained["one"]
    assert [len(found) for found in one["by_functions"]] == [8, 4, 4]
    for printed in (item for some in trained.values() for item in some):
        assert printed["by_functions"] == one["by_functions"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_exports_all_shards(trained, kind):
    exported = {name: {p[kind]["exported"] for p in printed} for name, printed in trained.items()}
    assert exported == {"workers": {False}, "devices": {True}, "one": {True}}


def test_one_of_several_processes_writes_no_files_of_keys(trained):
    for name, expected in (("workers", 2), ("devices", 0), ("one", 0)):
        for printed in trained[name]:
            assert ["'whole'" in said for said in printed["files"]] == [True] * expected


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_that_would_change_numbers_are_refused(trained, kind):
    (one,) = trained["one"]
    assert one[kind]["refused"] == []
    words = ["of TensorFlow 1", "'global_clipnorm'", "'clipnorm'", "'clipvalue'", "Adafactor"]
    in_processes = [*words[:4], "LossScaleOptimizer", words[4]]
    for name, expected in (("devices", words), ("workers", in_processes)):
        for printed in trained[name]:
            for word, said in zip(expected, printed[kind]["refused"], strict=True):
                assert word in said
                assert "'refused" in said


@pytest.mark.parametrize(("kind", "most", "bad"), [("rows", 9, 10), ("keys", 2**63 - 1, -1)])
def test_a_wrong_id_is_an_error_in_all_replicas(trained, kind, most, bad):
    for name, last in (("workers", 1), ("devices", 2), ("one", 0)):
        for printed in trained[name]:
            message = f"sharded table small must be from 0 to {most}; replica {last} has {bad}"
            assert message in printed[kind]["wrong"]


def test_a_process_that_ends_is_named_in_the_others():
    told, gone = processes.run("tests.distribute.dying", [], 2)
    assert gone == "gone"
    assert "/job:worker/replica:0/task:1" in told
    assert "Collective" in told


@pytest.mark.parametrize("kind", KINDS)
def test_who_looks_up_alone_is_told(trained, kind):
    """The rows are in other processes, which would not answer."""
    for name, told in (("workers", "`strategy.run`"), ("devices", ""), ("one", "")):
        for printed in trained[name]:
            assert told in printed[kind]["alone"]
            assert bool(told) == bool(printed[kind]["alone"])
