"""What is tested against stock TensorFlow, in which version: `python -m tests.parity` prints it.

A test says what it covers with a marker,

    @pytest.mark.parity("max_norm 0.0", "v1", "v2")

a row of `ROWS`, in which "{name}" stands for the test's parameter of that name, and columns of
`COLUMNS`. Without columns, it is the version that the test is parametrized with, an argument named
`version`, `fusion_version` or `do_fusion`. The table is made from the markers alone, so that
nothing stands there that no test covers.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pytest

from tests.differential.corruptions import CORRUPTIONS
from tests.feature_column.kinds import KINDS

#: The rows by group, in the order of the table.
ROWS: dict[str, tuple[str, ...]] = {
    "Tables": (
        "a Variable",
        "a Tensor",
        "a list of Variables",
        "a list of Tensors",
        "Variables and Tensors in one list",
        "a ShardedVariable",
        "a PartitionedVariable",
        "a v1 reference variable",
        "a table of unknown shape",
        "float32 tables",
        "float64 tables",
        "float16 tables",
        "bfloat16 tables",
        "partition_strategy div",
        "partition_strategy mod",
        "shards of different sizes",
        "more shards than rows",
        "NaN and inf in the table",
    ),
    "Ids": (
        "int32 ids",
        "int64 ids",
        "ids of rank 1",
        "ids of rank 2",
        "ids of rank 3 and more",
        "ids of unknown rank",
        "ragged ids",
        "rows in any order",
        "repeated ids",
        "negative ids",
        "bags of up to 1000 ids",
        "no ids at all",
        "no rows at all",
        "all rows empty",
    ),
    "Weights": (
        "SparseTensor weights",
        "Tensor weights",
        "RaggedTensor weights",
        "weights that are 0 or negative",
        "NaN and inf among the weights",
    ),
    "Options": (
        "combiner sum",
        "combiner mean",
        "combiner sqrtn",
        "max_norm",
        "max_norm 0.0",
        "max_norm below 0",
        "default_id 0",
        "another default_id",
        "no default_id",
        "no pruning",
        "no filling",
    ),
    "Results": (
        "the same bits, forward and gradient",
        "weighted and clipped within rounding",
        "gradients of weights",
        "gradients with distinct ids",
        "two runs with the same bits",
    ),
    "Execution": (
        "eager",
        "tf.function",
        "v1 sessions",
        "shards on devices of their own",
        "variables with replicas",
        "made one op by the pass",
    ),
    "Training": (
        "several lookups of one table",
        "fused beside stock lookups of one table",
        "persistent tapes",
        "gradients of gradients",
        "optimizers of compat.v1",
        "optimizers of Keras 3 and tf_keras",
    ),
    "Feature columns": (
        *(f"column: {kind}" for kind in KINDS),
        "shared_embeddings",
        "shared_embedding_columns",
        "several columns at once",
        "columns with max_norm",
        "columns with trainable=False",
        "columns with ckpt_to_load_from",
        "columns with use_safe_embedding_lookup=False",
        "columns of dimension 1",
        "columns of partitioned tables",
    ),
    "Hosts of columns": (
        "compat.v1 input_layer",
        "compat.v1 linear_model",
        "tf_keras DenseFeatures, eager",
        "tf_keras DenseFeatures, tf.function",
        "tf_keras DenseFeatures in a functional model",
        "tf_keras DenseFeatures in a sequential model",
        "tf_keras DenseFeatures in a subclassed model",
        "tf_keras models saved and loaded",
        "tf_keras SequenceFeatures",
        "Keras 3 DenseFeatures",
        "Keras 3 DenseFeatures of single ids, without a sparse detour",
        "Keras 3 DenseFeatures of values and offsets",
        "Keras 3 DenseFeatures, stacked",
        "Keras 3 DenseFeatures in inference",
        "Keras 3 DenseFeatures in a functional model",
        "Keras 3 DenseFeatures in a sequential model",
        "Keras 3 DenseFeatures in a subclassed model",
        "Keras 3 LinearFeatures",
        "tf_keras LinearFeatures",
        "Keras 3 models trained",
        "Keras 3 models saved and loaded",
        "Keras 3 models exported",
    ),
    # Of the tests in tests/differential/corruptions.py, in their order.
    "Bad input": tuple(CORRUPTIONS),
}

#: The versions of the lookups, and stock graphs rewritten by the pass.
COLUMNS = ("v1", "v2", "pass")

#: In place of "pass": tests that the pass leaves such lookups alone.
UNFUSED = "unfused"

#: What no stock graph has.
NOT_IN_GRAPHS = {
    "Tensor weights",
    "eager",
    "persistent tapes",
    *(name for name, corruption in CORRUPTIONS.items() if not corruption.by_pass),
}

Cell: TypeAlias = tuple[str, str]
Coverage: TypeAlias = Mapping[Cell, Iterable[str]]

_ARGUMENTS = ("version", "fusion_version", "do_fusion")

_HEAD = """# What is tested against stock TensorFlow

