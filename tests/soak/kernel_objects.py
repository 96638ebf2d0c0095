"""The object code of every kernel: `python -m tests.soak.kernel_objects FILE`, a pickled list."""

from __future__ import annotations

import importlib
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from numba.core.dispatcher import Dispatcher

import fusion
from fusion.ops.bags.builders import BAGS, BAGS_GRAD
from fusion.ops.node_kernels import node_of_bags
from fusion.ops.registered import SPECS
from fusion.runtime.native import objects
from fusion.runtime.native.compiler import undefined_symbols
from fusion.runtime.records import LiveMemory
from fusion.runtime.registration import kernel_objects as runtime
from fusion.runtime.registration import op_kernels
from fusion.runtime.registration.creation import FIRST_ROW_KERNEL
from fusion.runtime.tensorflow import layout
from fusion.runtime.tensorflow.layout import Counters, InputEntry, OpTable
from fusion.runtime.tensorflow.spec import OpSpec
from tests.soak import c_api
from tests.soak.faulty import FAULTY
from tests.soak.plan import Kernel


def uses_variables(spec: OpSpec) -> bool:
    """Whether an op changes embedding variables: its state is an `AccessState`."""
    return spec.builder is not None and spec.builder.name == "build_access_state"


def uses_row_kernels(spec: OpSpec) -> bool:
    """Whether an op combines gathered rows: its state has `BagWords`."""
    return spec.builder in (BAGS, BAGS_GRAD)


#: Every op, the faulty one first, and its kernels' choices of type attrs. Tables and weights have
#: one dtype, as in the lookups: kernels of two are made of the same parts. The ops of whole columns
#: and the parser of Examples are not among them; tests.ops.test_lookup_bounds and
#: tests.ops.test_parse_large have them.
KERNELS: list[tuple[OpSpec, dict[str, str]]] = [
    (spec, types)
    for spec in (FAULTY, *SPECS)
    if "CPU" in spec.kernels
    if spec.builder is None or uses_variables(spec) or uses_row_kernels(spec)
    for combination in itertools.product(*spec.kernel_types.values())
    for types in [dict(zip(spec.kernel_types, combination, strict=True))]
    if types.get("T", types.get("Tw")) == types.get("Tw", types.get("T"))
]


def kernel_object(spec: OpSpec, types: dict[str, str]) -> Kernel:
    """The very object code that is loaded into TensorFlow, from the cache or compiled now.

    Raises:
      RuntimeError: it calls something of TensorFlow's that `tests.soak.c_api` does not have.
    """
    name = runtime.kernel_name(spec, "CPU", types)
    if spec is FAULTY:  # no source of the package, so that a kept object might be of an older one
        code = runtime.kernel_recipe(spec, "CPU", types)[1].compile_it()
    else:
        code = runtime.kernel_object(spec, "CPU", types)
    row_kernels = _row_kernels(spec, types) if uses_row_kernels(spec) else []
    called = {symbol for symbol in undefined_symbols(code) if symbol.startswith("TF_")}
    if missing := called - {*c_api.PROTOTYPES}:
        raise RuntimeError(f"tests.soak.c_api lacks {', '.join(sorted(missing))}")
    table = layout.words(spec, LiveMemory())
    names = {
        OpTable.entries + k * InputEntry.SIZE + InputEntry.name: arg.name.encode()
        for k, arg in enumerate(spec.inputs)
    }
    for place in (*names, OpTable.counters):
        table[place] = 0
    return Kernel(
        name, code, row_kernels, table, names, OpTable.counters, Counters.SIZE, Counters.calls
    )


def _row_kernels(spec: OpSpec, types: dict[str, str]) -> list[tuple[str, bytes]]:
    """Those for nodes without weights and with them."""
    found, kernels_of = [], op_kernels.kernels_of(spec.name)
    assert kernels_of is not None
    for weighted in (False, True):
        node = node_of_bags(spec, types["T"], weighted)
        (index,) = (one for one in kernels_of.needs(node) if one >= FIRST_ROW_KERNEL)
        name, recipe = kernels_of.recipe(index)
        found.append((name, objects.get(name, recipe.compile_it)))
    return found


def kernel_objects(places: Iterable[int]) -> dict[int, Kernel]:
    """The object code of kernels, given by their places in `KERNELS`."""
    return {place: kernel_object(*KERNELS[place]) for place in places}


def kernel_objects_for(processor: str) -> dict[int, Kernel]:
    """The object code of all kernels for another processor, by its name in LLVM."""
    variables = {"FUSION_CPU": processor}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "kernels"
        command = [sys.executable, "-m", "tests.soak.kernel_objects", str(result)]
        subprocess.run(command, env=os.environ | variables, check=True)
        kernels: dict[int, Kernel] = pickle.loads(result.read_bytes())
    return kernels


def array_kernels() -> dict[str, set[str]]:
    """The loops of lookups on CPUs by name, each with the ops whose kernels call it.

    Found by following the functions that a kernel's body names, before anything is compiled.
    """
    users: dict[str, set[str]] = {}
    package = Path(fusion.__file__).parent
    for folder in ("cpu_ops", "ops/bags/cpu_kernels", "ops/columns/cpu_kernels"):
        for source in package.glob(f"{folder}/*.py"):
            parts = source.relative_to(package.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts))
            for function in vars(module).values():
                if isinstance(function, Dispatcher) and _is_array_kernel(function):
                    users.setdefault(_name(function), set())
    inference = [(spec, dict[str, str]()) for spec in SPECS if not spec.is_per_dtype]
    for spec, types in [*KERNELS, *inference]:
        made = spec.kernels["CPU"](spec, types)
        body = made[0] if isinstance(made, tuple) else made
        for function in _called(body, set()):
            if _is_array_kernel(function):
                users.setdefault(_name(function), set()).add(spec.name)
    return users


def _is_array_kernel(function: Any) -> bool:
    module, name = function.py_func.__module__, function.py_func.__name__
    return not name.startswith("_") and (
        module.startswith("fusion.cpu_ops.") or ".cpu_kernels." in module
    )


def _name(function: Any) -> str:
    return f"{function.py_func.__module__.rpartition('.')[2]}.{function.py_func.__name__}"


def _called(function: Any, seen: set[Any]) -> Iterator[Any]:
    """The jitted functions that a Python function calls, directly or not."""
    code = function.__code__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*cells, *(function.__globals__.get(name) for name in code.co_names)]
    for value in list(values):
        if isinstance(value, ModuleType):
            values += [getattr(value, name, None) for name in code.co_names]
    for value in values:
        if isinstance(value, Dispatcher) and value not in seen:
            seen.add(value)
            yield value
            yield from _called(value.py_func, seen)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps(kernel_objects(range(len(KERNELS)))))
