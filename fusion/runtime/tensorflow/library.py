"""TensorFlow's shared library and the C API symbols that the bridge needs from it."""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: Every C function used by this package: the header that declares it is in the comment.
SYMBOLS = (
    # tensorflow/c/tf_status.h, tf_buffer.h, tf_tensor.h
    "TF_NewStatus",
    "TF_DeleteStatus",
    "TF_SetStatus",
    "TF_GetCode",
    "TF_Message",
    "TF_DeleteBuffer",
    "TF_DeleteTensor",
    "TF_TensorData",
    "TF_NewTensor",
    "TF_TensorMaybeMove",
    "TF_NumDims",
    "TF_Dim",
    # tensorflow/c/ops.h
    "TF_NewOpDefinitionBuilder",
    "TF_RegisterOpDefinition",
    "TF_OpDefinitionBuilderAddAttr",
    "TF_OpDefinitionBuilderAddInput",
    "TF_OpDefinitionBuilderAddOutput",
    "TF_OpDefinitionBuilderSetIsStateful",
    "TF_OpDefinitionBuilderSetShapeInferenceFunction",
    "TF_ShapeInferenceContextNumInputs",
    "TF_ShapeInferenceContextGetInput",
    "TF_ShapeInferenceContextSetOutput",
    "TF_ShapeInferenceContextSetUnknownShape",
    "TF_ShapeInferenceContextWithRank",
    "TF_ShapeInferenceContext_GetAttrType",
    "TF_ShapeInferenceContextDim",
    "TF_ShapeInferenceContextVectorFromSize",
    "TF_ShapeInferenceContextConcatenateShapes",
    "TF_NewShapeHandle",
    "TF_DeleteShapeHandle",
    "TF_NewDimensionHandle",
    "TF_DeleteDimensionHandle",
    "TF_DimensionHandleValueKnown",
    "TF_DimensionHandleValue",
    # tensorflow/c/kernels.h
    "TF_NewKernelBuilder",
    "TF_KernelBuilder_TypeConstraint",
    "TF_KernelBuilder_HostMemory",
    "TF_KernelBuilder_Label",
    "TF_RegisterKernelBuilder",
    "TF_OpKernelConstruction_Failure",
    "TF_OpKernelConstruction_GetAttrInt64",
    "TF_OpKernelConstruction_GetAttrInt64List",
    "TF_OpKernelConstruction_GetAttrFloat",
    "TF_OpKernelConstruction_GetAttrFloatList",
    "TF_OpKernelConstruction_GetAttrBool",
    "TF_OpKernelConstruction_GetAttrBoolList",
    "TF_OpKernelConstruction_GetAttrType",
    "TF_OpKernelConstruction_GetAttrTypeList",
    "TF_OpKernelConstruction_GetAttrString",
    "TF_OpKernelConstruction_GetAttrStringList",
    "TF_OpKernelConstruction_GetAttrSize",
    "TF_OpKernelConstruction_HasAttr",
    "TF_OpKernelConstruction_GetNodeDef",
    "TF_OpKernelContext_Failure",
    "TF_NumInputs",
    "TF_NumOutputs",
    "TF_InputDatatype",
    "TF_GetInput",
    "TF_SetOutput",
    "TF_ExpectedOutputDataType",
    "TF_AllocateOutput",
    "TF_ForwardInputOrAllocateOutput",
    "TF_AllocateTemp",
)

#: SHT_DYNSYM of an ELF file: the names that a library exports.
_DYNAMIC_SYMBOLS = 11


def require_platform() -> None:
    """Checks that this is Linux on x86-64 with glibc.

    Raises:
      ImportError: it is something else; the message says what.
    """
    libc = platform.libc_ver()[0] if sys.platform == "linux" else ""
    if sys.platform != "linux" or platform.machine() != "x86_64" or libc != "glibc":
        raise ImportError(
            "fusion supports Linux on x86-64 with glibc; this is "
            f"{sys.platform} on {platform.machine()} with {libc or 'another C library'}"
        )


def path() -> str:
    """The file name of the TensorFlow library that exports the C API."""
    import tensorflow as tf

    return str(tf.sysconfig.get_lib()) + "/libtensorflow_framework.so.2"


def whole_path() -> Path:
    """The file name of the library with all symbols that `path` lacks, such as those for graphs."""
    return Path(path()).with_name("libtensorflow_cc.so.2")


def exported_name(path: Path, text: bytes) -> str | None:
    """Returns the first exported name that contains `text`, or None.

    For names that are not known exactly, because they are mangled C++.

    Args:
        path: a 64-bit ELF file.
        text: a substring of the name.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        for start, end in _name_tables(elf):
            if (position := elf.find(text, start, end)) >= 0:
                first, last = elf.rfind(b"\0", start, position) + 1, elf.find(b"\0", position)
                return elf[first:last].decode()
    return None


def _name_tables(elf: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yields the ranges with the names of dynamic symbols, each name between zero bytes.

    TensorFlow's library is a gigabyte, of which these are a few percent.
    """
    headers = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    for index in range(headers, headers + size * count, size):
        section_type, names = struct.unpack_from("<4xI32xI", elf, index)
        if section_type == _DYNAMIC_SYMBOLS:
            start, length = struct.unpack_from("<24xQQ", elf, headers + size * names)
            yield start, start + length


def missing_symbols() -> list[str]:
    """Those of `SYMBOLS` that this TensorFlow does not export."""
    handle = ctypes.CDLL(path())
    return [name for name in SYMBOLS if not hasattr(handle, name)]


@cache
def load() -> ctypes.CDLL:
    """The TensorFlow library with every needed symbol present.

    Raises:
      ImportError: the library or one of `SYMBOLS` is missing, or no code can be loaded here.
    """
    import tensorflow as tf

    require_platform()
    try:
        missing = missing_symbols()
    except OSError as error:
        raise ImportError(f"fusion cannot load TensorFlow {tf.__version__}: {error}") from error
    if missing:
        raise ImportError(
            f"fusion cannot work with TensorFlow {tf.__version__}: its library {path()} "
            f"does not export {', '.join(missing)}"
        )
    library = ctypes.CDLL(path())
    for name in SYMBOLS:
        # Addresses are 64-bit integers throughout: nothing is ever truncated to a C int.
        getattr(library, name).restype = ctypes.c_void_p
    return library


class Status:
    """A `TF_Status` for the length of a `with` block."""

    def __enter__(self) -> Status:
        self.address = ctypes.c_void_p(load().TF_NewStatus())
        return self

    def __exit__(self, *exception: object) -> None:
        load().TF_DeleteStatus(self.address)

    def check(self, doing: str) -> None:
        """Raises RuntimeError with TensorFlow's message if the status is an error."""
        if ctypes.c_int(load().TF_GetCode(self.address) or 0).value:
            message = ctypes.string_at(load().TF_Message(self.address)).decode()
            raise RuntimeError(f"{doing}: {message}")
