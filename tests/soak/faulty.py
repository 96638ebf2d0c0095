"""A kernel that does wrong what it is told to: what the memory checks must find.

Its op copies the input to the output, in all but one way; it is never registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion.runtime.tensorflow.layout import Frame
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec

#: The values of the attr `fault`, by place.
FAULTS = (
    "none",
    "read past the end",
    "read before the start",
    "write past the end",
    "write before the start",
    "read what was released",
    "leave an output uninitialised",
    "give TensorFlow an uninitialised number",
    "write to an input",
    "leave a status behind",
)
(_, _READ_PAST, _READ_BEFORE, _WRITE_PAST, _WRITE_BEFORE, _READ_RELEASED, _UNINITIALISED) = range(7)
_GIVE_UNINITIALISED, _WRITE_INPUT, _LEAK = 7, 8, 9


def _misreader() -> Any:
    from fusion.runtime.native.jit import int64, jit
    from fusion.runtime.native.memory import load, store
    from fusion.runtime.native.op import data, scratch, size
    from fusion.runtime.native.pointers import stack_words
    from fusion.runtime.tensorflow.c_api import (
        datatype,
        tf_allocate_temp,
        tf_delete_status,
        tf_delete_tensor,
        tf_new_status,
        tf_tensor_data,
    )

    @jit
    def misread(frame: Frame, fault: int) -> int:
        """A number that is read where there is none, if that is the fault."""
        source = data(frame, 0, 0)
        if fault == _READ_PAST:
            return load(source, size(frame, 0, 0, 0))
        if fault == _READ_BEFORE:
            return load(source, -1)
        if fault == _GIVE_UNINITIALISED:
            return size(frame, 0, 0, scratch(frame, 1, np.int64)[0])
        if fault == _READ_RELEASED:
            dims, status = stack_words(1), tf_new_status()
            store(dims, 0, 1)
            kind, rank = np.int32(datatype(np.int64)), np.int32(1)
            tensor = tf_allocate_temp(load(frame, 0), kind, dims, rank, 0, status)
            address = tf_tensor_data(tensor)
            store(address, 0, 0)
            tf_delete_tensor(tensor)
            tf_delete_status(status)
            return load(address, 0)
        return int64(0)

    return misread


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[Frame], None]:
    from fusion.runtime.native.errors import INTERNAL, fail
    from fusion.runtime.native.memory import load, store
    from fusion.runtime.native.op import attr, data, failed, output_vector, vector
    from fusion.runtime.tensorflow.c_api import tf_new_status

    misread = _misreader()

    def body(frame: Frame) -> None:
        values = vector(frame, 0, np.int64)
        fault, count = attr(frame, 0), values.shape[0]
        out = output_vector(frame, 0, 0, count, np.int64)
        if failed(frame):
            return
        for k in range(count if fault != _UNINITIALISED else count - 1):
            out[k] = values[k]
        source, target = data(frame, 0, 0), out.ctypes.data
        if fault == _WRITE_PAST:
            store(target, count, 7)
        elif fault == _WRITE_BEFORE:
            store(target, -1, 7)
        elif fault == _WRITE_INPUT:
            store(source, 0, load(source, 0) + 1)
        elif fault == _LEAK:
            tf_new_status()
        if misread(frame, fault) == 123456789:  # it must matter, or it would not be read
            fail(frame, INTERNAL, "an unlikely number")

    return body


FAULTY = OpSpec(
    name="Faulty",
    doc="",
    inputs=(Arg("values", "int64", "[n]"),),
    outputs=(Arg("out", "int64", "[n]"),),
    attrs=(Attr("fault", "int"),),
    kernels={"CPU": _cpu},
)
