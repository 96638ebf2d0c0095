"""The long checks find what they look for: run on something small, and on something wrong."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.ops.registered import SPECS
from tests.differential.case import Case
from tests.soak import (
    jobs,
    kernel_objects,
    kernel_plan,
    kernel_runner,
    kernels,
    memory,
    plan,
    small_calls,
    threads,
    valgrind,
)
from tests.soak.faulty import FAULTS
from tests.soak.kernel_cases import CALLS
from tests.soak.kernel_objects import KERNELS
from tests.soak.plan import Finding

#: Kernels of the first and of the last step, which other tests use too.
CHOSEN = [
    place
    for place, (spec, types) in enumerate(KERNELS)
    if spec.name in ("PruneInvalidAndFillEmptyRows", "FusedEmbeddingSparsePostLookUpV2")
    and set(types.values()) <= {"int64", "float32"}
]


def test_faults_are_found_between_guard_pages():
    findings = kernels.run_guarded(kernel_objects.kernel_objects([0]), kernel_plan.self_test())
    assert {finding.case for finding in findings} == {*FAULTS} - {"none"}
    assert kernels.self_test_failures(findings, kernels.HARMLESS) == []
    blind = [finding for finding in findings if finding.case != "read past the end"]
    assert "not found" in kernels.self_test_failures(blind, kernels.HARMLESS)[0].what
    deluded = [*findings, Finding("none", "")]
    assert "was found" in kernels.self_test_failures(deluded, kernels.HARMLESS)[0].what


def test_kernels_run_outside_tensorflow_as_inside():
    cases = kernel_plan.cases(0, CHOSEN, share=0.1)
    codes = {case.expected[0] for case in cases}
    assert {0, 3} <= codes
    assert any(case.starved for case in cases)
    assert kernels.run_guarded(kernel_objects.kernel_objects(CHOSEN), cases) == []


def test_ops_with_variables_run_outside_tensorflow_as_inside():
    chosen = [
        place
        for place, (spec, types) in enumerate(KERNELS)
        if spec.name in ("KeyedEmbeddingGather", "RemoveEmbeddingKeys")
        and set(types.values()) <= {"float32"}
    ]
    cases = kernel_plan.cases(0, chosen, share=0.1)
    assert {0, 3, 9} <= {case.expected[0] for case in cases}
    compiled = kernel_objects.kernel_objects(chosen)
    assert kernels.run_guarded(compiled, cases) == []
    # A variable with other words afterwards, and one that is not there.
    case = next(case for case in cases if len(case.variables) == 3 and case.expected[0] == 0)
    wrong = {index: (given, content + b"1") for index, (given, content) in case.variables.items()}
    found = kernels.run_guarded(compiled, [replace(case, variables=wrong)])
    assert "the variable of input 0 is not what it should be" in found[0].what
    some = {index: case.variables[index] for index in (0, 2)}
    found = kernels.run_guarded(compiled, [replace(case, variables=some)])
    assert "code 9 and not 0: 'there is no variable behind input 1" in found[0].what


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
def test_outputs_are_compared_bit_by_bit_but_for_nan(dtype):
    right = np.array([1, np.nan, np.inf, -0.0]).astype(dtype.as_numpy_dtype)
    case = plan.Case("", 0, [], [], [(dtype.as_datatype_enum, 1)], (0, [((4,), right.tobytes())]))
    call: Any = SimpleNamespace(code=0)
    negated = -right[1:2]
    assert negated.tobytes() != right[1:2].tobytes()
    for place, other, is_same in ((1, negated[0], True), (1, 2.0, False), (3, 0.0, False)):
        outputs = right.copy()
        outputs[place] = other
        found = kernel_runner._differences(case, call, [((4,), outputs.tobytes())])
        assert (found == []) == is_same


def test_every_op_and_every_array_kernel_is_checked():
    checked = {spec.name for spec, _ in KERNELS[1:]}
    assert {*CALLS} == checked
    assert checked >= {spec.name for spec in SPECS if spec.builder is None}
    assert [name for name, ops in kernel_objects.array_kernels().items() if not ops] == []


ERRORS = """<valgrindoutput>
<error><kind>InvalidRead</kind><what>Invalid read</what><stack>
  <frame><ip>0x1</ip></frame><frame><obj>/lib/libffi.so</obj><fn>ffi_call</fn></frame>
