"""Programs of FusedEmbeddingUpdate that are not lowered, among them any bytes."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import resource
from pathlib import Path

import pytest

from fusion.schema.update_program import MOST_BYTES, leaf, parse
from tests import update_lowering
from tests.random_programs import mutated, random_program
from tests.update_lowering import Inputs, lower, lower_at
from tests.update_programs import NO_PROGRAMS, PROGRAMS

MANY = Inputs(1000, 1000, 1000, 0, False)


@pytest.mark.parametrize(("text", "problem"), NO_PROGRAMS)
def test_what_is_no_program(text, problem):
    with pytest.raises(ValueError, match=r"^program: ") as caught:
        lower(text.encode(), MANY)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (Inputs(1, 1, 2, 0, False), "program: 'scatter_add(v1,q)': there is no v1"),
        (Inputs(2, 0, 2, 0, False), "program: 'q=square(x0)': there is no x0"),
        (Inputs(2, 1, 1, 0, False), "program: 'd=add(v1,s1)': there is no s1"),
        (Inputs(0, 0, 0, 0, False), "program: 'q=square(x0)': there is no x0"),
        (Inputs(2, 1, 2, 1, False), "program has 0 results, not 1"),
        (Inputs(2, 1, 2, -(2**63), False), f"program has 0 results, not {-(2**63)}"),
    ],
)
def test_inputs_that_are_not_there(inputs, problem):
    text = PROGRAMS["k3_adagrad"].encode()
    lower(text, Inputs(2, 1, 2, 0, False))
    with pytest.raises(ValueError, match="program") as caught:
        lower(text, inputs)
    assert str(caught.value) == problem


def test_a_line_that_is_none_comes_before_an_index_that_is_not_there():
    with pytest.raises(ValueError, match="'b=pow"):
        lower(b"a=neg(v5);b=pow(a)", Inputs(1, 0, 0, 0, False))


@pytest.mark.parametrize("digits", ["9" * 18, str(2**63 - 1), str(2**63), str(2**64), "9" * 21])
def test_an_index_of_many_digits(digits):
    most = 2**63 - 1
    with pytest.raises(ValueError, match=f"there is no v{digits}$"):
        lower(f"a=neg(v{digits})".encode(), MANY)
    if int(digits) < most:
        lower(f"a=neg(v{digits})".encode(), Inputs(most, 0, 0, 0, False))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), -1])
def test_numbers_of_inputs_that_no_node_has(number):
    """Their registers overflow; nothing is written to where those would point."""
    text = f"a=sum(x0);b=mul(a,s{2**40});c=add(b,v0);assign(v0,c)".encode()
    for variables, scalars in ((number, 2**41), (9, number), (number, number)):
        inputs = Inputs(variables, 9, scalars, 0, False)
        if variables < 0 or scalars < 0:
            with pytest.raises(ValueError, match="there is no"):
                lower(text, inputs)
        else:
            lower(text, inputs)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"\x00", r"'\x00'"),
        (b"a\tb\nc\rd\\", r"'a\tb\nc\rd\\'"),
        (b"it's", '"it\'s"'),
        (b"'\"'", "'\\'\"\\''"),
        (b'"', "'\"'"),
        (b"\x1b[31m\x7f\x80\xff", r"'\x1b[31m\x7f\x80\xff'"),
        ("é\u202e".encode(), r"'\xc3\xa9\xe2\x80\xae'"),
        (b"a" * 200, "'" + "a" * 200 + "'"),
        (b"a" * 201, "'" + "a" * 200 + "'..."),
    ],
)
def test_bytes_in_messages(text, shown):
    assert len(text) > 200 or repr(text) == f"b{shown}"
    with pytest.raises(ValueError, match="program") as caught:
        lower(text, MANY)
    assert str(caught.value) == f"program: {shown}: it is not name=op(args)"
    with pytest.raises(ValueError, match="program") as caught:
        lower(b"a=neg(" + text + b")", MANY)
    assert str(caught.value).endswith(f": {shown} has no value")


def test_long_names_in_messages():
    name = b"n" * 300
    cut = "n" * 200 + "..."
    with pytest.raises(ValueError, match="program") as caught:
        lower(name + b"=neg(v0);" + name + b"=neg(v0)", MANY)
    assert str(caught.value) == f"program: '{'n' * 200}'...: {cut} has a value already"
    lower(name + b"=neg(v0);a=neg(" + name + b")", MANY)


def test_length():
    line = b"a=sum(x0);"
    with pytest.raises(ValueError, match=f"^program has {MOST_BYTES + 1} bytes, more than 65536$"):
        lower(b"x" * (MOST_BYTES + 1), MANY)
    with pytest.raises(ValueError, match=r"^program: 'x+'\.\.\.: it is not"):
        lower(b"x" * MOST_BYTES, MANY)
    with pytest.raises(ValueError, match="'': it is not"):
        lower(b";" * MOST_BYTES, MANY)
    with pytest.raises(ValueError, match=r"a=sum.*a has a value already"):
        lower(line * (MOST_BYTES // len(line)), MANY)
    arguments = ",".join(f"x{k}" for k in range(9000)).encode()
    with pytest.raises(ValueError, match="sum takes entries"):
        lower(b"a=sum(" + arguments + b")", MANY)


class Walls:
    """Memory before and behind which nothing must be read."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        pages = -(-size // page)
        self.memory = mmap.mmap(-1, (pages + 2) * page)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + page
        self.end = self.start + pages * page
        for wall in (self.start - page, self.end):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(wall), page, 0) == 0


