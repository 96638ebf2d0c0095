"""TensorFlow's C++ functions by which a kernel shares a variable's tensor, as sparse updates do.

The C API has no way to a variable. TensorFlow's library exports what its own sparse optimizers are
made of (tensorflow/core/kernels/training_op_helpers.h, tensorflow/core/framework/op_kernel.h and
resource_mgr.h, which its wheel brings along):

    LookupResource<Var>                     the variable of a handle, or why there is none
    MaybeLockVariableInputMutexesInOrder    prepares it for sparse access, and locks it, shared
    GetInputTensorFromVariable              its tensor, without a copy
    ~VariableInputLockHolder                unlocks and releases it

A function that returns an object of a class takes the address of the result as its first argument
(Itanium C++ ABI, 3.1.3.1). Nothing is assumed of what the objects look like inside, but that an
`absl::Status` is a word and all that a `TF_Status` has; that a `std::vector` is three: its begin,
its end and the end of its memory; and that the first word of a `std::string` is the address of a C
string, which is in its third and fourth if it is short, and else in memory of its own.

The functions end the process if a variable is of another dtype than their template argument and has
to be copied, so the dtype of a variable is read before. Where it is in a `Var` is found by trying:
Var::DebugString returns the dtype of what it takes for a variable.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fusion.runtime.layout import Address, Fields, Int64, Layout, fields
from fusion.runtime.process import keep_forever
from fusion.runtime.records import LiveMemory
from fusion.runtime.tensorflow import library

#: The template argument of a type of device, and of a dtype, in mangled names.
_DEVICES = {"CPU": "N5Eigen16ThreadPoolDeviceE", "GPU": "N5Eigen9GpuDeviceE"}
_DTYPES = {
    "float16": "NS1_4halfE",
    "bfloat16": "NS1_8bfloat16E",
    "float32": "f",
    "float64": "d",
}

_LOCK = (
    "_ZN10tensorflow36MaybeLockVariableInputMutexesInOrderI{device}{dtype}EE"
    "NS_23VariableInputLockHolderEPNS_15OpKernelContextEbbRKSt6vectorIiSaIiEE"
)
#: The device and the dtype do not matter to what is read for sparse access.
_READ = "_ZN10tensorflow26GetInputTensorFromVariableIN5Eigen16ThreadPoolDeviceEfEE"
#: The same of doubles: to be updated, a variable may have to be copied.
_READ_DOUBLES = "_ZN10tensorflow26GetInputTensorFromVariableIN5Eigen16ThreadPoolDeviceEdEE"
_FIND = "_ZN10tensorflow14LookupResourceINS_3VarELb0EEE"
#: Without the namespace of an `absl` version, the rest of whose names follows.
_UNLOCK = "_ZN10tensorflow23VariableInputLockHolderD2Ev"
_FAIL = "_ZN10tensorflow15OpKernelContext10CtxFailureERK"
_HANDLE = "_ZN10tensorflow15HandleFromInputEPNS_15OpKernelContextEi"
_DESCRIBE = "_ZNK10tensorflow14ResourceHandle14SummarizeValueB5cxx11Ev"
DESCRIBE_VARIABLE = "_ZNK10tensorflow3Var11DebugStringB5cxx11Ev"
_SET_OUTPUT = "_ZN10tensorflow15OpKernelContext10set_outputEiRKNS_6TensorE"
_MAKE_TENSOR, _END_TENSOR = "_ZN10tensorflow6TensorC1Ev", "_ZN10tensorflow6TensorD1Ev"
_TENSOR_DATA = "_ZNK10tensorflow6Tensor4dataEv"
_TENSOR_BYTES = "_ZNK10tensorflow6Tensor10TotalBytesEv"


class VariableAccess(Layout):
    """Functions of TensorFlow, and the offset and value of a variable's dtype."""

    handle_from_input: Address
    find: Address  # LookupResource
    describe: Address  # ResourceHandle::SummarizeValue
    lock: Address
    read: Address  # GetInputTensorFromVariable
    unlock: Address
    fail: Address  # OpKernelContext::CtxFailure
    set_output: Address
    make_tensor: Address
    end_tensor: Address
    dtype_offset: Int64  # of the dtype in a variable, in bytes
    dtype: Int64  # the right one, TF_DataType
    dtype_name: Fields = fields(2)  # its name, a C string


class UpdateAccess(VariableAccess):
    """As `VariableAccess`, for kernels on a CPU that update variables in place.

    Its `read` may be called for dense access too, as AssignAddVariableOp does.
    """

    tensor_data: Address  # Tensor::data
    tensor_bytes: Address  # Tensor::TotalBytes


#: The maximum size of an object, in fields.
OBJECT_WORDS = 32


def is_shared(dtype: str, device: str) -> bool:
    """Whether this TensorFlow lets kernels share variables of a dtype on a type of device."""
    if device not in _DEVICES:
        return False
    try:
        return bool(functions(dtype, device))
    except NotImplementedError:
        return False


