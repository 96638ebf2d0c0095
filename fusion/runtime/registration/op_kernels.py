"""The kernels of an op: their records, and how Python provides what these are missing."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property

from tensorflow.core.framework import node_def_pb2

from fusion.runtime.cuda import launcher
from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.objects import Recipe
from fusion.runtime.process import keep_forever, single
from fusion.runtime.records import LiveMemory, Memory, Word
from fusion.runtime.registration import creation
from fusion.runtime.registration.creation import FIRST_ROW_KERNEL, Creation, KernelsRecord
from fusion.runtime.registration.kernel_objects import kernel_recipe
from fusion.runtime.registration.op_functions import plain_builder, provider
from fusion.runtime.tensorflow import attrs, variable_access
from fusion.runtime.tensorflow.private import DeviceSpecV2
from fusion.runtime.tensorflow.spec import OpSpec, as_dtype
from fusion.runtime.tensorflow.variable_access import AccessRequest
from fusion.runtime.threads import pool
from fusion.runtime.threads.layout import Pool
from fusion.runtime.upcalls.service import Request, upcalls

_INVALID_ARGUMENT, _UNIMPLEMENTED, _INTERNAL = 3, 12, 13

#: The kernels of each op and type of device, or label, that TensorFlow knows of.
_kernels: dict[tuple[str, str], Kernels] = single("kernels", dict)


def record_words(
    spec: OpSpec,
    device: str,
    memory: Memory,
    *,
    op_table: Word,
    row_kernels: Word,
    pool: Word,
) -> list[Word]:
    """The words of the `KernelsRecord` of an op for a type of device; nothing has been provided.

    Args:
      op_table: the address of the op's table.
      row_kernels: that of the addresses of its row kernels.
      pool: that of the pool of threads.
    """
    names, words = [attr.name for attr in spec.attrs], [0] * KernelsRecord.SIZE
    types: list[Word] = []
    for name, allowed in body_types(spec).items():
        numbers = [as_dtype(dtype).as_datatype_enum for dtype in allowed]
        types += [names.index(name), len(numbers), memory.words(numbers)]
    words[KernelsRecord.op_name] = memory.text(spec.name)
    words[KernelsRecord.op_table] = op_table
    words[KernelsRecord.is_for_gpu] = int(device != "CPU")
    words[KernelsRecord.attrs] = attrs.entries(spec.attrs, memory)
    words[KernelsRecord.attr_count] = len(spec.attrs)
    words[KernelsRecord.args] = attrs.arg_entries(spec, memory)
    words[KernelsRecord.input_count] = len(spec.inputs)
    words[KernelsRecord.output_count] = len(spec.outputs)
    words[KernelsRecord.is_cached] = int(spec.is_stateful)
    words[KernelsRecord.types] = memory.words(types)
    words[KernelsRecord.type_count] = len(body_types(spec))
    words[KernelsRecord.names] = -1 if spec.names is None else names.index(spec.names)
    words[KernelsRecord.bodies] = memory.words([0] * len(bodies_of(spec)))
    words[KernelsRecord.row_kernels] = row_kernels
    words[KernelsRecord.pool] = pool
    return words


def body_types(spec: OpSpec) -> Mapping[str, tuple[str, ...]]:
    """The dtypes that there is a body for, by their attrs."""
    return spec.kernel_types if spec.is_per_dtype else {}


def bodies_of(spec: OpSpec) -> list[dict[str, str]]:
    """The dtypes of each body of an op, in the order of their indices."""
    combinations = itertools.product(*body_types(spec).values())
    return [dict(zip(body_types(spec), types, strict=True)) for types in combinations]


def builder_recipe(spec: OpSpec) -> tuple[str, Recipe]:
    """The name of the builder of an op's states, and how it is made."""
    builder = spec.builder
    if builder is None:
        return plain_builder()
    return builder.name, Recipe(Compilation(builder.module, builder.name, 1, builder.name))


def row_kernel_recipe(spec: OpSpec, index: int) -> tuple[str, Recipe]:
    """The name of a row kernel of an op, and how it is made."""
    assert spec.builder is not None
    assert spec.builder.row_kernels is not None
    name, compile_it = spec.builder.row_kernels.at(index)
    return name, Recipe(compile_it)


