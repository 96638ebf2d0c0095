"""What a library of ops consists of: objects of code, and records that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusion.ops.node_kernels import Place
from fusion.ops_library.processor_level import processor_level
from fusion.runtime.cache import processor
from fusion.runtime.cache.processor import Processor
from fusion.runtime.native.objects import Recipe
from fusion.runtime.records import Reference, Word, constant
from fusion.runtime.registration import op_functions, op_kernels, registry
from fusion.runtime.registration.creation import FIRST_ROW_KERNEL, KernelsRecord
from fusion.runtime.registration.library.manifest import SECTION
from fusion.runtime.registration.library.record import EXPORTED, LEVELS, AccessEntry, LibraryRecord
from fusion.runtime.registration.thunks import COMPUTE, thunks
from fusion.runtime.tensorflow import layout, variable_access
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.runtime.tensorflow.variable_access import AccessRequest, UpdateAccess
from fusion.runtime.threads import pool
from fusion.runtime.threads.layout import Pool
from fusion.version import __version__

#: Versions of absl in the TensorFlow of the releases that a library is for, and some around them.
_ABSL_VERSIONS = (
    *("20230125", "20230802", "20240116", "20240722", "20250127", "20250512", "20250814"),
    *("20260107", "20260526"),
)


#: What runs on every processor: it is not in the way of time.
_COMMON = Processor(LEVELS[1], suffix="__fusion_common")


def level_processor(level: int) -> Processor:
    """What the kernels of a library for a level of processors are compiled for."""
    return Processor(LEVELS[level], suffix=f"__fusion_v{level}")


class Image:
    """Records in the data of a library; see `fusion.runtime.records.Memory`."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._texts: dict[bytes, Reference] = {}
        self._defined: set[str] = set()
        self._named: set[str] = set()

    def words(self, numbers: Sequence[Word]) -> Reference:
        """See `Memory`."""
        numbers = numbers or [0]
        self._named.update(word.name for word in numbers if isinstance(word, Reference))
        items = ", ".join(f"i64 {constant(word)}" for word in numbers)
        return self._define("words", f"global [{len(numbers)} x i64] [{items}], align 8")

    def bytes(self, content: bytes) -> Reference:
        """See `Memory`."""
        if content not in self._texts:
            text = "".join(f"\\{byte:02x}" for byte in content)
            kind = f"[{len(content) + 1} x i8]"
            line = f'constant {kind} c"{text}\\00"'
            self._texts[content] = self._define("bytes", line)
        return self._texts[content]

    def text(self, content: str) -> Reference:
        """See `Memory`."""
        return self.bytes(content.encode())

    def _define(self, kind: str, definition: str) -> Reference:
        name = f"{kind}_{len(self._lines)}"
        self._lines.append(f"@{name} = internal {definition}\n")
        self._defined.add(name)
        return Reference(name)

    def module(self, code: str, functions: Iterable[str]) -> str:
        """The module with all records, and code that names them.

        Args:
          code: IR.
          functions: what the code defines.
        """
        foreign = sorted(self._named - self._defined - {*functions})
        declared = "".join(f"declare void @{name}()\n" for name in foreign)
        return "".join([*self._lines, declared, code])


@dataclass(frozen=True)
class _Op:
    """Where the data of an op and its kernels is."""

    spec: OpSpec
    table: Reference
    record: Reference
    bodies: Reference
    row_kernels: Word
    has_accesses: bool


