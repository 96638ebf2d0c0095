"""From calls of ops to the cases that are run outside TensorFlow, and what they must give."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from fusion.ops.bags.cpu.bag_layout import BagWords
from fusion.ops.tables.cpu.layout import AccessState
from fusion.runtime.registration.kernel_objects import kernel_name
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.spec import OpSpec
from tests.soak.faulty import FAULTS
from tests.soak.kernel_cases import CALLS, OpCall, Variable, spoiled
from tests.soak.kernel_objects import KERNELS, uses_row_kernels, uses_variables
from tests.soak.plan import Case, Outputs, Tensor

#: Of the calls of each kernel, one in so many is also spoiled in every way, and also run with too
#: little memory.
_SPOILED, _STARVED = 25, 20

#: The bytes of a TF_TString, and the kind of those whose own lie elsewhere, relative to it.
_STRING_BYTES, _OFFSET = 24, 2


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
    if uses_variables(spec):
        return _case_of_variables(place, call, starved)
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
    words = [*_NO_GPU, *(_word(spec, attr.name, attrs[attr.name]) for attr in spec.value_attrs)]
    row_kernels = {}
    if uses_row_kernels(spec):
        row_kernels[len(words) + BagWords.row_kernel] = int(attrs["use_sparse_weights"])
        words += [0] * BagWords.SIZE
    return Case(
        label=f"{kernel_name(spec, 'CPU', types)}: {call.label}; {call.attrs}",
        kernel=place,
        attrs=words,
        inputs=[_tensor(array) for array in arrays],
        outputs=outputs,
        expected=_in_tensorflow(spec, attrs, [*map(tf.constant, arrays)], len(outputs)),
        starved=starved,
        row_kernels=row_kernels,
    )


#: Where an `AccessState` begins behind the address of the table.
_BEHIND = State.op_table + 1


def _case_of_variables(place: int, call: OpCall, starved: bool) -> Case:
    """As `_case`, of an op whose state is an `AccessState`."""
    spec, types = KERNELS[place]
    given = [call.inputs[arg.name] for arg in spec.inputs]
    tensors = [_tensor(v.value if isinstance(v, Variable) else v) for v in given]
    variables = {k: tf.Variable(v.value) for k, v in enumerate(given) if isinstance(v, Variable)}
    dtypes = {arg.dtype: tf.as_dtype(t[0]) for arg, t in zip(spec.inputs, tensors, strict=True)}
    known = {attr.name: attr.default for attr in spec.attrs} | types | dtypes | call.attrs
    attrs = {attr.name: known[attr.name] for attr in spec.attrs}
    outputs = [
        (tf.as_dtype(attrs.get(arg.dtype, arg.dtype)).as_datatype_enum, len(arg.dims))
        for arg in spec.outputs
    ]
    inputs = [
        variables[k].handle if k in variables else tf.constant(v) for k, v in enumerate(given)
    ]
    expected = _in_tensorflow(spec, attrs, inputs, len(outputs))
    nothing = _tensor(np.zeros(0))
    table = tf.as_dtype(attrs.get("T", tf.float64))
    return Case(
        label=f"{kernel_name(spec, 'CPU', types)}: {call.label}; {call.attrs}",
        kernel=place,
        attrs=_access_state(attrs, table.size),
        inputs=[nothing if k in variables else tensor for k, tensor in enumerate(tensors)],
        outputs=outputs,
        expected=expected,
        starved=starved,
        variables={k: (tensors[k], v.numpy().tobytes()) for k, v in variables.items()},
        accesses={
            AccessState.table_access - _BEHIND: table.as_datatype_enum,
            AccessState.index_access - _BEHIND: tf.float64.as_datatype_enum,
        },
    )


def _access_state(attrs: dict[str, Any], item_bytes: int) -> list[int]:
    """An `AccessState` behind the address of the table, without functions and threads."""
    words = [0] * (AccessState.SIZE - _BEHIND)
    words[AccessState.item_bytes - _BEHIND] = item_bytes
    words[AccessState.dim - _BEHIND] = attrs.get("dim", 0)
    words[AccessState.has_int32_keys - _BEHIND] = int(attrs.get("Tid") == tf.int32)
    words[AccessState.is_training - _BEHIND] = int(attrs.get("is_training", False))
    words[AccessState.number - _BEHIND] = attrs.get("number", 0)
    return words


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _tensor(array: Any) -> Tensor:
    content = array.tobytes()
    if array.dtype == object:
        assert array.size == 1
        content = _string(array.item())
    return tf.as_dtype(array.dtype).as_datatype_enum, array.shape, content


def _string(value: bytes) -> bytes:
    """A TF_TString, whose bytes lie behind it where they do not fit in."""
    size = 4 * len(value)  # the kind is in the lowest bits
    if len(value) < _STRING_BYTES - 1:
        return bytes([size]) + value.ljust(_STRING_BYTES - 1, b"\0")
    return struct.pack("<III", size + _OFFSET, _STRING_BYTES, 0).ljust(_STRING_BYTES, b"\0") + value


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
            inputs=arrays,
            attrs=tuple(flat),
            ctx=context.context(),
        )
    except tf.errors.OpError as error:
        return error.error_code, []
    return 0, [(tuple(result.shape), result.numpy().tobytes()) for result in results]
