"""Which answers of tables a model asserts something of: there every word has to be in the table."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework import node_def_pb2

from fusion.saved_model.inputs.atoms import Answer, Atoms, Source, of_kind

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


def answers(node: node_def_pb2.NodeDef, data: Sequence[Atoms]) -> dict[int, Atoms]:
    """Returns the answers that the outputs of a node are made of."""
    found: Atoms = frozenset()
    if node.op in KEYED_LOOKUPS:
        found = frozenset(Answer(source.key) for source in of_kind(data[1], Source))
    elif node.op in _PASSED:
        found = frozenset(answer for atoms in data for answer in of_kind(atoms, Answer))
    return {0: found, 1: found} if node.op == "Switch" else {0: found}
