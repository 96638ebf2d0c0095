"""The host side of kernels for GPUs: `steps`, compiled into the bodies of TensorFlow's ops.

In compiled code a `steps.device.Device` is the address of a few words on the stack of the op's
call. Errors of the driver end the call (`fusion.runtime.native.op.fail`); after one, nothing is
launched and no memory had.
"""

from __future__ import annotations

import builtins
import types as python_types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import models, overload, overload_method, register_model

from fusion.gpu_ops.host.driver_calls import driver_call, launch_call
from fusion.gpu_ops.host.errors import error_reporter
from fusion.gpu_ops.kernels.registry import KERNELS
from fusion.gpu_ops.layout.arguments import fields_of
from fusion.gpu_ops.steps.device import launch_for
from fusion.runtime.cuda.layout import (
    ERROR_SLOTS,
    SLOT_BYTES,
    SLOT_COUNT,
    CopySlot,
    ErrorRecord,
    ErrorSlot,
    GpuRecord,
    LauncherRecord,
)
from fusion.runtime.layout import Address, Int64, Layout
from fusion.runtime.native import op
from fusion.runtime.native.atomic import atomic_add, atomic_store, atomic_swap_if
from fusion.runtime.native.code_generation import OPTIONS
from fusion.runtime.native.instruction import instruction
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import call_at, load, pointer, store
from fusion.runtime.native.pointers import POINTERS, as_record, stack_record, stack_words
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOATS
from fusion.runtime.tensorflow.layout import Frame
from fusion.runtime.threads.jobs import sched_yield


class DeviceRecord(Layout):
    """The device of a call."""

    frame: Frame
    launcher: LauncherRecord
    stream: Address  # 0 where the call ended before there was any
    gpu: Int64  # its number
    gpu_record: GpuRecord
    error_slot: ErrorSlot


#: A grid is not larger.
_MAX_BLOCKS = 2**31 - 1

_NUMBERS = {name: number for number, name in enumerate(KERNELS)}


#: Numba's types of what is passed as an integer: numbers and addresses.
_WORDS = types.Integer, types.Boolean, POINTERS.record_type, type(POINTERS.words_type)


class DeviceType(types.Type):
    """Numba's type of a device."""

    def __init__(self) -> None:
        super().__init__("Device")


_device_type = DeviceType()


@register_model(DeviceType)
class _DeviceModel(models.PrimitiveModel):
    def __init__(self, manager: Any, device_type: Any) -> None:
        super().__init__(manager, device_type, ir.IntType(64))


@instruction(_device_type(types.int64))
def _device_at(builder: Any, address: Any) -> Any:
    """The device of a `DeviceRecord`."""
    return address


@instruction(POINTERS.record_type(DeviceRecord)(_device_type))
def _record_of(builder: Any, device: Any) -> Any:
    """A device's record."""
    return device


@cache
def on_host(function: Any) -> Any:
    """A function of `steps`, with all those that it calls, as a jitted one."""
    names = function.__code__.co_names
    scope = {key: _brought(value) for key, value in function.__globals__.items() if key in names}
    scope["__builtins__"] = builtins
    code, defaults = function.__code__, function.__defaults__
    return jit(python_types.FunctionType(code, scope, function.__name__, defaults))


def _brought(value: Any) -> Any:
    is_function = isinstance(value, python_types.FunctionType)
    is_step = is_function and not hasattr(value, "py_func") and value is not launch_for
    is_ours = is_step and value.__module__.startswith(("fusion.gpu_ops.", "fusion.ops."))
    return on_host(value) if is_ours else value


# --- a call's device ------------------------------------------------------------------------


@jit
def _of_launcher(record: DeviceRecord, field: int) -> int:
    """A field of the `LauncherRecord`."""
    return load(record.launcher, field)


@jit
def _call(record: DeviceRecord, function: int, *arguments: int) -> int:
    """Calls a function of the driver, a field of `LauncherRecord`; an error ends the op's call."""
    code = driver_call(_of_launcher(record, function), *arguments)
    if code != 0:
        text = "CUDA's driver returned error %lld (function %lld of fusion.runtime.cuda.launcher)"
        op.fail(record.frame, op.INTERNAL, text, code, function)
    return code


@jit
def _ask(record: DeviceRecord, function: int, argument: int) -> int:
    """The result of a function of the launcher for a word; 0 is an error."""
    result = call_at(_of_launcher(record, function), argument)
    if result == 0:
        _fail_for_launcher(record)
    return result


