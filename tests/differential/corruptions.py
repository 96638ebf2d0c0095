"""What can be wrong with a lookup: changes to a good call, and what has to be raised then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.differential.case import Case, split

Array = Any


@dataclass
class Call:
    """The arguments of a lookup, each of which can be made bad.

    Attributes:
      table: a list of arrays, which become Variables; anything else is passed as it is.
      tensors: the parts of the ids (`indices`, `values`, `dense_shape`), the weights, and their
        indices, of which graphs know rank and dtype.
      ids: makes the ids from their parts.
      options: the other arguments.
      weighted: whether the weights are given.
    """

    table: Any
    tensors: dict[str, Array]
    ids: Callable[[Any, Any, Any], Any]
    options: dict[str, Any]
    weighted: bool


def call_of(case: Case) -> Call:
    """The good call that a case describes."""
    arrays = case.arrays
    tensors = {
        "indices": arrays.indices,
        "values": arrays.values,
        "dense_shape": arrays.dense_shape,
        "weights": arrays.weights,
        "weights_indices": arrays.indices,
    }
    options = {
        "partition_strategy": case.strategy,
        "combiner": case.combiner,
        "max_norm": case.max_norm,
        "default_id": case.default_id,
    }
    return Call(split(case), tensors, tf.SparseTensor, options, case.weights is not None)


Change: TypeAlias = Callable[[Call, np.random.Generator], None]


@dataclass(frozen=True)
class Corruption:
    """A way in which a call is bad.

    Attributes:
      change: makes a good call bad.
      eager, graph: what is raised in eager mode, and in a graph that knows no sizes.
      stock: whether stock TensorFlow raises, too. Otherwise the contract is stricter or has the
        argument alone, or stock TensorFlow ends the process.
      by_pass: whether a graph that the pass rewrites can be given this.
      fields: of the case, strategies without which it cannot be bad in this way.
    """

    change: Change
    eager: type[Exception]
    graph: type[Exception]
    stock: bool = True
    by_pass: bool = False
    fields: dict[str, st.SearchStrategy[Any]] = field(default_factory=dict)


RUN_TIME = tf.errors.InvalidArgumentError

_SHARDS: dict[str, Any] = {"shards": st.integers(2, 4), "rows": st.integers(4, 20)}
_SINGLE: dict[str, Any] = {"dtype": st.just("float32")}
_WEIGHTS: dict[str, Any] = {"weights": st.just("sparse"), **_SINGLE}
_LENGTHS: dict[str, Any] = {"lengths": st.lists(st.integers(0, 3)).map(lambda n: (*n, 3))}
_SEVERAL_WEIGHTS: dict[str, Any] = {**_WEIGHTS, **_LENGTHS}
_EMPTY_ROW: dict[str, Any] = {"lengths": st.lists(st.integers(0, 3)).map(lambda n: (*n, 1, 0))}


def _element(tensor: str, value: Callable[[Call], int], *rest: int) -> Change:
    """Sets an element, somewhere along the first axis."""

    def change(call: Call, rng: np.random.Generator) -> None:
        array = call.tensors[tensor] = call.tensors[tensor].copy()
        array[(rng.integers(len(array)), *rest)] = value(call)

    return change


def _tensor(name: str, edit: Callable[[Array], Array]) -> Change:
    def change(call: Call, rng: np.random.Generator) -> None:
        call.tensors[name] = edit(call.tensors[name])

    return change


def _size(place: int, value: int) -> Change:
    def change(call: Call, rng: np.random.Generator) -> None:
        shape = call.tensors["dense_shape"].copy()
        shape[place] = value
        call.tensors["dense_shape"] = shape

    return change


def _other_weights(edit: Callable[[Array], Array]) -> Change:
    """Weights of another length, which are a good SparseTensor."""

    def change(call: Call, rng: np.random.Generator) -> None:
        for name in ("weights", "weights_indices"):
            call.tensors[name] = edit(call.tensors[name])

    return change


def _ids(make: Callable[..., Any]) -> Change:
    def change(call: Call, rng: np.random.Generator) -> None:
        call.ids = make

    return change


def _option(**options: Any) -> Change:
    def change(call: Call, rng: np.random.Generator) -> None:
        call.options |= options

    return change


def _table(edit: Callable[[list[Array]], Any]) -> Change:
    def change(call: Call, rng: np.random.Generator) -> None:
        call.table = edit(call.table)

    return change


def _rows(call: Call) -> int:
    return sum(map(len, call.table))


def _negative_id(call: Call, rng: np.random.Generator) -> None:
    _element("values", lambda _: -1)(call, rng)
    call.options["prune"] = False


def _default_id_outside(call: Call, rng: np.random.Generator) -> None:
    call.options["default_id"] = _rows(call)


def _last(edit: Callable[[Array], Array]) -> Callable[[list[Array]], list[Array]]:
    """Edits the last shard."""
    return lambda shards: [*shards[:-1], edit(shards[-1])]


#: Every kind of bad input that the contract of the lookups names.
CORRUPTIONS: dict[str, Corruption] = {
    # Ids and rows.
    "an id outside the table": Corruption(
        _element("values", _rows), RUN_TIME, RUN_TIME, by_pass=True
    ),
    "the largest id of the dtype": Corruption(
        _element("values", lambda call: np.iinfo(call.tensors["values"].dtype).max),
        RUN_TIME,
        RUN_TIME,
        by_pass=True,
    ),
    "a negative id without pruning": Corruption(_negative_id, RUN_TIME, RUN_TIME, stock=False),
    "a row outside the batch": Corruption(
        _element("indices", lambda call: call.tensors["dense_shape"][0], 0),
        RUN_TIME,
        RUN_TIME,
        by_pass=True,
    ),
    "a row far outside the batch": Corruption(
        _element("indices", lambda _: 2**62, 0), RUN_TIME, RUN_TIME, by_pass=True
    ),
    "a negative row": Corruption(
        _element("indices", lambda _: -1, 0), RUN_TIME, RUN_TIME, by_pass=True
    ),
    # Sizes.
    "more indices than ids": Corruption(
        _tensor("indices", lambda a: np.append(a, a[-1:], 0)), ValueError, RUN_TIME, stock=False
    ),
    "fewer indices than ids": Corruption(
        _tensor("indices", lambda a: a[:-1]), ValueError, RUN_TIME, by_pass=True
    ),
    "indices with too many columns": Corruption(
        _tensor("indices", lambda a: np.append(a, a[:, -1:], 1)), ValueError, RUN_TIME, by_pass=True
    ),
    "indices with too few columns": Corruption(
        _tensor("indices", lambda a: a[:, :1]), ValueError, RUN_TIME, by_pass=True
    ),
    "more weights than ids": Corruption(
        _other_weights(lambda a: np.append(a, a[-1:], 0)),
        ValueError,
        RUN_TIME,
        by_pass=True,
        fields=_SEVERAL_WEIGHTS,
    ),
    "fewer weights than ids": Corruption(
        _other_weights(lambda a: a[:-1]),
        ValueError,
        RUN_TIME,
        by_pass=True,
        fields=_SEVERAL_WEIGHTS,
    ),
    "a negative batch": Corruption(_size(0, -4), ValueError, RUN_TIME, by_pass=True),
    "a negative width": Corruption(_size(1, -4), ValueError, RUN_TIME, by_pass=True),
    "a width of -1": Corruption(_size(1, -1), ValueError, RUN_TIME, by_pass=True),
    "2**63 elements and more": Corruption(
        _size(1, 2**62), RUN_TIME, RUN_TIME, by_pass=True, fields=_EMPTY_ROW
    ),
    # Kinds and dtypes.
    "ids of dtype float32": Corruption(
        _tensor("values", lambda a: a.astype(np.float32)), TypeError, TypeError
    ),
    "ids of dtype int16": Corruption(
        _tensor("values", lambda a: a.astype(np.int16)), TypeError, TypeError
    ),
    "ids of dtype string": Corruption(
        _tensor("values", lambda a: a.astype(str)), TypeError, TypeError
    ),
    "ids that are a Tensor": Corruption(_ids(lambda _, v, s: v), TypeError, TypeError),
    "ids that are None": Corruption(_ids(lambda *_: None), TypeError, TypeError),
    "weights of dtype float64": Corruption(
        _tensor("weights", lambda a: a.astype(np.float64)), ValueError, ValueError, fields=_WEIGHTS
    ),
    "weights of dtype int32": Corruption(
        _tensor("weights", lambda a: a.astype(np.int32)), ValueError, ValueError, fields=_WEIGHTS
    ),
    # Options.
    "an unknown combiner": Corruption(_option(combiner="max"), ValueError, ValueError),
    "a combiner that is a number": Corruption(_option(combiner=3), ValueError, ValueError),
    "an unknown partition_strategy": Corruption(
        _option(partition_strategy="hash"), ValueError, ValueError, fields=_SHARDS
    ),
    "a default_id outside the table": Corruption(
        _default_id_outside, RUN_TIME, RUN_TIME, fields=_EMPTY_ROW
    ),
    "a default_id below 0": Corruption(_option(default_id=-1), ValueError, ValueError, stock=False),
    "a default_id that does not fit the ids": Corruption(
        _option(default_id=2**64), ValueError, ValueError
    ),
    "a default_id that is no integer": Corruption(_option(default_id=1.5), TypeError, TypeError),
    "a max_norm that is no number": Corruption(_option(max_norm="a"), ValueError, ValueError),
    "a max_norm of NaN": Corruption(
        _option(max_norm=float("nan")), ValueError, ValueError, stock=False
    ),
    "a max_norm of several numbers": Corruption(
        _option(max_norm=[1.0, 2.0]), ValueError, ValueError, stock=False
    ),
    "blocknums": Corruption(
        _option(blocknums=3), NotImplementedError, NotImplementedError, stock=False
    ),
    "an unknown fusion_version": Corruption(
        _option(fusion_version="v3"), ValueError, ValueError, stock=False
    ),
    # Tables.
    "no table": Corruption(_table(lambda _: None), ValueError, ValueError),
    "an empty list of shards": Corruption(_table(lambda _: []), ValueError, ValueError),
    "shards of different widths": Corruption(
        _table(_last(lambda a: np.append(a, a[:, :1], 1))), ValueError, ValueError, fields=_SHARDS
    ),
    "shards of different dtypes": Corruption(
        _table(_last(lambda a: a.astype(np.float64))),
        ValueError,
        ValueError,
        fields={**_SHARDS, **_SINGLE},
    ),
    "a table of rank 1": Corruption(
        _table(lambda shards: [a[:, 0] for a in shards]), ValueError, ValueError, stock=False
    ),
    "a table of rank 3": Corruption(
        _table(lambda shards: [a[None] for a in shards]), ValueError, ValueError, stock=False
    ),
    "a table of dtype int32": Corruption(
        _table(lambda shards: [np.zeros(a.shape, np.int32) for a in shards]),
        TypeError,
        TypeError,
        stock=False,
    ),
    "a table of dtype complex64": Corruption(
        _table(lambda shards: [np.zeros(a.shape, np.complex64) for a in shards]),
        TypeError,
        TypeError,
    ),
    "an empty row of a table without rows": Corruption(
        _table(lambda shards: [a[:0] for a in shards]), RUN_TIME, RUN_TIME, fields=_EMPTY_ROW
    ),
}
