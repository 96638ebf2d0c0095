"""FusedEmbeddingUpdate leaves out rows that stay as they are: without entries, of zero slots."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.ops.update_cases import ADAM, Case
from tests.update_programs import PROGRAMS, counts


def sweep_case(text, slots, scalars=None, rows=3000, dim=8, count=5, **kwargs):
    """A case whose slots are given: zeros in most blocks of rows, so that these may be skipped."""
    case = Case(text, rows, dim, count, **kwargs)
    for index in range(1, case.counts["v"]):
        case.start[index] = np.full((rows, dim), slots, case.dtype)
        case.start[index][[0, 97]] = 0.5
    if scalars is not None:
        case.scalars = [tf.constant(value, case.dtype) for value in scalars]
    return case


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("slots", [0.0, -0.0])
def test_rows_of_zero_slots(name, dtype, slots):
    for dim in (1, 3, 8, 40):
        sweep_case(PROGRAMS[name], slots, dim=dim, dtype=dtype).check(steps=3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0, -0.0])
@pytest.mark.parametrize("which", range(4))
def test_scalars_that_change_rows_of_zero_slots(bad, which):
    """As 0 * inf does, and 0 / (sqrt(0) + 0)."""
    scalars = [0.1, 0.01, 0.5, 1e-7]
    scalars[which] = bad
    sweep_case(ADAM, 0.0, scalars).check()


@pytest.mark.parametrize(
    "text",
    [
        ADAM.replace("p=sub(v0,o)", "p=add(v0,o)"),
        ADAM.replace("p=sub(v0,o)", "p=sub(o,v0)"),
        ADAM + ";z=mul(p,s2);assign(v1,z)",
        ADAM + ";z=add(v0,v0);assign(v1,z)",
        "a=neg(v1);b=sub(v0,a);assign(v0,b);c=sum(x0);assign(v1,c)",
        "a=sub(v0,s0);assign(v0,a);c=sum(x0);assign(v1,c)",
        "c=sum(x0);assign(v1,c);a=mul(v0,s0);b=sub(v0,a);assign(v0,b)",
        "c=sum(x0);a=sub(v0,c);assign(v0,a)",
    ],
)
def test_programs_that_change_rows_of_zero_slots_or_do_not(text):
    scalars = [0.1, 0.01, 0.5, 1e-7][: counts(text)["s"]]
    case = sweep_case(text, 0.0, scalars)
    case.start[0][::3] = -0.0
    case.check(steps=3)


def test_a_table_of_what_is_not_finite_beside_zero_slots():
    case = sweep_case(ADAM, 0.0, special=True)
    case.start[0] = np.where(np.abs(case.start[0]) < 1e-30, 1, case.start[0])  # no denormals
    case.check(steps=3)


def test_rows_that_stay_are_not_computed():
    """A difference of a signaling NaN and 0 is a quiet one."""
    case = sweep_case(ADAM, 0.0)
    signaling, quiet = 0x7FA00000, 0x7FE00000
    case.start[0].view(np.int32)[:] = signaling
    variables = case.variables()
    case.update(variables)
    bits = variables[0].numpy().view(np.int32)
    touched = np.zeros(case.rows, bool)
    touched[case.ids.numpy()] = True
    touched[[0, 97]] = True  # slots that are not zero
    np.testing.assert_array_equal(bits[touched], quiet)
    # Blocks with entries, or with slots that are not zero, are computed whole.
    assert np.mean(bits == signaling) > 0.5
    # A second read of the table rules skipping out.
    case.text += ";z=add(v0,v0);assign(v1,z)"
    variables = case.variables()
    case.update(variables)
    np.testing.assert_array_equal(variables[0].numpy().view(np.int32), quiet)
