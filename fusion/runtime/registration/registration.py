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
from fusion.runtime.native.objects import Recipe
from fusion.runtime.process import keep_forever, single
from fusion.runtime.registration import creation
from fusion.runtime.registration.creation import FIRST_ROW_KERNEL, Creation, KernelsRecord
from fusion.runtime.registration.kernel_objects import kernel_recipe
from fusion.runtime.registration.op_functions import native_functions, plain_builder
from fusion.runtime.tensorflow import attrs, layout, library
from fusion.runtime.tensorflow.attrs import Memory
from fusion.runtime.tensorflow.spec import OpSpec, as_dtype
from fusion.runtime.threads import pool
from fusion.runtime.threads.layout import Pool
from fusion.runtime.upcalls.service import Request, upcalls

_INVALID_ARGUMENT, _UNIMPLEMENTED, _INTERNAL = 3, 12, 13

#: The kernels of each op and type of device, or label, that TensorFlow knows of.
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
    def memory(self) -> Memory:
        """Keeps what native code reads of them."""
        memory = Memory()
        keep_forever(memory)
        return memory

    @cached_property
    def words(self) -> ctypes.Array[ctypes.c_int64]:
        """What native code knows of them, see `creation`."""
        spec, memory = self.spec, self.memory
        words = (ctypes.c_int64 * KernelsRecord.SIZE)()
        keep_forever(words)
        words[KernelsRecord.op_name] = memory.text(spec.name)
        words[KernelsRecord.server_number] = upcalls().add(self)
        words[KernelsRecord.upcalls] = upcalls().address
        words[KernelsRecord.patience_ns] = creation.PATIENCE_NS
        words[KernelsRecord.too_late] = memory.text(
            "no kernel, because to make one takes Python's lock (the GIL), which was not to be had "
            "in time: another thread kept it, perhaps while waiting for this very node. Run the "
            "function once before"
        )
        words[KernelsRecord.op_table] = self.table
        words[KernelsRecord.is_for_gpu] = int(self.device != "CPU")
        words[KernelsRecord.attrs] = attrs.entries(spec.attrs, memory)
        words[KernelsRecord.attr_count] = len(spec.attrs)
        words[KernelsRecord.types] = memory.words(self._types())
        words[KernelsRecord.type_count] = len(self.body_types)
        names = [attr.name for attr in spec.attrs]
        words[KernelsRecord.names] = -1 if spec.names is None else names.index(spec.names)
        words[KernelsRecord.bodies] = memory.words([0] * len(self.bodies))
        words[KernelsRecord.row_kernels] = _row_kernel_addresses(spec)
        words[KernelsRecord.pool] = pool.pool_address()
        return words

    @cached_property
    def body_types(self) -> Mapping[str, tuple[str, ...]]:
        """The dtypes that there is a body for, by their attrs."""
        return self.spec.kernel_types if self.spec.builder is None else {}

    @cached_property
    def bodies(self) -> list[dict[str, str]]:
        """The dtypes of each body."""
        combinations = itertools.product(*self.body_types.values())
        return [dict(zip(self.body_types, types, strict=True)) for types in combinations]

    def _types(self) -> list[int]:
        """The words of a `TypeEntry` for each attr."""
        names, words = [attr.name for attr in self.spec.attrs], list[int]()
        for name, allowed in self.body_types.items():
            numbers = [as_dtype(dtype).as_datatype_enum for dtype in allowed]
            words += [names.index(name), len(numbers), self.memory.words(numbers)]
        return words

    def lacks(self) -> list[int]:
        """What no state can do without and is not there yet."""
        lacking = {
            creation.BUILDER: not self.words[KernelsRecord.builder],
            creation.CONSTANTS: not self.words[KernelsRecord.constants],
            creation.POOL: not pool.is_ready(),
            creation.LAUNCHER: self.device != "CPU" and not self.words[KernelsRecord.launcher],
        }
        return [what for what, is_lacking in lacking.items() if is_lacking]

    @property
    def address(self) -> int:
        """The address of the words."""
        return ctypes.addressof(self.words)

    def register(self, dispatch: int, create: int) -> None:
        """Tells TensorFlow of them.

        Args:
          dispatch, create: the addresses of their functions.
        """
        _kernels[self.spec.name, self.label or self.device] = self
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
        """Brings what a state needs: a node of the op is first run."""
        content = request.input()
        try:
            for (what,) in struct.iter_unpack("=q", content):
                self.bring(what)
        except BaseException as error:  # a KeyboardInterrupt, too: nothing may be raised into C
            code = next((c for kind, c in _CODES.items() if isinstance(error, kind)), _INTERNAL)
            request.answer((str(error) or type(error).__name__).encode() + b"\0", code)
        else:
            request.answer(b"\0")

    def too_late(self) -> None:
        """The node has failed already."""

    def bring(self, what: int) -> None:
        """Lets native code have what it lacks, see `creation`.

        Raises:
          ValueError: a setting that makes no sense.
          NotImplementedError: TensorFlow lacks what the op needs.
        """
        if what == creation.POOL:
            pool.start_pool()
        elif what == creation.LAUNCHER:
            assert self.gpus is not None
            self.words[KernelsRecord.launcher] = launcher.launcher(self.gpus).address
        elif what == creation.CONSTANTS:
            self.words[KernelsRecord.constants] = self.memory.words(self.constants())
        elif what == creation.BUILDER:
            self.words[KernelsRecord.builder] = objects.recipe_address(*self.recipe(what))
        else:
            is_row_kernel = what >= FIRST_ROW_KERNEL
            field = KernelsRecord.row_kernels if is_row_kernel else KernelsRecord.bodies
            place = self.words[field] + 8 * (what % FIRST_ROW_KERNEL)
            address = objects.recipe_address(*self.recipe(what))
            ctypes.c_int64.from_address(place).value = address

    def constants(self) -> list[int]:
        """What the builder needs to know."""
        return self.spec.builder.constants(self.spec, self.device) if self.spec.builder else [0]

    def recipe(self, what: int) -> tuple[str, Recipe]:
        """The name of a builder, a body or a row kernel, and how it is made."""
        builder = self.spec.builder
        if what == creation.BUILDER:
            return (
                plain_builder() if builder is None else (builder.name, Recipe(builder.compile_it))
            )
        if what < FIRST_ROW_KERNEL:
            return kernel_recipe(self.spec, self.device, self.bodies[what], self.label)
        assert builder is not None
        assert builder.row_kernels is not None
        name, compile_it = builder.row_kernels.at(what - FIRST_ROW_KERNEL)
        return name, Recipe(compile_it)

    def needs(self, node: node_def_pb2.NodeDef) -> list[int]:
        """What the state of a node's kernel leads to, as `recipe` takes it.

        Raises:
          ValueError: attrs that do not go together.
          NotImplementedError: TensorFlow lacks what the op needs.
        """
        memory, bodies = Memory(), [0] * len(self.bodies)
        record = list(self.words)
        record[KernelsRecord.bodies] = memory.words(bodies)
        record[KernelsRecord.row_kernels] = memory.words([0] * _row_kernel_count(self.spec))
        record[KernelsRecord.constants] = memory.words(self.constants())
        record[KernelsRecord.launcher] = 1
        record[KernelsRecord.pool] = memory.words([1] * Pool.SIZE)
        words = (ctypes.c_int64 * Creation.SIZE)()
        words[Creation.record] = memory.words(record)
        words[Creation.values] = attrs.values(self.spec.attrs, node, memory)
        build, found = _builder_function(self), list[int]()
        while True:
            words[Creation.missing_count] = words[Creation.state] = 0
            build(ctypes.addressof(words))
            _libc.free(ctypes.c_void_p(words[Creation.state]))
            if words[Creation.has_failed]:
                raise _error(words)
            missing = words[Creation.missing : Creation.missing + words[Creation.missing_count]]
            if not missing:
                return found
            for what in missing:
                is_row_kernel = what >= FIRST_ROW_KERNEL
                field = KernelsRecord.row_kernels if is_row_kernel else KernelsRecord.bodies
                place = record[field] + 8 * (what % FIRST_ROW_KERNEL)
                ctypes.c_int64.from_address(place).value = 1
            found += missing