@cache
def is_updated_in_place(dtype: str) -> bool:
    """Whether this TensorFlow lets kernels on a CPU update variables of a dtype in place."""
    try:
        return bool(update_functions(dtype))
    except NotImplementedError:
        return False


def functions(dtype: str, device: str) -> list[int]:
    """The `VariableAccess` of variables of a dtype on a type of device.

    Raises:
      NotImplementedError: this TensorFlow lacks one.
    """
    addresses = [*map(_address, names(dtype, device))]
    return [*addresses, _dtype_offset(), *dtype_words(dtype)]


def update_functions(dtype: str) -> list[int]:
    """The `UpdateAccess` of variables of float32 or float64.

    Raises:
      NotImplementedError: this TensorFlow lacks one.
    """
    *of_variables, data, size = map(_address, update_names(dtype))
    return [*of_variables, _dtype_offset(), *dtype_words(dtype), data, size]


def names(dtype: str, device: str) -> list[str]:
    """The names of the functions in a `VariableAccess`, in the order of their fields.

    Raises:
      NotImplementedError: this TensorFlow lacks one.
    """
    lock = _LOCK.format(device=_DEVICES[device], dtype=_DTYPES[dtype])
    find, read, fail = _versioned()
    tensor = (_SET_OUTPUT, _MAKE_TENSOR, _END_TENSOR)
    return [_HANDLE, find, _DESCRIBE, lock, read, _UNLOCK, fail, *tensor]


def update_names(dtype: str) -> list[str]:
    """The names of the functions in an `UpdateAccess`, in the order of their fields.

    Raises:
      NotImplementedError: this TensorFlow lacks one.
    """
    result = names(dtype, "CPU")
    if dtype == "float64":
        result[VariableAccess.read] = _double_reader()
    return [*result, _TENSOR_DATA, _TENSOR_BYTES]


def dtype_words(dtype: str) -> tuple[int, int, int]:
    """The number of a dtype, and its name as a C string in two words."""
    first, second = struct.unpack("<2q", dtype.encode().ljust(16, b"\0"))
    from fusion.runtime.tensorflow.private import dtypes

    return dtypes.as_dtype(dtype).as_datatype_enum, first, second


class AccessRequest(NamedTuple):
    """A request for the functions that share variables of a dtype.

    Attributes:
      dtype: of the variables.
      device: the type of device.
      updates: whether it is for an `UpdateAccess`.
    """

    dtype: str
    device: str
    updates: bool = False


@cache
def live_record(request: AccessRequest) -> int:
    """The address of a record of this process's functions; 0 where this TensorFlow lacks one.

    There is one for each request: nodes of ops are prepared as long as the process lives.
    """
    try:
        words = (
            update_functions(request.dtype)
            if request.updates
            else functions(request.dtype, request.device)
        )
    except NotImplementedError:
        return 0
    return _permanent_memory().words(words)


@cache
def _permanent_memory() -> LiveMemory:
    memory = LiveMemory()
    keep_forever(memory)
    return memory


@cache
def _double_reader() -> str:
    name = library.exported_name(library.whole_path(), _READ_DOUBLES.encode())
    if name is None:
        raise NotImplementedError("TensorFlow does not export how a variable is updated")
    return name


@cache
def _versioned() -> tuple[str, str, str]:
    """The names that have a version of `absl` in them: of FIND, READ and FAIL."""
    cc_path = library.whole_path()
    names = [
        library.exported_name(path, prefix.encode()) if path.exists() else None
        for path, prefix in ((cc_path, _FIND), (cc_path, _READ), (Path(library.path()), _FAIL))
    ]
    if None in names:
        raise NotImplementedError("TensorFlow does not export what its sparse updates are made of")
    find, read, fail = (name or "" for name in names)
    return find, read, fail


@cache
def _address(name: str) -> int:
    # This library depends on the other one, so that a search in it covers both.
    handle = ctypes.CDLL(str(library.whole_path()))
    if not hasattr(handle, name):
        raise NotImplementedError(f"TensorFlow does not export {name}")
    return ctypes.cast(getattr(handle, name), ctypes.c_void_p).value or 0


@cache
def _dtype_offset() -> int:
    """The offset of the byte in a `Var` that is its dtype."""
    offsets = [k for k in range(8 * OBJECT_WORDS) if _named_dtype(k, 1) == b"float"]
    if len(offsets) != 1 or _named_dtype(offsets[0], 14) != b"bfloat16":
        raise NotImplementedError("cannot find where TensorFlow keeps the dtype of a variable")
    return offsets[0]


def _named_dtype(offset: int, number: int) -> bytes:
    """The dtype that Var::DebugString names of a variable, all zeros but for one byte.

    It follows no pointers there, and has up to 15 characters, which are inside a `std::string`.
    """
    function_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    variable = (ctypes.c_ubyte * (2 * 8 * OBJECT_WORDS))()
    variable[offset] = number
    text = (ctypes.c_int64 * OBJECT_WORDS)()
    function_type(_address(DESCRIBE_VARIABLE))(text, variable)
    return ctypes.string_at(text[0]).partition(b"/")[0]