@jit
def _fail_for_launcher(record: DeviceRecord) -> None:
    """Ends the call with the reason why a function of the launcher gave 0."""
    reason = _of_launcher(record, LauncherRecord.reason)
    op.fail(record.frame, op.INTERNAL, "%s", reason)


_report_error = error_reporter("")
_report_earlier_error = error_reporter(
    " (in an earlier run of this node, whose result is not to be used)"
)


@jit
def _open(frame: op.Frame, record: DeviceRecord) -> None:
    """Finds the stream of a call and makes its context the thread's; reports earlier errors."""
    record.error_slot = as_record(ErrorSlot, 0)
    state = frame.state
    launcher = as_record(LauncherRecord, state.launcher)
    record.frame = frame
    record.launcher = launcher
    stream = _ask(record, LauncherRecord.find_stream, frame.context)
    record.stream = stream
    if stream == 0:
        return
    words = stack_words(2)
    store(words, 0, 0)
    store(words, 1, 0)
    _call(record, LauncherRecord.stream_context, stream, words)
    if not op.failed(frame):  # TensorFlow's threads have some context or none
        _call(record, LauncherRecord.push, load(words, 0))
    if op.failed(frame):
        record.stream = 0  # there is nothing to pop
        return
    _call(record, LauncherRecord.context_device, words + 8)
    if op.failed(frame):
        return
    gpu = load(words, 1) & 0xFFFFFFFF
    record.gpu = gpu
    record.gpu_record = as_record(GpuRecord, load(launcher.gpus, gpu))
    if record.gpu_record == 0:
        opened = _ask(record, LauncherRecord.open_gpu, gpu)
        record.gpu_record = as_record(GpuRecord, opened)
    if state.error_slots == 0 and not op.failed(frame):
        _ask(record, LauncherRecord.open_node, state)
    if not op.failed(frame):
        slots = as_record(ErrorSlot, state.error_slots)
        record.error_slot = _take_error_slot(slots)
        _report_earlier_errors(frame, slots, record.error_slot)


@jit
def _take_error_slot(node: ErrorSlot) -> ErrorSlot:
    """Takes one of a node's error slots: calls of a node may run in parallel."""
    for number in range(1, ERROR_SLOTS):
        slot = node[number]
        if atomic_swap_if(slot, int64(ErrorSlot.is_taken), int64(0), int64(1)):
            return slot
    return node


@jit
def _report_earlier_errors(frame: op.Frame, node: ErrorSlot, own: ErrorSlot) -> None:
    """Reports errors in the slots that no other call has."""
    for number in range(ERROR_SLOTS):
        slot, is_taken = node[number], int64(ErrorSlot.is_taken)
        if op.failed(frame):
            return
        if own == slot or node == slot:
            _report_earlier_error(frame, slot)
        elif slot.error_code != 0 and atomic_swap_if(slot, is_taken, int64(0), int64(1)):
            _report_earlier_error(frame, slot)
            atomic_store(slot, is_taken, int64(0))


@jit
def _wait(record: DeviceRecord) -> None:
    _call(record, LauncherRecord.wait, record.stream)


@jit
def _report(record: DeviceRecord) -> None:
    _report_error(record.frame, record.error_slot)


@jit
def _close(record: DeviceRecord) -> None:
    """Ends what `_open` began."""
    if record.stream == 0:
        return
    waits = _of_launcher(record, LauncherRecord.waits) != 0
    if waits and not op.failed(record.frame):
        _wait(record)
        _report(record)
    driver_call(_of_launcher(record, LauncherRecord.pop), stack_words(1))
    own = record.error_slot
    if own != 0 and own != record.frame.state.error_slots:
        atomic_store(own, int64(ErrorSlot.is_taken), int64(0))


def with_device(body: Callable[[int, Any], None]) -> Callable[[op.Frame], None]:
    """A kernel body (frame) that opens the device and calls a body (frame, device)."""
    inner = jit(body)

    def outer(frame: op.Frame) -> None:
        record = stack_record(DeviceRecord)
        _open(frame, record)
        if not op.failed(frame):
            inner(frame, _device_at(record))
        _close(record)

    return outer


@jit
def error_record(device: Any) -> int:
    """The `ErrorRecord` where the call's kernels report errors."""
    return _record_of(device).error_slot


