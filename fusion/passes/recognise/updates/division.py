"""The quotient of IndexedSlices and a matrix, as Keras 3 computes it: in one of two branches.

Where the divisor has a 0 or NaN anywhere, one branch lists all such rows in addition to those of
the gradient, since 0 / 0 is NaN there too. The other divides the gradient's rows by those of the
divisor. Which one runs is found out from the whole matrix, in each step.

    p = any(any(divisor == 0 or isnan(divisor), axis 1), axis 0)
    values = values / gather(divisor, ids)  if not p

A divisor `sqrt(x + epsilon)` with a constant epsilon above 0, where x is a sum of squares, has no
0. It has NaN where x has: where a gradient had NaN, and the table has it since then. What the first
branch does there is to subtract 0 from the rest of such rows and NaN from NaN: it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusion.passes.graph.idioms import is_integer_cast, is_row_gather
from fusion.passes.graph.tensor import ALIAS_OPS
from fusion.passes.graph.values import Node, Value


@dataclass(frozen=True)
class MergedQuotient:
    """The quotient in the branch that is taken.

    Attributes:
        dividend: [n, D].
        divisor: [rows, D].
        ids: [n].
        nodes: those of the branch.
    """

    dividend: Value
    divisor: Value
    ids: Value
    nodes: tuple[str, ...]


def merged_quotient(value: Value) -> MergedQuotient | None:
    """Explains the values of such a quotient; None if it is none, or may divide by 0."""
    merge = value.producer
    if merge.op != "Merge" or value.index:
        return None
    for branch in merge.inputs:
        quotient = branch.producer
        if quotient.op != "RealDiv":
            continue
        dividend, gathered = quotient.inputs
        gather = gathered.producer
        if not is_row_gather(gather):
            continue
        divisor, ids = gather.inputs[:2]
        sources = [_untaken(part) for part in (dividend, divisor, _uncast(ids))]
        tests = {test for test, _ in filter(None, sources)}
        if None in sources or len(tests) != 1:
            continue
        values, matrix, indices = (source for _, source in filter(None, sources))
        test = tests.pop()
        if _tests(test, matrix) and _is_root_above_zero(matrix):
            nodes = (merge.name, quotient.name, gather.name, *_test_nodes(test), *_branches(test))
            return MergedQuotient(values, matrix, indices, tuple(dict.fromkeys(nodes)))
    return None


def _test_nodes(test: Value) -> Iterator[str]:
    """Yields the nodes that compute a test of `_tests` from the divisor."""
    node = test.producer
    for _ in range(2):
        yield node.name
        yield from node.input(0).aliases
        node = node.input(0).producer
    yield node.name
    for side in node.inputs:
        yield from side.path


def _branches(test: Value) -> Iterator[str]:
    """Yields the nodes of both branches of a test, up to where they come together.

    None if something else is computed from them, which is not in stock graphs.
    """
    view = test.view
    seen: set[str] = set()
    switches = [node for node in _users(test) if node.op == "Switch"]
    ends: set[str] = set()
    for port in (0, 1):
        stack = [use.node.name for node in switches for use in node.output(port).uses]
        while stack:
            name = stack.pop()
            if name in seen or name in ends:
                continue
            if port == 0 and view.op(name) == "Merge":
                ends.add(name)
                continue
            seen.add(name)
            stack += (use.node for use in view.uses(name))
            stack += view.control_uses(name)
    nodes = {*(node.name for node in switches), *seen, *ends}
    has_effect = any(view.signatures.is_stateful(view.op(name)) for name in nodes)
    if not has_effect and view.preserved.isdisjoint(nodes):
        yield from sorted(nodes)


def _users(value: Value) -> Iterator[Node]:
    """Yields the nodes that read a tensor, through aliases too."""
    stack = [value]
    while stack:
        for node, _, _ in stack.pop().uses:
            alias = node.output()
            if node.op in ALIAS_OPS and alias.resolved == value:
                stack.append(alias)
            yield node


def merged_ids(ids: Value) -> Value:
    """Returns the ids of such a quotient in the branch that is taken, or the tensor itself."""
    sources = [source for _, source in _merged(ids) if source.producer.op]
    return sources[0] if len(sources) == 1 else ids


def summed_rows(count: Value) -> int | None:
    """Returns for how many rows entries are summed up, None if it is not known.

    Args:
        count: a number, or the first one of the shape of IndexedSlices, which may come out of a
            quotient or into a branch.
    """
    known = count.origin
    if known.constant is not None:
        return None if known.item is None else int(known.item)
    first = count.producer
    if first.op != "StridedSlice":
        return None
    shape, *bounds = first.inputs
    is_first = [bound.origin.elements for bound in bounds] == [[0], [1], [1]]
    sources = [source for _, source in _merged(shape)] or [shape]
    shapes = [source.origin.constant for source in sources]
    if not is_first or len(shapes) != 1 or shapes[0] is None or shapes[0].shape != (2,):
        return None
    return int(shapes[0][0])


def _merged(value: Value) -> Iterator[tuple[Value, Value]]:
    """Yields what a Merge has from the branch of a quotient that is taken: the test, the tensor."""
    merge = value.producer
    if merge.op != "Merge" or value.resolved.index:
        return
    for branch in merge.inputs:
        source = _untaken(_uncast(branch))
        if source is not None and _tests(source[0], None):
            yield source


def _uncast(value: Value) -> Value:
    """Returns what is cast or handed on, though that waits for the branch to be taken."""
    while is_integer_cast(node := value.producer) or node.op in ALIAS_OPS:
        value = node.input(0)
    return value.resolved


def _untaken(value: Value) -> tuple[Value, Value] | None:
    """Returns what a Switch tests, and its input, if the tensor is where the test is false."""
    switch = value.producer
    if switch.op != "Switch" or value.resolved.index:
        return None
    data, test = switch.inputs
    return test.resolved, data.resolved


def _tests(test: Value, divisor: Value | None) -> bool:
    """Whether a test is that of a quotient by this divisor, or by any if it is None."""
    node = test.producer
    for axis in (0, 1):
        if node.op != "Any" or node.flag_attr("keep_dims"):
            return False
        inner, axes = node.inputs
        if axes.item != axis:
            return False
        node = inner.producer
    if node.op != "LogicalOr":
        return False
    sides = {side.producer.op: side.producer for side in node.inputs}
    if sides.keys() != {"Equal", "IsNan"}:
        return False
    (checked,) = (operand.resolved for operand in sides["IsNan"].inputs)
    compared = [operand.resolved for operand in sides["Equal"].inputs]
    others = [operand for operand in compared if operand != checked]
    if len(others) != 1 or others[0].scalar != 0:
        return False
    return divisor is None or checked == divisor.resolved


def _is_root_above_zero(divisor: Value) -> bool:
    """Whether a divisor is the root of a variable and a constant above 0."""
    root = divisor.producer
    if root.op != "Sqrt":
        return False
    total = root.input(0).producer
    if total.op not in ("Add", "AddV2"):
        return False
    constants = [part for part in total.inputs if part.constant is not None]
    reads = [part for part in total.inputs if part.producer.op == "ReadVariableOp"]
    epsilon = constants[0].scalar if len(constants) == 1 else None
    return epsilon is not None and float(epsilon) > 0 and len(reads) == 1
