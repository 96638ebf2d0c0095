"""What TensorFlow's own shape functions say of nodes: those of a graph that is never run.

TensorFlow infers shapes when a node is added to a graph through its C API, and computes the
constants that shapes depend on, such as the axes of a reduction.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from fusion.runtime.tensorflow import library

#: The dtypes of references, which no placeholder has, are those of their values and this.
_FIRST_REF = 100


class Output(ctypes.Structure):
    """An output of an operation; TensorFlow calls it `TF_Output`."""

    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


class ScratchGraph:
    """A graph to add nodes to, whose outputs then have shapes.

    It belongs to one thread at a time.
    """

    def __init__(self) -> None:
        self._functions = _functions()
        self._graph = ctypes.c_void_p(self._functions.TF_NewGraph())
        self._status = ctypes.c_void_p(self._functions.TF_NewStatus())
        self._count = 0
        weakref.finalize(self, _delete, self._functions, self._graph, self._status).atexit = False

    def add(
        self, op: str, inputs: Iterable[Output | Sequence[Output]], attrs: Mapping[str, bytes]
    ) -> int | None:
        """Adds a node.

        Args:
            op: its op.
            inputs: an output, or several, for each argument of the op.
            attrs: serialized AttrValues; others have their defaults, or follow from the inputs.

        Returns:
            The operation; None if TensorFlow takes no such node.
        """
        c = self._functions
        self._count += 1
        node = c.TF_NewOperation(self._graph, op.encode(), b"n%d" % self._count)
        for value in inputs:
            if isinstance(value, Output):
                c.TF_AddInput(node, value)
            else:
                c.TF_AddInputList(node, (Output * len(value))(*value), len(value))
        for name, data in attrs.items():
            c.TF_SetAttrValueProto(node, name.encode(), data, len(data), self._status)
        # It frees the description, whether or not there is an operation then.
        operation: int | None = c.TF_FinishOperation(node, self._status)
        return operation

    def placeholder(self, dtype: int, shape: Sequence[int | None] | None) -> Output | None:
        """Adds a tensor with only a dtype and a shape."""
        c = self._functions
        self._count += 1
        node = c.TF_NewOperation(self._graph, b"Placeholder", b"n%d" % self._count)
        c.TF_SetAttrType(node, b"dtype", dtype % _FIRST_REF)
        sizes = () if shape is None else [-1 if size is None else size for size in shape]
        rank = -1 if shape is None else len(shape)
        c.TF_SetAttrShape(node, b"shape", (ctypes.c_int64 * len(sizes))(*sizes), rank)
        operation = c.TF_FinishOperation(node, self._status)
        return None if operation is None else Output(operation, 0)

    def shape(self, output: Output) -> tuple[int | None, ...] | None:
        """Returns the shape of an output, with None for unknown sizes; None for an unknown rank."""
        c = self._functions
        rank = c.TF_GraphGetTensorNumDims(self._graph, output, self._status)
        if rank <= 0:
            return None if rank < 0 else ()
        sizes = (ctypes.c_int64 * rank)()
        c.TF_GraphGetTensorShape(self._graph, output, sizes, rank, self._status)
        return tuple(size if size >= 0 else None for size in sizes)

    def value(self, output: Output) -> bytes | None:
        """Returns the elements of an output that follows from constants and from known shapes."""
        c, tensor = self._functions, ctypes.c_void_p()
        if not c.TF_TryEvaluateConstant(self._graph, output, ctypes.byref(tensor), self._status):
            return None
        try:
            return ctypes.string_at(c.TF_TensorData(tensor), c.TF_TensorByteSize(tensor))
        finally:
            c.TF_DeleteTensor(tensor)


def output_count(operation: int) -> int:
    """Returns how many outputs an operation has."""
    count: int = _functions().TF_OperationNumOutputs(operation)
    return count


def _delete(functions: ctypes.CDLL, graph: ctypes.c_void_p, status: ctypes.c_void_p) -> None:
    functions.TF_DeleteGraph(graph)
    functions.TF_DeleteStatus(status)


@cache
def _functions() -> ctypes.CDLL:
    """The functions of tensorflow/c/c_api.h that are needed, with their types."""
    functions = ctypes.CDLL(str(library.whole_path()))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, *arguments in (
        ("TF_NewGraph", pointer),
        ("TF_DeleteGraph", None, pointer),
        ("TF_NewStatus", pointer),
        ("TF_DeleteStatus", None, pointer),
        ("TF_NewOperation", pointer, pointer, text, text),
        ("TF_AddInput", None, pointer, Output),
        ("TF_AddInputList", None, pointer, pointer, number),
        ("TF_SetAttrType", None, pointer, text, number),
        ("TF_SetAttrShape", None, pointer, text, pointer, number),
        ("TF_SetAttrValueProto", None, pointer, text, text, ctypes.c_size_t, pointer),
        ("TF_FinishOperation", pointer, pointer, pointer),
        ("TF_OperationNumOutputs", number, pointer),
        ("TF_GraphGetTensorNumDims", number, pointer, Output, pointer),
        ("TF_GraphGetTensorShape", None, pointer, Output, pointer, number, pointer),
        ("TF_TryEvaluateConstant", ctypes.c_ubyte, pointer, Output, pointer, pointer),
        ("TF_TensorData", pointer, pointer),
        ("TF_TensorByteSize", ctypes.c_size_t, pointer),
        ("TF_DeleteTensor", None, pointer),
    ):
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions
