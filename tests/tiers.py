"""Which cases of which tests run where: `make test`, `make test-all`, `make soak`.

`FUSION_TESTS` names the tier: `fast`, `all`, `every`, or `rest`, those of `all` that are not in
`fast`. Without it pytest runs the fast tier, or `all` of files that are named on its command line.

tests/tiers.txt says of folders, files and tests how many cases of each test run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from tests.covering import chosen_rows, is_list, spread, values

T = TypeVar("T")
Tier = Literal["fast", "rest", "all", "every"]

#: Kernels that the tests of the fast tier use in their own processes: what a first run compiles.
MAX_KERNELS = 227
#: Seconds of processor time that a test may take, but for those of slow entries.
MAX_SECONDS = 2.0


class Cases(NamedTuple):
    """How many cases of each test run; more where values of parameters would be in none.

    The attributes are the columns of the table and its words.
    """

    fast: int = 4
    all: int = 8
    exact: bool = False
    same: bool = False
    dtypes: bool = False
    slow: bool = False


def read_table(text: str) -> dict[str, Cases]:
    """The rows of a table by their paths, "" for all tests.

    Raises:
      ValueError: a path has two rows.
    """
    found: dict[str, Cases] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            fast, most, path, *words = line.split()
            name = "" if path == "." else path
            if name in found:
                raise ValueError(f"tests/tiers.txt has two rows for {path}")
            found[name] = Cases(int(fast), int(most), **dict.fromkeys(words, True))
    return found


TABLE = read_table(Path(__file__).with_suffix(".txt").read_text())


def tier() -> Tier:
    """The tier of this process."""
    found = os.environ.get("FUSION_TESTS", "fast")
    if found not in get_args(Tier):
        raise ValueError(f"FUSION_TESTS is fast, rest, all or every, not {found!r}")
    return found  # type: ignore[return-value]


#: Whether all cases of all tests run.
ALL_CASES = tier() == "every"


def some(values: Sequence[T], step: int) -> Sequence[T]:
    """Of cases that are no product, such as seeds: each `step`-th, or all of them."""
    return values if ALL_CASES else values[::step]


def examples(count: int) -> int:
    """How many random examples a test draws, of so many; the fast tier draws some of them."""
    return max(2, count // 5) if tier() == "fast" else count


def entry(node: str) -> Cases:
    """The entry of a test.

    Args:
        node: its id, as `tests/ops/test_ops.py::test_all`.
    """
    return next(TABLE[name] for name in _names(node) if name in TABLE)


def _names(node: str) -> Iterator[str]:
    """A test, its file, and the folders that it is in, in this order."""
    name = node.partition("[")[0].removeprefix("tests/")
    while name:
        yield name
        name = name.rpartition("::" if "::" in name else "/")[0]
    yield ""


def _most(cases: Cases, now: Tier) -> int:
    return cases.fast if now == "fast" else cases.all


def runs(node: str) -> bool:
    """Whether a case of a test may run, or of one in a file."""
    name, now = node.removeprefix("tests/"), tier()
    inside = (cases for key, cases in TABLE.items() if key.startswith(f"{name}::"))
    return now == "every" or any(_most(cases, now) for cases in (entry(node), *inside))


def chosen(node: str, cases: Sequence[dict[str, Any]], refuses: bool = False) -> list[int]:
    """The indices, in their order, of the cases of a test that run.

    Args:
        node: the id of the test, without a case.
        cases: the values of the parameters of each; one of none is a test without parameters.
        refuses: whether it expects errors, of which `make test` has each, but where the test has
            a row of its own.
    """
    now = tier()
    if now == "every":
        return [*range(len(cases))]
    if now == "rest":
        fast = _chosen("fast", node, cases, refuses)
        return [index for index in _chosen("all", node, cases, refuses) if index not in fast]
    return _chosen(now, node, cases, refuses)


def _chosen(now: Tier, node: str, cases: Sequence[dict[str, Any]], refuses: bool) -> list[int]:
    cases_of = entry(node)
    indices = [*range(len(cases))]
    rows = [values(case) for case in cases]
    most = _most(cases_of, now)
    if now == "fast" and not cases_of.dtypes:
        indices = _of_float32(rows)
        rows = [rows[index] for index in indices]
    if len(indices) <= most or not most:
        return indices[:most]
    has_row = node.removeprefix("tests/") in TABLE
    is_exact = cases_of.exact and now == "fast" and (has_row or not refuses)
    if is_exact or (cases_of.same and is_list(rows)):
        return spread(indices, most)
    return [indices[index] for index in chosen_rows(rows, most)]


def _of_float32(rows: Sequence[Sequence[Any]]) -> list[int]:
    """The indices of rows without another float type where a column has float32, too.

    Those of all rows if each has one, as where two types meet.
    """
    columns = [[*map(_float_type, column)] for column in zip(*rows, strict=False)]
    mixed = [column for column in columns if "float32" in column]
    numbers = range(len(rows))
    found = [k for k in numbers if all(column[k] in (None, "float32") for column in mixed)]
    return found or [*numbers]


def _float_type(value: Any) -> str | None:
    """The name of a float type, of NumPy's, TensorFlow's or by name; None for other values."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] in (str, type):
        value = value[1]
    name = value if isinstance(value, str) else getattr(value, "name", None)
    name = getattr(value, "__name__", None) if isinstance(value, type) else name
    return name if name in _FLOATS else None


_FLOATS = frozenset({"bfloat16", "double", "float", "float16", "float32", "float64", "half"})
