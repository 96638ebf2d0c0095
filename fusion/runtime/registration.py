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
from typing import Any

from tensorflow.core.framework import op_def_pb2
from tensorflow.python.framework import dtypes, kernels, op_def_registry, ops

from fusion.runtime import launcher, layout, library, objects
from fusion.runtime.names import name_words
from fusion.runtime.process import keep_forever
from fusion.runtime.spec import Attr, OpSpec, as_dtype

_INVALID_ARGUMENT, _INTERNAL = 3, 13
_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


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
    unkerneled = [spec for spec in specs if not _has_kernels(spec)]
    tables = {spec.name: _table(spec) for spec in specs}
    if new or unkerneled:
        dispatch, shapes = _thunks(new, tables)
        for spec in new:
            _define(spec, shapes[spec.name])
        for spec in unkerneled:
            made = Kernels(spec, "CPU", dispatch, tables[spec.name])
            made.register()
            if gpus is not None and "GPU" in spec.kernels:
                replace(made, device="GPU", gpus=gpus).register()
    for spec in specs:
        _register_gradient(spec)


def register_labelled(specs: tuple[OpSpec, ...], gpus: FindGpus, label: str) -> None:
    """Registers kernels for GPUs for nodes on a CPU that ask for them by a label.

    That is how they are tested where there is no GPU.
    """
    dispatch, _ = _thunks([], {})
    for spec in specs:
        if "GPU" in spec.kernels:
            Kernels(spec, "GPU", dispatch, _table(spec), gpus, label).register()


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


