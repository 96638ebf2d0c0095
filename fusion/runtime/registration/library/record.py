"""The data of a library of ops, which `loading` reads when the library is loaded."""

from __future__ import annotations

from fusion.runtime.layout import Address, Int64, Layout, Words, fields
from fusion.runtime.registration.registry import Registry

#: The levels of the x86-64 psABI; 1 stands for a processor below all levels of a library.
LEVELS = {1: "x86-64", 2: "x86-64-v2", 3: "x86-64-v3", 4: "x86-64-v4"}

#: The word that a library exports, by which Python finds its `LibraryRecord`.
EXPORTED = "fusion_library"


class LibraryRecord(Layout):
    """A library of ops and their kernels."""

    version: Address  # of fusion, a C string
    forget_threads: Address  # void (*)(), lets the pool be as new in a child of a fork
    level_names: Address  # for messages, as "x86-64-v3 or x86-64-v4", a C string
    levels: LevelRecord  # [level_count], the highest first
    level_count: Int64
    registry: Registry


class AccessEntry(Layout):
    """Functions of TensorFlow that are found when the first variable is shared."""

    record: Address  # out: `VariableAccess` or `UpdateAccess`, zeros if a function is missing
    names: Words  # C strings [name_count], in the order of the record's fields
    name_count: Int64
    dtype: Words = fields(3)  # the number of the dtype and its name, as in the record
    describe_variable: Address  # the name of Var::DebugString
    versions: Words  # C strings [version_count]: versions of absl that may be in names, the
    # digits after "lts_"
    version_count: Int64


class LevelRecord(Layout):
    """The fixups of a library for a level of processors."""

    level: Int64
    fixups: Fixup  # [fixup_count]
    fixup_count: Int64


class Fixup(Layout):
    """A word that depends on the processor."""

    target: Words
    word: Int64
