"""Ops and kernels into TensorFlow's registries, once per process.

TensorFlow aborts the process when a name is registered twice, and never forgets a registration.
So each name is looked up first, and whatever TensorFlow keeps an address of is never freed.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tensorflow.core.framework import node_def_pb2, op_def_pb2
from tensorflow.python.framework import kernels, op_def_registry, ops
from tensorflow.python.framework.device_spec import DeviceSpecV2

from fusion.runtime.cuda import launcher
from fusion.runtime.native import objects
from fusion.runtime.process import keep_forever, single
from fusion.runtime.registration import creation
from fusion.runtime.registration.creation import STATE_ATTR, KernelsRecord, attr_value, prepared
from fusion.runtime.registration.kernel_objects import kernel_address
from fusion.runtime.registration.op_functions import native_functions
from fusion.runtime.tensorflow import layout, library
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.names import name_words
from fusion.runtime.tensorflow.spec import Attr, OpSpec, as_dtype
from fusion.runtime.upcalls.service import Request, upcalls

_INVALID_ARGUMENT, _INTERNAL = 3, 13

#: The kernels of each op and type of device that TensorFlow knows of.
_kernels: dict[tuple[str, str], Kernels] = single("kernels", dict)


def register(specs: tuple[OpSpec, ...], gpus: FindGpus | None = None) -> None:
    """Registers ops, kernels and gradients, those that are not there yet.

    Args:
      gpus: finds the GPUs when the first kernel for one is made; None: there are no such kernels.

    Raises:
      ImportError: this is not a supported platform, TensorFlow lacks something that is needed, or
        it has a different op of one of these names.
    """
    library.load()
    new = [spec for spec in specs if not _is_registered(spec)]
    known = {spec.name for spec in specs} - {spec.name for spec in new}
    # TensorFlow looks through all of its kernels for those of an op; one that is new has none.
    unkerneled = [spec for spec in specs if spec.name not in known or not _has_kernels(spec)]
    tables = {spec.name: _table(spec) for spec in specs}
    if unkerneled:
        made = [Kernels(spec, "CPU", tables[spec.name]) for spec in unkerneled]
        if gpus is not None:
            on_gpus = [one for one in made if "GPU" in one.spec.kernels]
            made += [replace(one, device="GPU", gpus=gpus) for one in on_gpus]
        thunks = _thunks(new, tables, made)
        for spec in new:
            _define(spec, thunks[f"shape_{spec.name}"])
        for index, kernels_of in enumerate(made):
            kernels_of.register(thunks["dispatch"], thunks[f"create_{index}"])
    for spec in specs:
        _register_gradient(spec)


def register_labelled(specs: tuple[OpSpec, ...], gpus: FindGpus, label: str) -> None:
    """Registers kernels for GPUs for nodes on a CPU that ask for them by a label.

    That is how they are tested where there is no GPU.
    """
    on_gpus = [spec for spec in specs if "GPU" in spec.kernels]
    made = [Kernels(spec, "GPU", _table(spec), gpus, label) for spec in on_gpus]
    thunks = _thunks([], {}, made)
    for index, kernels_of in enumerate(made):
        kernels_of.register(thunks["dispatch"], thunks[f"create_{index}"])


def _is_registered(spec: OpSpec) -> bool:
    known = op_def_registry.get(spec.name)
    if known is None:
        return False
    plain = op_def_pb2.OpDef()
    plain.CopyFrom(known)
    if plain != spec.op_def:
        raise ImportError(
            f"fusion cannot register its op {spec.name}: TensorFlow already has a different op "
            "of that name, from another library or another version of fusion"
        )
    return True


def _has_kernels(spec: OpSpec) -> bool:
    return bool(kernels.get_registered_kernels_for_op(spec.name).kernel)


def _table(spec: OpSpec) -> int:
    table, names = layout.words(spec)
    array = (ctypes.c_int64 * len(table))(*table)
    keep_forever(array)
    keep_forever(names)
    return ctypes.addressof(array)


def _thunks(specs: list[OpSpec], tables: Mapping[str, int], made: list[Kernels]) -> dict[str, int]:
    """The compute function of all kernels, and the functions of ops and kernels, by name.

    All are a few instructions: the first jumps to the address in a kernel's state, which is known
    only when a node is created; the shape function of an op calls the common one with the op's
    table, and the create function of kernels the common one with their words.
    """
    infer, create = native_functions()
    parts = [
        "define void @dispatch(ptr %state, i64 %ctx) {\n"
        "  %kernel = load ptr, ptr %state\n"
        "  %word = ptrtoint ptr %state to i64\n"
        "  tail call void %kernel(i64 %word, i64 %ctx)\n"
        "  ret void\n}\n"
    ]
    for spec in specs:
        parts.append(
            f"define void @shape_{spec.name}(i64 %ctx, i64 %status) {{\n"
            f"  %infer = inttoptr i64 {infer} to ptr\n"
            f"  tail call void %infer(i64 {tables[spec.name]}, i64 %ctx, i64 %status)\n"
            "  ret void\n}\n"
        )
    for index, kernels_of in enumerate(made):
        parts.append(
            f"define i64 @create_{index}(i64 %construction) {{\n"
            "  %made = alloca i64\n"
            "  %address = ptrtoint ptr %made to i64\n"
            f"  %create = inttoptr i64 {create} to ptr\n"
            f"  call void %create(i64 {kernels_of.address}, i64 %construction, i64 %address)\n"
            "  %state = load i64, ptr %made\n"
            "  ret i64 %state\n}\n"
        )
    symbols = ["dispatch", *(f"shape_{spec.name}" for spec in specs)]
    symbols += [f"create_{index}" for index in range(len(made))]
    return dict(zip(symbols, objects.load_ir("".join(parts), symbols), strict=True))


def _define(spec: OpSpec, shape_function: int) -> None:
    tf = library.load()
    builder = ctypes.c_void_p(tf.TF_NewOpDefinitionBuilder(spec.name.encode()))
    for attr in spec.attrs:
        tf.TF_OpDefinitionBuilderAddAttr(builder, attr.definition.encode())
    for arg in spec.inputs:
        tf.TF_OpDefinitionBuilderAddInput(builder, arg.definition(spec.types).encode())
    for arg in spec.outputs:
        tf.TF_OpDefinitionBuilderAddOutput(builder, arg.definition(spec.types).encode())
    if spec.is_stateful:  # TensorFlow does not look at the argument
        tf.TF_OpDefinitionBuilderSetIsStateful(builder, ctypes.c_bool(True))
    tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, ctypes.c_void_p(shape_function))
    with library.Status() as status:
        tf.TF_RegisterOpDefinition(builder, status.address)
        status.check(f"registering op {spec.name}")


#: () -> the GPUs of this process.
FindGpus = Callable[[], launcher.Gpus]


@dataclass(frozen=True)
class Kernels:
    """The kernels of an op for a type of device.

    Attributes:
      device: the type that their bodies are made for, a key of `OpSpec.kernels`.
      table: the address of the op's table.
      gpus: finds what launches kernels on a GPU.
      label: with one, they are those of nodes on a CPU that ask for them by it.
    """

    spec: OpSpec
    device: str
    table: int
    gpus: FindGpus | None = None
    label: str = ""

    @cached_property
    def words(self) -> ctypes.Array[ctypes.c_int64]:
        """The words that native code has of them, see `creation`."""
        words = (ctypes.c_int64 * KernelsRecord.SIZE)()
        keep_forever(words)
        words[KernelsRecord.server_number] = upcalls().add(self)
        words[KernelsRecord.upcalls] = upcalls().address
        words[KernelsRecord.patience_ns] = creation.PATIENCE_NS
        words[KernelsRecord.too_late] = creation.c_string(
            f"{self.spec.name}: no kernel, because to make one takes Python's lock (the GIL), "
            "which was not to be had in time: another thread kept it, perhaps while waiting for "
            "this very node. Run the function once before"
        )
        words[KernelsRecord.no_memory] = creation.c_string(
            f"{self.spec.name}: no memory for a kernel"
        )
        words[KernelsRecord.attr_name] = creation.c_string(STATE_ATTR)
        words[KernelsRecord.prepared] = ctypes.addressof(prepared().words)
        return words

    @property
    def address(self) -> int:
        """The address of the words."""
        return ctypes.addressof(self.words)

    def register(self, dispatch: int, create: int) -> None:
        """Tells TensorFlow of them.

        Args:
          dispatch, create: the addresses of their functions.
        """
        if not self.label:
            _kernels[self.spec.name, self.device] = self
        for combination in itertools.product(*self.spec.kernel_types.values()):
            self._register(ctypes.c_void_p(dispatch), ctypes.c_void_p(create), combination)

    def _register(self, dispatch: Any, create: Any, dtypes_of: tuple[str, ...]) -> None:
        tf, spec = library.load(), self.spec
        free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        device = "CPU" if self.label else self.device
        builder = ctypes.c_void_p(
            tf.TF_NewKernelBuilder(spec.name.encode(), device.encode(), create, dispatch, free)
        )
        if self.label:
            tf.TF_KernelBuilder_Label(builder, self.label.encode())
        with library.Status() as status:
            for name, dtype in zip(spec.kernel_types, dtypes_of, strict=True):
                enum = as_dtype(dtype).as_datatype_enum
                tf.TF_KernelBuilder_TypeConstraint(builder, name.encode(), enum, status.address)
                status.check(f"constraining {name} of {spec.name}")
            for arg in (*spec.inputs, *spec.outputs) if self.device != "CPU" else ():
                if arg.on_host:
                    tf.TF_KernelBuilder_HostMemory(builder, arg.name.encode())
            name = "_".join((spec.name, self.device + self.label, *dtypes_of))
            tf.TF_RegisterKernelBuilder(name.encode(), builder, status.address)
            status.check(f"registering kernel {name}")

    def serve(self, request: Request) -> None:
        """Makes the state of one node's kernel: it is first run."""
        try:
            state = self.state(node_def_pb2.NodeDef.FromString(request.input()))
        except BaseException as error:  # a KeyboardInterrupt, too: nothing may be raised into C
            code = _INVALID_ARGUMENT if isinstance(error, ValueError) else _INTERNAL
            text = f"{self.spec.name}: {str(error) or type(error).__name__}"
            request.answer(text.encode() + b"\0", code)
        else:
            request.answer(struct.pack(f"={len(state)}q", *state))

    def too_late(self) -> None:
        """The node has failed already."""

    def state(self, node: node_def_pb2.NodeDef) -> list[int]:
        """The words of the state of a node's kernel, see `layout`.

        Raises:
          ValueError: attrs that do not go together.
        """
        spec = self.spec
        values = {attr.name: attr_value(node, attr) for attr in spec.attrs}
        address, words = node_state(spec, self.device, values, self.label)
        launching = 0 if self.gpus is None else launcher.launcher(self.gpus).address
        names = _names(spec, values)
        names_at = State.SIZE + len(words) if names else 0
        head = [address, self.table, launching, 0, names_at]
        return [*head, *words, *name_words(names, names_at)]