</stack></error>
<error><kind>UninitCondition</kind><what>Conditional jump</what><stack>
  <frame><obj>/lib/libpython.so</obj><fn>PyLong_FromLong</fn></frame>
</stack></error>
<error><kind>SyscallParam</kind><what>Syscall param</what><stack>
  <frame><obj>/lib/libc.so</obj><fn>write</fn></frame>
</stack></error>
</valgrindoutput>"""


def test_errors_are_ours_if_compiled_code_had_a_part_in_them(tmp_path):
    path = tmp_path / "errors.xml"
    path.write_text(ERRORS)
    errors = valgrind.read_errors(path)
    assert [error.ours for error in errors] == [True, False, True]
    assert errors[0].what == "Invalid read in compiled code < ffi_call"


def measurement(bytes_per_call, calls=20_000):
    samples = [500 << 20 | int(k / 47 * calls * bytes_per_call) for k in range(48)]
    return memory.Measurement("calls", calls, 1.0, samples, samples)


@pytest.mark.parametrize(("bytes_per_call", "is_flat"), [(0, True), (0.5, True), (32, False)])
def test_memory_that_grows_is_not_flat(bytes_per_call, is_flat):
    assert measurement(bytes_per_call).is_flat == is_flat


def test_growth_that_ends_is_flat():
    samples = [500 << 20 | min(k, 20) << 15 for k in range(48)]
    assert memory.Measurement("calls", 20_000, 1.0, samples, samples).is_flat


def test_a_leak_is_measured():
    kept = []
    workload = memory.Workload("leak", 2, lambda: kept.append(memory._libc.malloc(100)))
    leaking = memory.measure(workload, 5000)
    assert 50 <= leaking.slope(leaking.heap) < 80
    assert not leaking.is_flat


@pytest.mark.parametrize("side", ["ours", "stock"])
def test_small_calls_can_be_made(side):
    workloads = small_calls.workloads(side)
    assert [workload.name for workload in workloads] == [*small_calls.SHARES]
    assert sum(small_calls.SHARES.values()) == pytest.approx(1)
    for workload in workloads:
        workload.once()


def job(run, expected):
    return jobs.Job("kind", "label", 1.0, run, expected)


def failing():
    raise ValueError("no")


@pytest.mark.parametrize(
    ("run", "expected", "wrong"),
    [
        (lambda: (b"1",), (b"1",), None),
        (lambda: (b"2",), (b"1",), "other bits"),
        (failing, (b"1",), "ValueError: no"),
        (failing, ValueError, None),
        (failing, KeyError, "ValueError: no"),
        (lambda: (b"1",), ValueError, "no ValueError"),
    ],
)
def test_what_is_wrong_with_a_job(run, expected, wrong):
    assert job(run, expected).check() == wrong


def test_threads_report_what_is_wrong():
    right, wrong = job(lambda: (b"1",), (b"1",)), job(lambda: (b"2",), (b"1",))
    tally = threads.in_threads(4, lambda place: threads.each_once([right, wrong], place))
    assert tally.done == {"kind": 8}
    assert tally.wrong == ["kind: label: other bits"] * 4
    assert threads.report("here", tally, 1.0) == 4
    assert list(threads.until(0.0, [right], "seed")) == []


def test_shared_functions_are_called_with_other_batches():
    case = Case(mode="function", table="fed", version="v2", lengths=(2, 0, 3), dim=2)
    known = jobs.verified(replace(case, seed=seed) for seed in (1, 2))
    first, second = jobs.shared(known)
    assert first.expected != second.expected
    assert [first.check(), second.check(), first.check()] == [None] * 3
    mixed_up = replace(second, run=first.run)
    assert mixed_up.check() == "other bits"


def test_ids_outside_the_table_are_refused():
    assert jobs.refused(Case(lengths=(2, 1))).check() is None