def _thunks(specs: list[OpSpec], tables: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """The compute function of all kernels, and the shape function of each op.

    Both are a few instructions: the first jumps to the address in a kernel's state, which is
    known only when a node is created; the others call the common shape function with a table.
    """
    infer = shape_function()
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
    symbols = ["dispatch", *(f"shape_{spec.name}" for spec in specs)]
    addresses = objects.load_ir("".join(parts), symbols)
    return addresses[0], dict(zip((spec.name for spec in specs), addresses[1:], strict=True))


def shape_function() -> int:
    """The address of the shape function of all ops, which every process needs."""

    def compile_it() -> bytes:
        from fusion.runtime.compiler import compile_object
        from fusion.runtime.shape_inference import infer_shapes

        return compile_object(infer_shapes, 3, "infer_shapes")

    return objects.address("infer_shapes", compile_it)


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
      dispatch, table: the addresses of the compute function and of the op's table.
      gpus: finds what launches kernels on a GPU.
      label: with one, they are those of nodes on a CPU that ask for them by it.
    """

    spec: OpSpec
    device: str
    dispatch: int
    table: int
    gpus: FindGpus | None = None
    label: str = ""

    def register(self) -> None:
        """Tells TensorFlow of them."""
        create = _CREATE(self._create)
        keep_forever(create)
        for combination in itertools.product(*self.spec.kernel_types.values()):
            self._register(create, combination)

    def _register(self, create: Any, dtypes_of: tuple[str, ...]) -> None:
        tf, spec = library.load(), self.spec
        free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        device, dispatch = "CPU" if self.label else self.device, ctypes.c_void_p(self.dispatch)
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

    def _create(self, construction: int) -> int | None:
        """Makes the state of one node's kernel; TensorFlow calls it when a node is first run."""
        spec, names = self.spec, list[str]()
        try:
            values = {attr.name: _attr_value(construction, attr) for attr in spec.attrs}
            address, words = node_state(spec, self.device, values, self.label)
            names = _names(spec, values)
            launching = 0 if self.gpus is None else launcher.launcher(self.gpus).address
        except BaseException as error:  # a KeyboardInterrupt, too: nothing may be raised into C
            code = _INVALID_ARGUMENT if isinstance(error, ValueError) else _INTERNAL
            with library.Status() as status:
                status.set(code, f"{spec.name}: {str(error) or type(error).__name__}")
                library.load().TF_OpKernelConstruction_Failure(
                    ctypes.c_void_p(construction), status.address
                )
            return None
        names_at = layout.STATE_WORDS + len(words) if names else 0
        head = [address, self.table, launching, 0, names_at]
        return _allocate([*head, *words, *name_words(names, names_at)])


def _names(spec: OpSpec, values: Mapping[str, Any]) -> list[str]:
    """What a node's messages call its columns; nothing if it does not say.

    Raises:
      ValueError: names of another number of columns.
    """
    if spec.names is None or not values[spec.names]:
        return []
    given = values[spec.names]
    if isinstance(given, str):
        return [given]
    if len(given) != values["num_columns"]:
        raise ValueError(f"{spec.names} has {len(given)} items for {values['num_columns']} columns")
    return list(given)


def _allocate(words: list[int]) -> int:
    """A copy of `words` in memory that C's free releases."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    address = libc.malloc(8 * len(words))
    if not address:
        raise MemoryError("no memory for the state of a kernel")
    ctypes.memmove(address, (ctypes.c_int64 * len(words))(*words), 8 * len(words))
    return int(address)


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


def kernel_address(spec: OpSpec, device: str, types: Mapping[str, str], label: str = "") -> int:
    """The address of the kernel of `spec` for these dtypes, loaded or compiled on first use."""
    name = kernel_name(spec, device, types, label)
    return objects.address(name, lambda: compile_kernel(spec, device, types, label))


def kernel_name(spec: OpSpec, device: str, types: Mapping[str, str], label: str = "") -> str:
    """The name of a kernel on disk, and of its function."""
    if spec.custom is not None:
        return f"{spec.kernels[device].__name__}_{device}{label}"  # several ops may have it
    return "_".join((spec.name, device + label, *types.values()))


def compile_kernel(spec: OpSpec, device: str, types: Mapping[str, str], label: str = "") -> bytes:
    """The object code of one kernel, compiled now."""
    from fusion.runtime.compiler import compile_object
    from fusion.runtime.entry import make_entry, make_shared_entry, make_short_entry

    made: Any = spec.kernels[device](spec, types)
    if spec.custom is None:
        entry = make_entry(made)
    elif isinstance(made, tuple):
        entry = make_shared_entry(*made)
    else:
        entry = make_short_entry(made)
    return compile_object(entry, 2, kernel_name(spec, device, types, label))


def _attr_value(construction: int, attr: Attr) -> Any:
    """The value of an attr: a dtype's name, an int, a float, a bool, a string, or a list of them.

    Raises:
      ValueError: an int above the attr's maximum.
    """
    count, size = ctypes.c_int32(-1), ctypes.c_int32()
    if attr.is_list or attr.kind == "string":
        _read_attr("Size", construction, attr.name, ctypes.byref(count), ctypes.byref(size))
    values: list[Any]
    if attr.element == "string":
        values = _strings(construction, attr, max(count.value, 0), size.value)
    else:
        values = _numbers(construction, attr, count.value)
    if attr.element == "int" and attr.maximum is not None and max(values, default=0) > attr.maximum:
        raise ValueError(f"{attr.name} must be at most {attr.maximum}, not {max(values)}")
    if attr.element == "type":
        values = [str(dtypes.as_dtype(value).name) for value in values]
    elif attr.element == "bool":
        values = [bool(value) for value in values]
    return values if attr.is_list else values[0]


#: The name in the C API, and the C type, of each kind of attr but strings.
_C_KINDS: dict[str, tuple[str, Any]] = {
    "type": ("Type", ctypes.c_int),
    "int": ("Int64", ctypes.c_int64),
    "bool": ("Bool", ctypes.c_ubyte),
    "float": ("Float", ctypes.c_float),
}


def _numbers(construction: int, attr: Attr, count: int) -> list[Any]:
    name, kind = _C_KINDS[attr.element]
    values = (kind * (count if attr.is_list else 1))()
    if attr.is_list:
        _read_attr(f"{name}List", construction, attr.name, values, ctypes.c_int(count))
    else:
        _read_attr(name, construction, attr.name, values)
    return list(values)


def _strings(construction: int, attr: Attr, count: int, size: int) -> list[str]:
    storage = ctypes.create_string_buffer(size + 1)
    if not attr.is_list:
        _read_attr("String", construction, attr.name, storage, ctypes.c_size_t(size))
        return [_decoded(storage.raw[:size])]
    starts, lengths = (ctypes.c_void_p * count)(), (ctypes.c_size_t * count)()
    room = ctypes.c_size_t(size + 1)
    arguments = (starts, lengths, ctypes.c_int(count), storage, room)
    _read_attr("StringList", construction, attr.name, *arguments)
    return [
        _decoded(ctypes.string_at(start or 0, length)) if length else ""
        for start, length in zip(starts, lengths, strict=True)
    ]


def _decoded(text: bytes) -> str:
    return text.decode(errors="backslashreplace")  # a file may hold anything


def _word(attr: Attr, value: Any) -> int:
    """The value of `attr` as a 64-bit word: strings by place in `allowed`, floats as doubles."""
    if attr.kind == "string":
        return attr.allowed.index(value)
    return double_word(value) if attr.kind == "float" else int(value)


def double_word(value: float) -> int:
    """The bits of a double as a 64-bit word."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _read_attr(kind: str, construction: int, name: str, *results: object) -> None:
    read = getattr(library.load(), f"TF_OpKernelConstruction_GetAttr{kind}")
    with library.Status() as status:
        read(ctypes.c_void_p(construction), name.encode(), *results, status.address)
        status.check(f"reading attribute {name}")


def _register_gradient(spec: OpSpec) -> None:
    try:
        ops.gradient_registry.lookup(spec.name)
    except LookupError:
        if callable(spec.gradient):
            ops.RegisterGradient(spec.name)(spec.gradient)
        elif spec.gradient is not None:
            ops.NotDifferentiable(spec.name)