def reason(text: str, inputs: Inputs) -> str:
    """Why a program is refused, by its lines; nothing if it is not."""
    try:
        lines = parse(text).instructions
    except ValueError as error:
        return str(error)
    limits = {"v": inputs.variables, "x": inputs.values, "s": inputs.scalars}
    for line in lines:
        for arg in line.args:
            known = leaf(arg)
            if known and known[1] >= limits[known[0]]:
                return f"program: {line.text!r}: there is no {arg}"
    results = sum(line.op == "result" for line in lines)
    problem = f"program has {results} results, not {inputs.results}"
    return problem if results != inputs.results else ""


@pytest.mark.parametrize("seed", range(20))
def test_texts_that_are_nearly_programs(seed):
    """They are refused as by their lines, and nothing but the text is read."""
    rng, walls, refused = random.Random(seed), Walls(2000), 0
    texts = [*PROGRAMS.values(), *(random_program(rng, 6) for _ in range(20))]
    for _ in range(200):
        text = mutated(rng, rng.choice(texts))
        data = text.encode()
        inputs = Inputs(rng.choice([2, 9]), 9, 9, rng.choice([0, 1]), bool(rng.randrange(2)))
        expected, found = reason(text, inputs), ""
        for address in (walls.start, walls.end - len(data)):
            ctypes.memmove(address, data, len(data))
            try:
                lower_at(address, len(data), inputs)
            except ValueError as error:
                found = str(error)
            assert bool(found) == bool(expected), text
        if text.isascii() and len(text) <= 200:
            assert found == expected
        refused += bool(found)
    assert 20 < refused < 200


@pytest.mark.parametrize("seed", range(5))
def test_any_bytes(seed):
    rng, walls = random.Random(seed), Walls(100)
    for _ in range(300):
        data = rng.randbytes(rng.randrange(60))
        if rng.random() < 0.5:
            data = b"a=neg(" + data + b");b=" + data
        address = walls.end - len(data)
        ctypes.memmove(address, data, len(data))
        with pytest.raises(ValueError, match=r"^program: ") as caught:
            lower_at(address, len(data), MANY)
        assert str(caught.value).isprintable()


# --- memory ------------------------------------------------------------------------------------


def test_more_instructions_than_there_is_memory_for(monkeypatch):
    text, inputs = PROGRAMS["k3_momentum"].encode(), Inputs(2, 1, 2, 0, False)
    count = len(lower(text, inputs).words)
    for capacity in (0, 1, count - 15, count - 1):
        monkeypatch.setattr(update_lowering, "most_words", lambda _, words=capacity: words)
        with pytest.raises(MemoryError, match=f"more words of instructions than {capacity}$"):
            lower(text, inputs)
    monkeypatch.setattr(update_lowering, "most_words", lambda _: count)
    assert len(lower(text, inputs).words) == count


#: What takes the most memory: each comma may part arguments, and each of those may be a value.
COMMAS = b"," * MOST_BYTES


def virtual_bytes() -> int:
    """The memory of this process, used or not."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def lowered_without_memory() -> bool:
    """Whether a program is refused in this process once it has no large block of memory left."""
    limit = virtual_bytes() + (40 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    malloc = ctypes.CDLL(None).malloc
    malloc.restype = ctypes.c_void_p
    while malloc(ctypes.c_size_t(16 << 20)):
        pass
    try:
        lower(COMMAS, MANY)
    except MemoryError as error:
        return str(error) == f"no memory for a program of {MOST_BYTES} bytes"
    return False


def test_no_memory():
    with pytest.raises(ValueError, match="it is not"):
        lower(COMMAS, MANY)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(not lowered_without_memory())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_memory_is_freed(monkeypatch):
    line, before = "a{0}=neg(x{0});scatter_add(v0,a{0})", virtual_bytes()
    text = ";".join(line.format(k) for k in range(900)).encode()
    for index in range(100):
        capacity = 0 if index % 2 else 1 << 17
        monkeypatch.setattr(update_lowering, "most_words", lambda _, words=capacity: words)
        for data, error in ((COMMAS, ValueError), (text, MemoryError if index % 2 else None)):
            if error is None:
                lower(data, MANY)
            else:
                with pytest.raises(error, match="program"):
                    lower(data, MANY)
    assert virtual_bytes() - before < 400 << 20
