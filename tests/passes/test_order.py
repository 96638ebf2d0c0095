"""Which nodes run before which: what is claimed holds however TensorFlow runs the graph."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.analysis.order import Order, Start
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from tests.graph_text import parse_graph


def view_of(text: str) -> GraphView:
    return GraphView.of_graph(parse_graph("versions producer=1882\n" + text))


BRANCHES = """
%flag = Placeholder()
%x = Placeholder()
%start = Neg(x)
%switch = Switch(start, flag)
%off = Neg(switch)
%on = Neg(switch:1)
%both = Merge(off, on)
%one = Merge(off, x)
%only_on = Neg(switch:1, ^off)
%end = Neg(both)
"""


def test_a_merge_waits_for_what_all_of_its_inputs_wait_for() -> None:
    order = Order(view_of(BRANCHES), ["start"])
    assert order.is_before("start", "both")
    assert order.is_before("start", "end")
    assert not order.is_before("start", "one")
    assert order.may_be_before("start", "one")
    assert not order.may_be_before("start", "x")


def test_a_merge_waits_for_what_is_dead_if_another_branch_is_taken() -> None:
    order = Order(view_of(BRANCHES), ["off", "on"])
    assert order.is_before("off", "both")
    assert order.is_before("on", "both")
    assert not order.is_before("off", "one")


def test_conditions() -> None:
    order, flag = Order(view_of(BRANCHES), ["off"]), Tensor("flag")
    assert order.conditions("off") == {(flag, 0)}
    assert order.conditions("only_on") == {(flag, 0), (flag, 1)}
    assert order.conditions("both") == order.conditions("switch") == frozenset()


@pytest.mark.parametrize("op", ["Merge", "RefMerge"])
def test_a_merge_waits_for_all_of_its_control_inputs(op: str) -> None:
    text = f"%x = Placeholder()\n%start = Neg(x)\n%merge = {op}(x, start"
    assert not Order(view_of(f"{text})"), ["start"]).is_before("start", "merge")
    assert Order(view_of(f"{text}, ^start)"), ["start"]).is_before("start", "merge")


def test_tensors_and_control_inputs() -> None:
    view = view_of("""
%x = Placeholder()
%unique = Unique(x)
%keys = Neg(unique)
%indices = Neg(unique:1)
%behind = Neg(x, ^unique)
""")
    keys, control = frozenset([Tensor("unique")]), frozenset(["^unique"])
    order = Order(view, [keys, control, keys | control, "unique"])

    def waiting(start: Start) -> list[str]:
        return [name for name in view.nodes if order.is_before(start, name)]

    assert waiting(keys) == ["keys"]
    assert waiting(control) == ["behind"]
    assert waiting(keys | control) == ["keys", "behind"]
    assert waiting("unique") == ["unique", "keys", "indices", "behind"]


def test_any_of_several() -> None:
    view = view_of("""
%x = Placeholder()
%flag = Placeholder()
%one = Neg(x)
%other = Neg(x)
%switch = Switch(one, flag)
%off = Neg(switch)
%merge = Merge(off, other)
%on = Neg(switch:1)
%dead = Merge(off, on)
""")
    either, branches = frozenset(["one", "other"]), frozenset(["off", "other"])
    order = Order(view, ["one", "other", either, branches])
    assert order.is_before(either, "merge")
    assert not order.is_before("one", "merge")
    assert not order.is_before("other", "merge")
    # Where `on` is live `off` is dead, but `other` is not.
    assert not order.is_before(branches, "dead")


def test_control_edges_are_moved_and_nodes_left_out() -> None:
    view = view_of("""
%read = Placeholder()
%gather = Neg(read)
%write = Neg(x, ^read)
%x = Neg(gather)
%behind = Neg(x)
""")
    assert Order(view, ["gather"]).is_before("gather", "behind")
    cut = Order(view, ["gather"], without={"x"})
    assert not cut.is_before("gather", "behind")
    assert not cut.is_before("gather", "write")
    moved = Order(view, ["gather"], moved={"read": ["gather"]}, without={"x"})
    assert moved.is_before("gather", "write")
    # What is left out is still itself.
    assert Order(view, ["x"], without={"x"}).is_before("x", "behind")


def test_the_first_iteration_of_a_loop() -> None:
    view = view_of("""
