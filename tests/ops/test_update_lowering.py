"""What programs of FusedEmbeddingUpdate are lowered to."""

from __future__ import annotations

import random
import re

import pytest
from tensorflow.core.framework import node_def_pb2, types_pb2

from fusion.ops import node_kernels
from fusion.ops.updates.cpu_kernels import layout
from fusion.ops.updates.cpu_kernels.layout import CodeCounts, Instruction
from fusion.ops.updates.cpu_kernels.lowering import Inputs, lower
from fusion.runtime.cache import processor
from fusion.schema.update_program import MAX_BYTES
from tests.ops.update_cases import Case
from tests.random_programs import random_program
from tests.tiers import some
from tests.update_lowering import lowered
from tests.update_programs import PROGRAMS, counts, result_count

MANY = Inputs(1000, 1000, 1000, 0, False)

# --- instructions -------------------------------------------------------------------------------


def names_of_opcodes() -> dict[int, str]:
    others = (
        *("COPY", "FILL", "SUM", "TAKE", "TAKE_VARIABLE", "GATHER", "GATHER_VALUE", "SUM_VALUE"),
        *("SCATTER_ADD", "SCATTER_SUB", "SCATTER_UPDATE", "RESULT"),
    )
    names = {getattr(layout, name): name.lower() for name in others}
    names |= {code: name for name, code in layout.UNARY_CODES.items()}
    for name, code in layout.BINARY_CODES.items():
        shapes = {layout.VECTORS: "", layout.VECTOR_SCALAR: "[v,s]", layout.SCALAR_VECTOR: "[s,v]"}
        names |= {code + shape: name + suffix for shape, suffix in shapes.items()}
    return names


OPCODES = names_of_opcodes()
BINARY = {code + shape for code in layout.BINARY_CODES.values() for shape in range(3)}
#: Those of which an operand is the index of what is loaded or written, and no register.
LOADS = {layout.TAKE_VARIABLE: "v", layout.GATHER: "v", layout.GATHER_VALUE: "x"}
LOADS |= {layout.SUM_VALUE: "x"}


def listing(text: str, *, sums_values: bool = False) -> tuple[list[str], list[str]]:
    """The instructions for blocks with entries and for those without.

    Buffers are n0, n1... of scalars, r0... of rows and e0... of entries.
    """
    number = counts(text)
    inputs = Inputs(number["v"], number["x"], number["s"], result_count(text), sums_values)
    found = lowered(text, inputs)
    count = Instruction.SIZE * found.with_entries[CodeCounts.instructions]
    return (
        instructions(found.words[:count], found.with_entries, inputs),
        instructions(found.words[count:], found.without, inputs),
    )


def instructions(words: list[int], counts: list[int], inputs: Inputs) -> list[str]:
    registers = [f"v{k}" for k in range(inputs.variables)]
    registers += [f"s{k}" for k in range(inputs.scalars)] + ["0"]
    for letter, field in (
        ("n", CodeCounts.scalars),
        ("r", CodeCounts.rows),
        ("e", CodeCounts.entries),
    ):
        registers += [f"{letter}{k}" for k in range(counts[field])]
    assert len(words) == Instruction.SIZE * counts[CodeCounts.instructions]
    firsts = range(0, len(words), Instruction.SIZE)
    return [shown(words[first : first + Instruction.SIZE], registers) for first in firsts]


def shown(words: list[int], registers: list[str]) -> str:
    opcode, left = words[Instruction.opcode], words[Instruction.left]
    out = "" if opcode == layout.RESULT else registers[words[Instruction.out]]
    if opcode in LOADS:
        return f"{out} = {OPCODES[opcode]} {LOADS[opcode]}{left}"
    operands = registers[left]
    if opcode in BINARY:
        operands += f" {registers[words[Instruction.right]]}"
    if opcode == layout.RESULT:
        return f"result {words[Instruction.out]} = {operands}"
    if opcode < layout.COPY:
        kinds = {layout.OF_SCALAR: "n", layout.OF_ROWS: "rv", layout.OF_ENTRIES: "e"}
        assert out[0] in kinds[words[Instruction.count]]
    return f"{out} = {OPCODES[opcode]} {operands}"