@jit
def report_error(device: Any, record: ErrorRecord) -> None:
    """Reports the error of an `ErrorRecord` of the host, if there is one."""
    if record.error_code != 0:
        for k in range(ErrorRecord.SIZE):
            store(error_record(device), k, load(record, k))
        _report(_record_of(device))


@jit
def copy_in(device: Any, target: int, source: int, size: int) -> None:
    """Copies bytes of the host, whole words, to the GPU; they may change afterwards."""
    record = _record_of(device)
    for first in range(0, size, SLOT_BYTES):
        if not op.failed(record.frame):
            part = min(size - first, int64(SLOT_BYTES))
            _copy_part(record, target + first, source + first, part)


@jit
def _copy_part(record: DeviceRecord, target: int, source: int, size: int) -> None:
    """Copies words that fit into a staging slot, by the next slot.

    A copy on the stream is still to come when the call ends: it is one of the slot's memory, which
    is written again once the event after the copy has come, almost always long ago.
    """
    gpu, slots = as_record(GpuRecord, record.gpu_record), int64(SLOT_COUNT)
    number = atomic_add(gpu, int64(GpuRecord.next_slot), int64(1)) % slots
    slot = gpu.slots[number]
    while not atomic_swap_if(slot, int64(CopySlot.is_taken), int64(0), int64(1)):
        sched_yield()
    event, memory = slot.event, slot.memory
    if _call(record, LauncherRecord.event_wait, event) == 0:
        for k in range(size // 8):
            store(memory, k, load(source, k))
        stream = record.stream
        _call(record, LauncherRecord.copy_in, target, memory, size, stream)
        _call(record, LauncherRecord.event_record, event, stream)
    atomic_store(slot, int64(CopySlot.is_taken), int64(0))


@jit
def _reserve(record: DeviceRecord, size: int) -> int:
    return op.scratch_bytes(record.frame, max(size, int64(16)))


@jit
def _fill(record: DeviceRecord, address: int, size: int, byte: int) -> None:
    if size > 0 and not op.failed(record.frame):
        stream = record.stream
        _call(record, LauncherRecord.fill, address, byte, size, stream)


@jit
def _filled(record: DeviceRecord, size: int, byte: int) -> int:
    address = _reserve(record, size)
    _fill(record, address, size, byte)
    return address


@jit
def _read(record: DeviceRecord, address: int, count: int) -> int:
    """The address of words of the GPU, copied to the host; all zeros after an error."""
    frame = record.frame
    target = op.host_bytes(frame, 8 * count)
    if target == 0:
        return _of_launcher(record, LauncherRecord.zeros)
    stream = record.stream
    _call(record, LauncherRecord.copy_out, target, address, 8 * count, stream)
    if not op.failed(frame):
        _wait(record)
        _report(record)
    if op.failed(frame):
        return _of_launcher(record, LauncherRecord.zeros)
    return target


@jit
def _handle(record: DeviceRecord, kernel: int) -> int:
    """The handle of a kernel on the call's GPU; 0 after an error."""
    handle = load(record.gpu_record, GpuRecord.handles + kernel)
    if handle == 0:
        gpu = record.gpu
        handle = call_at(_of_launcher(record, LauncherRecord.load), kernel, gpu)
        if handle == 0:
            _fail_for_launcher(record)
    return handle


# --- a device's methods, see `steps.device.Device` --------------------------------------------


def _fits(parameters: tuple[Any, ...], arguments: Sequence[Any]) -> bool:
    """Whether a kernel takes arguments of Numba's types: integers, and records of its classes."""

    def fits(parameter: Any, type_: Any) -> bool:
        if fields := fields_of(parameter):
            return getattr(type_, "instance_class", None) is parameter and _fits(fields, [*type_])
        return isinstance(type_, _WORDS)

    return len(parameters) == len(arguments) and all(map(fits, parameters, arguments))


def _finder(kernels: Mapping[int, str], arguments: tuple[Any, ...]) -> Any:
    """An intrinsic (dtype code) -> the number and the name, a C string, of a dtype's kernel.

    Args:
        kernels: names by dtype code.
        arguments: Numba's types of what they are launched with.
    """
    if arguments and isinstance(arguments[0], types.StarArgTuple | types.StarArgUniTuple):
        arguments = tuple(arguments[0])
    for name in kernels.values():
        if name not in KERNELS:
            raise TypingError(f"{name} is no kernel")
        if not _fits(KERNELS[name].parameters, arguments):
            takes = ", ".join(type_.__name__ for type_ in KERNELS[name].parameters)
            argument_types = ", ".join(str(types.unliteral(type_)) for type_ in arguments)
            raise TypingError(f"{name} takes ({takes}), not ({argument_types})")

    @instruction(types.UniTuple(types.int64, 2)(types.int64))
    def find(builder: Any, dtype_code: Any) -> Any:
        word = ir.IntType(64)
        number = name = word(0)
        for code, text in kernels.items():
            array = cgutils.make_bytearray(f"{text}\0".encode())
            pointer = cgutils.global_constant(builder.module, "kernel_name", array)
            is_own = builder.icmp_signed("==", dtype_code, word(code))
            number = builder.select(is_own, word(_NUMBERS[text]), number)
            name = builder.select(is_own, builder.ptrtoint(pointer, word), name)
        return cgutils.pack_array(builder, [number, name])

    return find


@jit
def _launch_kernel(
    record: DeviceRecord, kernel: Any, blocks: int, threads: int, arguments: Any
) -> None:
    number, name = kernel
    frame = record.frame
    if blocks <= 0 or op.failed(frame):
        return
    if blocks > _MAX_BLOCKS:
        op.fail(frame, op.INVALID_ARGUMENT, "a batch is too large for a GPU's grid")
        return
    handle = _handle(record, number)
    if handle == 0:
        return
    function = _of_launcher(record, LauncherRecord.launch)
    stream = record.stream
    code = launch_call(function, handle, blocks, threads, stream, arguments)
    if code != 0:
        text = "CUDA's driver returned error %lld for the launch of %s"
        op.fail(frame, op.INTERNAL, text, code, name)


def _literal(kernel: Any) -> str:
    if not isinstance(kernel, types.StringLiteral):
        raise TypingError("the name of a kernel must be a literal")
    name: str = kernel.literal_value
    return name


@overload_method(DeviceType, "launch", prefer_literal=True, jit_options=OPTIONS)
def _launch(self: Any, kernel: Any, blocks: Any, threads: Any, *arguments: Any) -> Any:
    find = _finder({0: _literal(kernel)}, arguments)

    def launch(self: Any, kernel: Any, blocks: Any, threads: Any, *arguments: Any) -> Any:
        _launch_kernel(_record_of(self), find(0), int64(blocks), int64(threads), arguments)

    return launch


@overload(launch_for, prefer_literal=True, jit_options=OPTIONS)
def _launch_for(
    device: Any, kernel: Any, dtype_code: Any, blocks: Any, threads: Any, *arguments: Any
) -> Any:
    names = {DTYPES[stored].code: f"{_literal(kernel)}_{stored}" for stored in FLOATS}
    kernels = {code: name for code, name in names.items() if name in KERNELS}
    find = _finder(kernels or names, arguments)

    def launch(
        device: Any, kernel: Any, dtype_code: Any, blocks: Any, threads: Any, *arguments: Any
    ) -> Any:
        number_and_name = find(dtype_code)
        _launch_kernel(
            _record_of(device), number_and_name, int64(blocks), int64(threads), arguments
        )

    return launch


@overload_method(DeviceType, "reserve", jit_options=OPTIONS)
def _reserve_of(self: Any, size: Any) -> Any:
    def reserve(self: Any, size: Any) -> Any:
        return _reserve(_record_of(self), int64(size))

    return reserve


@overload_method(DeviceType, "filled", jit_options=OPTIONS)
def _filled_of(self: Any, size: Any, byte: Any) -> Any:
    def filled(self: Any, size: Any, byte: Any) -> Any:
        return _filled(_record_of(self), int64(size), int64(byte))

    return filled


@overload_method(DeviceType, "fill", jit_options=OPTIONS)
def _fill_of(self: Any, address: Any, size: Any, byte: Any) -> Any:
    def fill(self: Any, address: Any, size: Any, byte: Any) -> Any:
        _fill(_record_of(self), int64(address), int64(size), int64(byte))

    return fill


@overload_method(DeviceType, "words", jit_options=OPTIONS)
def _words_at(self: Any, address: Any, count: Any) -> Any:
    def words(self: Any, address: Any, count: Any) -> Any:
        host = _read(_record_of(self), int64(address), int64(count))
        return carray(pointer(host, np.int64), (int64(count),))

    return words
