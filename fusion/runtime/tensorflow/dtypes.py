"""The dtypes of tensors in kernels: all that is known of each, in one table.

What differs between backends is theirs: how elements are loaded, stored and rounded. This module
needs neither Numba nor TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: The codes by which kernels know dtypes at run time.
INT32, INT64, FLOAT32, FLOAT64, FLOAT16, BFLOAT16 = range(6)


@dataclass(frozen=True)
class Dtype:
    """A dtype.

    Attributes:
      name: NumPy's.
      enum: its `TF_DataType`.
      c_name: its name in the definitions of ops.
      item_bytes: of an element.
      stored: the NumPy dtype of its elements in compiled code, uint16 for half types.
      compute: the dtype that kernels compute in.
      code: see above; -1 for dtypes that are known when a kernel is compiled.
    """

    name: str
    enum: int
    c_name: str
    item_bytes: int
    stored: str
    compute: str
    code: int = -1

    @property
    def is_widened(self) -> bool:
        """Whether kernels compute in a wider dtype."""
        return self.compute != self.name

    @property
    def stored_type(self) -> type:
        """The NumPy type of `stored`."""
        return np.dtype(self.stored).type

    @property
    def compute_type(self) -> type:
        """The NumPy type of `compute`."""
        return np.dtype(self.compute).type

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element of `compute`."""
        return np.dtype(self.compute).itemsize


DTYPES: dict[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        Dtype("float16", 19, "half", 2, "uint16", "float32", FLOAT16),
        Dtype("bfloat16", 14, "bfloat16", 2, "uint16", "float32", BFLOAT16),
        Dtype("float32", 1, "float", 4, "float32", "float32", FLOAT32),
        Dtype("float64", 2, "double", 8, "float64", "float64", FLOAT64),
        Dtype("int32", 3, "int32", 4, "int32", "int32", INT32),
        Dtype("int64", 9, "int64", 8, "int64", "int64", INT64),
        Dtype("uint8", 4, "uint8", 1, "uint8", "uint8"),
        Dtype("uint16", 17, "uint16", 2, "uint16", "uint16"),
        Dtype("bool", 10, "bool", 1, "bool", "bool"),
    )
}

#: Those of tables and weights, those of them in which kernels compute, and those of ids.
FLOATS = tuple(name for name, dtype in DTYPES.items() if dtype.compute.startswith("float"))
COMPUTED = tuple(name for name in FLOATS if not DTYPES[name].is_widened)
IDS = ("int32", "int64")

#: The codes of dtypes that are computed in a wider one.
WIDENED = tuple(dtype.code for dtype in DTYPES.values() if dtype.is_widened)
