"""The rows of all tensors of a graph: one walk forward, with a rule for each op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorflow.core.framework import graph_pb2

from fusion.passes.analysis.rows.counts import Count, computed, of_shape
from fusion.passes.analysis.rows.elementwise import OF_SIZES
from fusion.passes.analysis.rows.facts import CONSTANT, Fact, Kind, Mixes, Side, joined, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules import RULES
from fusion.passes.analysis.rows.sizes import shaped, sized, unshaped
from fusion.passes.graph.tensor import NEXT_ITERATIONS, Shape, Tensor
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView

#: Numbers of rows that no size of a model is a multiple of; both have to give the same facts.
_PRIMES = (10_007, 10_009)
_SHAPES = frozenset({"Shape", "ShapeN", "Size"})
_DENSE = frozenset({"SparseToDense", "RaggedTensorToTensor"})


@dataclass(frozen=True)
class Bags:
    """A lookup whose ids are of rows, as a whole.

    Attributes:
        output: [rows, D].
        ids: the tensors that it reads, other than its table.
        shape: of `output`, rows unknown.
    """

    output: Tensor
    ids: tuple[Tensor, ...]
    shape: Shape


@dataclass
class RowFacts:
    """The facts of a graph.

    Attributes:
        facts: of all tensors that were asked for, and of what these are made of.
        order: the nodes in an order in which each comes behind its operands.
        sized: the graph with a number of rows.
    """

    facts: dict[Tensor, Fact]
    order: list[str]
    sized: GraphView

    def shape(self, tensor: Tensor) -> Shape | None:
        """Returns the static shape of a tensor, in which sizes along axes of rows mean nothing."""
        return self.sized.shape(tensor)


def rows_of(
    view: GraphView,
    graph: graph_pb2.GraphDef,
    inputs: Mapping[Tensor, Fact],
    wanted: Sequence[str],
    bags: Iterable[Bags] = (),
    repeats: Callable[[Node], bool] = lambda node: False,
) -> RowFacts:
    """Returns the rows of what nodes are made of.

    Args:
        view: a graph without functions that are called.
        graph: the same.
        inputs: the rows of the graph's inputs; others have none.
        wanted: the nodes.
        bags: lookups that are understood as a whole.
        repeats: whether candidates need a node's result, even if it depends on requests alone.
    """
    by_output = {one.output: one for one in bags}
    order = _ordered(view, wanted)
    (first, numbered), (second, _) = (
        _facts(view, graph, inputs, order, by_output, repeats, prime) for prime in _PRIMES
    )
    facts = {t: fact if second.get(t) == fact else _unsure(t) for t, fact in first.items()}
    return RowFacts(facts, order, numbered)


def _unsure(tensor: Tensor) -> Fact:
    why = "its rows follow from a size that is no number of rows"
    return Fact(Kind.MIXED, reason=why, node=tensor.node)


def _ordered(view: GraphView, wanted: Sequence[str]) -> list[str]:
    """Returns nodes and all that they read or wait for, operands first."""
    order: list[str] = []
    entered, done = set[str](), set[str]()
    waiting = [*reversed(wanted)]
    while waiting:
        name = waiting[-1]
        if name in done:
            waiting.pop()
        elif name in entered:
            waiting.pop()
            done.add(name)
            order.append(name)
        else:
            entered.add(name)
            waiting += [one for one in view.before(name) if one not in entered]
    return order


def _facts(
    view: GraphView,
    graph: graph_pb2.GraphDef,
    inputs: Mapping[Tensor, Fact],
    order: Sequence[str],
    bags: Mapping[Tensor, Bags],
    repeats: Callable[[Node], bool],
    batch: int,
) -> tuple[dict[Tensor, Fact], GraphView]:
    shapes: dict[Tensor, Shape] = {}
    for tensor, fact in inputs.items():
        shape = view.shape(tensor)
        if fact.kind is Kind.ROWS and shape is not None:
            shapes[tensor] = _with_rows(shape, batch)
    shapes |= {one.output: _with_rows(one.shape, batch) for one in bags.values()}
    leaves = set(bags)
    of_rows = set[str]()
    for name in order:
        if Tensor(name) in inputs or any(one.node in of_rows for one in view.inputs(name)):
            of_rows.add(name)
        is_dense = view.op(name) in _DENSE and name in of_rows
        shape = view.shape(Tensor(name)) if is_dense else None
        if shape:
            shapes[Tensor(name)] = _with_rows(shape, batch)
    numbered = sized(view, graph, shapes, leaves)
    facts: dict[Tensor, Fact] = {}
    for name in order:
        tensor = Tensor(name)
        if tensor in bags:
            facts[tensor] = _of_bags(bags[tensor], facts)
            continue
        operands = [facts.get(one, CONSTANT) for one in view.inputs(name)]
        count = max(len(view.signatures.outputs(view.nodes[name]) or ()), 1)
        node = Node(numbered, unshaped(numbered, name))
        found = inputs.get(tensor) or _of_node(node, operands, batch)
        if isinstance(found, Fact) and found.kind is Kind.ROWS and repeats(node):
            found = replace(found, side=found.side | Side.CANDIDATE)
        several = [found] * count if isinstance(found, Fact) else [*found]
        several += several[-1:] * (count - len(several))
        several = [inputs.get(Tensor(name, k), fact) for k, fact in enumerate(several)]
        facts |= {Tensor(name, index): fact for index, fact in enumerate(several)}
    return facts, numbered


def _with_rows(shape: Shape, batch: int) -> Shape:
    return (batch, *shape[1:])


def _of_bags(bags: Bags, facts: Mapping[Tensor, Fact]) -> Fact:
    """The rows of a lookup, whose ids have to be of one side."""
    of_ids = [facts.get(tensor, CONSTANT) for tensor in bags.ids]
    mixed = next((fact for fact in of_ids if fact.kind is Kind.MIXED), None)
    if mixed is not None:
        return mixed
    sides = {fact.side for fact in of_ids if fact.has_rows}
    if sides and all(fact.kind in (Kind.ROWS, Kind.CONSTANT) for fact in of_ids):
        sides = {joined(of_ids)}
    if len(sides) != 1 or any(fact.kind is Kind.ROWS and fact.axis for fact in of_ids):
        why = "the ids of a lookup are of requests and of candidates" if sides else "no ids"
        return Fact(Kind.MIXED, joined(of_ids), reason=why, node=bags.output.node)
    return rows(sides.pop())


def _of_node(node: Node, operands: Sequence[Fact], batch: int) -> Fact | Sequence[Fact]:
    side = joined(operands)
    if any(node.view.op(value.node) in NEXT_ITERATIONS for value in node.inputs):
        return Fact(Kind.MIXED, side, reason="it is part of a loop", node=node.name)
    if not any(fact.has_rows for fact in operands):
        return CONSTANT
    mixed = next((fact for fact in operands if fact.kind is Kind.MIXED), None)
    if mixed is not None:
        return Fact(Kind.MIXED, side, reason=mixed.reason, node=mixed.node)
    try:
        return _by_rule(node, operands, batch)
    except Mixes as why:
        return Fact(Kind.MIXED, side, reason=str(why), node=shaped(node.name))


def _by_rule(node: Node, operands: Sequence[Fact], batch: int) -> Fact | Sequence[Fact]:
    kinds = {fact.kind for fact in operands if fact.has_rows}
    if node.op == "Rank":
        return CONSTANT
    if node.op in _SHAPES and kinds <= {Kind.ROWS, Kind.SIZES}:
        return [_sizes_of(node, k, fact) for k, fact in enumerate(operands)]
    if node.op == "IdentityN":
        return operands
    if kinds == {Kind.SIZES} and node.op in OF_SIZES and _is_integer(node):
        return _of_sizes(node, operands, batch)
    rule = RULES.get(node.op)
    if rule is None:
        raise Mixes(f"there is no rule for {node.op}")
    return rule(Operands(node, operands, batch))


def _is_integer(node: Node) -> bool:
    """Whether what comes of sizes is of sizes again, and no number to compute with."""
    return node.op != "Cast" or node.type_attr("DstT") in (3, 9)


def _of_sizes(node: Node, operands: Sequence[Fact], batch: int) -> Fact | Sequence[Fact]:
    """The fact of what follows from sizes: more of these, or a tensor with equal rows."""
    shape = node.output().shape
    if shape is not None and any(size and size % batch == 0 for size in shape):
        rule = RULES.get(node.op)
        if node.op not in ("Fill", "BroadcastTo", "Tile") or rule is None:
            raise Mixes(f"{node.op} makes a number for each row")
        found = rule(Operands(node, operands, batch))
        assert isinstance(found, Fact)
        return found
    if node.op == "Range":
        raise Mixes("Range counts rows")
    known = Operands(node, operands, batch)
    elements = computed(node, [known.elements(index) for index in range(known.count)])
    several = [Fact(Kind.SIZES, joined(operands), elements=one) for one in elements]
    return several if len(several) > 1 else several[0]


def _sizes_of(node: Node, index: int, fact: Fact) -> Fact:
    """The fact of the sizes of an operand."""
    if fact.kind is not Kind.ROWS:
        return Fact(Kind.SIZES, fact.side)
    elements = of_shape(node.input(index).shape, fact.axis)
    if node.op == "Size":
        elements = (Count.ROWS,)
    return Fact(Kind.SIZES, fact.side, elements=elements)