%x = Placeholder()
%enter = Enter(x)
%merge = Merge(enter, next)
%test = Less(merge)
%condition = LoopCond(test)
%switch = Switch(merge, condition)
%exit = Exit(switch)
%turn = Neg(switch:1)
%next = NextIteration(turn)
%end = Neg(exit)
""")
    order = Order(view, ["x", "turn", "test"])
    assert order.is_before("x", "end")
    assert order.is_before("test", "end")
    assert not order.is_before("turn", "end")
    assert not order.may_be_before("turn", "merge")
    inside = {name for name in view.nodes if order.is_in_loop(name)}
    assert inside == view.nodes.keys() - {"x", "exit", "end"}
    assert order.conditions("turn") == {(Tensor("condition"), 1)}
    assert order.conditions("end") == frozenset()
    numbers = {name: order.number(name) for name in view.nodes}
    assert sorted(numbers.values()) == [*range(len(numbers))]
    assert numbers["x"] < numbers["merge"] < numbers["turn"] < numbers["next"]


# At random


def drawn(rng: random.Random) -> list[node_def_pb2.NodeDef]:
    """A graph of branches, well-nested or not; what it tests are the first nodes."""
    nodes = [node_def_pb2.NodeDef(name=f"test{n}", op="Placeholder") for n in range(2)]
    outputs = [node.name for node in nodes]
    for number in range(rng.randint(4, 20)):
        op = rng.choices(["Switch", "Merge", "AddN"], [3, 3, 4])[0]
        node = node_def_pb2.NodeDef(name=f"n{number}", op=op)
        near = [outputs[-6:] if rng.random() < 0.7 else outputs for _ in range(2)]
        node.input.extend(rng.choice(some) for some in near[: 1 if op == "Switch" else 2])
        if op == "Switch":
            node.input.append(f"test{rng.randrange(2)}")
        if rng.random() < 0.3:
            node.input.append(f"^{rng.choice(nodes).name}")
        nodes.append(node)
        outputs += [node.name, f"{node.name}:1"] if op == "Switch" else [node.name]
    return nodes


class Done(NamedTuple):
    """When a node was done, whether live, and which output of it is."""

    time: int
    is_live: bool
    taken: int


def run(nodes: list[node_def_pb2.NodeDef], rng: random.Random) -> dict[str, Done]:
    """Runs a graph as TensorFlow's executor does, in one of the orders that it may."""
    done: dict[str, Done] = {}

    def is_live(text: str) -> bool | None:
        """Whether a data input is live; None if it is not there."""
        name, _, index = text.partition(":")
        return done[name].is_live and done[name].taken == int(index or 0) if name in done else None

    def ready(node: node_def_pb2.NodeDef) -> bool | None:
        """Whether a node would run live or dead; None if it cannot run yet."""
        data = [is_live(text) for text in node.input if text[0] != "^"]
        controls = [done.get(text[1:]) for text in node.input if text[0] == "^"]
        if None in controls or (None in data and (node.op != "Merge" or True not in data)):
            return None
        if node.op == "Merge":
            return True in data
        return all(data) and all(one is not None and one.is_live for one in controls)

    tests, left = {f"test{n}": rng.randrange(2) for n in range(2)}, list(nodes)
    while left:
        node = rng.choice([node for node in left if ready(node) is not None])
        taken = tests[node.input[1]] if node.op == "Switch" else 0
        done[node.name] = Done(len(done), bool(ready(node)), taken)
        left.remove(node)
    return done


def test_what_is_surely_before_is_so_in_every_run() -> None:
    claims = 0
    for seed in range(150):
        rng = random.Random(seed)
        nodes = drawn(rng)
        names = [node.name for node in nodes]
        sets = [frozenset(rng.sample([*map(Tensor, names)], 2)) for _ in range(4)]
        order = Order(GraphView.of_graph(graph_pb2.GraphDef(node=nodes)), [*names, *sets])
        for _ in range(6):
            done = run(nodes, rng)
            starts: dict[Start, int] = {n: done[n].time for n in names if done[n].is_live}
            for tensors in sets:
                at = [done[one.node] for one in tensors]
                if any(one.is_live and not one.taken for one in at):
                    starts[tensors] = min(one.time for one in at)
            for start, time in starts.items():
                late = [n for n in names if order.is_before(start, n) and done[n].time < time]
                assert not late, (seed, start, late, nodes)
                claims += sum(order.is_before(start, n) for n in names)
    assert claims > 50_000
