"""Stock ops that look values up in a vocabulary, as layers and feature columns do.

ids = LookupTableFindV2(table, values, default)
ids = Select(Equal(values, mask), mask_value, ids)        # perhaps
ids = Select(Equal(ids, replaced), start + bucket, ids)   # perhaps; or NotEqual, the other way
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.hashing import match_hash
from fusion.schema.attributes import STOCK_HASHES

FIND = "LookupTableFindV2"
#: What ids are made by, for which there is something better.
ID_MAKERS = STOCK_HASHES.keys() | {FIND}
_SELECTS = frozenset({"Select", "SelectV2"})
_ADDS = frozenset({"Add", "AddV2"})
_KEYS = frozenset({types_pb2.DT_STRING, types_pb2.DT_INT32, types_pb2.DT_INT64})
#: What buckets replace, and where they begin: an attr's values for what is not a constant.
THE_DEFAULT = -(2**63)
THE_SIZE = -1


@dataclass(frozen=True)
class VocabularySpec:
    """Values that are looked up in a table.

    Attributes:
        node: the node that gives the ids.
        nodes: all of the lookup's nodes.
        values: what is looked up.
        find: the node that looks it up.
        mask: a key that comes before those of the table, and what it has; None: there is none.
        hash: of values that are not in the table, as of the fused op.
        buckets: how many there are; 0: no buckets.
        key: two words, of the hash "strong".
        start: the id of bucket 0, or `THE_SIZE` of the table.
        replaced: the id that buckets replace, or `THE_DEFAULT`.
    """

    node: Node
    nodes: tuple[str, ...]
    values: Value
    find: Node
    mask: tuple[Tensor, Tensor] | None = None
    hash: str = "fast"
    buckets: int = 0
    key: tuple[int, int] = (0, 0)
    start: int = 0
    replaced: int = THE_DEFAULT

    @property
    def table(self) -> Value:
        """The table's handle."""
        return self.find.input(0).resolved

    @property
    def default(self) -> Tensor:
        """What values have that are not in the table: a scalar."""
        return self.find.input(2).tensor

    @property
    def contents(self) -> tuple[Tensor, ...]:
        """What its vocabulary is made of: the table, the default, the mask and what that has."""
        return (self.table.tensor, self.default, *(self.mask or ()))


def match_vocabulary(node: Node) -> VocabularySpec | None:
    """Returns how a node looks values up; None if it does something else."""
    view, spec = node.view, _match_found(node) or _match_buckets(node)
    if spec is None:
        return None
    # TensorFlow puts lookups in the same table in order, which makes no difference.
    awaited = {name for one in spec.nodes for name in view.controls(one)}
    return None if any(view.has_effect(name) for name in awaited) else spec


def _match_found(node: Node) -> VocabularySpec | None:
    """Matches a lookup without buckets."""
    if node.op == FIND:
        dtypes = node.type_attr("Tin"), node.type_attr("Tout")
        if dtypes[0] not in _KEYS or dtypes[1] != types_pb2.DT_INT64:
            return None
        return VocabularySpec(node, (node.name,), node.input(1).resolved, node)
    if node.op not in _SELECTS:
        return None
    test, value, rest = node.inputs
    inner = _match_found(rest.producer)
    if inner is None or inner.mask is not None or test.producer.op != "Equal":
        return None
    key = _other(test.producer, inner.values)
    if key is None or key.shape != () or value.shape != ():
        return None
    nodes = (node.name, *_between(test, rest), *inner.nodes)
    return replace(inner, node=node, nodes=nodes, mask=(key.tensor, value.tensor))


def _match_buckets(node: Node) -> VocabularySpec | None:
    """Matches a lookup with buckets."""
    if node.op not in _SELECTS:
        return None
    test, *parts = node.inputs
    comparison = test.producer.op
    if comparison == "NotEqual":
        parts.reverse()
    elif comparison != "Equal":
        return None
    bucket, found = parts
    inner = _match_found(found.producer)
    if inner is None or (replaced := _replaced(test.producer, found, inner)) is None:
        return None
    if (added := _match_start(bucket, inner)) is None:
        return None
    hashed, start, nodes = added
    nodes = (node.name, *_between(test, found), *bucket.path, *nodes, *inner.nodes)
    spec = replace(inner, node=node, nodes=nodes, replaced=replaced, start=start)
    return _with_hash(spec, hashed)


def _between(test: Value, found: Value) -> tuple[str, ...]:
    return (*test.path, *found.aliases)


def _other(comparison: Node, value: Value) -> Value | None:
    """Returns what a value is compared with; None if it is not compared."""
    one, other = comparison.inputs
    if other.resolved.tensor == value.resolved.tensor:
        one, other = other, one
    return other if one.resolved.tensor == value.resolved.tensor else None


def _replaced(comparison: Node, found: Value, inner: VocabularySpec) -> int | None:
    """Returns the id that is replaced."""
    compared = _other(comparison, found)
    if compared is None:
        return None
    if compared.resolved.tensor == inner.find.input(2).resolved.tensor:
        return THE_DEFAULT
    number = compared.scalar
    return number if isinstance(number, int) and number != THE_DEFAULT else None


def _match_start(bucket: Value, inner: VocabularySpec) -> tuple[Value, int, tuple[str, ...]] | None:
    """Returns the hash in a sum, what is added to it, and the nodes of that."""
    adder = bucket.producer
    if adder.op not in _ADDS:
        return None
    for hashed, added in (adder.inputs, reversed(adder.inputs)):
        if isinstance(start := added.scalar, int) and start >= 0:
            return hashed, start, ()
        size = added.producer
        if size.op == "LookupTableSizeV2" and size.input(0).resolved == inner.table:
            return hashed, THE_SIZE, added.path
    return None


def _with_hash(spec: VocabularySpec, hashed: Value) -> VocabularySpec | None:
    """Adds the hash of the values themselves."""
    node, values = hashed.producer, spec.values.tensor
    if node.op == "FloorMod":
        divisor = node.input(1).scalar
        is_divided = node.input(0).resolved.tensor == values and isinstance(divisor, int)
        if not is_divided or divisor < 1 or spec.values.dtype != types_pb2.DT_INT64:
            return None
        nodes = (*spec.nodes, *hashed.path)
        return replace(spec, nodes=nodes, hash="remainder", buckets=divisor)
    match = match_hash(node)
    if match is None or match.values.resolved.tensor != values:
        return None
    texts = node.input(0).path if node.input(0).resolved.tensor != values else ()
    nodes = (*spec.nodes, *hashed.path, *texts)
    return replace(spec, nodes=nodes, hash=match.hash, buckets=match.buckets, key=match.key)
