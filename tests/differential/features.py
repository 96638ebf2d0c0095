"""What a case exercises, as rows of the parity table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.differential.case import Case
from tests.parity import UNFUSED, Cell

_NOT_FINITE = {"nan", "inf", "-inf"}
_NOT_POSITIVE = {"0", "-0", "-", "-inf"}


def _weights(case: Case) -> str | None:
    """The kind of the weights; stock TensorFlow takes those of the ids' kind alone."""
    return case.ids if case.is_rewritten and case.weights else case.weights


#: Rows that the eager cases exercise.
_EVERYWHERE: dict[str, Callable[[Case], bool]] = {
    "a Variable": lambda case: case.table == "variable",
    "a Tensor": lambda case: case.table == "tensor",
    "a list of Variables": lambda case: case.table == "variables",
    "a list of Tensors": lambda case: case.table == "tensors",
    "Variables and Tensors in one list": lambda case: case.table == "mixed" and case.shards > 1,
    "a ShardedVariable": lambda case: case.table == "sharded",
    "float32 tables": lambda case: case.dtype == "float32",
    "float64 tables": lambda case: case.dtype == "float64",
    "float16 tables": lambda case: case.dtype == "float16",
    "bfloat16 tables": lambda case: case.dtype == "bfloat16",
    "partition_strategy div": lambda case: case.shards > 1 and case.strategy == "div",
    "partition_strategy mod": lambda case: case.shards > 1 and case.strategy == "mod",
    "shards of different sizes": lambda case: case.rows % case.shards != 0,
    "more shards than rows": lambda case: case.shards > case.rows,
    "NaN and inf in the table": lambda case: bool(_NOT_FINITE & {*case.odd_rows}),
    "int32 ids": lambda case: case.ids_dtype == "int32",
    "int64 ids": lambda case: case.ids_dtype == "int64",
    "ids of rank 1": lambda case: case.shape == (),
    "ids of rank 2": lambda case: len(case.shape) == 1 and case.ids == "sparse",
    "ids of rank 3 and more": lambda case: len(case.shape) > 1,
    "ragged ids": lambda case: case.ids == "ragged",
    "rows in any order": lambda case: bool(np.any(np.diff(case.arrays.bags) < 0)),
    "repeated ids": lambda case: len(np.unique(case.arrays.values)) < len(case.arrays.values),
    "negative ids": lambda case: bool(np.any(case.arrays.values < 0)),
    "bags of up to 1000 ids": lambda case: max(case.lengths, default=0) > 100,
    "no ids at all": lambda case: case.bags > 0 and not any(case.lengths),
    "no rows at all": lambda case: case.bags == 0,
    "all rows empty": lambda case: any(case.lengths) and case.prune and case.negative == 1,
    "SparseTensor weights": lambda case: _weights(case) == "sparse",
    "Tensor weights": lambda case: _weights(case) == "tensor",
    "RaggedTensor weights": lambda case: _weights(case) == "ragged",
    "weights that are 0 or negative": lambda case: bool(_NOT_POSITIVE & {*case.odd_weights}),
    "NaN and inf among the weights": lambda case: bool(_NOT_FINITE & {*case.odd_weights}),
    "combiner sum": lambda case: case.combiner == "sum",
    "combiner mean": lambda case: case.combiner == "mean",
    "combiner sqrtn": lambda case: case.combiner == "sqrtn",
    "max_norm": lambda case: case.max_norm is not None and case.max_norm > 0,
    "max_norm 0.0": lambda case: case.max_norm == 0,
    "max_norm below 0": lambda case: case.max_norm is not None and case.max_norm < 0,
    "default_id 0": lambda case: case.default_id == 0,
    "another default_id": lambda case: case.default_id is not None and case.default_id > 0,
    "no default_id": lambda case: case.default_id is None,
    "no pruning": lambda case: not case.prune,
    "no filling": lambda case: not case.fill,
    "the same bits, forward and gradient": lambda case: case.is_exact,
    "weighted and clipped within rounding": lambda case: not case.is_exact,
    "gradients of weights": lambda case: case.weights is not None,
    "gradients with distinct ids": lambda case: case.bags > 0,
    "two runs with the same bits": lambda case: case.is_repeated,
    "eager": lambda case: case.mode == "eager",
}

_IN_GRAPHS: dict[str, Callable[[Case], bool]] = {
    "a PartitionedVariable": lambda case: case.table == "partitioned",
    "a v1 reference variable": lambda case: case.table == "ref",
    "a table of unknown shape": lambda case: case.table == "fed",
    "ids of unknown rank": lambda case: not case.known_rank and case.ids == "sparse",
    "tf.function": lambda case: case.mode == "function",
    "v1 sessions": lambda case: case.mode == "session",
}

#: The rows that cases of a lookup in eager mode exercise.
ROWS = tuple(_EVERYWHERE)


def cells(case: Case) -> list[Cell]:
    """The places of the parity table that a case is a test of."""
    column = case.version
    if column == "pass" and not case.is_fused:
        column = UNFUSED
    return [(row, column) for row, holds in (_EVERYWHERE | _IN_GRAPHS).items() if holds(case)]
