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
from fusion.passes.graph.tensor import ALIAS_OPS, Tensor, Use
from fusion.passes.graph.view import GraphView


@dataclass(frozen=True)
class MergedQuotient:
    """The quotient in the branch that is taken.

    Attributes:
        dividend: [n, D].
        divisor: [rows, D].
        ids: [n].
        nodes: those of the branch.
    """

    dividend: Tensor
    divisor: Tensor
    ids: Tensor
    nodes: tuple[str, ...]


def merged_quotient(view: GraphView, tensor: Tensor) -> MergedQuotient | None:
    """Explains the values of such a quotient; None if it is none, or may divide by 0."""
    if view.op(tensor.node) != "Merge" or tensor.index:
        return None
    for branch in view.inputs(tensor.node):
        quotient = view.resolve(branch)
        if view.op(quotient.node) != "RealDiv":
            continue
        dividend, gathered = view.inputs(quotient.node)
        gathered = view.resolve(gathered)
        if not is_row_gather(view, gathered.node):
            continue
        divisor, ids = view.inputs(gathered.node)[:2]
        sources = [_untaken(view, part) for part in (dividend, divisor, _uncast(view, ids))]
        tests = {test for test, _ in filter(None, sources)}
        if None in sources or len(tests) != 1:
            continue
        values, matrix, indices = (source for _, source in filter(None, sources))
        test = tests.pop()
        if _tests(view, test, matrix) and _is_root_above_zero(view, matrix):
            nodes = dict.fromkeys((tensor.node, quotient.node, gathered.node))
            nodes |= dict.fromkeys((*_test_nodes(view, test), *_branches(view, test)))
            return MergedQuotient(values, matrix, indices, tuple(nodes))
    return None


def _test_nodes(view: GraphView, test: Tensor) -> Iterator[str]:
    """Yields the nodes that compute a test of `_tests` from the divisor."""
    for _ in range(2):
        yield test.node
        yield from view.aliases(view.inputs(test.node)[0])
        test = view.resolve(view.inputs(test.node)[0])
    yield test.node
    for side in view.inputs(test.node):
        yield from (*view.aliases(side), view.resolve(side).node)


def _branches(view: GraphView, test: Tensor) -> Iterator[str]:
    """Yields the nodes of both branches of a test, up to where they come together.

    None if something else is computed from them, which is not in stock graphs.
    """
    seen: set[str] = set()
    switches = [use.node for use in _uses(view, test) if view.op(use.node) == "Switch"]
    ends: set[str] = set()
    for port in (0, 1):
        stack = [u.node for s in switches for u in view.uses(s) if u.tensor.index == port]
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
    found = {*switches, *seen, *ends}
    has_effect = any(view.signatures.is_stateful(view.op(name)) for name in found)
    if not has_effect and view.preserved.isdisjoint(found):
        yield from sorted(found)


def _uses(view: GraphView, tensor: Tensor) -> Iterator[Use]:
    """Yields the uses of a tensor, through aliases too."""
    stack = [tensor]
    while stack:
        for use in view.tensor_uses(stack.pop()):
            alias = Tensor(use.node)
            if view.op(use.node) in ALIAS_OPS and view.resolve(alias) == tensor:
                stack.append(alias)
            yield use


def merged_ids(view: GraphView, tensor: Tensor) -> Tensor:
    """Returns the ids of such a quotient in the branch that is taken, or the tensor itself."""
    found = [source for _, source in _merged(view, tensor) if view.op(source.node)]
    return found[0] if len(found) == 1 else tensor


def summed_rows(view: GraphView, count: Tensor) -> int | None:
    """Returns for how many rows entries are summed up, None if it is not known.

    Args:
        view: the graph.
        count: a number, or the first one of the shape of IndexedSlices, which may come out of a
            quotient or into a branch.
    """
    known = view.constant(view.origin(count))
    if known is not None:
        return int(known.reshape(())) if known.size == 1 else None
    count = view.resolve(count)
    if view.op(count.node) != "StridedSlice":
        return None
    shape, *bounds = view.inputs(count.node)
    begin, end, step = (view.constant(view.origin(part)) for part in bounds)
    is_first = all(
        part is not None and part.tolist() == [number]
        for part, number in ((begin, 0), (end, 1), (step, 1))
    )
    sources = [source for _, source in _merged(view, shape)] or [shape]
    shapes = [view.constant(view.origin(source)) for source in sources]
    if not is_first or len(shapes) != 1 or shapes[0] is None or shapes[0].shape != (2,):
        return None
    return int(shapes[0][0])


def _merged(view: GraphView, tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields what a Merge has from the branch of a quotient that is taken: the test, the tensor."""
    tensor = view.resolve(tensor)
    if view.op(tensor.node) != "Merge" or tensor.index:
        return
    for branch in view.inputs(tensor.node):
        source = _untaken(view, _uncast(view, branch))
        if source is not None and _tests(view, source[0], None):
            yield source


def _uncast(view: GraphView, tensor: Tensor) -> Tensor:
    """Returns what is cast or handed on, though that waits for the branch to be taken."""
    tensor = view.resolve(tensor)
    while is_integer_cast(view, tensor.node) or view.op(tensor.node) in ALIAS_OPS:
        tensor = view.resolve(view.inputs(tensor.node)[0])
    return tensor


def _untaken(view: GraphView, tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Returns what a Switch tests, and its input, if the tensor is where the test is false."""
    tensor = view.resolve(tensor)
    if view.op(tensor.node) != "Switch" or tensor.index:
        return None
    data, test = view.inputs(tensor.node)
    return view.resolve(test), view.resolve(data)


def _tests(view: GraphView, test: Tensor, divisor: Tensor | None) -> bool:
    """Whether a test is that of a quotient by this divisor, or by any if it is None."""
    for axis in (0, 1):
        if view.op(test.node) != "Any" or view.flag_attr(test.node, "keep_dims"):
            return False
        inner, axes = view.inputs(test.node)
        number = view.constant(axes)
        if number is None or number.ravel().tolist() != [axis]:
            return False
        test = view.resolve(inner)
    if view.op(test.node) != "LogicalOr":
        return False
    sides = {view.op(side.node): side for side in map(view.resolve, view.inputs(test.node))}
    if sides.keys() != {"Equal", "IsNan"}:
        return False
    (checked,) = (view.resolve(t) for t in view.inputs(sides["IsNan"].node))
    compared = [view.resolve(t) for t in view.inputs(sides["Equal"].node)]
    others = [t for t in compared if t != checked]
    zero = view.constant(others[0]) if len(others) == 1 else None
    if zero is None or zero.ndim or zero != 0:
        return False
    return divisor is None or checked == view.resolve(divisor)


def _is_root_above_zero(view: GraphView, divisor: Tensor) -> bool:
    """Whether a divisor is the root of a variable and a constant above 0."""
    root = view.resolve(divisor)
    if view.op(root.node) != "Sqrt":
        return False
    total = view.resolve(view.inputs(root.node)[0])
    if view.op(total.node) not in ("Add", "AddV2"):
        return False
    parts = [view.resolve(part) for part in view.inputs(total.node)]
    constants = [value for part in parts if (value := view.constant(part)) is not None]
    reads = [part for part in parts if view.op(part.node) == "ReadVariableOp"]
    is_positive = len(constants) == 1 and constants[0].ndim == 0 and float(constants[0]) > 0
    return is_positive and len(reads) == 1
