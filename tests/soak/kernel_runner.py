"""Runs kernels outside TensorFlow.

    python -m tests.soak.kernel_runner MEMORY PLAN RESULT [ERRORS]

PLAN is a file with a pickled `Plan`, RESULT gets a pickled `Report`. MEMORY says how tensors are
kept:

    guarded    between pages that may not be touched, each case twice: ending at such a page and
               beginning after one, with different bytes in what is not initialised. A case that
               ends its process is reported, and the next one runs in a new process.
    watched    on the heap, for valgrind, which writes its errors to the file ERRORS.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn

import llvmlite.binding as llvm

from tests.soak.buffers import Buffers, GuardedBuffers, HeapBuffers
from tests.soak.c_api import RESOURCE_EXHAUSTED, Call, CApi
from tests.soak.plan import Case, Finding, Outputs, Plan, Report

#: Of each `TF_DataType` of floats: how `memoryview` names its bits, and those of infinity.
_FLOATS: dict[int, tuple[Literal["H", "I", "Q"], int]] = {
    1: ("I", 0x7F80_0000),
    2: ("Q", 0x7FF0 << 48),
    14: ("H", 0x7F80),
    19: ("H", 0x7C00),
}

#: A call that takes longer is taken for an endless loop.
_SECONDS_PER_CASE = 60


class Runner:
    """The kernels of a plan, loaded."""

    def __init__(self, plan: Plan) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.plan = plan
        self._api = CApi()
        self._engines: list[llvm.ExecutionEngine] = []
        self._contents: dict[int, bytes] = {}
        self._entries = {place: self._load(k.name, k.code) for place, k in plan.kernels.items()}
        self._row_kernels = {
            place: [self._load(*one) for one in kernel.row_kernels]
            for place, kernel in plan.kernels.items()
        }

    def _load(self, name: str, code: bytes) -> int:
        machine = llvm.Target.from_default_triple().create_target_machine(
            codemodel="jitdefault", jit=True
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self._engines.append(engine)
        return int(engine.get_function_address(name))

    def run(self, case: Case, buffers: Buffers) -> list[str]:
        """What is wrong with one case."""
        call, outputs = self._call(case, buffers)
        found = call.misuses + _differences(case, call, outputs)
        found += [
            f"the variable of input {index} is not what it should be"
            for index, content in self._contents.items()
            if content != case.variables[index][1]
        ]
        for fail_at in range(1, call.allocations + 1 if case.starved else 1):
            starved, _ = self._call(case, buffers, fail_at)
            found += [f"{what} when allocation {fail_at} fails" for what in starved.misuses]
            if starved.code != RESOURCE_EXHAUSTED:
                found.append(f"code {starved.code} when allocation {fail_at} fails")
        return found

    def _call(self, case: Case, buffers: Buffers, fail_at: int = 0) -> tuple[Call, Outputs]:
        kernel, entry = self.plan.kernels[case.kernel], self._entries[case.kernel]
        table = list(kernel.table)
        for place, name in kernel.names.items():
            table[place] = _put(buffers, name + b"\0")
        counters = table[kernel.counters] = buffers.allocate(8 * kernel.counter_words)
        ctypes.memset(counters, 0, 8 * kernel.counter_words)
        table_address = _put(buffers, _words(table))
        attrs = list(case.attrs)
        for place, dtype in case.accesses.items():
            words = self._api.access.words(dtype)
            attrs[place : place + len(words)] = words
        for place, number in case.row_kernels.items():
            attrs[place] = self._row_kernels[case.kernel][number]
        state = _put(buffers, _words([entry, table_address, *attrs]))
        variables = {index: given for index, (given, _) in case.variables.items()}
        call = self._api.call = Call(buffers, case.inputs, case.outputs, fail_at, variables)
        ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(entry)(state, call.handle())
        outputs, self._contents = call.finish(), call.variables.contents()
        call.variables.release()
        if (calls := ctypes.c_int64.from_address(counters + 8 * kernel.calls).value) != 1:
            call.misuses.append(f"{calls} calls were counted")
        names = (table[place] for place in kernel.names)
        for address in (state, table_address, counters, *names):
            buffers.release(address)
        return call, outputs


def _words(values: list[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)


def _put(buffers: Buffers, content: bytes) -> int:
    address = buffers.allocate(len(content))
    ctypes.memmove(address, content, len(content))
    buffers.freeze(address)
    return address


def _differences(case: Case, call: Call, outputs: Outputs) -> list[str]:
    """How the outcome differs from what is expected."""
    code, expected = case.expected
    if call.code != code:
        return [f"the call ended with code {call.code} and not {code}: {call.message!r}"]
    return [
        f"output {k} is not what it should be"
        for k, (actual, right) in enumerate(zip(outputs, expected, strict=True))
        if actual != right and _numbers(case, k, actual) != _numbers(case, k, right)
    ]


def _numbers(case: Case, output: int, value: tuple[tuple[int, ...], bytes]) -> object:
    """The shape and the bits of an output, with one NaN for all.

    The bits of a NaN depend on the order of a sum's operands, which is that of the processor that
    a kernel was compiled for.
    """
    shape, content = value
    dtype, _ = case.outputs[output]
    if dtype not in _FLOATS:
        return shape, content
    bits, infinity = _FLOATS[dtype]
    numbers = memoryview(content).cast(bits)
    magnitude = (1 << (8 * numbers.itemsize - 1)) - 1
    return shape, [n if n & magnitude <= infinity else magnitude for n in numbers]


def run_guarded(runner: Runner) -> Report:
    """Runs the cases in child processes, a new one after each case that ends its process."""
    cases = runner.plan.cases
    report = Report()
    done = 0
    while done < len(cases):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run_between_guards(runner, cases[done:], writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            for found in _received(pipe):
                report.findings.extend(Finding(cases[done].label, what) for what in found)
                done += 1
        _, status = os.waitpid(child, 0)
        if done < len(cases):
            end = f"exit code {os.waitstatus_to_exitcode(status)}"
            if os.WIFSIGNALED(status):
                end = signal.Signals(os.WTERMSIG(status)).name
            report.findings.append(Finding(cases[done].label, f"the process ended with {end}"))
            done += 1
    return report


def _run_between_guards(runner: Runner, cases: list[Case], results: int) -> NoReturn:
    """Writes what is wrong with each case to the file `results`, then ends the process."""
    try:
        with os.fdopen(results, "wb") as pipe:
            for case in cases:
                signal.alarm(_SECONDS_PER_CASE)
                found = []
                for at_end, poison in ((True, 0xA5), (False, 0x5A)):
                    place = "before" if at_end else "after"
                    for what in runner.run(case, GuardedBuffers(at_end, poison)):
                        found.append(f"{what} (right {place} a guard page)")
                pickle.dump(found, pipe)
                pipe.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _received(pipe: BinaryIO) -> Iterator[list[str]]:
    while True:
        try:
            yield pickle.load(pipe)
        except EOFError:
            return


def run_watched(runner: Runner, errors: Path) -> Report:
    """Runs the cases under the checker."""
    report = Report(error_cases=["loading the kernels"] * _errors_in(errors))
    buffers = HeapBuffers()
    for case in runner.plan.cases:
        report.findings.extend(Finding(case.label, what) for what in runner.run(case, buffers))
        new = _errors_in(errors) - len(report.error_cases)
        report.error_cases.extend([case.label] * new)
    return report


def _errors_in(path: Path) -> int:
    return path.read_bytes().count(b"<error>")


def main() -> None:
    """The command line."""
    memory, plan, result, *errors = sys.argv[1:]
    runner = Runner(pickle.loads(Path(plan).read_bytes()))
    report = run_guarded(runner) if memory == "guarded" else run_watched(runner, Path(*errors))
    Path(result).write_bytes(pickle.dumps(report))


if __name__ == "__main__":
    main()