Made from the tests by `make parity`; the tests fail if it is not current. *yes*: the tests with
these numbers compare with stock TensorFlow, or show that bad input raises. *left to stock*: they
show that the pass leaves such lookups as they are. *no*: no test covers it. *-*: no stock graph
has it, or none can be given it.
"""


class Collector:
    """A pytest plugin that reads the markers of all tests."""

    def __init__(self) -> None:
        self.coverage: dict[Cell, set[str]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("parity"):
                row, *columns = marker.args
                row = row.format(**_parameters(item))
                for column in columns or _versions(item):
                    self.coverage[_checked(item, row, column)].add(_name(item))


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _versions(item: pytest.Item) -> list[str]:
    """The version that the test is parametrized with."""
    arguments = [_parameters(item).get(name) for name in _ARGUMENTS]
    found = [version for version in COLUMNS if version in arguments]
    if not found:
        raise pytest.UsageError(f"{item.nodeid}: the parity marker needs columns")
    return found


def _checked(item: pytest.Item, row: Any, column: Any) -> Cell:
    if not any(row in rows for rows in ROWS.values()) or column not in (*COLUMNS, UNFUSED):
        raise pytest.UsageError(f"{item.nodeid}: the parity table has no place {row!r}, {column!r}")
    return row, column


def _name(item: pytest.Item) -> str:
    """The test without its parameters, but for the area of random lookups."""
    area = _parameters(item).get("area")
    return item.nodeid.partition("[")[0] + (f"[{area}]" if area else "")


def collect() -> Coverage:
    """The tests of each cell.

    Raises:
      RuntimeError: the tests cannot be collected; the message is pytest's.
    """
    collector, output = Collector(), io.StringIO()
    os.environ["FUSION_TESTS"] = "every"
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider"], [collector])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(output.getvalue())
    return collector.coverage


def table(coverage: Coverage) -> str:
    """The tables, and the tests by number, in Markdown."""
    tests = sorted({name for names in coverage.values() for name in names})
    numbers = {name: number for number, name in enumerate(tests, 1)}
    lines = [_HEAD]
    for group, rows in ROWS.items():
        lines += [f"## {group}\n", f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
        for row in rows:
            cells = (_cell(coverage, row, column, numbers) for column in COLUMNS)
            lines.append(f"| {row} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Tests\n", *(f"{number}. `{name}`" for name, number in numbers.items())]
    return "\n".join(lines) + "\n"


def _cell(coverage: Coverage, row: str, column: str, numbers: Mapping[str, int]) -> str:
    places = {"yes": (row, column)}
    if column == "pass":
        places["left to stock"] = (row, UNFUSED)
    for text, place in places.items():
        if place in coverage:
            return f"{text} ({', '.join(map(str, sorted(numbers[n] for n in coverage[place])))})"
    return "-" if column == "pass" and row in NOT_IN_GRAPHS else "no"


if __name__ == "__main__":
    sys.stdout.write(table(collect()))
