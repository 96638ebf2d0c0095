"""From calls of ops to the cases that are run outside TensorFlow, and what they must give."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from fusion.runtime.registration.kernel_objects import kernel_name
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.spec import OpSpec
from tests.soak.faulty import FAULTS
from tests.soak.kernel_cases import CALLS, OpCall, spoiled
from tests.soak.kernel_objects import KERNELS
from tests.soak.plan import Case, Outputs, Tensor

#: Of the calls of each kernel, one in so many is also spoiled in every way, and also run with too
#: little memory.
_SPOILED, _STARVED = 25, 20


def cases(seed: int, kernels: Sequence[int], share: float = 1.0) -> list[Case]:
    """The cases of kernels, given by their places in `KERNELS`, or a random share of them.

    Raises:
      KeyError: an op has no calls in `tests.soak.kernel_cases`.
    """
    found = []
    for place in kernels:
        spec, types = KERNELS[place]
        rng = np.random.default_rng([seed, place])
        for k, call in enumerate(CALLS[spec.name](rng, types)):
            if rng.random() < share:
                found.append(_case(place, call, starved=k % _STARVED == 0))
            if k % _SPOILED == _SPOILED - 1:
                found += [_case(place, bad) for bad in spoiled(call) if rng.random() < share]
    return found


#: The words of a state behind that of the table, before attrs.
_NO_GPU = [0] * (State.SIZE - State.op_table - 1)


def self_test() -> list[Case]:
    """One case for each fault of the faulty kernel, the first in `KERNELS`."""
    values: Tensor = (9, (5,), np.arange(5).tobytes())
    return [
        Case(label, 0, [*_NO_GPU, fault], [values], [(9, 1)], (0, [((5,), values[2])]))
        for fault, label in enumerate(FAULTS)
    ]


def _case(place: int, call: OpCall, starved: bool = False) -> Case:
    spec, types = KERNELS[place]
    given = {arg: _as_list(call.inputs[arg.name]) for arg in spec.inputs}
    lengths = {arg.length: len(arrays) for arg, arrays in given.items() if arg.length}
    found = {arg.dtype: tf.as_dtype(arrays[0].dtype).name for arg, arrays in given.items()}
    dtypes = types | found
    attrs = {attr.name: attr.default for attr in spec.attrs} | dtypes | lengths | call.attrs
    outputs = [
        (tf.as_dtype(dtypes.get(arg.dtype, arg.dtype)).as_datatype_enum, len(arg.dims))
        for arg in spec.outputs
        for _ in range(lengths[arg.length] if arg.length else 1)
    ]
    arrays = list(itertools.chain(*given.values()))
    return Case(
        label=f"{kernel_name(spec, 'CPU', types)}: {call.label}; {call.attrs}",
        kernel=place,
        attrs=[
            *_NO_GPU,
            *(_word(spec, attr.name, attrs[attr.name]) for attr in spec.value_attrs),
        ],
        inputs=[_tensor(array) for array in arrays],
        outputs=outputs,
        expected=_in_tensorflow(spec, attrs, arrays, len(outputs)),
        starved=starved,
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _tensor(array: Any) -> Tensor:
    return tf.as_dtype(array.dtype).as_datatype_enum, array.shape, array.tobytes()


def _word(spec: OpSpec, name: str, value: Any) -> int:
    """An attr as a kernel's state holds it, see fusion.runtime.registration.registration."""
    attr = next(attr for attr in spec.attrs if attr.name == name)
    if attr.kind == "float":
        word: int = struct.unpack("<q", struct.pack("<d", np.float32(value)))[0]
        return word
    return attr.allowed.index(value) if attr.kind == "string" else int(value)


def _in_tensorflow(
    spec: OpSpec, attrs: dict[str, Any], arrays: list[Any], n_outputs: int
) -> tuple[int, Outputs]:
    """The error code and the outputs of the op when TensorFlow runs it."""
    flat: list[Any] = []
    for attr in spec.attrs:
        value = attrs[attr.name]
        flat += [attr.name, tf.as_dtype(value).as_datatype_enum if attr.kind == "type" else value]
    try:
        results = execute.quick_execute(
            spec.name,
            n_outputs,
            inputs=[tf.constant(array) for array in arrays],
            attrs=tuple(flat),
            ctx=context.context(),
        )
    except tf.errors.OpError as error:
        return error.error_code, []
    return 0, [(tuple(result.shape), result.numpy().tobytes()) for result in results]
