from __future__ import annotations

import pytest

from fusion.schema.update_program import ENTRIES, MAX_BYTES, ROWS, SCALAR, leaf, parse
from tests.update_programs import NO_PROGRAMS

ADAGRAD = (
    "q=square(x0);scatter_add(v1,q);d=add(v1,s1);r=sqrt(d);t=take(r);"
    "n=mul(s0,x0);u=div(n,t);scatter_sub(v0,u)"
)


def test_lines_and_kinds():
    program = parse(ADAGRAD)
    assert [line.text for line in program.instructions] == ADAGRAD.split(";")
    first, second = program.instructions[:2]
    assert (first.name, first.op, first.args, first.is_write) == ("q", "square", ("x0",), False)
    assert (second.name, second.op, second.operands) == ("", "scatter_add", ("q",))
    assert second.is_write
    assert second.target == 1
    kinds = {"x0": ENTRIES, "q": ENTRIES, "v1": ROWS, "s1": SCALAR, "d": ROWS, "t": ENTRIES}
    assert kinds.items() <= program.kinds.items()


def test_spaces():
    assert parse("g = mul( x0 , s0 )".replace(" = ", "=") + " ; scatter_sub(v0, g)").instructions


@pytest.mark.parametrize(("text", "problem"), NO_PROGRAMS)
def test_what_is_no_program(text, problem):
    with pytest.raises(ValueError, match=r"^program: ") as caught:
        parse(text)
    assert problem in str(caught.value)


def test_length():
    line = "scatter_add(v0,x0)"
    fits = MAX_BYTES // (len(line) + 1)
    assert len(parse(";".join([line] * fits)).instructions) == fits
    with pytest.raises(ValueError, match=f"program has {MAX_BYTES + 1} bytes, more than 65536"):
        parse("x" * (MAX_BYTES + 1))


def test_leaves():
    assert leaf("x10") == ("x", 10)
    assert leaf("v0") == ("v", 0)
    assert [leaf(name) for name in ("x", "g", "x1y", "w0", "v@0", "", "v\u0663")] == [None] * 7
