"""Strings of Examples that are hashed alone become the parser's hashes.

It hashes them where they lie: no string is made, and no op hashes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TypeVar

from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.hashing import HashSpec, match_hash
from fusion.passes.recognise.parsing import DenseFeature, Feature, ParseSpec

F = TypeVar("F", bound=Feature)

#: Hashes of the values of features, by the numbers of the parser's outputs.
Hashes = Mapping[int, list[HashSpec]]


def hashes_of(view: GraphView, name: str, spec: ParseSpec) -> Hashes:
    """Returns the hashes that read values of a parser, which nothing else reads.

    All of a feature have one number of buckets, and wait for nothing.
    """
    if name in view.preserved or view.has_loops:
        return {}
    found: dict[int, list[HashSpec]] = {}
    for number, feature in _values(spec).items():
        nodes = [use.node for use in Node(view, name).output(number).uses]
        hashes = [one for node in nodes if (one := fast_hash(node)) is not None]
        buckets = {one.buckets for one in hashes}
        if len(buckets) == 1 and len(hashes) == len(nodes) and _is_row(feature):
            found[number] = hashes
    return found


def _values(spec: ParseSpec) -> dict[int, Feature]:
    """Returns the features by the numbers of the outputs that have their values."""
    sparse, dense = len(spec.sparse), len(spec.dense)
    starts = (sparse, spec.sparse), (3 * sparse, spec.dense), (3 * sparse + dense, spec.ragged)
    return {start + k: one for start, features in starts for k, one in enumerate(features)}


def fast_hash(node: Node) -> HashSpec | None:
    """Returns a hash of strings that the parser can have, and that may go."""
    spec = match_hash(node)
    if spec is None or spec.hash != "fast" or spec.is_of_numbers or node.is_preserved:
        return None
    waits = node.controls or node.view.control_uses(node.name)
    device = node.view.nodes[node.name].device
    return None if waits or device != node.view.nodes[spec.values.node].device else spec


def _is_row(feature: Feature) -> bool:
    """Whether the parser hashes such a feature: a dense one has one value."""
    if not isinstance(feature, DenseFeature):
        return True
    return None not in feature.shape and prod(size or 0 for size in feature.shape) == 1


def as_hashed(spec: ParseSpec, hashes: Hashes) -> ParseSpec:
    """Returns what a parser is asked for when it hashes."""
    buckets = {number: found[0].buckets for number, found in hashes.items()}
    sparse, dense = len(spec.sparse), len(spec.dense)

    def hashed(features: tuple[F, ...], start: int) -> tuple[F, ...]:
        numbered = enumerate(features, start)
        return tuple(replace(one, buckets=buckets.get(number, 0)) for number, one in numbered)

    return replace(
        spec,
        sparse=hashed(spec.sparse, sparse),
        dense=hashed(spec.dense, 3 * sparse),
        ragged=hashed(spec.ragged, 3 * sparse + dense),
    )


def read_buckets(edit: GraphEdit, name: str, hashes: Hashes, numbers: Mapping[int, int]) -> None:
    """Lets all who read hashes read the parser, but for those that it writes beside others.

    Args:
        edit: that has the parser already.
        name: of the parser.
        hashes: what it does.
        numbers: of outputs of the parser by those of the stock one, as far as they are there.
    """
    for number, found in hashes.items():
        for spec in found:
            if number in numbers:
                edit.replace(Tensor(spec.node.name), Tensor(name, numbers[number]))
            edit.remove([spec.node.name], name)