GOLDEN = {
    "k3_sgd": (
        ["e0 = gather_value x0", "e0 = mul[v,s] e0 s0", "v0 = scatter_sub e0"],
        [],
    ),
    "k3_momentum": (
        [
            "e0 = gather_value x0",
            "e0 = mul[v,s] e0 s0",
            "r0 = sum e0",
            "r1 = mul[v,s] v1 s1",
            "v1 = sub r1 r0",
            "v0 = add v0 v1",
        ],
        ["r0 = mul[v,s] v1 s1", "v1 = sub[v,s] r0 0", "v0 = add v0 v1"],
    ),
    "k3_adagrad": (
        [
            "e0 = gather_value x0",
            "e1 = square e0",
            "v1 = scatter_add e1",
            "r0 = gather v1",
            "r0 = add[v,s] r0 s1",
            "r0 = sqrt r0",
            "e1 = take r0",
            "e0 = mul[s,v] s0 e0",
            "e1 = div e0 e1",
            "v0 = scatter_sub e1",
        ],
        [],
    ),
    "lazy_momentum": (
        [
            "e0 = gather_value x0",
            "e0 = mul[v,s] e0 s0",
            "e1 = take_variable v1",
            "e1 = mul[v,s] e1 s1",
            "e0 = sub e1 e0",
            "v1 = scatter_update e0",
            "v0 = scatter_add e0",
        ],
        [],
    ),
    "a=sum(x0);b=mul(a,s0);c=sub(s1,b);assign(v0,c);d=max(c,b);assign(v1,d)": (
        [
            "e0 = gather_value x0",
            "r0 = sum e0",
            "r0 = mul[v,s] r0 s0",
            "v0 = sub[s,v] s1 r0",
            "v1 = max v0 r0",
        ],
        ["n0 = mul 0 s0", "n1 = sub s1 n0", "v0 = fill n1", "n1 = max n1 n0", "v1 = fill n1"],
    ),
    "t=take(v0);u=mul(t,x0);result(u);scatter_sub(v0,u);result(x1);w=take(v0);scatter_add(v1,w)": (
        [
            "e0 = take_variable v0",
            "e1 = gather_value x0",
            "e1 = mul e0 e1",
            "result 0 = e1",
            "v0 = scatter_sub e1",
            "e1 = gather_value x1",
            "result 1 = e1",
            "e1 = take_variable v0",
            "v1 = scatter_add e1",
        ],
        [],
    ),
    "a=neg(v0);assign(v0,a);b=square(v0);assign(v0,b);c=add(a,b);assign(v1,c)": (
        ["r0 = neg v0", "v0 = copy r0", "v0 = square v0", "v1 = add r0 v0"],
        ["r0 = neg v0", "v0 = copy r0", "v0 = square v0", "v1 = add r0 v0"],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_instructions(name):
    assert listing(PROGRAMS.get(name, name)) == GOLDEN[name]


def test_values_that_are_summed_are_loaded_as_sums():
    with_entries, without = listing(PROGRAMS["k3_sgd"], sums_values=True)
    assert with_entries == ["e0 = sum_value x0", "e0 = mul[v,s] e0 s0", "v0 = scatter_sub e0"]
    assert without == []


@pytest.mark.parametrize(
    ("text", "is_sweep", "needs_rows", "may_skip"),
    [
        (PROGRAMS["k3_adagrad"], False, True, False),
        ("g=sum(x0);assign(v0,g)", True, False, False),
        ("scatter_update(v0,x0)", False, True, False),
        ("g=sum(x0);t=take(g);scatter_add(v1,t);assign(v0,g)", True, True, False),
        ("g=sum(x0)", False, False, False),
        (PROGRAMS["k3_adam"], True, False, True),
        ("a=add(v1,v0);assign(v0,a)", True, False, True),
        ("a=sub(v0,v1);assign(v0,a)", True, False, True),
        ("a=sub(v1,v0);assign(v0,a)", True, False, False),
        ("a=add(v0,v0);assign(v0,a)", True, False, False),
        ("a=mul(v1,v0);assign(v0,a)", True, False, False),
        ("a=add(v1,v0);assign(v0,a);assign(v0,a)", True, False, False),
        ("a=add(v1,v0);assign(v0,a);b=neg(a)", True, False, False),
        ("a=add(v1,v0);assign(v0,a);assign(v1,a)", True, False, False),
        ("a=add(v1,v0);b=neg(v0);assign(v0,a)", True, False, False),
        ("a=add(v1,v00);b=neg(v0);assign(v0,a)", True, False, False),
        ("a=add(v1,v0);assign(v1,a)", True, False, False),
        ("assign(v0,v0)", True, False, False),
        ("assign(v0,v1)", True, False, False),
    ],
)
def test_what_a_program_does(text, is_sweep, needs_rows, may_skip):
    found = lowered(text, MANY)
    assert found[:3] == (is_sweep, needs_rows, may_skip)


@pytest.mark.parametrize("seed", some(range(100), 4))
def test_random_programs_have_the_bits_of_stock(seed):
    rng = random.Random(seed)
    deduplicate = seed % 4 == 3
    text = random_program(rng, rng.choice([3, 8, 15, 25]), results=not deduplicate)
    case = Case(text, rng.choice([1, 30, 200]), rng.choice([1, 5, 16]), 20, seed=seed)
    case.check(deduplicate=deduplicate)


@pytest.mark.parametrize(
    "text",
    [
        "a=neg(v1);b=square(v00);assign(v0,a);assign(v1,b)",
        "scatter_add(v00,x0);t=take(v0);scatter_add(v1,t);u=take(v01);scatter_sub(v0,u)",
        "a=mul(x00,x0);b=mul(a,s00);scatter_add(v0,b)",
    ],
)
def test_zeros_in_front_of_an_index(text):
    Case(text, 30, 4, 10).check()


@pytest.mark.parametrize(
    ("first", "line"),
    [
        ("a0=neg(v0)", "a{0}=neg(a{1});assign(v0,a{0})"),
        ("a0=sum(x0)", "a{0}=mul(a{1},s0)"),
        ("a0=neg(x0)", "a{0}=add(a{1},x{0});scatter_sub(v1,a{0})"),
        ("a0=neg(v0)", "t{0}=take(v0);scatter_add(v0,t{0})"),
        ("a0=neg(v0)", "a{0}=sqrt(v{0});assign(v{0},a0)"),
    ],
)
def test_programs_of_some_thousand_lines(first, line):
    lines = [first, *(line.format(k, k - 1) for k in range(1, 1500))]
    assert 20_000 < len(";".join(lines)) <= MAX_BYTES
    inputs = Inputs(1500, 1500, 1500, 0, False)
    found = lowered(";".join(lines), inputs)
    words = found.words[: Instruction.SIZE * found.with_entries[CodeCounts.instructions]]
    instructions(words, found.with_entries, inputs)


def node(code: bytes) -> node_def_pb2.NodeDef:
    """A node of three variables, a value and four scalars."""
    made = node_def_pb2.NodeDef(name="a/update", op="FusedEmbeddingUpdate")
    number = {"num_variables": 3, "num_values": 1, "num_scalars": 4, "num_results": 0, "dim": 8}
    for name, count in number.items():
        made.attr[name].i = count
    made.attr["T"].type = types_pb2.DT_FLOAT
    made.attr["Tid"].type = types_pb2.DT_INT32
    made.attr["offsets"].list.i.append(-1)
    made.attr["sparse"].list.b.extend([False] * 3)
    made.attr["program"].s = b"only for readers"
    made.attr["code"].s = code
    return made


def test_kernels_of_nodes():
    """What checks programs is asked for, and used, while other objects are neither made nor run."""
    other = processor.named("haswell" if processor.target().name != "haswell" else "skylake")
    code = lower(PROGRAMS["k3_adam"], Inputs(3, 1, 4, 0, False))
    good = node(code)
    for target in (processor.target(), other):
        with processor.compiling_for(target):
            wanted = node_kernels.of_nodes([good])
            assert {"build_update_state", "update_float32", "update_kernel_CPU"} <= wanted.keys()
            for wrong, problem in (
                (b"", "code has 0 bytes, which are no instructions"),
                (b"\2" + code[1:], "code has version 2, not 1"),
                (code[:-4] + b"\xff" * 4, "code: instruction [0-9]+ is not valid"),
            ):
                with pytest.raises(
                    ValueError, match=f"^node 'a/update': FusedEmbeddingUpdate: {problem}$"
                ):
                    node_kernels.of_nodes([good, node(wrong)])


@pytest.mark.parametrize("line", ["assign(v3,v0)", "a=neg(v3)", "a=neg(x1)", "a=mul(x0,s4)"])
def test_what_a_node_does_not_have(line):
    problem = f"^program: {re.escape(repr(line))}: there is no [vxs][1-4]$"
    with pytest.raises(ValueError, match=problem):
        lower(f"{line};b=neg(x0)", Inputs(3, 1, 4, 0, False))


def test_results():
    with pytest.raises(ValueError, match="program has 1 results, not 0"):
        lower("result(x0)", Inputs(1, 1, 0, 0, False))
    with pytest.raises(ValueError, match="program must not have results with deduplicate"):
        lower("result(x0)", Inputs(1, 1, 0, 1, True))
