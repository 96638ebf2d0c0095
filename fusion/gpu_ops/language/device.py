"""The language of device code, for a GPU or for Numba's CUDA simulator.

`on_device` brings functions of the CPU's kernels to the device, so that what an id or a weight
means is written once.
"""

from __future__ import annotations

import builtins
import importlib
import types
from functools import cache
from typing import Any

from numba import cuda
from numba.core import config
from numba.core.dispatcher import Dispatcher

from fusion.runtime.native import memory, pointers

#: Whether kernels run under Numba's CUDA simulator (NUMBA_ENABLE_CUDASIM=1).
SIMULATED = bool(config.ENABLE_CUDASIM)

language: Any = importlib.import_module(
    f"fusion.gpu_ops.language.{'simulated' if SIMULATED else 'intrinsics'}"
)

jit: Any = language.jit
as_record, as_words = language.as_record, language.as_words
load, store = language.load, language.store
load_as, store_as, as_float = language.load_as, language.store_as, language.as_float
atomic_add, atomic_min = language.atomic_add, language.atomic_min
bit_count = language.bit_count
compare_and_swap, publish = language.compare_and_swap, language.publish
from_lane, any_in_warp = language.from_lane, language.any_in_warp
vector_loader, vector_storer = language.vector_loader, language.vector_storer
added, multiplied, divided = language.added, language.multiplied, language.divided

#: What stands for the CPU's functions of memory.
_MEMORY = {
    id(getattr(module, name)): getattr(language, name)
    for module, names in (
        (memory, ("load", "store", "load_as", "store_as", "as_float")),
        (pointers, ("as_record", "as_words")),
    )
    for name in names
}


_stand_ins: dict[int, Any] = {}


def instead(function: Any, stand_in: Any) -> None:
    """Makes a device function stand for a jitted one or an intrinsic of the CPU's.

    That holds wherever what calls it is brought.
    """
    _stand_ins[id(function)] = stand_in


@cache
def on_device(function: Any) -> Any:
    """A jitted function of the CPU's kernels, with all that it calls, as a device function."""
    source = function.py_func
    names = {*source.__code__.co_names, "__builtins__"}
    scope = {key: _brought(value) for key, value in source.__globals__.items() if key in names}
    scope.setdefault("__builtins__", builtins)
    cells = tuple(types.CellType(_brought(cell.cell_contents)) for cell in source.__closure__ or ())
    code, defaults = source.__code__, source.__defaults__
    return jit(types.FunctionType(code, scope, source.__name__, defaults, cells))


def _brought(value: Any) -> Any:
    if id(value) in _stand_ins:
        return _stand_ins[id(value)]
    return on_device(value) if isinstance(value, Dispatcher) else _MEMORY.get(id(value), value)


__all__ = [
    "SIMULATED",
    "added",
    "any_in_warp",
    "as_float",
    "as_record",
    "as_words",
    "atomic_add",
    "atomic_min",
    "bit_count",
    "compare_and_swap",
    "cuda",
    "divided",
    "from_lane",
    "instead",
    "jit",
    "load",
    "load_as",
    "multiplied",
    "on_device",
    "publish",
    "store",
    "store_as",
    "vector_loader",
    "vector_storer",
]
