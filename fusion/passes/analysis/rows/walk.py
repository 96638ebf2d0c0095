"""The rows of all tensors of a graph: one walk forward, with a rule for each op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.analysis.rows.counts import Count, computed, of_shape
from fusion.passes.analysis.rows.elementwise import OF_SIZES
from fusion.passes.analysis.rows.facts import CONSTANT, Fact, Kind, Mixes, Side, joined, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.rules import RULES
from fusion.passes.analysis.rows.sizes import fixed_integers, shaped, sized, unshaped
from fusion.passes.analysis.rows.widths import KNOWN_SHAPES
from fusion.passes.graph.idioms import pass_casts
from fusion.passes.graph.tensor import NEXT_ITERATIONS, Shape, Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView

#: Numbers of rows that no size of a model is a multiple of; both have to give the same facts.
_PRIMES = (10_007, 10_009)
_SHAPES = frozenset({"Shape", "ShapeN", "Size"})
_LOOP = ", which is of a loop: loops are not followed"
#: Why there are no rules for some ops.
_UNKNOWN = {
    **dict.fromkeys(("While", "StatelessWhile", "Enter", "Merge", "Switch"), _LOOP),
    **dict.fromkeys(("TensorListFromTensor", "TensorListReserve", "TensorArrayV3"), _LOOP),
    **dict.fromkeys(("TensorArrayScatterV3", "LoopCond", "Exit", "NextIteration"), _LOOP),
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), ": branches are not followed"),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ", which is not inlined"),
}
_DENSE = frozenset({"SparseToDense", "RaggedTensorToTensor"})


#: Sizes of a dense tensor do for the shape of a sparse one.
_INSTEAD = {Kind.SPARSE_SHAPE: Kind.SIZES}
#: Of a lookup that is not of one side.
_APART = Fact(Kind.MIXED, reason="the ids of a lookup are of requests and of candidates")


@dataclass(frozen=True)
class Bags:
    """A lookup whose ids are of rows, as a whole.

    Attributes:
        output: [rows, D].
        ids: the tensors that ids are read from, and what they have to have.
        weights: of ids; None if there are none.
        shape: of `output`, rows unknown.
        kind: what `output` has: ROWS, or SPLITS that are counted from row numbers.
        counts_rows: whether a size among `ids` has to be of the tensor that they are of.
    """

    output: Tensor
    ids: tuple[tuple[Tensor, Kind], ...]
    weights: Tensor | None
    shape: Shape
    kind: Kind = Kind.ROWS
    counts_rows: bool = False


@dataclass
class RowFacts:
    """The facts of a graph.

    Attributes:
        facts: of all tensors that were asked for, and of what these are made of.
        order: the nodes in an order in which each comes behind its operands.
        sized: the graph with a number of rows.
        bags: the outputs of lookups that are understood as a whole.
    """

    facts: dict[Tensor, Fact]
    order: list[str]
    sized: GraphView
    bags: set[Tensor]

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
    while True:
        found = _walked(view, graph, inputs, order, by_output, repeats)
        apart = {t for t in by_output if found.facts.get(t) is _APART}
        if not apart:
            return found
        # Perhaps weights are of both: then each of the ops may have a rule.
        by_output = {t: one for t, one in by_output.items() if t not in apart}


def _walked(
    view: GraphView,
    graph: graph_pb2.GraphDef,
    inputs: Mapping[Tensor, Fact],
    order: list[str],
    by_output: Mapping[Tensor, Bags],
    repeats: Callable[[Node], bool],
) -> RowFacts:
    views = [_numbered(view, graph, inputs, order, by_output, prime) for prime in _PRIMES]
    numbered = views[0]
    first, second = (
        _facts(view, inputs, order, by_output, repeats, one, prime)
        for one, prime in zip(views, _PRIMES, strict=True)
    )
    facts = {t: fact if second.get(t) == fact else _unsure(t) for t, fact in first.items()}
    return RowFacts(facts, order, numbered, set(by_output))


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


def _numbered(
    view: GraphView,
    graph: graph_pb2.GraphDef,
    inputs: Mapping[Tensor, Fact],
    order: Sequence[str],
    bags: Mapping[Tensor, Bags],
    batch: int,
) -> GraphView:
    """Returns the graph with a number of rows."""
    shapes: dict[Tensor, Shape] = {}
    for tensor, fact in inputs.items():
        shape = view.shape(tensor)
        if fact.kind is Kind.ROWS and shape is not None:
            shapes[tensor] = _with_rows(shape, batch)
    shapes |= {
        one.output: _with_rows(one.shape, batch) if one.kind is Kind.ROWS else one.shape
        for one in bags.values()
    }
    leaves = set(bags)
    of_rows = set[str]()
    for name in order:
        if Tensor(name) in inputs or any(one.node in of_rows for one in view.inputs(name)):
            of_rows.add(name)
        is_dense = view.op(name) in _DENSE and name in of_rows
        shape = view.shape(Tensor(name)) if is_dense else None
        if view.op(name) in KNOWN_SHAPES and name in of_rows:
            shape = KNOWN_SHAPES[view.op(name)](view, name) or shape
        if shape:
            shapes[Tensor(name)] = _with_rows(shape, batch)
    return sized(view, graph, shapes, leaves)


def _facts(
    view: GraphView,
    inputs: Mapping[Tensor, Fact],
    order: Sequence[str],
    bags: Mapping[Tensor, Bags],
    repeats: Callable[[Node], bool],
    numbered: GraphView,
    batch: int,
) -> dict[Tensor, Fact]:
    facts: dict[Tensor, Fact] = {}
    for name in order:
        tensor = Tensor(name)
        if tensor in bags:
            facts[tensor] = _of_bags(bags[tensor], facts)
            continue
        operands = [facts.get(one, CONSTANT) for one in view.inputs(name)]
        count = max(len(view.signatures.outputs(view.nodes[name]) or ()), 1)
        node = Node(numbered, unshaped(numbered, name))
        found = inputs.get(tensor) or _of_node(Operands(node, operands, batch, facts))
        if isinstance(found, Fact) and found.kind is Kind.ROWS and repeats(node):
            found = replace(found, side=found.side | Side.CANDIDATE)
        several = [found] * count if isinstance(found, Fact) else [*found]
        several += several[-1:] * (count - len(several))
        several = [inputs.get(Tensor(name, k), fact) for k, fact in enumerate(several)]
        if count == 1 and several[0].kind is Kind.SIZES and _is_fixed(view, tensor):
            several = [CONSTANT]
        facts |= {Tensor(name, index): fact for index, fact in enumerate(several)}
    return facts


def _with_rows(shape: Shape, batch: int) -> Shape:
    return (batch, *shape[1:])


def _of_bags(bags: Bags, facts: Mapping[Tensor, Fact]) -> Fact:
    """The rows of a lookup, whose ids have to be of one side, and of one tensor."""
    of_ids = [(facts.get(tensor, CONSTANT), kind) for tensor, kind in bags.ids]
    weights = CONSTANT if bags.weights is None else facts.get(bags.weights, CONSTANT)
    known = [*(fact for fact, _ in of_ids), weights]
    mixed = next((fact for fact in known if fact.kind is Kind.MIXED), None)
    if mixed is not None:
        return mixed
    if any(fact.kind not in (kind, _INSTEAD.get(kind)) for fact, kind in of_ids):
        return _APART
    if weights.kind not in (Kind.CONSTANT, Kind.ENTRIES, Kind.ROWS):
        return _APART
    if any(fact.kind is Kind.ROWS and fact.axis for fact in known):
        return _APART
    parts = [fact for fact, _ in of_ids if fact.kind not in (Kind.ROWS, Kind.SIZES)]
    sides = {fact.side for fact in known if fact.has_rows and fact.kind is not Kind.SIZES}
    if not parts and weights.kind is not Kind.ENTRIES:
        sides = {joined(known)}
    if len(sides) != 1 or len({fact.source for fact in parts}) > 1:
        return _APART
    if bags.counts_rows:
        (source,) = {fact.source for fact in parts}
        if any(fact.kind is Kind.SIZES and fact.source != source for fact, _ in of_ids):
            return _APART  # perhaps as many rows as another tensor has
    if bags.kind is not Kind.ROWS:
        return Fact(bags.kind, sides.pop(), source=parts[0].source)
    return rows(sides.pop())


def _of_node(operands: Operands) -> Fact | Sequence[Fact]:
    node, side = operands.node, operands.side
    if any(node.view.op(value.node) in NEXT_ITERATIONS for value in node.inputs):
        return Fact(Kind.MIXED, side, reason="it is part of a loop", node=node.name)
    if not any(fact.has_rows for fact in operands.facts):
        return CONSTANT
    mixed = next((fact for fact in operands.facts if fact.kind is Kind.MIXED), None)
    if mixed is not None:
        return Fact(Kind.MIXED, operands.side, reason=mixed.reason, node=mixed.node)
    try:
        return _by_rule(operands)
    except Mixes as why:
        return Fact(Kind.MIXED, side, reason=str(why), node=shaped(node.name))


def _is_fixed(view: GraphView, tensor: Tensor) -> bool:
    return fixed_integers(view, tensor) is not None


def _by_rule(operands: Operands) -> Fact | Sequence[Fact]:
    node, kinds = operands.node, {fact.kind for fact in operands.facts if fact.has_rows}
    if node.op == "Rank":
        return CONSTANT
    if node.op in _SHAPES and kinds <= {Kind.ROWS, Kind.SIZES, Kind.ENTRIES}:
        return [_sizes_of(node, k, fact) for k, fact in enumerate(operands.facts)]
    if node.op == "IdentityN":
        return operands.facts
    if kinds == {Kind.SIZES} and node.op in OF_SIZES and _is_integer(node):
        return _of_sizes(operands)
    rule = RULES.get(node.op)
    if rule is None:
        raise Mixes(f"there is no rule for {node.op}{_UNKNOWN.get(node.op, '')}")
    return rule(operands)


def _is_integer(node: Node) -> bool:
    """Whether what comes of sizes is of sizes again, and no number to compute with."""
    return node.op != "Cast" or node.type_attr("DstT") in (types_pb2.DT_INT32, types_pb2.DT_INT64)


def _of_sizes(operands: Operands) -> Fact | Sequence[Fact]:
    """The fact of what follows from sizes: more of these, or a tensor with equal rows."""
    node, batch = operands.node, operands.batch
    shape = node.output().shape
    if node.op in ("Fill", "BroadcastTo", "Tile"):
        found = RULES[node.op](operands)
        assert isinstance(found, Fact)
        return found
    if shape is not None and any(size and size % batch == 0 for size in shape):
        raise Mixes(f"{node.op} makes a number for each row")
    if node.op == "Range":
        raise Mixes("Range counts rows")
    if node.op in ("Greater", "NotEqual") and _is_size(node.input(0)) and node.input(1).item == 0:
        # Whether there are rows at all.
        return Fact(Kind.SUMMARY, operands.side)
    elements = computed(node, [operands.elements(index) for index in range(operands.count)])
    several = [Fact(Kind.SIZES, operands.side, elements=one) for one in elements]
    return several if len(several) > 1 else several[0]


def _is_size(value: Value) -> bool:
    """Whether a number is 0 where there are no rows only, and not where there are few."""
    return pass_casts(value)[0].producer.op == "Size"


def _sizes_of(node: Node, index: int, fact: Fact) -> Fact:
    """The fact of the sizes of an operand."""
    if fact.kind is not Kind.ROWS:
        return Fact(Kind.SIZES, fact.side)
    elements = of_shape(node.input(index).shape, fact.axis)
    if node.op == "Size":
        elements = (Count.ROWS,)
    return Fact(Kind.SIZES, fact.side, elements=elements)
