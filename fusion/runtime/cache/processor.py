"""The processor that kernels are compiled for: this machine's, or one that is named.

Whether code for one processor runs on another is asked of LLVM, which knows the instructions of
each: it inlines a function into another only if the caller's processor has all of the callee's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from fusion.runtime.llvm import binding

#: Names the processor to compile for and to take kept kernels of; unset, it is this machine's.
CPU_VARIABLE = "FUSION_CPU"

#: LLVM's names of those that can be named: levels of the x86-64 psABI, and processors. LLVM ends
#: the process for those that have no 64 bits, and takes an unknown name for the oldest of all.
NAMES = (
    "x86-64-v2",
    "x86-64-v3",
    "x86-64-v4",
    *("haswell", "broadwell", "skylake", "skylake-avx512", "cascadelake", "cooperlake"),
    *("icelake-server", "sapphirerapids", "emeraldrapids", "graniterapids"),
    *("znver1", "znver2", "znver3", "znver4", "znver5"),
)

_logger = logging.getLogger("fusion")


@dataclass(frozen=True)
class Processor:
    """What code is compiled for.

    Attributes:
      name: LLVM's.
      features: LLVM's too, what there is with a plus and what not with a minus; empty are those
        that the name stands for.
      suffix: with one, code is for a library with code for several processors: it may be at any
        address, and the names of its functions end so.
    """

    name: str
    features: str = ""
    suffix: str = ""

    def has(self, feature: str) -> bool:
        """Whether code for it may use an instruction set, by LLVM's name."""
        if self.features:
            return f"+{feature}" in self.features.split(",")
        return runs(Processor("x86-64", f"+{feature}"), on=self)


@cache
def host() -> Processor:
    """This machine's."""
    llvm = binding()
    return Processor(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def named(name: str) -> Processor:
    """The processor that LLVM calls so.

    Raises:
      ValueError: kernels cannot be compiled for it.
    """
    if name in NAMES:
        return Processor(name)
    raise ValueError(f"{name!r} is none of {', '.join(NAMES)}")


def target() -> Processor:
    """The processor that this process compiles for, and whose kernels it loads."""
    return _compiled_for.get() or default_target()


_compiled_for: ContextVar[Processor | None] = ContextVar("compiled_for", default=None)


@contextmanager
def compiling_for(processor: Processor) -> Iterator[None]:
    """A block in which this thread compiles for `processor`, which may run none of it itself."""
    before = _compiled_for.set(processor)
    try:
        yield
    finally:
        _compiled_for.reset(before)


@cache
def default_target() -> Processor:
    """The processor that this process loads kernels of."""
    processor, why_not = choice(os.environ.get(CPU_VARIABLE, ""))
    if why_not:
        _logger.warning("%s; kernels are those of this machine's processor", why_not)
    return processor


def choice(name: str) -> tuple[Processor, str]:
    """The processor that `FUSION_CPU` chooses, and what is wrong with the choice, or nothing."""
    if not name:
        return host(), ""
    try:
        processor = named(name)
    except ValueError as error:
        return host(), f"{CPU_VARIABLE}: {error}"
    if not runs(processor, on=host()):
        lacks = f"this machine ({host().name}) lacks instructions of {name}"
        return host(), f"{CPU_VARIABLE}: {lacks}"
    return processor, ""


_QUESTION = """
declare void @work()
define internal void @code() #0 {{ call void @work() ret void }}
define void @machine() #1 {{ call void @code() ret void }}
attributes #0 = {{ "target-cpu"="{code.name}" "target-features"="{code.features}" }}
attributes #1 = {{ "target-cpu"="{machine.name}" "target-features"="{machine.features}" }}
"""


@cache
def runs(code: Processor, on: Processor) -> bool:
    """Whether a processor has all instructions that code for another may use."""
    llvm = binding()
    llvm.initialize_native_target()
    module = llvm.parse_assembly(_QUESTION.format(code=code, machine=on))
    machine = llvm.Target.from_default_triple().create_target_machine()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return "@code" not in str(module)