def _names(spec: OpSpec, values: Mapping[str, Any]) -> list[str]:
    """What a node's messages call its columns; nothing if it does not say.

    Raises:
      ValueError: names of another number of columns.
    """
    if spec.names is None or not values[spec.names]:
        return []
    names = values[spec.names]
    if isinstance(names, str):
        return [names]
    if len(names) != values["num_columns"]:
        raise ValueError(f"{spec.names} has {len(names)} items for {values['num_columns']} columns")
    return list(names)


def prepare(node: node_def_pb2.NodeDef) -> None:
    """Has the kernel of a placed node ready, so that TensorFlow needs nothing of Python to make it.

    Of others than fusion's own, and where anything is in the way, nothing happens: whoever runs the
    node will find out.
    """
    if (node.op, "CPU") not in _kernels:
        return
    node.attr.pop(STATE_ATTR, None)
    device = DeviceSpecV2.from_string(node.device).device_type if node.device else None
    kernels_of = _kernels.get((node.op, str(device)))
    if kernels_of is None or "_kernel" in node.attr:  # one with a label
        return
    try:
        number = prepared().number(kernels_of.address, kernels_of.state(node))
    except Exception:
        return
    node.attr[STATE_ATTR].i = number


def node_state(
    spec: OpSpec, device: str, values: Mapping[str, Any], label: str = ""
) -> tuple[int, list[int]]:
    """The address of the kernel of a node of an op, and the state it has of its own.

    Args:
      values: the node's attrs, dtypes by name.

    Raises:
      ValueError: attrs that do not go together.
    """
    if spec.custom is not None:
        words = spec.custom(values, device)
        return kernel_address(spec, device, {}, label), words
    words = [_word(attr, values[attr.name]) for attr in spec.value_attrs]
    types = {name: values[name] for name in spec.kernel_types}
    return kernel_address(spec, device, types, label), words


def _word(attr: Attr, value: Any) -> int:
    """The value of `attr` as a 64-bit word: strings by place in `allowed`, floats as doubles."""
    if attr.kind == "string":
        return attr.allowed.index(value)
    return layout.double_word(value) if attr.kind == "float" else int(value)


def _register_gradient(spec: OpSpec) -> None:
    try:
        ops.gradient_registry.lookup(spec.name)
    except LookupError:
        if callable(spec.gradient):
            ops.RegisterGradient(spec.name)(spec.gradient)
        elif spec.gradient is not None:
            ops.NotDifferentiable(spec.name)