def constants_of(
    spec: OpSpec,
    device: str,
    access: Callable[[AccessRequest], Word] = variable_access.live_record,
) -> list[Word]:
    """The data that the builder of an op needs; one word if it needs none.

    Args:
      access: returns the address of the functions by which variables are shared.
    """
    return spec.builder.constants(spec, device, access) if spec.builder else [0]


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
    def memory(self) -> LiveMemory:
        """The memory of the records that native code reads."""
        memory = LiveMemory()
        keep_forever(memory)
        return memory

    @cached_property
    def words(self) -> ctypes.Array[ctypes.c_int64]:
        """The words of the `KernelsRecord`, see `creation`."""
        words = (ctypes.c_int64 * KernelsRecord.SIZE)()
        keep_forever(words)
        words[:] = record_words(
            self.spec,
            self.device,
            self.memory,
            op_table=self.table,
            row_kernels=_row_kernel_addresses(self.spec),
            pool=pool.pool_address(),
        )
        words[KernelsRecord.provide] = provider()
        words[KernelsRecord.server] = self.memory.words(
            [upcalls().add(self), upcalls().address, creation.PATIENCE_NS, _too_late()]
        )
        return words

    @cached_property
    def bodies(self) -> list[dict[str, str]]:
        """The dtypes of each body."""
        return bodies_of(self.spec)

    def lacks(self) -> list[int]:
        """What every state needs and is missing so far."""
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

    def serve(self, request: Request) -> None:
        """Provides what a state is missing, when a node of the op is created."""
        lacking = [what for (what,) in struct.iter_unpack("=q", request.input())]
        try:
            objects.load_all(self.recipes(lacking))
            for what in lacking:
                self.bring(what)
        except BaseException as error:  # a KeyboardInterrupt, too: nothing may be raised into C
            code = next((c for cls, c in _CODES.items() if isinstance(error, cls)), _INTERNAL)
            request.answer((str(error) or type(error).__name__).encode() + b"\0", code)
        else:
            request.answer(b"\0")

    def too_late(self) -> None:
        """The node has failed already."""

    def bring(self, what: int) -> None:
        """Provides something that is missing, see `creation`.

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
            self.words[KernelsRecord.constants] = self.memory.words(
                constants_of(self.spec, self.device)
            )
        elif what == creation.BUILDER:
            self.words[KernelsRecord.builder] = objects.recipe_address(*self.recipe(what))
        else:
            is_row_kernel = what >= FIRST_ROW_KERNEL
            field = KernelsRecord.row_kernels if is_row_kernel else KernelsRecord.bodies
            slot = self.words[field] + 8 * (what % FIRST_ROW_KERNEL)
            address = objects.recipe_address(*self.recipe(what))
            ctypes.c_int64.from_address(slot).value = address

    def recipes(self, lacking: Iterable[int]) -> Iterator[tuple[str, Recipe]]:
        """The recipes of what is missing, and of objects that are known to be needed with it."""
        for what in lacking:
            if what == creation.BUILDER and len(self.bodies) == 1:
                yield self.recipe(0)
            if what == creation.POOL:
                yield from (pool.thread_count_recipe(), pool.serve_recipe())
            if what == creation.BUILDER or what >= 0:
                yield self.recipe(what)

    def recipe(self, what: int) -> tuple[str, Recipe]:
        """The name of a builder, a body or a row kernel, and how it is made."""
        if what == creation.BUILDER:
            return builder_recipe(self.spec)
        if what < FIRST_ROW_KERNEL:
            return kernel_recipe(self.spec, self.device, self.bodies[what], self.label)
        return row_kernel_recipe(self.spec, what - FIRST_ROW_KERNEL)

    def needs(self, node: node_def_pb2.NodeDef) -> list[int]:
        """What the state of a node's kernel needs, as `recipe` takes it.

        Raises:
          ValueError: attrs that do not go together.
          NotImplementedError: TensorFlow lacks what the op needs.
        """
        memory, bodies = LiveMemory(), [0] * len(self.bodies)
        record = list(self.words)
        record[KernelsRecord.bodies] = memory.words(bodies)
        record[KernelsRecord.row_kernels] = memory.words([0] * _row_kernel_count(self.spec))
        record[KernelsRecord.constants] = memory.words(constants_of(self.spec, self.device))
        record[KernelsRecord.launcher] = 1
        record[KernelsRecord.pool] = memory.words([1] * Pool.SIZE)
        words = (ctypes.c_int64 * Creation.SIZE)()
        words[Creation.record] = memory.words(record)
        words[Creation.values] = attrs.values(self.spec.attrs, node, memory)
        build, result = _builder_function(self), list[int]()
        while True:
            words[Creation.missing_count] = words[Creation.state] = 0
            build(ctypes.addressof(words))
            _libc.free(ctypes.c_void_p(words[Creation.state]))
            if words[Creation.has_failed]:
                raise _error(words)
            missing = words[Creation.missing : Creation.missing + words[Creation.missing_count]]
            if not missing:
                return result
            for what in missing:
                is_row_kernel = what >= FIRST_ROW_KERNEL
                field = KernelsRecord.row_kernels if is_row_kernel else KernelsRecord.bodies
                slot = record[field] + 8 * (what % FIRST_ROW_KERNEL)
                ctypes.c_int64.from_address(slot).value = 1
            result += missing


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
    codes = {code: cls for cls, code in _CODES.items()}
    return codes.get(words[Creation.code], RuntimeError)(text)  # type: ignore[return-value]


def _builder_function(kernels_of: Kernels) -> Callable[[int], None]:
    """The function that builds states, for this machine whatever is compiled for."""
    name, recipe = kernels_of.recipe(creation.BUILDER)
    with objects.loading():
        address = objects.recipe_address(name, recipe)
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)


def _row_kernel_count(spec: OpSpec) -> int:
    row_kernels = None if spec.builder is None else spec.builder.row_kernels
    return 0 if row_kernels is None else row_kernels.count


def _row_kernel_addresses(spec: OpSpec) -> int:
    """The address of the table of an op's row kernels, shared by ops with the same ones."""
    if spec.builder is None or spec.builder.row_kernels is None:
        return 0

    def make() -> ctypes.Array[ctypes.c_int64]:
        array = (ctypes.c_int64 * _row_kernel_count(spec))()
        keep_forever(array)
        return array

    return ctypes.addressof(single(spec.builder.row_kernels.name, make))


