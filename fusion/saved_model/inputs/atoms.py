"""Facts about a tensor, which travel through a graph from op to op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tensorflow.core.framework import node_def_pb2

from fusion.saved_model.inputs.constraints import Extent, Key, Role
from fusion.saved_model.inputs.conversions import Conversions

KEYED_LOOKUPS = frozenset(["LookupTableFind", "LookupTableFindV2"])
"""Ops that look values, their input 1, up in a table of keys."""

_PASSED = frozenset(
    [
        "Abs", "Add", "AddV2", "All", "Any", "Cast", "ConcatV2", "EnsureShape", "Equal",
        "ExpandDims", "Greater", "GreaterEqual", "Identity", "Less", "LessEqual", "LogicalAnd",
        "LogicalNot", "LogicalOr", "Max", "Maximum", "Merge", "Min", "Minimum", "Mul", "Neg",
        "NotEqual", "Pack", "Prod", "Reshape", "Select", "SelectV2", "Shape", "Sign", "Size",
        "Squeeze", "StopGradient", "StridedSlice", "Sub", "Sum", "Switch", "Where",
    ]
)  # fmt: skip
"""Ops whose output says something of what their inputs are, and that assertions are made of."""


@dataclass(frozen=True)
class Source:
    """Where values come from.

    Attributes:
        input: an input of the signature.
        path: the field parsed out of its records, see `Key`.
        conversions: the ops that computed these one by one from its values, see `Conversions`.
        whole: whether these are all of them, in their order and shape, with nothing between, in a
            part of the model that runs whenever it does.
    """

    input: str
    path: tuple[str, ...] = ()
    conversions: Conversions = ()
    whole: bool = True

    @property
    def key(self) -> Key:
        """The input or field."""
        return Key(self.input, self.path)

    @property
    def exact(self) -> bool:
        """Whether these are its very values."""
        return self.conversions == ()


@dataclass(frozen=True)
class Table:
    """A variable or constant with this many rows."""

    rows: int


@dataclass(frozen=True)
class KeyTable:
    """A table that maps words or integers to numbers, by its name, see `table_of_keys`."""

    name: str


@dataclass(frozen=True)
class Answer:
    """Results of a lookup of an input's values, or what is computed from them."""

    key: Key


@dataclass(frozen=True)
class Text:
    """A constant string tensor, as the keys of parse_example are."""

    values: tuple[bytes, ...]


@dataclass(frozen=True)
class Number:
    """A constant whose elements are all this number or string."""

    value: float | bytes


@dataclass(frozen=True)
class Along:
    """What the elements along axis 0 stand for."""

    extent: Extent


@dataclass(frozen=True)
class Count:
    """Numbers of elements, along axis 0 or in all."""

    extent: Extent


@dataclass(frozen=True)
class Positions:
    """Positions of elements along axis 0 of a tensor of this extent."""

    extent: Extent


@dataclass(frozen=True)
class Steps:
    """Consecutive numbers."""


@dataclass(frozen=True)
class Rows:
    """Where rows end, how long they are, or how long all are together.

    Attributes:
        key: the input that says so.
        role: how it says so, if it is what it seems to be.
        form: "splits", "lengths", "total", "inside" of a mask of the entries within rows that are
            padded, or "present" of a mask of the elements that are not `missing`.
        missing: see `Extent`.
    """

    key: Key
    role: Role | None
    form: str
    missing: float | bytes | None = None


@dataclass(frozen=True)
class Claim:
    """A bool tensor: an elementwise comparison of two tensors."""

    op: str
    left: frozenset[Source | Number | Count | Rows]
    right: frozenset[Source | Number | Count | Rows]


Atom = (
    Source
    | Table
    | KeyTable
    | Answer
    | Text
    | Number
    | Along
    | Count
    | Positions
    | Steps
    | Rows
    | Claim
)
Atoms = frozenset[Atom]
NOTHING: Atoms = frozenset()

A = TypeVar("A", bound=Atom)


def of_kind(atoms: Iterable[Atom], kind: type[A]) -> frozenset[A]:
    """Returns those atoms of one kind."""
    return frozenset(atom for atom in atoms if isinstance(atom, kind))


def in_part(atoms: Atoms) -> Atoms:
    """Returns the atoms of some of the values, or of values in another order or shape."""
    return frozenset(replace(a, whole=False) if isinstance(a, Source) else a for a in atoms)


def extents(atoms: Iterable[Atom]) -> frozenset[Extent]:
    """Returns what the elements along axis 0 stand for."""
    return frozenset(atom.extent for atom in atoms if isinstance(atom, Along))


def answers(node: node_def_pb2.NodeDef, data: Sequence[Atoms]) -> dict[int, Atoms]:
    """Returns the lookup results in each output of a node.

    Where a model asserts something of these, every word has to be in the table.
    """
    result: Atoms = frozenset()
    if node.op in KEYED_LOOKUPS:
        result = frozenset(Answer(source.key) for source in of_kind(data[1], Source))
    elif node.op in _PASSED:
        result = frozenset(answer for atoms in data for answer in of_kind(atoms, Answer))
    return {0: result, 1: result} if node.op == "Switch" else {0: result}
