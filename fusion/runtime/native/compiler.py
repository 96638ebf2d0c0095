"""From a Python function to native object code that needs nothing of Python.

Numba types and lowers the function; a C entry is put in front of it in the same LLVM module, and
the module is emitted as an object file. Such a file has one exported function and refers only to
TensorFlow's C API and libc, so it can be kept on disk and loaded without Numba.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from fusion.runtime.cache import processor
from fusion.runtime.native.soft_float16 import CONVERSIONS
from fusion.runtime.tensorflow.library import SYMBOLS

#: The functions that compiled code may call, in addition to TensorFlow's C API. Those that change
#: pages of the process, such as madvise, take a lock for which each thread waits that touches new
#: memory: they are for the creation of variables, not for calls of ops.
LIBC = frozenset(
    {"snprintf", "memcpy", "memset", "memmove", ""}
    | {"sem_wait", "sem_post", "sched_yield", "malloc", "free"}
    | {"dlopen", "dlsym", "getenv", "sched_getaffinity", "sem_init", "write", "__register_atfork"}
    | {
        "madvise",
        "mincore",
        "mmap",
        "munmap",
        "open",
        "close",
        "lseek",
        "pread",
        "strerror",
        "sysconf",
        "__errno_location",
        "memcmp",
        "clock_gettime",
        "getrusage",
        "syscall",
        "pthread_create",
        "pthread_detach",
        "pthread_self",
    }
)


@dataclass(frozen=True)
class Compilation:
    """The compilation of a function, as data: any process that has this package can do it.

    Attributes:
      module: the name of the module with the function.
      name: the name of the function in it, or of a factory of the function.
      n_args: how many int64 the function takes.
      symbol: the name of the C function.
      arguments: the arguments of the factory; None if `name` is the function.
    """

    module: str
    name: str
    n_args: int
    symbol: str
    arguments: tuple[Any, ...] | None = None

    def __str__(self) -> str:
        """The same text in each process: functions by their names, and not by their addresses."""
        if self.arguments is None:
            return repr(self)
        named = tuple(
            f"{item.__module__}.{item.__qualname__}" if isinstance(item, FunctionType) else item
            for item in self.arguments
        )
        return repr(replace(self, arguments=named))

    def __call__(self) -> bytes:
        """The object file, compiled now; see `compile_object`."""
        function = getattr(importlib.import_module(self.module), self.name)
        if self.arguments is not None:
            function = function(*self.arguments)
        return compile_object(getattr(function, "py_func", function), self.n_args, self.symbol)


def compile_object(function: Callable[..., Any], n_args: int, symbol: str) -> bytes:
    """The object file of `function(*int64)`, exported as the C function `void symbol(int64...)`.

    For a library of code for several processors, the symbol ends with the processor's suffix.

    Raises:
      RuntimeError: the code refers to something other than TensorFlow's C API and libc, or it can
        raise a Python exception.
    """
    from numba.core import registry, types
    from numba.core.compiler_lock import global_compiler_lock

    from fusion.runtime.native.code_generation import OPTIONS, NativeCompiler, Pipeline
    from fusion.runtime.native.pointers import entry_types

    target = registry.cpu_target
    symbol += processor.target().suffix
    with global_compiler_lock:
        options = dict(OPTIONS, nopython=True)
        native = NativeCompiler(function, target, options, {}, Pipeline)
        arguments = entry_types(function)
        assert len(arguments) == n_args, (symbol, arguments)
        result = native.compile(arguments, types.void)
        library = result.library
        library.add_ir_module(_entry_module(target.target_context, result.fndesc, symbol))
        library.finalize()
        library.optimize()
        code = _emit(library, symbol)
    foreign = undefined_symbols(code) - LIBC - {*SYMBOLS}
    if foreign:
        raise RuntimeError(f"{symbol}: compiled code needs {', '.join(sorted(foreign))}")
    # The caller cannot receive a Python exception; code that may raise one carries it pickled.
    if "picklebuf" in library.get_llvm_str():
        raise RuntimeError(f"{symbol}: compiled code can raise a Python exception")
    return code


def _entry_module(context: Any, fndesc: Any, symbol: str) -> Any:
    """A module with a C function that calls Numba's function of the same arguments."""
    from llvmlite import ir

    module = context.create_module(symbol)
    call_type = context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
    callee = ir.Function(module, call_type, fndesc.llvm_func_name)
    word = ir.IntType(64)
    entry_type = ir.FunctionType(ir.VoidType(), [word] * len(fndesc.argtypes))
    entry = ir.Function(module, entry_type, symbol)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    # The status is for Python exceptions only, which `compile_object` refuses.
    context.call_conv.call_function(
        builder, callee, fndesc.restype, fndesc.argtypes, list(entry.args)
    )
    builder.ret_void()
    return module


#: No array is ever destroyed: all are views of TensorFlow's memory and none owns anything
#: (allocating one would need a symbol that is not allowed), yet Numba emits a test for the last
#: reference here and there, with a call that is never made.
_NO_DESTRUCTOR = "define linkonce_odr void @NRT_MemInfo_call_dtor(ptr %p) { ret void }"


#: The C library's functions of these names, without their errors. Some versions of LLVM call them
#: for negative numbers, since an instruction does not report the error.
_SQUARE_ROOTS = {
    name: f"""
declare {llvm_type} @llvm.sqrt.{suffix}({llvm_type})

define linkonce_odr {llvm_type} @{name}({llvm_type} %x) {{
  %root = call {llvm_type} @llvm.sqrt.{suffix}({llvm_type} %x)
  ret {llvm_type} %root
}}
"""
    for name, llvm_type, suffix in (("sqrt", "double", "f64"), ("sqrtf", "float", "f32"))
}


def _emit(library: Any, symbol: str) -> bytes:
    """The object code of a finished library with `symbol` as its only exported function."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(library.get_llvm_str())
    module.link_in(llvm.parse_assembly(_NO_DESTRUCTOR))
    if not processor.target().has("f16c"):
        module.link_in(llvm.parse_assembly(CONVERSIONS))
    called = {function.name for function in module.functions}
    for name in called & _SQUARE_ROOTS.keys():
        module.link_in(llvm.parse_assembly(_SQUARE_ROOTS[name]))
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
        elif function.name == symbol and processor.target().suffix:
            function.visibility = "hidden"  # only functions of its library call it
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    return bytes(library.codegen._tm.emit_object(module))


def undefined_symbols(code: bytes) -> set[str]:
    """The names that an ELF64 object file leaves to the linker.

    The format is that of the System V ABI (AMD64), chapter 4.
    """
    (section_offset,) = struct.unpack_from("<Q", code, 40)
    entry_size, count = struct.unpack_from("<HH", code, 58)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", code, section_offset + k * entry_size)
        for k in range(count)
    ]
    names = set()
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        strings = sections[section[6]][4]
        for offset in range(section[4], section[4] + section[5], 24):
            name, _, _, index = struct.unpack_from("<IBBH", code, offset)
            if index == 0:  # SHN_UNDEF
                start = strings + name
                names.add(code[start : code.index(b"\0", start)].decode())
    return names
