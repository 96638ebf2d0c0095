"""The program of an update: its operations, in an order in which each reads what it read before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from fusion.passes.analysis.order import Order
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.updates.expressions import Expression, Kind
from fusion.passes.recognise.updates.writes import Write


@dataclass(frozen=True)
class Stage:
    """A program and what it is given.

    Attributes:
        program: see `fusion.schema.update_program`.
        variables: v0, v1...
        entries: matrices of a row for each id, x0, x1...
        scalars: numbers, s0, s1...
        results: what stock ops go on computing from, in the order of the op's results.
        writes: the stock ops whose changes of variables it does.
        nodes: those that compute what it does, without `writes`, each in the first stage alone.
        early: reads before the first change of a variable, which it does.
    """

    program: str
    variables: tuple[Tensor, ...]
    entries: tuple[Tensor, ...]
    scalars: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    writes: tuple[str, ...]
    nodes: tuple[str, ...]
    early: tuple[str, ...]


def scheduled(
    writes: Sequence[Write], variables: Sequence[Tensor], order: Order
) -> tuple[Stage, ...] | NoMatch:
    """Returns programs that do all writes, one unless stock ops compute something in between.

    Args:
        writes: all of these variables, in an order in which they may run.
        variables: of all writes, the table first.
        order: of the writes and of all that reads the variables.
    """
    histories = {v: [write for write in writes if write.variable == v] for v in variables}
    versions: dict[Expression, int] = {}
    for write in writes:
        for value in write.value.walk():
            if value.variable is None or value in versions:
                continue
            version = _version(value, histories.get(value.variable), order)
            if isinstance(version, NoMatch):
                return version
            versions[value] = version
    for history in histories.values():
        for first, second in pairwise(history):
            if not order.is_before(first.node, second.node):
                return NoMatch("two changes of a variable are in no order", second.node)
    waits = _Waits(histories, versions)
    waits.add_all(writes)
    steps = waits.in_order(order)
    if steps is None:
        return NoMatch("what a variable was and what it becomes are read at once", writes[-1].node)
    numbers = waits.stages(steps)
    stages: list[Stage] = []
    for number in range(1 + max(numbers.values())):
        own = [step for step in steps if numbers[step] == number]
        later = [value for step in steps if numbers[step] > number for value in [_value(step)]]
        passed = [v.args[0] for v in later if v.op == "outside" and numbers[v] == number + 1]
        writer = _Writer(variables, versions, histories)
        needed = {v for step in (*own, *passed) for v in _inside(_value(step)) if _reads(v)}
        if any(numbers.get(value, number) != number for value in needed):
            return NoMatch("a stock op stands between two halves of an update", writes[-1].node)
        known = {name for stage in stages for name in stage.nodes}
        inside = (v for step in (*own, *passed) for v in _inside(_value(step)))
        nodes = dict.fromkeys(name for v in inside for name in v.nodes if name not in known)
        firsts = [history[0] for history in histories.values() if history and history[0] in own]
        early = waits.reads_before(firsts)
        stages.append(replace(writer.written(own, passed), nodes=tuple(nodes), early=early))
    if not all(stage.writes for stage in stages):
        return NoMatch("a stock op stands before all that an update writes", writes[-1].node)
    return tuple(stages)


def _version(value: Expression, history: Sequence[Write] | None, order: Order) -> int | NoMatch:
    """Returns how many changes of its variable a read comes after."""
    node = value.source.node
    if history is None:
        return NoMatch("a matrix that stays as it is takes part in the update", node)
    # An op that changes a variable reads it first.
    before = [node != write.node and order.is_before(write.node, node) for write in history]
    after = [node == write.node or order.is_before(node, write.node) for write in history]
    version = sum(before)
    if before != [True] * version + [False] * (len(history) - version):
        return NoMatch("a variable is read in no order with its changes", node)
    if not all(after[version:]):
        return NoMatch("a variable is read in no order with its changes", node)
    return version


Step = Expression | Write


@dataclass
class _Waits:
    """What each step comes after."""

    histories: Mapping[Tensor, Sequence[Write]]
    versions: Mapping[Expression, int]
    before: dict[Step, dict[Step, None]] = field(default_factory=dict)

    def add(self, step: Step, args: Sequence[Expression]) -> None:
        """Lets a step run after its arguments, and while variables are as they were read."""
        waits = self.before.setdefault(step, {})
        for arg in args:
            if arg.variable is not None:
                history, version = self.histories[arg.variable], self.versions[arg]
                if version:
                    waits[history[version - 1]] = None
                if version < len(history) and history[version] is not step:
                    self.before.setdefault(history[version], {})[step] = None
            elif arg.op != "input":
                waits[arg] = None

    def add_all(self, writes: Sequence[Write]) -> None:
        """Adds the writes and all that they are computed from."""
        for write in writes:
            for value in write.value.walk():
                if value.op not in ("input", "read"):
                    self.add(value, value.args)
            self.add(write, (write.value,))
        for history in self.histories.values():
            for first, second in pairwise(history):
                self.before[second][first] = None

    def reads_before(self, writes: Sequence[Write]) -> tuple[str, ...]:
        """Returns the nodes that read what these, first changes of variables, replace."""
        changed = {write.variable for write in writes}
        own = {write.node for history in self.histories.values() for write in history}
        reads = (v for v, version in self.versions.items() if not version and v.variable in changed)
        return tuple(dict.fromkeys(v.source.node for v in reads if v.source.node not in own))

    def stages(self, steps: Sequence[Step]) -> dict[Step, int]:
        """Returns how many stock ops each step waits for, one after the other."""
        numbers: dict[Step, int] = {}
        for step in steps:
            is_outside = isinstance(step, Expression) and step.op == "outside"
            before = max((numbers[other] for other in self.before[step]), default=0)
            numbers[step] = before + is_outside
        return numbers

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


def _node(step: Step) -> str:
    return step.node if isinstance(step, Write) else step.source.node


@dataclass
class _Writer:
    """Writes the steps of a stage as lines."""

    variables: Sequence[Tensor]
    versions: Mapping[Expression, int]
    histories: Mapping[Tensor, Sequence[Write]]
    lines: list[str] = field(default_factory=list)
    used: dict[Tensor, str] = field(default_factory=dict)
    entries: dict[Tensor, str] = field(default_factory=dict)
    scalars: dict[Tensor, str] = field(default_factory=dict)
    names: dict[object, str] = field(default_factory=dict)

    def written(self, steps: Sequence[Step], results: Sequence[Expression]) -> Stage:
        """Returns the stage of these steps, and of what is passed on to stock ops."""
        writes = [step for step in steps if isinstance(step, Write)]
        table = [v for v in self.variables if any(write.variable == v for write in writes)]
        self.used = {variable: f"v{index}" for index, variable in enumerate(table)}
        for step in steps:
            if isinstance(step, Write):
                self._put_write(step)
            elif step.op != "outside" and _reads(step):
                self._token(step)
        passed = dict.fromkeys(value.source for value in results)
        for value in {value.source: value for value in results}.values():
            self.lines.append(f"result({self._token(value)[0]})")
        return Stage(
            program=";".join(self.lines),
            variables=tuple(self.used),
            entries=tuple(self.entries),
            scalars=tuple(self.scalars),
            results=tuple(passed),
            writes=tuple(dict.fromkeys(write.node for write in writes)),
            nodes=(),
            early=(),
        )

    def _put_write(self, write: Write) -> None:
        variable = self.used[write.variable]
        value = self._token(write.value)
        if write.ids is not None:
            self.lines.append(f"{write.operation}({variable},{value[0]})")
            return
        if write.operation != "assign":
            version = self.histories[write.variable].index(write)
            value = (self._computed(write.operation, (variable, version), value), 0)
        self.lines.append(f"assign({variable},{value[0]})")

    def _token(self, value: Expression) -> tuple[str, int]:
        """What a line says of an operand, and how many changes a variable has seen."""
        if value.variable is not None and value.op == "read":
            name = self.used.setdefault(value.variable, f"v{len(self.used)}")
            return name, self.versions[value]
        if value.op not in ("input", "outside"):
            return self._computed(value.op, *map(self._token, value.args)), 0
        is_scalar = value.kind is Kind.SCALAR
        inputs, letter = (self.scalars, "s") if is_scalar else (self.entries, "x")
        return inputs.setdefault(value.source, f"{letter}{len(inputs)}"), 0

    def _computed(self, op: str, *args: tuple[str, int]) -> str:
        """The name of what is computed, by one line however often the graph does so."""
        key = (op, args)
        if key not in self.names:
            self.names[key] = name = f"t{len(self.lines)}"
            self.lines.append(f"{name}={op}({','.join(arg for arg, _ in args)})")
        return self.names[key]


def _inside(value: Expression) -> Iterator[Expression]:
    """Yields a value and all that it is computed from without a stock op in between."""
    stack, seen = [value], set[Expression]()
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            yield value
            stack += () if value.op == "outside" else value.args


def _reads(value: Expression) -> bool:
    """Whether a value depends on what a variable was when it was computed."""
    return any(v.op == "read" for v in _inside(value))


def _value(step: Step) -> Expression:
    return step.value if isinstance(step, Write) else step