#: The codes that errors in Python are in TensorFlow.
_CODES: dict[type[BaseException], int] = {
    NotImplementedError: _UNIMPLEMENTED,
    ValueError: _INVALID_ARGUMENT,
}
_libc = ctypes.CDLL(None)


def _error(words: ctypes.Array[ctypes.c_int64]) -> Exception:
    """The error that a creation ended with."""
    start = ctypes.addressof(words) + 8 * Creation.message
    text = ctypes.string_at(start).decode(errors="backslashreplace")
    codes = {code: kind for kind, code in _CODES.items()}
    return codes.get(words[Creation.code], RuntimeError)(text)  # type: ignore[return-value]


def _builder_function(kernels_of: Kernels) -> Callable[[int], None]:
    """The function that builds states, for this machine whatever is compiled for."""
    name, recipe = kernels_of.recipe(creation.BUILDER)
    with objects.loading():
        address = objects.recipe_address(name, recipe)
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)


def _row_kernel_count(spec: OpSpec) -> int:
    kernels_of_rows = None if spec.builder is None else spec.builder.row_kernels
    return 0 if kernels_of_rows is None else kernels_of_rows.count


def _row_kernel_addresses(spec: OpSpec) -> int:
    """The address of those of an op's row kernels, which ops with the same ones share."""
    if spec.builder is None or spec.builder.row_kernels is None:
        return 0

    def make() -> ctypes.Array[ctypes.c_int64]:
        array = (ctypes.c_int64 * _row_kernel_count(spec))()
        keep_forever(array)
        return array

    return ctypes.addressof(single(spec.builder.row_kernels.name, make))


def kernels_of(op: str, device: str = "CPU") -> Kernels | None:
    """The kernels of an op for a type of device, or of a label, if there are any."""
    return _kernels.get((op, device))


def prepare(node: node_def_pb2.NodeDef) -> None:
    """Has all ready that the kernel of a placed node leads to, so that Python is not needed for it.

    Of others than fusion's own, and where anything is in the way, nothing happens: whoever runs the
    node will find out.
    """
    device = DeviceSpecV2.from_string(node.device).device_type if node.device else None
    kernels_of = _kernels.get((node.op, str(device)))
    if kernels_of is None or "_kernel" in node.attr:  # one with a label
        return
    try:
        for what in kernels_of.lacks():
            kernels_of.bring(what)
        for what in kernels_of.needs(node):
            kernels_of.bring(what)
    except Exception:
        return


def _register_gradient(spec: OpSpec) -> None:
    try:
        ops.gradient_registry.lookup(spec.name)
    except LookupError:
        if callable(spec.gradient):
            ops.RegisterGradient(spec.name)(spec.gradient)
        elif spec.gradient is not None:
            ops.NotDifferentiable(spec.name)
