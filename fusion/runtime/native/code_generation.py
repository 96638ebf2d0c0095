"""Numba's compiler for kernels: up to LLVM code, which needs no Python symbol."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler
from numba.core.dispatcher import _FunctionCompiler

from fusion.runtime.cache import processor

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


class Library(CPUCodeLibrary):
    """LLVM code that is linked into other code or written to a file, and never run from here.

    Numba would optimize each function with all that it calls, and generate machine code for it:
    twice the time that it takes to do that once, for the function that is written.
    """

    def optimize(self) -> None:
        """Optimizes the code, after everything has been linked in."""
        super()._optimize_final_module()

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _Codegen(JITCPUCodegen):
    """Numba's code generator for a processor that its own settings do not know of."""

    def __init__(self, target: processor.Processor) -> None:
        self._target = target
        super().__init__("fusion")

    def _customize_tm_options(self, options: dict[str, Any]) -> None:
        super()._customize_tm_options(options)
        if self._target.suffix:
            options |= {"reloc": "pic", "codemodel": "small", "jit": False}

    def _get_host_cpu_name(self) -> str:
        return self._target.name

    def _get_host_cpu_features(self) -> str:
        return self._target.features


_codegen = cache(_Codegen)


class Pipeline(Compiler):
    """Numba's compiler, up to LLVM code."""

    def __init__(self, typing: Any, target: Any, library: Any, *options: Any) -> None:
        del library
        ours = Library(_codegen(processor.target()), "fusion")
        super().__init__(typing, target, ours, *options)


class NativeCompiler(_FunctionCompiler):
    """Compiles without the wrappers for callers in Python and C, which need Python's symbols."""

    def _customize_flags(self, flags: Any) -> Any:
        flags.no_cpython_wrapper = True
        flags.no_cfunc_wrapper = True
        flags.no_compile = True
        return flags


class InlineCompiler(NativeCompiler):
    """Compiles functions that are only ever called from other compiled functions."""

    def compile(self, args: Any, return_type: Any) -> Any:
        """Compiles a function for types of arguments."""
        result = super().compile(args, return_type)
        # Numba finds the code of a callee by its entry point, a builtin function. Such a function
        # has none, so that any other builtin that is there only once will do.
        result = result._replace(entry_point=[].append)
        context = self.targetdescr.target_context
        context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return result
