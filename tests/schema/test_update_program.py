from __future__ import annotations

import pytest

from fusion.schema.update_program import ENTRIES, ROWS, SCALAR, leaf, parse

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


@pytest.mark.parametrize(
    ("text", "is_sweep", "needs_rows", "results"),
    [
        (ADAGRAD, False, True, 0),
        ("g=sum(x0);assign(v0,g)", True, False, 0),
        ("scatter_update(v0,x0)", False, True, 0),
        ("g=sum(x0);t=take(g);result(t);result(x0);assign(v0,g)", True, True, 2),
        ("result(x0)", False, True, 1),
        ("g=sum(x0)", False, False, 0),
    ],
)
def test_what_a_program_does(text, is_sweep, needs_rows, results):
    program = parse(text)
    assert program.is_sweep == is_sweep
    assert program.needs_rows == needs_rows
    assert program.result_count == results
    program.check(9, 9, 9, results)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'': it is not name=op(args)"),
        ("g=sum(x0);", "'': it is not name=op(args)"),
        ("g=sum(x0", "'g=sum(x0': it is not name=op(args)"),
        ("g=sum(neg(x0))", "it is not name=op(args)"),
        ("1=neg(x0)", "it is not name=op(args)"),
        ("g=neg()", "'' has no value"),
        ("g=neg(h)", "'h' has no value"),
        ("g=neg(g)", "'g' has no value"),
        ("neg(x0)", "neg gives a value"),
        ("g=assign(v0,v1)", "assign gives no value"),
        ("g=neg(x0);g=neg(x0)", "g has a value already"),
        ("v2=neg(x0)", "v2 has a value already"),
        ("g=cbrt(x0)", "there is no operation 'cbrt'"),
        ("g=add(x0)", "add has not 1 operands"),
        ("g=neg(x0,x0)", "neg has not 2 operands"),
        ("g=add(x0,v0)", "add of entries and rows"),
        ("g=add(s0,s1)", "add of scalar and scalar"),
        ("g=sqrt(s0)", "sqrt of scalar"),
        ("g=sum(v0)", "sum takes entries"),
        ("g=sum(x0,x1)", "sum takes entries"),
        ("g=take(x0)", "take takes rows"),
        ("assign(v0,x0)", "assign takes v, rows"),
        ("assign(v0,s0)", "assign takes v, rows"),
        ("g=sum(x0);assign(g,v0)", "assign takes v, rows"),
        ("scatter_add(v0,v1)", "scatter_add takes v, entries"),
        ("scatter_sub(x0,x0)", "scatter_sub takes v, entries"),
        ("result(v0)", "result takes entries"),
    ],
)
def test_what_is_no_program(text, problem):
    with pytest.raises(ValueError, match=r"^program: ") as caught:
        parse(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ((1, 1, 2, 0), r"program: 'scatter_add\(v1,q\)': there is no v1"),
        ((2, 0, 2, 0), r"program: 'q=square\(x0\)': there is no x0"),
        ((2, 1, 1, 0), r"program: 'd=add\(v1,s1\)': there is no s1"),
        ((2, 1, 2, 1), "program has 0 results, not 1"),
    ],
)
def test_inputs_that_are_not_there(counts, problem):
    parse(ADAGRAD).check(2, 1, 2, 0)
    with pytest.raises(ValueError, match=problem):
        parse(ADAGRAD).check(*counts)


def test_leaves():
    assert leaf("x10") == ("x", 10)
    assert leaf("v0") == ("v", 0)
    assert [leaf(name) for name in ("x", "g", "x1y", "w0", "v@0", "")] == [None] * 6
