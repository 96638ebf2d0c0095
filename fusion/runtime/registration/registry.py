"""The ops and kernels of TensorFlow's registry, as records; `native_registry` registers them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, Words, fields
from fusion.runtime.records import Memory, Word
from fusion.runtime.tensorflow.layout import OpTable
from fusion.runtime.tensorflow.spec import OpSpec, as_dtype

MESSAGE_BYTES = 1024


class OpRecord(Layout):
    """The definition of an op; lists are of C strings, in the language of `OpDefBuilder`."""

    name: Address
    attrs: Words
    attr_count: Int64
    inputs: Words
    input_count: Int64
    outputs: Words
    output_count: Int64
    is_stateful: Flag
    infer_shapes: Address  # void (*)(TF_ShapeInferenceContext*, TF_Status*)
    content: Address  # the OpDef in TensorFlow's registry, serialized
    content_bytes: Int64
    table: OpTable


class KernelEntry(Layout):
    """A kernel of an op."""

    op: Address  # C strings
    device: Address
    label: Address  # "" for none
    name: Address
    create: Address  # void* (*)(TF_OpKernelConstruction*)
    constraints: TypeConstraint  # [constraint_count]
    constraint_count: Int64
    host_args: Words  # of those whose memory is the host's, C strings
    host_arg_count: Int64


class TypeConstraint(Layout):
    """The dtype of an attr."""

    attr: Address  # a C string
    dtype: Int64  # `TF_DataType`


class Registry(Layout):
    """The ops and kernels to register with TensorFlow."""

    ops: OpRecord  # [op_count]
    op_count: Int64
    kernels: KernelEntry  # [kernel_count]
    kernel_count: Int64
    compute: Address  # void (*)(void* state, TF_OpKernelContext*) of all kernels
    free: Address  # that of states
    code: Int64  # out: `TF_Code`, and the message, a C string
    message: Fields = fields(MESSAGE_BYTES // 8)


def op_record(spec: OpSpec, infer_shapes: Word, table: Word, memory: Memory) -> list[Word]:
    """The words of `OpRecord`."""

    def texts(items: Sequence[str]) -> list[Word]:
        return [memory.words([memory.text(item) for item in items]), len(items)]

    content = spec.op_def.SerializeToString(deterministic=True)
    return [
        memory.text(spec.name),
        *texts([attr.definition for attr in spec.attrs]),
        *texts([arg.definition(spec.types) for arg in spec.inputs]),
        *texts([arg.definition(spec.types) for arg in spec.outputs]),
        int(spec.is_stateful),
        infer_shapes,
        memory.bytes(content),
        len(content),
        table,
    ]


def kernel_entries(
    spec: OpSpec, device: str, label: str, create: Word, memory: Memory
) -> list[Word]:
    """The words of a `KernelEntry` for each choice of dtypes of an op's kernels.

    Args:
      device: the type that their bodies are made for.
      label: with one, they are those of nodes on a CPU that ask for them by it.
    """
    on_host = [arg.name for arg in (*spec.inputs, *spec.outputs) if arg.on_host]
    host_args = on_host if device != "CPU" else []
    names = {name: memory.text(name) for name in (*spec.kernel_types, *host_args)}
    same = [memory.text(spec.name), memory.text("CPU" if label else device), memory.text(label)]
    host_words = [memory.words([names[name] for name in host_args]), len(host_args)]
    words: list[Word] = []
    for dtypes in itertools.product(*spec.kernel_types.values()):
        constraints = [
            word
            for name, dtype in zip(spec.kernel_types, dtypes, strict=True)
            for word in (names[name], as_dtype(dtype).as_datatype_enum)
        ]
        name = memory.text("_".join((spec.name, device + label, *dtypes)))
        words += [*same, name, create, memory.words(constraints), len(dtypes), *host_words]
    return words


def registry(
    ops: Sequence[list[Word]],
    kernels: Sequence[list[Word]],
    compute: Word,
    free: Word,
    memory: Memory,
) -> Word:
    """The address of a `Registry`.

    Args:
      ops: of `op_record`.
      kernels: of `kernel_entries`.
      compute, free: the addresses of their functions.
    """
    op_words, kernel_words = [*itertools.chain(*ops)], [*itertools.chain(*kernels)]
    head = [
        memory.words(op_words),
        len(op_words) // OpRecord.SIZE,
        memory.words(kernel_words),
        len(kernel_words) // KernelEntry.SIZE,
        compute,
        free,
    ]
    return memory.words([*head, *[0] * (Registry.SIZE - len(head))])
