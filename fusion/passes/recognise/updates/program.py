"""The program of an update: its operations, in an order in which each reads what it read before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fusion.passes.analysis.order import Order
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.expressions import Kind, Value
from fusion.passes.recognise.updates.writes import ASSIGNS, SCATTERS, Write


@dataclass(frozen=True)
class Schedule:
    """A program and what it is given.

    Attributes:
        program: see `fusion.schema.update_program`.
        entries: matrices of a row for each id, x0, x1...
        scalars: numbers, s0, s1...
    """

    program: str
    entries: tuple[Tensor, ...]
    scalars: tuple[Tensor, ...]


def scheduled(
    writes: Sequence[Write], variables: Sequence[Tensor], order: Order
) -> Schedule | NoMatch:
    """Returns a program that does all writes.

    Args:
        writes: all of these variables, in an order in which they may run.
        variables: v0, v1...
        order: of the writes and of all that reads the variables.
    """
    histories = {v: [write for write in writes if write.variable == v] for v in variables}
    versions: dict[Value, int] = {}
    for write in writes:
        for value in write.value.walk():
            if value.handle is None or value in versions:
                continue
            version = _version(value, histories.get(value.handle), order)
            if isinstance(version, NoMatch):
                return version
            versions[value] = version
    for history in histories.values():
        for first, second in pairwise(history):
            if not order.is_before(first.node, second.node):
                return NoMatch("two changes of a variable are in no order", second.node)
    steps = _sorted(writes, histories, versions, order)
    if steps is None:
        return NoMatch("what a variable was and what it becomes are read at once", writes[-1].node)
    return _Writer(variables, versions, histories).written(steps)


def _version(value: Value, history: Sequence[Write] | None, order: Order) -> int | NoMatch:
    """Returns how many changes of its variable a read comes after."""
    node = value.source.node
    if history is None:
        return NoMatch("a matrix that stays as it is takes part in the update", node)
    before = [order.is_before(write.node, node) for write in history]
    after = [order.is_before(node, write.node) for write in history]
    version = sum(before)
    if before != [True] * version + [False] * (len(history) - version):
        return NoMatch("a variable is read in no order with its changes", node)
    if not all(after[version:]):
        return NoMatch("a variable is read in no order with its changes", node)
    return version


Step = Value | Write


@dataclass
class _Waits:
    """What each step comes after."""

    histories: Mapping[Tensor, Sequence[Write]]
    versions: Mapping[Value, int]
    before: dict[Step, dict[Step, None]] = field(default_factory=dict)

    def add(self, step: Step, args: Sequence[Value]) -> None:
        """Lets a step run after its arguments, and while variables are as they were read."""
        waits = self.before.setdefault(step, {})
        for arg in args:
            if arg.handle is not None:
                history, version = self.histories[arg.handle], self.versions[arg]
                if version:
                    waits[history[version - 1]] = None
                if version < len(history) and history[version] is not step:
                    self.before.setdefault(history[version], {})[step] = None
            elif arg.op != "input":
                waits[arg] = None

    def in_order(self, order: Order) -> list[Step] | None:
        """Returns all steps, near the order of the graph; None if they wait for each other."""
        done: dict[Step, None] = {}
        left = sorted(self.before, key=lambda step: order.number(_node(step)))
        while left:
            ready = next((step for step in left if self.before[step].keys() <= done.keys()), None)
            if ready is None:
                return None
            done[ready] = None
            left.remove(ready)
        return [*done]


def _sorted(
    writes: Sequence[Write],
    histories: Mapping[Tensor, Sequence[Write]],
    versions: Mapping[Value, int],
    order: Order,
) -> list[Step] | None:
    """Returns what is computed, and the writes, in order; None if there is no such order."""
    waits = _Waits(histories, versions)
    for write in writes:
        for value in write.value.walk():
            if value.op not in ("input", "read"):
                waits.add(value, value.args)
        waits.add(write, (write.value,))
    for history in histories.values():
        for first, second in pairwise(history):
            waits.before[second][first] = None
    return waits.in_order(order)


def _node(step: Step) -> str:
    return step.node if isinstance(step, Write) else step.source.node


@dataclass
class _Writer:
    """Writes steps as lines."""

    variables: Sequence[Tensor]
    versions: Mapping[Value, int]
    histories: Mapping[Tensor, Sequence[Write]]
    lines: list[str] = field(default_factory=list)
    entries: dict[Tensor, str] = field(default_factory=dict)
    scalars: dict[Tensor, str] = field(default_factory=dict)
    names: dict[object, str] = field(default_factory=dict)

    def written(self, steps: Sequence[Step]) -> Schedule:
        """Returns the program."""
        for step in steps:
            if isinstance(step, Write):
                self._put_write(step)
            else:
                self.names[step] = self._computed(step.op, *map(self._token, step.args))
        return Schedule(";".join(self.lines), tuple(self.entries), tuple(self.scalars))

    def _put_write(self, write: Write) -> None:
        variable = f"v{self.variables.index(write.variable)}"
        value = self._token(write.value)
        if write.ids is not None:
            self.lines.append(f"{SCATTERS[write.op]}({variable},{value[0]})")
            return
        operation = ASSIGNS[write.op]
        if operation:
            version = self.histories[write.variable].index(write)
            value = (self._computed(operation, (variable, version), value), 0)
        self.lines.append(f"assign({variable},{value[0]})")

    def _token(self, value: Value) -> tuple[str, int]:
        """What a line says of an operand, and how many changes a variable has seen."""
        if value.handle is not None and value.op == "read":
            return f"v{self.variables.index(value.handle)}", self.versions[value]
        if value.op != "input":
            return self.names[value], 0
        inputs, letter = (self.scalars, "s") if value.kind is Kind.SCALAR else (self.entries, "x")
        return inputs.setdefault(value.source, f"{letter}{len(inputs)}"), 0

    def _computed(self, op: str, *args: tuple[str, int]) -> str:
        """The name of what is computed, by one line however often the graph does so."""
        key = (op, args)
        if key not in self.names:
            self.names[key] = name = f"t{len(self.lines)}"
            self.lines.append(f"{name}={op}({','.join(arg for arg, _ in args)})")
        return self.names[key]
