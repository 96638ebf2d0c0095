"""The features that a parse_example op expects, read from its node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorflow.core.framework import node_def_pb2


@dataclass(frozen=True)
class Feature:
    """One feature of an Example.

    Attributes:
        key: its name in the Example.
        dtype: a DataType enum value: int64, float or string.
        shape: of a dense feature, -1 for an unknown dimension; None for one of any length.
    """

    key: str
    dtype: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class ExampleSpec:
    """The features of one parse op: in its output order, sparse, then dense, then ragged ones."""

    features: tuple[Feature, ...]
    sparse: int = 0
    dense: int = 0

    def merged(self, other: ExampleSpec) -> ExampleSpec:
        """Returns a spec with the features of both; the first definition of a key wins."""
        keys = {feature.key for feature in self.features}
        return ExampleSpec(
            self.features + tuple(f for f in other.features if f.key not in keys),
        )


def example_spec(
    node: node_def_pb2.NodeDef, keys: Sequence[tuple[bytes, ...]]
) -> ExampleSpec | None:
    """Returns the features of a ParseExample or ParseExampleV2 node.

    Args:
        node: the parse op.
        keys: for each of its inputs the strings it holds where those are constant, else ().

    Returns:
        None if the keys are not constant.
    """
    types = list(node.attr["sparse_types"].list.type)
    dense_types = list(node.attr["Tdense"].list.type)
    shapes = [
        tuple(dim.size for dim in shape.dim) for shape in node.attr["dense_shapes"].list.shape
    ]
    ragged_types = list(node.attr["ragged_value_types"].list.type)
    if node.op == "ParseExampleV2":
        names = [key for strings in keys[2:5] for key in strings]
    else:
        names = [key for strings in keys[2 : 2 + len(types) + len(dense_types)] for key in strings]
    all_types = types + dense_types + ragged_types
    if len(names) != len(all_types):
        return None
    all_shapes = [None] * len(types) + shapes + [None] * len(ragged_types)
    features = tuple(
        Feature(name.decode(errors="replace"), dtype, shape)
        for name, dtype, shape in zip(names, all_types, all_shapes, strict=True)
    )
    return ExampleSpec(features, len(types), len(dense_types))


def example_outputs(spec: ExampleSpec) -> dict[int, str]:
    """Returns for each flat output that carries a feature's values, the feature's key.

    The op's outputs are the indices, values and shapes of the sparse features, the dense
    features, the values and the row splits of the ragged ones.
    """
    keys = [feature.key for feature in spec.features]
    sparse = {spec.sparse + i: key for i, key in enumerate(keys[: spec.sparse])}
    rest = {3 * spec.sparse + i: key for i, key in enumerate(keys[spec.sparse :])}
    return sparse | rest