class Contents:
    """The objects and the data of a library.

    Attributes:
      objects: how each object is made, and for which processor, by name.
      kernels: the names of the kernels for each level.
      image: the data.
    """

    def __init__(self, specs: Sequence[OpSpec]) -> None:
        """Begins with ops that have no kernels."""
        self.objects: dict[str, tuple[Recipe, Processor]] = {}
        self.kernels: dict[int, list[str]] = {}
        self.image = Image()
        self._accesses: dict[AccessRequest, Reference] = {}
        self._rows: dict[str, Reference] = {}
        self._levels: dict[int, list[Word]] = {}
        words: list[Word] = [0] * Pool.SIZE
        words[Pool.serve] = self._function(pool.serve_recipe())
        self._pool = self.image.words(words)
        self._ops = {spec.name: self._op(spec) for spec in specs}

    def _function(self, made: tuple[str, Recipe], target: Processor = _COMMON) -> Reference:
        """The address of a function, whose object becomes part of the library."""
        name, recipe = made
        self.objects[name + target.suffix] = recipe, target
        return Reference(name + target.suffix)

    def _op(self, spec: OpSpec) -> _Op:
        builder = spec.builder
        row_kernels: Word = 0
        if builder is not None and builder.row_kernels is not None:
            kind = builder.row_kernels
            if kind.name not in self._rows:
                self._rows[kind.name] = self.image.words([0] * kind.count)
            row_kernels = self._rows[kind.name]
        table = self.image.words(layout.words(spec, self.image))
        words = op_kernels.record_words(
            spec, "CPU", self.image, op_table=table, row_kernels=row_kernels, pool=self._pool
        )
        words[KernelsRecord.provide] = self._function(op_functions.library_provider())
        words[KernelsRecord.builder] = self._function(op_kernels.builder_recipe(spec))
        requests: dict[AccessRequest, Reference] = {}

        def note(request: AccessRequest) -> Reference:
            requests[request] = self._access(request)
            return requests[request]

        op_kernels.constants_of(spec, "CPU", note)
        words[KernelsRecord.accesses] = self.image.words(self._access_entries(requests))
        words[KernelsRecord.access_count] = len(requests)
        record, bodies = self.image.words(words), words[KernelsRecord.bodies]
        return _Op(spec, table, record, bodies, row_kernels, bool(requests))

    def _access(self, request: AccessRequest) -> Reference:
        """The address of a record of functions that are found where the library is used."""
        if request not in self._accesses:
            self._accesses[request] = self.image.words([0] * UpdateAccess.SIZE)
        return self._accesses[request]

    def _access_entries(self, requests: Iterable[AccessRequest]) -> list[Word]:
        """The words of an `AccessEntry` for each request."""
        image, words = self.image, list[Word]()
        versions = image.words([*map(image.text, _ABSL_VERSIONS)])
        for request in requests:
            names = (
                variable_access.update_names(request.dtype)
                if request.updates
                else variable_access.names(request.dtype, request.device)
            )
            entry: list[Word] = [0] * AccessEntry.SIZE
            entry[AccessEntry.record] = self._access(request)
            entry[AccessEntry.names] = image.words([*map(image.text, names)])
            entry[AccessEntry.name_count] = len(names)
            start = AccessEntry.dtype
            entry[start : start + 3] = variable_access.dtype_words(request.dtype)
            describe = image.text(variable_access.DESCRIBE_VARIABLE)
            entry[AccessEntry.describe_variable] = describe
            entry[AccessEntry.versions] = versions
            entry[AccessEntry.version_count] = len(_ABSL_VERSIONS)
            words += entry
        return words

    def add_level(self, level: int, places: Callable[[], Iterable[Place]]) -> None:
        """Adds the kernels for a level of processors.

        Args:
          level: a key of `LEVELS`.
          places: gives the kernels; called in a block of `compiling_for`.
        """
        target, fixups = level_processor(level), dict[Reference, Word]()
        with processor.compiling_for(target):
            for one in self._ops.values():
                constants = op_kernels.constants_of(one.spec, "CPU", self._access)
                field = KernelsRecord.pending if one.has_accesses else KernelsRecord.constants
                fixups[_field(one.record, field)] = self.image.words(constants)
            for kernels_of, what in places():
                one = self._ops[kernels_of.spec.name]
                if what >= 0:
                    is_row = what >= FIRST_ROW_KERNEL
                    start = one.row_kernels if is_row else one.bodies
                    place = _field(start, what - FIRST_ROW_KERNEL if is_row else what)
                    fixups[place] = self._function(kernels_of.recipe(what), target)
        self.kernels[level] = sorted(
            {
                word.name.removesuffix(target.suffix)
                for word in fixups.values()
                if word.name in self.objects
            }
        )
        words = [word for fixup in fixups.items() for word in fixup]
        self._levels[level] = [level, self.image.words(words), len(fixups)]

    def module(self, manifest: str) -> str:
        """The module with the data and the functions that are called, in LLVM's textual IR.

        Args:
          manifest: what the library says of itself.
        """
        shapes = {f"shape_{name}": one.table for name, one in self._ops.items()}
        creates = {f"create_{name}": one.record for name, one in self._ops.items()}
        common = [*map(self._function, op_functions.common_recipes())]
        load = self._function(op_functions.loader())
        forget = self._function(pool.forget_recipe())
        code = (
            thunks(shapes, creates, *common)
            + processor_level()
            + _ENTRY.format(
                load=load.name,
                library=self._library().name,
                forget=forget.name,
                pool=self._pool.name,
                exported=EXPORTED,
                manifest=_bytes(manifest.encode()),
                manifest_bytes=len(manifest.encode()),
                section=SECTION,
            )
        )
        defined = [COMPUTE, *shapes, *creates, "forget_threads", load.name, forget.name]
        declared = "".join(f"declare void @{function.name}()\n" for function in common)
        return self.image.module(declared + code, [*defined, *(one.name for one in common)])

    def _library(self) -> Reference:
        """The address of the `LibraryRecord`."""
        image = self.image
        ops = [
            registry.op_record(one.spec, Reference(f"shape_{name}"), one.table, image)
            for name, one in self._ops.items()
        ]
        kernels = [
            registry.kernel_entries(one.spec, "CPU", "", Reference(f"create_{name}"), image)
            for name, one in self._ops.items()
        ]
        words: list[Word] = [0] * LibraryRecord.SIZE
        words[LibraryRecord.version] = image.text(__version__)
        words[LibraryRecord.forget_threads] = Reference("forget_threads")
        levels = sorted(self._levels, reverse=True)
        words[LibraryRecord.level_names] = image.text(" or ".join(LEVELS[k] for k in levels[::-1]))
        words[LibraryRecord.levels] = image.words(
            [word for level in levels for word in self._levels[level]]
        )
        words[LibraryRecord.level_count] = len(levels)
        words[LibraryRecord.registry] = registry.registry(
            ops, kernels, Reference(COMPUTE), Reference("free"), image
        )
        return image.words(words)


def _field(record: Reference, index: int) -> Reference:
    return Reference(record.name, record.offset + 8 * index)


def _bytes(content: bytes) -> str:
    """Bytes as they stand in a constant of LLVM's textual IR."""
    return "".join(f"\\{byte:02x}" for byte in content)


#: What runs when a library is loaded.
_ENTRY = """
declare void @{load}(i64, i64)
declare void @{forget}(i64)

@{exported} = constant i64 ptrtoint (ptr @{library} to i64)
@manifest = internal constant [{manifest_bytes} x i8] c"{manifest}", section "{section}"
; LLVM's own list of constructors would be in .ctors, which not every linker takes.
@start = internal constant ptr @load_fusion_ops, section ".init_array"
@llvm.used = appending global [2 x ptr] [ptr @manifest, ptr @start], section "llvm.metadata"

define internal void @load_fusion_ops() {{
  %level = call i64 @processor_level()
  call void @{load}(i64 ptrtoint (ptr @{library} to i64), i64 %level)
  ret void
}}

define internal void @forget_threads() {{
  call void @{forget}(i64 ptrtoint (ptr @{pool} to i64))
  ret void
}}
"""
