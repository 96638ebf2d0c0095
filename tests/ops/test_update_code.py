"""The attr `code` of FusedEmbeddingUpdate may be any bytes: what may not be executed is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from fusion.ops.updates.cpu_kernels import layout
from fusion.ops.updates.cpu_kernels.layout import CodeCounts, CodeWords, Instruction
from tests.ops.update_cases import INVALID, Case, refused
from tests.random_programs import random_program
from tests.update_lowering import code_of, words_of
from tests.update_programs import PROGRAMS, same

Words = list[int]

#: A sweep, and a program of listed rows. Registers of the first: v0, v1, s0, 0, r0, e0; of the
#: second: v0, v1, s0, 0, r0, e0, e1.
SWEEP = "a=mul(x0,s0);b=sum(a);c=add(v1,b);d=neg(c);assign(v1,d);assign(v0,c)"
LISTED = "q=square(v1);t=take(q);r=mul(x0,t);n=mul(r,s0);scatter_sub(v0,n);result(r)"
V0, V1, S0, ZERO, R0, E0 = range(6)


def at(index: int, field: int) -> int:
    """The word of a field of an instruction."""
    return CodeWords.SIZE + Instruction.SIZE * index + field


def index_of(words: Words, opcode: int) -> int:
    """The first instruction with an opcode."""
    opcodes = words[CodeWords.SIZE + Instruction.opcode :: Instruction.SIZE]
    return opcodes.index(opcode)


def changed(field: int, value: int) -> Callable[[Words], None]:
    """A change of one word in front of the instructions."""

    def change(words: Words) -> None:
        assert words[field] != value
        words[field] = value

    return change


def of_instruction(opcode: int, field: int, value: int) -> Callable[[Words], None]:
    """A change of a field of the first instruction with an opcode."""

    def change(words: Words) -> None:
        place = at(index_of(words, opcode), field)
        assert words[place] != value
        words[place] = value

    return change


MUL = layout.BINARY_CODES["mul"] + layout.VECTOR_SCALAR
ADD, NEG = layout.BINARY_CODES["add"], layout.UNARY_CODES["neg"]
SQUARE = layout.UNARY_CODES["square"]
OUT, LEFT, RIGHT = Instruction.out, Instruction.left, Instruction.right
ENTRIES = layout.OF_ENTRIES
WITH, WITHOUT = CodeWords.with_entries, CodeWords.without
IS_NOT_VALID = "code: instruction [0-9]+ is not valid"

#: A program, what is changed of its words, and what is said.
WRONG = {
    "an older version": (SWEEP, changed(CodeWords.version, 0), "code has version 0, not 1"),
    "fewer instructions": (SWEEP, changed(WITH, 1), "words of instructions, but says 1 and"),
    "negative": (SWEEP, changed(WITH, -1), "words of instructions, but says -1 and"),
    "flags": (SWEEP, changed(CodeWords.is_sweep, 2), r"code\[1\] must not be 2"),
    "skips without a sweep": (LISTED, changed(CodeWords.may_skip, 1), r"code\[3\] must not be 1"),
    "no sweep": (SWEEP, changed(CodeWords.is_sweep, 0), "instructions for rows without entries"),
    "rows are needed": (LISTED, changed(CodeWords.needs_rows, 0), IS_NOT_VALID),
    "more buffers": (SWEEP, changed(WITH + CodeCounts.entries, 2), "there are 2 buffers, but 1"),
    "many buffers": (SWEEP, changed(WITH + CodeCounts.entries, 2**31 - 1), "but 1 are written"),
    "fewer buffers": (SWEEP, changed(WITH + CodeCounts.entries, 0), IS_NOT_VALID),
    "negative buffers": (SWEEP, changed(WITH + CodeCounts.scalars, -2), IS_NOT_VALID),
    "buffers of nothing": (SWEEP, changed(WITHOUT + CodeCounts.entries, 1), "but 0 are written"),
    "no opcode": (SWEEP, of_instruction(NEG, 0, layout.RESULT + 1), IS_NOT_VALID),
    "a negative opcode": (SWEEP, of_instruction(NEG, 0, -1), IS_NOT_VALID),
    "an opcode of the kernel's own": (
        SWEEP,
        of_instruction(layout.GATHER_VALUE, 0, layout.SUM_BY_IDS),
        IS_NOT_VALID,
    ),
    "no kind": (SWEEP, of_instruction(NEG, Instruction.count, 3), IS_NOT_VALID),
    "another kind": (
        SWEEP,
        of_instruction(NEG, Instruction.count, layout.OF_ENTRIES),
        IS_NOT_VALID,
    ),
    "no register": (SWEEP, of_instruction(MUL, RIGHT, 99), IS_NOT_VALID),
    "a negative register": (SWEEP, of_instruction(MUL, LEFT, -1), IS_NOT_VALID),
    "a vector for a scalar": (SWEEP, of_instruction(MUL, RIGHT, V1), IS_NOT_VALID),
    "a scalar for a vector": (SWEEP, of_instruction(ADD, RIGHT, S0), IS_NOT_VALID),
    "zero for a vector": (SWEEP, of_instruction(ADD, RIGHT, ZERO), IS_NOT_VALID),
    "rows for entries": (SWEEP, of_instruction(layout.SUM, LEFT, V0), IS_NOT_VALID),
    "entries for rows": (SWEEP, of_instruction(layout.SUM, OUT, E0), IS_NOT_VALID),
    "a scalar that is written": (SWEEP, of_instruction(NEG, OUT, S0), IS_NOT_VALID),
    "read before written": (LISTED, of_instruction(SQUARE, LEFT, R0 + 1), IS_NOT_VALID),
    "rows far from each other": (LISTED, of_instruction(SQUARE, LEFT, V1), IS_NOT_VALID),
    "written far from each other": (LISTED, of_instruction(SQUARE, OUT, V0), IS_NOT_VALID),
    "gathered in a sweep": (
        "a=neg(v1);assign(v0,a)",
        of_instruction(NEG, 0, layout.GATHER),
        IS_NOT_VALID,
    ),
    "no variable": (LISTED, of_instruction(layout.GATHER, LEFT, 2), IS_NOT_VALID),
    "no value": (LISTED, of_instruction(layout.GATHER_VALUE, LEFT, 1), IS_NOT_VALID),
    "a negative value": (LISTED, of_instruction(layout.GATHER_VALUE, LEFT, -1), IS_NOT_VALID),
    "sums of values": (
        LISTED,
        of_instruction(layout.GATHER_VALUE, 0, layout.SUM_VALUE),
        IS_NOT_VALID,
    ),
    "scattered to none": (LISTED, of_instruction(layout.SCATTER_SUB, OUT, 2), IS_NOT_VALID),
    "another result": (LISTED, of_instruction(layout.RESULT, OUT, 1), IS_NOT_VALID),
    "no result": (
        LISTED,
        of_instruction(layout.RESULT, 0, layout.SCATTER_ADD),
        "code has 0 results, not 1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_may_not_be_executed(name: str) -> None:
    text, change, problem = WRONG[name]
    case = Case(text, 20, 3, 7)
    words = words_of(case.code())
    case.update(case.variables(), code=code_of(words))
    change(words)
    assert refused(case, case.variables(), INVALID, problem, code=code_of(words))


def test_entries_for_rows_without_any() -> None:
    """Of what comes after the instructions for blocks with entries."""
    case = Case(SWEEP, 20, 3, 7)
    words = words_of(case.code())
    place = at(words[WITH], Instruction.opcode)
    for opcode in (layout.SUM, layout.GATHER_VALUE, layout.SCATTER_ADD):
        words[place] = opcode
        assert refused(case, case.variables(), INVALID, IS_NOT_VALID, code=code_of(words))


def test_sizes() -> None:
    case = Case(SWEEP, 20, 3, 7)
    code = case.code()
    for wrong in (b"", code[:3], code[:44], code[:-1], code + b"\0"):
        problem = f"code has {len(wrong)} bytes, which are no instructions"
        assert refused(case, case.variables(), INVALID, problem, code=wrong)
    for wrong in (code[:48], code[:-4], code + bytes(20)):
        assert refused(case, case.variables(), INVALID, "words of instructions, but", code=wrong)


def test_the_error_names_the_node() -> None:
    case = Case(SWEEP, 20, 3, 7)
    variables = case.variables()

    @tf.function
    def step() -> None:
        with tf.name_scope("wrong"):
            case.update(variables, code=case.code()[:-4])

    with pytest.raises(INVALID, match=r"(?s)FusedEmbeddingUpdate: code has .*wrong/FusedEmbedding"):
        step()


VALUES = (-(2**31), -5, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 9, 40, 2**31 - 1)


@pytest.mark.parametrize("seed", range(4))
def test_any_words(seed: int) -> None:
    """What is not refused does the same each time: nothing is read that was not written."""
    rng, counts = random.Random(seed), {True: 0, False: 0}
    deduplicate = seed % 2 == 1
    texts = [*PROGRAMS.values(), *(random_program(rng, 9, results=False) for _ in range(30))]
    for _ in range(150):
        case = Case(rng.choice(texts), rng.choice([1, 20]), rng.choice([1, 3, 8]), 7, seed=seed)
        words = words_of(case.code(deduplicates=deduplicate))
        for _ in range(rng.choice([1, 1, 2, 5])):
            place = rng.randrange(len(words))
            near = words[place] + rng.choice([-2, -1, 1, 2])
            words[place] = rng.choice([near, near, rng.choice(VALUES)])
        code = code_of([min(max(word, -(2**31)), 2**31 - 1) for word in words])
        attrs = {"code": code, "deduplicate": deduplicate}
        ours, again = case.variables(), case.variables()
        try:
            case.update(ours, **attrs)
        except INVALID:
            counts[False] += 1
            continue
        case.update(again, **attrs)
        for one, other in zip(ours, again, strict=True):
            assert same(one.numpy(), other.numpy())
        counts[True] += 1
    assert min(counts.values()) > 10


def test_any_bytes() -> None:
    rng = np.random.default_rng(0)
    case = Case(SWEEP, 20, 3, 7)
    variables = case.variables()
    head = code_of(words_of(case.code())[: CodeWords.SIZE])
    size = len(case.code()) - len(head)
    for index in range(100):
        data = rng.bytes(int(rng.integers(0, 100))) if index % 2 else head + rng.bytes(size)
        assert refused(case, variables, INVALID, "code", code=data)
