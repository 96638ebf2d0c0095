"""Whether this TensorFlow computes an op as the fused op does, to the bit: both are run.

How often TensorFlow rounds a product and its sum, and how it estimates `1 / sqrt(x)`, depends on
what it was compiled for. Ops are run in a session of their own, in the thread that asks, so that
this may be asked while TensorFlow optimizes a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from tensorflow.core.protobuf import config_pb2

from fusion.ops.updates.cpu_kernels.lowering import Inputs, lower
from fusion.runtime.tensorflow.private import (
    dtypes,
    errors,
    gen_math_ops,
    gen_resource_variable_ops,
    gen_training_ops,
    op_def_library,
    op_def_registry,
    ops,
    session,
)
from fusion.schema.names import UPDATE

_ROWS, _SEED = 512, 0
#: What estimates have a rule of their own for.
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e-40, 3e38)


class Formula(NamedTuple):
    """What a stock op computes, as a program.

    Attributes:
        program: of variables, one value and scalars.
        variables, scalars: how many it has.
        run: (handles, value, scalars, ids) -> what the stock op gives; its operation if it changes
            variables.
        multiple: the number of columns of a table must be a multiple of this.
    """

    program: str
    variables: int
    scalars: int
    run: Callable[[list[Any], Any, list[Any], Any], Any]
    multiple: int = 1


def _applied(apply: Callable[..., Any]) -> Callable[[list[Any], Any, list[Any], Any], Any]:
    return lambda handles, value, scalars, ids: apply(*handles, *scalars, value, ids)


#: TensorFlow estimates roots of as many floats at once, and computes what is left over otherwise.
_ESTIMATED = 8
_ACCUMULATED = "q=square(x0);o=take(v1);n=add(o,q);scatter_update(v1,n);g=mul(s0,x0);"

RSQRT = "Rsqrt"
#: Ops that change the rows of variables by distinct ids: (*handles, *scalars, value, ids).
APPLIES: dict[str, Formula] = {
    "ResourceSparseApplyAdagrad": Formula(
        f"{_ACCUMULATED}r=rsqrt(n);d=mul(g,r);scatter_sub(v0,d)",
        variables=2,
        scalars=1,
        run=_applied(gen_training_ops.resource_sparse_apply_adagrad),
        multiple=_ESTIMATED,
    ),
    "ResourceSparseApplyAdagradV2": Formula(
        f"{_ACCUMULATED}r=sqrt(n);e=add(r,s1);d=div(g,e);scatter_sub(v0,d)",
        variables=2,
        scalars=2,
        run=_applied(gen_training_ops.resource_sparse_apply_adagrad_v2),
    ),
}
_FORMULAS = APPLIES | {
    RSQRT: Formula(
        "r=rsqrt(x0);scatter_update(v0,r)",
        variables=1,
        scalars=0,
        run=lambda handles, value, scalars, ids: gen_math_ops.rsqrt(value),
        multiple=_ESTIMATED,
    )
}


def has_bits_of(op: str, dtype: int, dim: int) -> bool:
    """Whether the program of a stock op gives what that gives, for tables of `dim` columns.

    Args:
        op: one of `APPLIES`, or `RSQRT`.
        dtype: of the table, `types_pb2.DataType`.
        dim: D.
    """
    if dim % _FORMULAS[op].multiple or op_def_registry.get(UPDATE) is None:
        return False
    try:
        return _agrees(op, dtype)
    except errors.OpError:
        return False


@cache
def _agrees(op: str, dtype: int) -> bool:
    """Whether both leave the same; raises what running them raises, which is not remembered."""
    formula = _FORMULAS[op]
    return all(_is_same(formula, dtype, dim * formula.multiple) for dim in (1, 3))


def _is_same(formula: Formula, dtype: int, dim: int) -> bool:
    """Runs both on the same random numbers, and says whether they leave the same."""
    rng, kind = np.random.default_rng(_SEED), dtypes.as_dtype(dtype).as_numpy_dtype
    exponents = rng.uniform(-30.0, 30.0, (_ROWS, dim))
    value = (10.0**exponents).astype(kind)
    value.flat[: len(_SPECIAL)] = np.array(_SPECIAL, kind)[: value.size]
    starts = [rng.uniform(0.1, 2.0, (_ROWS, dim)).astype(kind) for _ in range(formula.variables)]
    numbers = rng.uniform(1e-7, 0.1, formula.scalars).astype(kind)
    with ops.Graph().as_default() as graph:
        ids, entries = ops.convert_to_tensor(np.arange(_ROWS)), ops.convert_to_tensor(value)
        scalars = [ops.convert_to_tensor(number) for number in numbers]
        stock, fused = (
            [_variable(dtype, (_ROWS, dim), f"{side}{index}") for index in range(len(starts))]
            for side in ("stock", "fused")
        )
        start_all = [
            gen_resource_variable_ops.assign_variable_op(handle, start)
            for handles in (stock, fused)
            for handle, start in zip(handles, starts, strict=True)
        ]
        theirs = formula.run(stock, entries, scalars, ids)
        ours = op_def_library.apply_op(
            UPDATE,
            handles=fused,
            ids=ids,
            values=[entries],
            scalars=scalars,
            num_results=0,
            dim=dim,
            offsets=[-1],
            sparse=[True] * formula.variables,
            program=formula.program,
            code=lower(formula.program, Inputs(formula.variables, 1, formula.scalars, 0, False)),
            deduplicate=False,
            wrap_negative=False,
        )
        after = [
            gen_resource_variable_ops.read_variable_op(handle, dtype) for handle in (*stock, *fused)
        ]
        with session.Session(graph=graph, config=_alone()) as running:
            running.run(start_all)
            output = running.run([theirs, ours])[0]
            left = running.run(after)
    expected, actual = left[: formula.variables], left[formula.variables :]
    expected = expected if output is None else [output]
    return all(
        bool(
            np.all(
                (one == other) & (np.signbit(one) == np.signbit(other))
                | np.isnan(one) & np.isnan(other)
            )
        )
        for one, other in zip(expected, actual, strict=True)
    )


def _variable(dtype: int, shape: tuple[int, ...], name: str) -> Any:
    return gen_resource_variable_ops.var_handle_op(dtype=dtype, shape=shape, shared_name=name)


def _alone() -> config_pb2.ConfigProto:
    """A session of the thread that asks, without devices or optimizers that could ask back."""
    config = config_pb2.ConfigProto(device_count={"GPU": 0}, inter_op_parallelism_threads=-1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    return config
