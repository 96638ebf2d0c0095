"""The rows of all tensors of a graph: one walk forward, with a rule for each op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorflow.core.framework import graph_pb2, types_pb2

from fusion.passes.analysis.rows.bodies import Bodies, Body
from fusion.passes.analysis.rows.control import BRANCHES, LOOPS, Known, of_branches, of_loop
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
_LOOP = ", which is of a loop of TensorFlow 1: these are not followed"
#: Why there are no rules for some ops.
_UNKNOWN = {
    **dict.fromkeys(("Enter", "Merge", "Switch", "TensorArrayV3"), _LOOP),
    **dict.fromkeys(("TensorArrayScatterV3", "LoopCond", "Exit", "NextIteration"), _LOOP),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ", which is not inlined"),
}
_EMPTY = frozenset({"TensorListReserve", "EmptyTensorList"})
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
    bodies = Bodies(graph, view.signatures)
    while True:
        views = [_numbered(view, graph, inputs, order, by_output, prime) for prime in _PRIMES]
        found = _Walk((view, *views), inputs, by_output, repeats, bodies).facts_of(order)
        apart = {t for t in by_output if found.get(t) is _APART}
        if not apart:
            return RowFacts(found, order, views[0], set(by_output))
        # Perhaps weights are of both: then each of the ops may have a rule.
        by_output = {t: one for t, one in by_output.items() if t not in apart}


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


class _Walk:
    """A walk through a graph, or through a body, for several numbers of rows at once.

    Args:
        views: the graph as it is, and with each of the numbers of rows, `_PRIMES`.
        inputs: see `rows_of`.
        bags: lookups that are understood as a whole, by their outputs.
        repeats: see `rows_of`.
        bodies: of the functions of branches and loops.
    """

    def __init__(
        self,
        views: Sequence[GraphView],
        inputs: Mapping[Tensor, Fact],
        bags: Mapping[Tensor, Bags],
        repeats: Callable[[Node], bool],
        bodies: Bodies,
    ) -> None:
        self._view, *self._numbered = views
        self._views, self._inputs, self._bags = views, inputs, bags
        self._repeats, self._bodies = repeats, bodies
        self._facts: dict[Tensor, Fact] = {}

    def facts_of(self, order: Sequence[str]) -> dict[Tensor, Fact]:
        """Returns the facts of the results of nodes, which come behind what they read."""
        for name in order:
            tensor = Tensor(name)
            if tensor in self._bags:
                self._facts[tensor] = _of_bags(self._bags[tensor], self._facts)
            else:
                self._facts |= {Tensor(name, k): fact for k, fact in enumerate(self._of(name))}
        return self._facts

    def _of(self, name: str) -> list[Fact]:
        """Returns the facts of a node's results; of what sizes of other numbers change, none."""
        op, tensor = self._view.op(name), Tensor(name)
        if op in BRANCHES or op in LOOPS:
            found = self._of_control(name)
        else:
            first, second = (
                self._with(view, prime, name)
                for view, prime in zip(self._numbered, _PRIMES, strict=True)
            )
            found = [
                a if a == b else _unsure(Tensor(name)) for a, b in zip(first, second, strict=True)
            ]
        found = [self._inputs.get(Tensor(name, k), fact) for k, fact in enumerate(found)]
        if len(found) == 1 and found[0].kind is Kind.SIZES and _is_fixed(self._view, tensor):
            return [CONSTANT]
        for k, fact in enumerate(found):
            if fact.kind is Kind.ROWS and fact.shape:
                self._set_shape(Tensor(name, k), fact)
                found[k] = replace(fact, shape=())
        return found

    def _with(self, view: GraphView, batch: int, name: str) -> list[Fact]:
        """Returns the facts of a node's results by the graph of one number of rows."""
        operands = [self._facts.get(one, CONSTANT) for one in self._view.inputs(name)]
        count = self._output_count(name)
        node = Node(view, unshaped(view, name))
        found = self._inputs.get(Tensor(name)) or _of_node(
            Operands(node, operands, batch, self._facts)
        )
        if isinstance(found, Fact) and found.kind is Kind.ROWS and self._repeats(node):
            found = replace(found, side=found.side | Side.CANDIDATE)
        several = [found] * count if isinstance(found, Fact) else [*found]
        return several + several[-1:] * (count - len(several))

    def _output_count(self, name: str) -> int:
        return max(len(self._view.signatures.outputs(self._view.nodes[name]) or ()), 1)

    def _set_shape(self, tensor: Tensor, fact: Fact) -> None:
        """Says what shape a tensor has that was read of a list."""
        for view, prime in zip(self._numbered, _PRIMES, strict=True):
            size = prime * fact.blocks * fact.factor or None
            shape = tuple(size if k == fact.axis else n for k, n in enumerate(fact.shape))
            _record_shape(view, tensor, shape)

    def _of_control(self, name: str) -> list[Fact]:
        """Returns the facts of the results of a branch or a loop, whose bodies are followed."""
        inputs, count = self._view.inputs(name), self._output_count(name)
        operands = [self._facts.get(one, CONSTANT) for one in inputs]
        if not any(fact.has_rows for fact in operands):
            return [CONSTANT] * count
        try:
            found = self._followed(name, [self._known(one) for one in inputs])
        except Mixes as why:
            return [Fact(Kind.MIXED, joined(operands), reason=str(why), node=name)] * count
        for k, known in enumerate(found):
            for view, shape in zip(self._numbered, known.shapes[1:], strict=True):
                if shape is not None:
                    _record_shape(view, Tensor(name, k), shape)
        facts = [known.fact for known in found]
        return [replace(f, node=name) if f.kind is Kind.MIXED and not f.node else f for f in facts]

    def _followed(self, name: str, given: Sequence[Known]) -> Sequence[Known]:
        node, op = self._view.nodes[name], self._view.op(name)
        if op in LOOPS:
            cond, body = node.attr["cond"].func.name, node.attr["body"].func.name
            return of_loop(op, (cond, body), given, self._body(body).kept(), self._follow)
        names = self._bodies.called(node)
        if op.endswith("If"):
            names = [node.attr[key].func.name for key in ("then_branch", "else_branch")]
        if given[0].fact.kind is Kind.MIXED:
            raise Mixes(f"{op} decides by rows: {given[0].fact.reason}")
        return of_branches(op, given[0].fact, names, given[1:], self._follow)

    def _known(self, tensor: Tensor) -> Known:
        """Returns what is known of an operand of a branch or a loop."""
        fact = self._facts.get(tensor, CONSTANT)
        is_handle = self._view.dtype(tensor) == types_pb2.DT_RESOURCE
        shapes = tuple(
            view.variable_shape(tensor) if is_handle else view.shape(tensor) for view in self._views
        )
        values = tuple(
            view.integers(tensor) if fact.kind in (Kind.CONSTANT, Kind.SIZES) else None
            for view in self._views
        )
        return Known(fact, shapes, values)

    def _body(self, name: str) -> Body:
        body = self._bodies.body(name)
        if body is None:
            raise Mixes(f"function {name} is not understood")
        return body

    def _follow(self, name: str, arguments: Sequence[Known]) -> list[Known]:
        """Returns what is known of the results of a function."""
        body, count = self._body(name), len(_PRIMES) + 1
        views = [
            body.sized(
                self._view.signatures,
                [one.shapes[k] for one in arguments],
                [one.values[k] for one in arguments],
            )
            for k in range(count)
        ]
        inputs = {Tensor(arg): one.fact for arg, one in zip(body.arguments, arguments, strict=True)}
        walk = _Walk(views, inputs, {}, self._repeats, self._bodies)
        order = _ordered(views[0], [tensor.node for tensor in body.results])
        walk.facts_of(order)
        return [walk._known(tensor) for tensor in body.results]


def _record_shape(view: GraphView, tensor: Tensor, shape: Shape) -> None:
    """Says what shape a tensor has in a graph with a number of rows, before it is asked."""
    shapes = view.nodes[tensor.node].attr["_output_shapes"].list.shape
    while len(shapes) <= tensor.index:
        shapes.add().unknown_rank = True
    proto = shapes[tensor.index]
    proto.Clear()
    proto.SetInParent()
    for size in shape:
        proto.dim.add(size=-1 if size is None else size)


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
    if not any(fact.has_rows for fact in operands.facts) and node.op not in _EMPTY:
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