@cache
def _too_late() -> int:
    """The message of a node that waited for Python in vain, a C string."""
    text = (
        "no kernel, because to make one takes Python's lock (the GIL), which was not to be had "
        "in time: another thread kept it, perhaps while waiting for this very node. Run the "
        "function once before"
    )
    memory = LiveMemory()
    keep_forever(memory)
    return memory.text(text)


def add(kernels_of: Kernels) -> None:
    """Records kernels that are registered with TensorFlow."""
    _kernels[kernels_of.spec.name, kernels_of.label or kernels_of.device] = kernels_of


def op_tables() -> list[tuple[str, int]]:
    """The name and the address of the `OpTable` of each op that has kernels."""
    return sorted({(kernels.spec.name, kernels.table) for kernels in _kernels.values()})


def kernels_of(op: str, device: str = "CPU") -> Kernels | None:
    """The kernels of an op for a type of device, or of a label, if there are any."""
    return _kernels.get((op, device))


def prepare(nodes: Iterable[node_def_pb2.NodeDef]) -> None:
    """Provides all that the kernels of placed nodes need, so that they can do without Python.

    Kernels of other packages are ignored, and so are errors: they are raised when the node runs.
    """
    ours = [(kernels, node) for node in nodes if (kernels := _kernels_for(node)) is not None]
    _bring((kernels_of, what) for kernels_of, _ in ours for what in kernels_of.lacks())
    needed: list[tuple[Kernels, int]] = []
    for kernels_of, node in ours:
        with suppress(Exception):
            needed += ((kernels_of, what) for what in kernels_of.needs(node))
    _bring(needed)


def _bring(needs: Iterable[tuple[Kernels, int]]) -> None:
    """Provides what kernels are missing, as far as possible."""
    pairs = {(kernels_of.address, what): (kernels_of, what) for kernels_of, what in needs}
    with suppress(Exception):
        objects.load_all(one for kernels, what in pairs.values() for one in kernels.recipes([what]))
    for kernels_of, what in pairs.values():
        with suppress(Exception):
            kernels_of.bring(what)


def _kernels_for(node: node_def_pb2.NodeDef) -> Kernels | None:
    """The kernels of a placed node; None for ops of others, and if it asks for a label."""
    device = DeviceSpecV2.from_string(node.device).device_type if node.device else None
    return None if "_kernel" in node.attr else _kernels.get((node.op, str(device)))
